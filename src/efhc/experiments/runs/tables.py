"""Which tables a run leaves. That depends on its driver, and on nothing else.

A driver that is new here is one `RunTables`, and one branch of `make_run` in `engines/local.py` that makes its runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from efhc.base.errors import InputError
from efhc.base.policy import kind_of
from efhc.drivers.event_driven.record import EXCHANGES, NETWORK, STEPS, TIMELINE
from efhc.drivers.record import METRICS, Frame
from efhc.experiments.config.experiment import Experiment
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import form_of

RUN, SEED = ("strategy", "seed"), ("seed",)
"""The columns that name a row's run, if each run has a table of its own, or its seed, if all strategies share one."""


@dataclass(frozen=True)
class RunTables:
    """The tables of the runs of one driver, each a NAME.parquet."""

    driver: str
    """The kind of the driver."""
    labels: Mapping[str, tuple[str, ...]]
    """The recorded tables, in order, which grow while a run goes, and the columns in front that name the run."""
    curve: str
    """The table with the accuracies over time."""

    @property
    def names(self) -> tuple[str, ...]:
        """All tables: those that are recorded, and the one of the devices."""
        return (*self.labels, "devices")

    def is_per_strategy(self, name: str) -> bool:
        """Return whether each strategy has rows of its own in a table. If not, all strategies of a seed share them."""
        return "strategy" in self.labels.get(name, ())


LOCKSTEP = RunTables("lockstep", {"metrics": RUN, "events": RUN, "network": SEED}, "metrics")
EVENT_DRIVEN = RunTables("event-driven", {"timeline": RUN, "exchanges": RUN, "steps": RUN, "network": SEED}, "timeline")
_DRIVERS = {tables.driver: tables for tables in (LOCKSTEP, EVENT_DRIVEN)}


def tables_of(experiment: Experiment) -> RunTables:
    """Return the tables that the runs of an experiment leave."""
    return _DRIVERS[driver_of(experiment)]


def driver_of(experiment: Experiment) -> str:
    """Return the kind of the driver that makes the runs of an experiment."""
    return str(kind_of(type(experiment.driver)))


def require_lockstep(experiment: Experiment, what: str) -> None:
    """Raise `InputError` unless all devices step together. `what` names the part that does not work otherwise."""
    if (driver := driver_of(experiment)) != LOCKSTEP.driver:
        raise InputError("driver", driver, f"{LOCKSTEP.driver}; {what} needs devices that all step together")


def require_papers_form(experiment: Experiment) -> None:
    """Raise `InputError` unless the paper's analysis is about the experiment.

    All devices step together, all strategies differ from EF-HC in nothing but the trigger, and no message gets lost.
    """
    for name, kind in not_of_papers_form(experiment).items():
        raise InputError(f"strategies.{name}", f"'{kind}'", OF_THE_PAPER)
    require_papers_setting(experiment)


OF_THE_PAPER = "strategies that differ from EF-HC in nothing but their thresholds, which the paper's analysis is about"


def not_of_papers_form(experiment: Experiment) -> dict[str, str]:
    """Return the kinds of the strategies that differ from EF-HC in more than the trigger, by name."""
    found = {}
    for name, strategy in experiment.strategies.items():
        is_personal = getattr(strategy, "personal", None) is not None
        if is_personal or not form_of(strategy, name).is_papers:
            kind = str(getattr(strategy, "kind", type(strategy).__name__))
            found[name] = f"{kind} with personal models" if is_personal else kind
    return found


def require_papers_setting(experiment: Experiment) -> None:
    """Raise `InputError` unless all devices step together, and no message gets lost."""
    what = "the paper's analysis"
    require_lockstep(experiment, what)
    if loss := getattr(experiment.driver, "loss", None):
        raise InputError("driver.loss", loss, f"no value; {what} is about messages that all arrive")


LABELS: dict[str, pl.DataType] = {"strategy": pl.String(), "seed": pl.Int64()}


def labelled(table: Frame, labels: Iterable[str], strategy: str, seed: int) -> Frame:
    """Return the table with the columns `labels`, which name the run, in front."""
    values: dict[str, Any] = {"strategy": strategy, "seed": seed}
    if isinstance(table, pl.LazyFrame):
        return table.select(*(pl.lit(values[label], LABELS[label]).alias(label) for label in labels), pl.all())
    # For a table in memory, a select would take ten times as long, which short runs would feel.
    front: list[pl.Series] = [
        pl.Series(label, [values[label]], LABELS[label]).new_from_index(0, len(table)) for label in labels
    ]
    return pl.DataFrame([*front, *table.get_columns()])


DEVICES = {
    "seed": pl.Int64(),
    "device": pl.Int32(),
    "bandwidth": pl.Float64(),
    "samples": pl.Int64(),
    "labels": pl.List(pl.Int32()),
    "label_samples": pl.List(pl.Int64()),
}


def devices_table(scenario: Scenario, seed: int) -> pl.DataFrame:
    """Return of each device its bandwidth, number of samples, labels (none if they are no classes) and their counts."""
    data = scenario.learner.data
    labels = data.y_train if data.has_classes else np.empty((len(data.y_train), 0), np.int64)
    rows = [
        (seed, device, bandwidth, len(part), *(one.tolist() for one in np.unique(labels[part], return_counts=True)))
        for device, (bandwidth, part) in enumerate(zip(scenario.bandwidths.values, scenario.learner.parts, strict=True))
    ]
    return pl.DataFrame(rows, schema=DEVICES, orient="row")


_LIST = pl.List(pl.Int32())
SCHEMAS: Mapping[str, Mapping[str, pl.DataType]] = {
    "metrics": METRICS,
    "events": {
        "iteration": pl.Int64(),
        **dict.fromkeys(("fired", "link_from", "link_to"), _LIST),
        **dict.fromkeys(("bits_forth", "bits_back"), pl.List(pl.Int64())),
    },
    "timeline": TIMELINE,
    "exchanges": EXCHANGES,
    "steps": STEPS,
    "network": NETWORK,
    "devices": {name: kind for name, kind in DEVICES.items() if name != "seed"},
}
"""The columns of tables of which nothing is there yet."""
