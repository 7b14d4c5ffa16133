"""`efhc theory RUN_DIR`: were the assumptions met, what did the theorems promise, what happened?

The network's behaviour is read from the run directory, and so are the models if the run kept some on its way. If it
did not, a short run is made again: that gives the same models bit for bit, and is checked to fire as recorded. Of a
long run only the first and the last models are looked at, unless more is asked for. Where no theorem applies, because
the loss is not smooth, no models are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import using_inputs
from efhc.core.graph import Graph
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.experiment_folder import ExperimentFolder
from efhc.experiments.runs.resources import usable_cores
from efhc.experiments.runs.result import Result
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.tables import require_lockstep, require_papers_form
from efhc.experiments.studies.theory_models import (
    POINTS,
    Effort,
    ReportProgress,
    SeedProblem,
    Visits,
    Work,
    in_parallel,
    not_made,
    replay_run,
    same_run,
    spread,
    thinned,
)
from efhc.kernels.compiled_arithmetic import consensus_error
from efhc.learning.data import Dataset
from efhc.theory.check.assess import StrategyCheck, assess
from efhc.theory.check.connectivity_checks import check_flow
from efhc.theory.check.outcome import Check
from efhc.theory.check.promises import SeedCheck, firing_of
from efhc.theory.connectivity.contractions import window_contractions
from efhc.theory.connectivity.flow import Flow
from efhc.theory.connectivity.windows import WantedWindow, connectivity, fitting_window, future_links
from efhc.theory.constants.measured import Measured, look, look_at_several

MUCH_DATA = 10_000_000
"""The number of values in the training data above which matrix products gain from several threads."""
ENDS = ("link_from", "link_to")
GRAPHS = 32
"""Graphs kept at once: those of a network that changes at every iteration would not fit into memory."""


def check_run(directory: Path, *args: Any, **options: Any) -> list[StrategyCheck]:
    """Check every strategy of a finished run; the arguments are those of `iterate_checks`."""
    return list(iterate_checks(directory, *args, **options))


def iterate_checks(
    directory: Path,
    points: int | None = None,
    replay: bool | None = None,
    window: WantedWindow = "promised",
    progress: ReportProgress = lambda what, share: None,
    *,
    trust_code: bool = False,
) -> Iterator[StrategyCheck]:
    """Check a finished run, one strategy after the other.

    `points` is the number of iterations at which models are looked at. Default: 40. `replay` says whether the run is
    made again to look at its models; with True, w* is found and the noise is computed exactly however long it takes.
    Default: where that is quick and the run has kept no models. `window` is the B with which rho and the bounds are
    computed: that of `proposition:conn`, the least one observed (which stands in where the first is longer than the
    run), or a number. `trust_code` allows Python code that the stored config names to be executed.
    """
    run = ExperimentFolder(directory)
    if not run.is_complete:
        advice = f"Run `efhc run FILE --out {directory}` first, or look ahead with `efhc theory plan FILE`."
        if (directory / "runs").is_dir() and not run.is_begun:
            advice = f"It is a study; give one of its runs: efhc theory {directory}/runs/KEY."
        problem = f"{directory} holds no finished experiment. {advice}"
        raise InputError("run directory", directory, "a finished experiment", problem)
    experiment = run.load_experiment(trust_code=trust_code)
    require_lockstep(experiment, "the paper's analysis")
    require_papers_form(experiment, "the paper's analysis")
    if run.failures:
        (strategy, seed), reason = next(iter(run.failures.items()))
        raise EfhcError(f"{strategy}, seed {seed} failed ({reason}); only runs that all succeeded can be checked")
    if isinstance(window, int) and window > experiment.iterations:
        raise InputError("--window", window, f"at most {experiment.iterations}, the iterations of the run")
    inputs = Runs().inputs(experiment)
    run.check_inputs(inputs.checksums)
    data = inputs.data
    cores, seeds = usable_cores(), len(experiment.seeds)
    blas = max(1, cores // seeds) if data.x_train.size > MUCH_DATA else 1
    with (
        using_inputs(inputs.files),
        threadpool_limits(blas, "blas"),
        ThreadPoolExecutor(cores, thread_name_prefix="efhc-theory") as pool,
    ):
        check = _RunCheck(Result.in_folder(experiment, run), data, window, pool, progress, points or POINTS, replay)
        for strategy in experiment.strategies:
            yield check.strategy(strategy)


class _RunCheck:
    """The check of a run: what all its strategies share."""

    def __init__(
        self,
        run: Result,
        data: Dataset,
        window: WantedWindow,
        pool: ThreadPoolExecutor,
        progress: ReportProgress,
        points: int,
        replay: bool | None,
    ) -> None:
        experiment = run.experiment
        seeds, strategies = experiment.seeds, list(experiment.strategies)
        kept = bool(run.snapshots(strategies[0], seeds[0]))
        self.run, self.experiment, self.window, self.pool, self.points = run, experiment, window, pool, points
        self.replay_wanted = bool(replay)
        """Whether the user asked for the run to be made again."""
        self.effort = Effort.of(experiment, data, points, replay, kept=kept)
        self.looks = points if self.effort.replay or kept else 2
        """The expected number of looks at models, per strategy and seed."""
        self.work = Work(len(seeds) + len(strategies) * (3 + len(seeds) * self.looks), progress)
        self.work.begin("the learning problem")
        self.threads = max(1, usable_cores() // len(seeds))
        self.scenarios = [draw_scenario(experiment, data, seed, self.threads) for seed in seeds]
        effort = self.effort.optimum, self.effort.noise_samples
        drawn = [(experiment, *each, *effort) for each in zip(self.scenarios, seeds, strict=True)]
        self.problems: list[SeedProblem] = in_parallel(pool, SeedProblem.of, drawn, self.work.finish)
        self.final: Mapping[tuple[str, int], Floats] = run.models
        """The last models of each strategy and seed, if the run kept them."""
        self.graphs = [_load_graphs(run, experiment, seed) for seed in seeds]
        self.ends: dict[int, dict[str | None, tuple[float, ...]]] = {}
        """By seed, the measurements at its initial models (None) and at the last models of each strategy."""

    @property
    def theorems_apply(self) -> bool:
        return all(math.isfinite(each.curvature.L) for each in self.problems)

    def strategy(self, strategy: str) -> StrategyCheck:
        """Check one strategy, over all seeds."""
        experiment, iterations, work = self.experiment, self.experiment.iterations, self.work
        work.begin(f"{strategy}: who fired, and who was reached")
        flows = [
            _load_flow(self.run, experiment, strategy, seed, graph)
            for seed, graph in zip(experiment.seeds, self.graphs, strict=True)
        ]
        firing = firing_of(experiment.strategies[strategy], experiment.devices)
        future = [future_links(scenario.network, experiment.network, iterations) for scenario in self.scenarios]
        links_by_chance = any(links.by_chance for links in future)
        windows = [
            connectivity(flow, never_fires=firing == "never", cut_off=links.cut_off)
            for flow, links in zip(flows, future, strict=True)
        ]
        chosen = fitting_window(windows, iterations, self.window, by_chance=firing == "coins" or links_by_chance)
        work.finish()
        work.begin(f"{strategy}: transition weights")
        checks = [check_flow(flow) for flow in flows]
        work.finish()
        work.begin(f"{strategy}: contraction")
        contractions = [
            window_contractions(flow.matrix, iterations, chosen.length, threads=usable_cores()) if chosen else None
            for flow in flows
        ]
        work.finish()
        before = work.done
        look_at, visits, same = self._models(strategy, flows)
        work.finish(max(0.0, before + len(flows) * self.looks - work.done))  # some may have been spared
        seeds = {
            seed: SeedCheck(
                [*checks[n], same[n]],
                windows[n],
                contractions[n],
                visits[n].curvature,
                self.problems[n].optimum,
                visits[n].measured,
                self.problems[n].problem.noise_source,
            )
            for n, seed in enumerate(experiment.seeds)
        }
        return assess(
            strategy,
            seeds,
            experiment.step_size,
            iterations,
            look_at,
            chosen,
            firing,
            links_by_chance=links_by_chance,
            optimum_sought=self.effort.optimum,
        )

    def _models(self, strategy: str, flows: Sequence[Flow]) -> tuple[Ints, list[Visits], list[Check]]:
        """Return the iterations looked at, the measurements there, and whether a run made again is the recorded one."""
        seeds, iterations = self.experiment.seeds, self.experiment.iterations
        look_at = spread(iterations, self.points)
        if not self.theorems_apply and not self.replay_wanted:
            return look_at, self._recorded(strategy, look_at), [not_made("no-theorem")] * len(seeds)
        if self.effort.replay:
            self.work.begin(f"{strategy}: replay")
            drawn = zip(self.scenarios, self.problems, strict=True)
            items = [(self.experiment, one, strategy, look_at, of, self.threads, self.work.finish) for one, of in drawn]
            visits: list[Visits] = in_parallel(self.pool, replay_run, items)
            same = [
                same_run(visit, flow.fired, self.final.get((strategy, seed)))
                for visit, flow, seed in zip(visits, flows, seeds, strict=True)
            ]
            return look_at, visits, same
        kept = [self.run.snapshots(strategy, seed) for seed in seeds]
        on_the_way = set.intersection(*map(set, kept))
        at_the_end = {iterations} if all((strategy, seed) in self.final for seed in seeds) else set()
        self.work.begin(f"{strategy}: the models that were kept")
        look_at = thinned({0} | on_the_way | at_the_end, self.points)
        of_kept = [(strategy, n, look_at, kept[n]) for n in range(len(seeds))]
        unknown = not_made("kept" if on_the_way else "not-made-again")
        return look_at, in_parallel(self.pool, self._look_at_kept, of_kept), [unknown] * len(seeds)

    def _look_at_kept(self, strategy: str, n: int, look_at: Ints, kept: Mapping[int, Floats]) -> Visits:
        seed, of, rows = self.experiment.seeds[n], self.problems[n], []
        for k in look_at.tolist():
            if k in kept:
                rows.append(look(kept[k], of.problem, of.optimum))
            else:
                if seed not in self.ends:
                    self.ends[seed] = self._look_at_ends(n)
                rows.append(self.ends[seed][strategy if k else None])
            self.work.finish()
        return Visits(Measured.of_rows(rows), of.curvature)

    def _look_at_ends(self, n: int) -> dict[str | None, tuple[float, ...]]:
        """Measure at the initial models of a seed and at the last models of all its runs, at once."""
        seed, of = self.experiment.seeds[n], self.problems[n]
        models: dict[str | None, Floats] = {None: self.scenarios[n].initial_models()}
        models |= {name: last for (name, of_seed), last in self.final.items() if of_seed == seed}
        return dict(zip(models, look_at_several(list(models.values()), of.problem, of.optimum), strict=True))

    def _recorded(self, strategy: str, look_at: Ints) -> list[Visits]:
        """Return the consensus errors that the run recorded; the rest is of no use where no theorem applies."""
        visits = []
        for seed, scenario, of in zip(self.experiment.seeds, self.scenarios, self.problems, strict=True):
            rows = self.run.rows("metrics", strategy, seed)
            start = consensus_error(scenario.initial_models())
            errors = np.concatenate([[start], rows.sort("iteration")["consensus_error"].to_numpy()])
            visits.append(Visits(Measured.of_consensus(errors[look_at]), of.curvature))
        return visits


def _load_flow(result: Result, experiment: Experiment, strategy: str, seed: int, graph: Callable[[int], Graph]) -> Flow:
    """Return the recorded firing and the recorded links of a run; `graph(k)` is that of `_load_graphs`."""
    events = result.rows("events", strategy, seed)
    if events["iteration"].to_list() != list(range(experiment.iterations)):
        raise EfhcError(f"events.parquet lacks iterations of {strategy}, seed {seed}")
    _check_devices("events", events, ("fired", *ENDS), experiment.devices)
    starts, ends = _flat_links(events)
    return Flow(
        graph,
        _fired(events["fired"], experiment.devices),
        lambda k: ends[starts[k] : starts[k + 1]],
        exchange_at_start=experiment.exchange_at_start,
    )


def _load_graphs(result: Result, experiment: Experiment, seed: int) -> Callable[[int], Graph]:
    """Return k -> G(k). Rows with the same links give the same object, as long as it is kept."""
    network = result.rows("network", next(iter(experiment.strategies)), seed)
    if network["iteration"].to_list()[:1] != [0]:
        raise EfhcError(f"network.parquet lacks iterations of seed {seed}")
    _check_devices("network", network, ENDS, experiment.devices)
    starts, ends = _flat_links(network)
    if (ends[:, 0] == ends[:, 1]).any():
        raise EfhcError("network.parquet: a link joins a device to itself")
    changes = network["iteration"].to_numpy()

    @lru_cache(GRAPHS)
    def graph_of(links: bytes) -> Graph:
        return Graph.of(experiment.devices, np.frombuffer(links, ends.dtype).reshape(-1, 2))

    def graph(k: int) -> Graph:
        row = int(np.searchsorted(changes, k, side="right")) - 1
        return graph_of(ends[starts[row] : starts[row + 1]].tobytes())

    return graph


def _check_devices(table: str, rows: pl.DataFrame, columns: Iterable[str], devices: int) -> None:
    """Raise `EfhcError` if a table names a device that does not exist: compiled loops check no index."""
    for column in columns:
        numbers = rows[column].explode().drop_nulls().to_numpy()
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < devices:
            raise EfhcError(f"{table}.parquet: {column} names a device that is not one of 0..{devices - 1}")


def _flat_links(table: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return where the links of each row begin, and the links of all rows in one array (links, 2)."""
    starts = np.concatenate([[0], np.cumsum(table["link_from"].list.len().to_numpy().astype(np.int64))])
    columns = [table[name].explode().drop_nulls().to_numpy() for name in ENDS]
    return starts, np.column_stack(columns)


def _fired(lists: pl.Series, devices: int) -> Flags:
    fired = np.zeros((len(lists), devices), dtype=bool)
    rows = np.repeat(np.arange(len(lists)), lists.list.len().to_numpy())
    fired[rows, lists.explode().drop_nulls().to_numpy()] = True
    return fired
