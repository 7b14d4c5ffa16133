"""How well the simulator predicts nodes: each experiment in both ways, and what it takes until a target is reached.

DIR/prediction.csv          a row per experiment, strategy and seed: measured, predicted, and the error
DIR/prediction-curves.csv   the measure over seconds and bytes, of both
DIR/prediction.png          the curves, measured solid and predicted dashed
DIR/NAME/predicted          the run directory of the event-driven simulator
DIR/NAME/measured           the run directory of the nodes, each in a network namespace with b_i as its rate
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from efhc.base.errors import InputError
from efhc.base.saving import write_safely
from efhc.drivers.event_driven.compute import ConstantCompute
from efhc.drivers.event_driven.links import SharedLinks
from efhc.drivers.event_driven.rates import ConstantRates
from efhc.drivers.settings import EventDriven
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.nodes.launch import View, launch
from efhc.experiments.nodes.namespaces import require_namespaces
from efhc.experiments.runs.simulate import simulate
from efhc.experiments.runs.tables import driver_of
from efhc.learning.measures import measure_of
from efhc.report.timelines import compare_timelines
from efhc.strategies.forms import form_of

TABLE, CURVES, FIGURE = "prediction.csv", "prediction-curves.csv", "prediction.png"
EXAMPLES = ("examples/prediction-svm.toml", "examples/prediction-lenet5.toml")
"""The experiments that are compared unless others are named."""
LATE_SECONDS = 0.5
"""Seconds by which the first step of a node may be late."""
COLUMNS = ("strategy", "seed", "seconds", "bytes")


def predict(
    experiments: Sequence[Experiment],
    out: Path,
    report: Callable[[str], None] = lambda text: None,
    view: View = lambda run, answers: None,
    warn: Callable[[str], None] = lambda text: None,
) -> pl.DataFrame:
    """Run each experiment by the simulator and by nodes, and compare. What is in `out` already is not run again.

    Returns a row per experiment, strategy and seed; see `compare_timelines`. `report` is called with what is
    being run, and `view` with the state of the nodes. Raises `InputError` if an experiment has something that nodes
    cannot do as the simulator does it, and `EfhcError` without root.
    """
    from efhc.report.figures import run_title, save_figure
    from efhc.report.figures.runs import Curves, prediction_figure

    comparable = [(experiment, *check_comparable(experiment)) for experiment in experiments]
    for name, count in Counter(experiment.name for experiment in experiments).items():
        if count > 1:
            raise InputError(
                "name", f"{count} experiments named {name}", "different names: results are named after them"
            )
    require_namespaces()
    curves, tables, rows = {}, [], []
    for experiment, target, pace in comparable:
        folder = out / experiment.name
        report(f"{experiment.name}: the simulator")
        predicted = simulate(experiment, out=folder / "predicted", resume=True, warn=warn)
        report(f"{experiment.name}: the nodes")
        measured = launch(experiment, folder / "measured", netns=True, resume=True, view=view, warn=warn)
        for line in late_starts(measured.steps, pace):
            warn(f"{experiment.name}: {line}")
        measure = measure_of(measured.timeline, experiment.measure)
        curves[run_title(experiment)] = Curves(measured.timeline, predicted.timeline, target, measure)
        named = pl.lit(experiment.name).alias("experiment")
        compared = compare_timelines(measured.timeline, predicted.timeline, measure, target)
        tables.append(compared.select(named, pl.all()))
        for source, result in (("measured", measured), ("predicted", predicted)):
            rows.append(result.timeline.select(named, pl.lit(source).alias("source"), *COLUMNS, measure.name))
    table = pl.concat(tables)
    write_safely(out / TABLE, table.write_csv(float_precision=4).encode())
    write_safely(out / CURVES, pl.concat(rows, how="diagonal").write_csv(float_precision=4).encode())
    save_figure(prediction_figure(curves), out / FIGURE)
    return table


def late_starts(steps: pl.DataFrame, pace: float) -> list[str]:
    """Return a line for each run in which a device made its first step too late, so that its seconds do not count."""
    first = (
        steps.filter(pl.col("k") == 0).group_by("strategy", "seed", maintain_order=True).agg(pl.col("seconds").max())
    )
    return [
        f"{strategy}, seed {seed}: a node began {seconds - pace:.1f} s late, because the machine is busy; "
        "remove the run directory and try again"
        for strategy, seed, seconds in first.rows()
        if seconds > pace + LATE_SECONDS
    ]


def check_comparable(experiment: Experiment) -> tuple[float, float]:
    """Return the target, and the seconds that the slowest device takes for a step.

    Raises `InputError` if nodes in namespaces would not be what the simulator simulates.
    """
    driver = experiment.driver
    if not isinstance(driver, EventDriven):
        raise InputError("driver.kind", f"'{driver_of(experiment)}'", "'event-driven', which has seconds")
    if driver.seconds is None or driver.target is None:
        missing = "seconds" if driver.seconds is None else "target"
        raise InputError(f"driver.{missing}", "nothing", "a number, because the prediction is about it")
    if not isinstance(driver.compute, ConstantCompute):
        raise InputError(
            "driver.compute.kind", "", "'constant'", "`efhc predict` needs 'constant', the pace that nodes keep."
        )
    if not isinstance(driver.links, SharedLinks) or not isinstance(driver.links.rates, ConstantRates):
        raise InputError("driver.links", "", "'shared'", "`efhc predict` needs kind = 'shared' with constant rates.")
    if driver.links.loss or driver.churn is not None:
        raise InputError("driver", "", "neither", "`efhc predict` needs links without loss, and no churn.")
    laws = [form_of(strategy, name).half_steps for name, strategy in experiment.strategies.items()]
    if not experiment.exchange_at_start and not all(laws):
        raise InputError("exchange_at_start", "false", "true: nodes that meet exchange models (Event 1)")
    if experiment.exchange_at_start and any(laws):
        given = "true with mixing 'half-steps'"
        raise InputError("exchange_at_start", given, "false: nodes that start from one model know it")
    pace = driver.compute.seconds
    return driver.target, max(pace) if isinstance(pace, tuple) else pace
