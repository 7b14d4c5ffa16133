"""`efhc theory RUN_DIR`: were the assumptions met, what did the theorems promise, what happened?

The network's behaviour is read from the run directory, and so are the models if the run kept some on its way. If it
did not, a short run is made again: that gives the same models bit for bit, and is checked to fire as recorded. Of a
long run only the first and the last models are measured by default. Where no theorem applies, because the loss is not
smooth, no models are measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from shlex import quote
from threading import Event, Lock
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import using_inputs
from efhc.core.graph import Graph
from efhc.core.randomness import Randomness
from efhc.core.state import State
from efhc.drivers.lockstep import PaperLockstep
from efhc.drivers.observers import LookAt, drive
from efhc.drivers.steps import Steps
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.engines.local import wait_for_all
from efhc.experiments.runs.experiment_folder import OWN_RUNS, ExperimentFolder
from efhc.experiments.runs.folder import Pair
from efhc.experiments.runs.resources import usable_cores
from efhc.experiments.runs.result import Result
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.study import runs_in, why_no_experiment
from efhc.experiments.runs.tables import OF_THE_PAPER, not_of_papers_form, require_papers_setting
from efhc.kernels.compiled_arithmetic import consensus_error
from efhc.learning.data import Dataset
from efhc.learning.models import LeastSquares, ModuleModel
from efhc.network.topologies import GraphsOverTime
from efhc.scenarios.scenario import Scenario
from efhc.theory.checks import StrategyCheck, assess, check_flow
from efhc.theory.connectivity import Connectivity, Flow, WantedWindow, connectivity, fitting_window, future_links
from efhc.theory.contractions import window_contractions
from efhc.theory.findings import Check, finding
from efhc.theory.problem import Curvature, Measured, Optimum, Problem, look, problem_for
from efhc.theory.promises import Firing, SeedCheck, firing_of

MUCH_DATA = 10_000_000
"""The number of values in the training data above which matrix products gain from several threads."""
ENDS = ("link_from", "link_to")
GRAPHS = 32
"""Graphs kept at once: those of a network that changes at every iteration would not fit into memory."""
POINTS = 40
"""The default number of iterations at which models are measured."""
QUICK = 15.0
"""Processor seconds, as estimated below, up to which a part of the check is done by default."""
ITERATION, ITERATION_OF_NETWORK, LOOK = 12e-9, 360e-9, 1.4e-9
"""Processor seconds per parameter and device for an iteration of a linear model and of a network; and per parameter and
sample for a look at a linear model."""
OPTIMUM_LOOKS = {"direct": 4, "iterative": 200}
"""The number of looks at a model that finding w* costs."""
NOISE_SAMPLES = 500
"""The number of samples per device from which the gradient noise is estimated if there is much data."""

ReportProgress = Callable[[str, float], None]
"""Called with the name of the current work and the share of all work that is finished."""


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
    skipped: Callable[[str, str], None] = lambda strategy, why: None,
) -> Iterator[StrategyCheck]:
    """Check a finished run, one strategy after the other.

    `points` is the number of iterations at which models are looked at. Default: 40. `replay` says whether the run is
    made again to look at its models; with True, w* is found and the noise is computed exactly however long it takes.
    Default: where that is quick and the run has kept no models. `window` is the B with which rho and the bounds are
    computed: that of `proposition:conn`, the least one observed (which stands in where the first is longer than the
    run), or a number. `trust_code` allows Python code that the stored config names to be executed.
    `skipped` is called with each strategy that is left out, because the paper's analysis is not about it or a run of it
    failed, and why. Raises `InputError` if no strategy is left.
    """
    run, points = ExperimentFolder(directory), points or POINTS
    if not run.is_complete:
        if run.is_begun:
            config, out = quote(str(directory / "config.toml")), quote(str(directory))
            problem = f"{directory} has not finished; `efhc run {config} --out {out} --resume` continues it"
        elif of_study := runs_in(directory / OWN_RUNS):
            one = f"`efhc theory {quote(str(of_study[0].folder))}`"
            problem = f"{directory} is a study; give one of its {len(of_study)} runs, such as {one}"
        else:
            problem = why_no_experiment(directory, f"use `efhc theory plan {quote(str(directory))}`")
        raise InputError("run directory", directory, "a finished experiment", problem)
    experiment = run.load_experiment(trust_code=trust_code)
    require_papers_setting(experiment)
    experiment = _covered(experiment, run.failures, skipped)
    if isinstance(window, int) and window > experiment.iterations:
        raise InputError("--window", window, f"at most {experiment.iterations}, the iterations of the run")
    inputs = Runs().inputs(experiment)
    run.check_inputs(inputs.checksums)
    cores, seeds = usable_cores(), len(experiment.seeds)
    threads = max(1, cores // seeds)
    with (
        using_inputs(inputs.files),
        threadpool_limits(threads if inputs.data.x_train.size > MUCH_DATA else 1, "blas"),
        ThreadPoolExecutor(cores, thread_name_prefix="efhc-theory") as pool,
    ):
        result = Result.in_folder(experiment, run)
        kept = bool(result.snapshots(next(iter(experiment.strategies)), experiment.seeds[0]))
        effort = Effort.of(experiment, inputs.data, points, replay, kept=kept)
        looks = seeds * (points if effort.replay or kept else 2)
        shown = _Progress(progress, looks * len(experiment.strategies))
        shown.begin("the learning problem")
        drawn = [
            (experiment, draw_scenario(experiment, inputs.data, seed, threads), seed, *effort[1:])
            for seed in experiment.seeds
        ]
        problems = in_parallel(pool, SeedProblem.of, drawn)
        check = _RunCheck(result, problems, effort, window, points, bool(replay), pool, threads, shown)
        for n, strategy in enumerate(experiment.strategies):
            shown.done = n * looks
            yield check.strategy(strategy)
        progress("done", 1.0)


def _covered(experiment: Experiment, failures: Mapping[Pair, str], skipped: Callable[[str, str], None]) -> Experiment:
    """Return the experiment with the strategies that can be checked; `skipped` is called for each of the others."""
    others = not_of_papers_form(experiment)
    why = {name: f"{kind} differs from EF-HC in more than its thresholds" for name, kind in others.items()}
    for (name, seed), reason in failures.items():
        why.setdefault(name, f"seed {seed} failed ({reason})")
    left = {name: strategy for name, strategy in experiment.strategies.items() if name not in why}
    if not left:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in why.items())
        raise InputError("strategies", ", ".join(why), OF_THE_PAPER, f"no strategy can be checked: {reasons}")
    for name, reason in why.items():
        skipped(name, reason)
    return experiment.model_copy(update={"strategies": left})


@dataclass(frozen=True, eq=False)
class _RunCheck:
    """The check of a run: what all its strategies share."""

    run: Result
    problems: list[SeedProblem]
    effort: Effort
    window: WantedWindow
    points: int
    replay_wanted: bool
    """Whether the user wants the run to be made again."""
    pool: ThreadPoolExecutor
    threads: int
    """Number of threads for each seed."""
    progress: _Progress

    @property
    def experiment(self) -> Experiment:
        return self.run.experiment

    @cached_property
    def graphs(self) -> list[Callable[[int], Graph]]:
        """k -> G(k) of each seed."""
        return [_load_graphs(self.run, self.experiment, one.seed, one.scenario.network) for one in self.problems]

    def strategy(self, strategy: str) -> StrategyCheck:
        """Check one strategy, over all seeds."""
        experiment, iterations = self.experiment, self.experiment.iterations
        self.progress.begin(f"{strategy}: who fired, and who was reached")
        flows = [
            _load_flow(self.run, experiment, strategy, seed, graph)
            for seed, graph in zip(experiment.seeds, self.graphs, strict=True)
        ]
        firing, windows, links_by_chance = windows_of(experiment, strategy, self.problems, flows)
        chosen = fitting_window(windows, iterations, self.window, by_chance=firing == "coins" or links_by_chance)
        self.progress.begin(f"{strategy}: transition weights")
        checks = [check_flow(flow) for flow in flows]
        self.progress.begin(f"{strategy}: contraction")
        contractions = [
            window_contractions(flow.matrix, iterations, chosen.length, threads=usable_cores()) if chosen else None
            for flow in flows
        ]
        look_at, runs, same = self._models(strategy, flows)
        seeds = {
            of.seed: SeedCheck(
                [*checks[n], same[n]],
                windows[n],
                contractions[n],
                runs[n].curvature,
                of.optimum,
                runs[n].measured,
                of.problem.noise_source,
            )
            for n, of in enumerate(self.problems)
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

    def _models(self, strategy: str, flows: Sequence[Flow]) -> tuple[Ints, list[MeasuredRun], list[Check]]:
        """Return the iterations looked at, the measurements there, and whether a replay is the recorded run."""
        seeds, iterations, final = self.experiment.seeds, self.experiment.iterations, self.run.models
        look_at = spread(iterations, self.points)
        theorems_apply = all(math.isfinite(of.curvature.L) for of in self.problems)
        if not theorems_apply and not self.replay_wanted:
            runs = [self._recorded(strategy, of, look_at) for of in self.problems]
            return look_at, runs, [finding("same-run", "no-theorem")] * len(seeds)
        if self.effort.replay:
            self.progress.begin(f"{strategy}: replay")
            measured = self.progress.finish_one
            items = [(self.experiment, of, strategy, look_at, self.threads, measured) for of in self.problems]
            runs = in_parallel(self.pool, replay_run, items)
            same = [
                same_run(run, flow.fired, final.get((strategy, seed)))
                for run, flow, seed in zip(runs, flows, seeds, strict=True)
            ]
            return look_at, runs, same
        self.progress.begin(f"{strategy}: the models that were kept")
        on_the_way = set.intersection(*(set(self.run.snapshots(strategy, seed)) for seed in seeds))
        at_the_end = {iterations} if all((strategy, seed) in final for seed in seeds) else set()
        look_at = thinned({0} | on_the_way | at_the_end, self.points)
        runs = in_parallel(self.pool, self._look_at_kept, [(strategy, of, look_at) for of in self.problems])
        return look_at, runs, [finding("same-run", "kept" if on_the_way else "not-made-again")] * len(seeds)

    def _look_at_kept(self, strategy: str, of: SeedProblem, look_at: Ints) -> MeasuredRun:
        rows, kept = [], self.run.snapshots(strategy, of.seed)
        for k in look_at.tolist():
            models = kept.get(k)
            if models is None:
                models = self.run.models[strategy, of.seed] if k else of.scenario.initial_models()
            rows.append(look(models, of.problem, of.optimum))
            self.progress.finish_one()
        return MeasuredRun(Measured.of_rows(rows), of.curvature)

    def _recorded(self, strategy: str, of: SeedProblem, look_at: Ints) -> MeasuredRun:
        """Return the consensus errors that the run recorded; the rest is of no use where no theorem applies."""
        rows = self.run.rows("metrics", strategy, of.seed).sort("iteration")
        errors = np.array([consensus_error(of.scenario.initial_models()), *rows["consensus_error"]])
        return MeasuredRun(Measured.of_consensus(errors[look_at]), of.curvature)


def windows_of(
    experiment: Experiment, strategy: str, problems: Sequence[SeedProblem], flows: Sequence[Flow]
) -> tuple[Firing, list[Connectivity], bool]:
    """Return what makes devices fire, the windows of each seed, and whether links come and go by chance."""
    firing = firing_of(experiment.strategies[strategy], experiment.devices)
    future = [future_links(of.scenario.network, experiment.network, flows[0].iterations) for of in problems]
    windows = [
        connectivity(flow, never_fires=firing == "never", cut_off=links.cut_off)
        for flow, links in zip(flows, future, strict=True)
    ]
    return firing, windows, any(links.by_chance for links in future)


class SeedProblem(NamedTuple):
    """The learning problem that one seed draws."""

    seed: int
    scenario: Scenario
    problem: Problem
    curvature: Curvature
    optimum: Optimum | None

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        scenario: Scenario,
        seed: int,
        optimum: bool = True,
        noise_samples: int | None = None,
    ) -> SeedProblem:
        """Return the problem, its constants at the mean of the initial models, and w* if `optimum` is set."""
        learner, size = scenario.learner, experiment.batch_size
        draws = Randomness(seed)  # of mini-batches to measure the noise by, where it has to be sampled
        problem = problem_for(
            experiment.model, learner.data, learner.parts, size, learner.backend, draws, noise_samples
        )
        start = scenario.initial_models().mean(axis=0, dtype=np.float64)
        try:
            minimiser = problem.optimum() if optimum else None
        except EfhcError:  # it could not be found as closely as is demanded: the rest can be checked without it
            minimiser = None
        return cls(seed, scenario, problem, problem.curvature(start), minimiser)


class Effort(NamedTuple):
    """How much of a run is measured."""

    replay: bool
    """Whether the run is made again."""
    optimum: bool
    """Whether w* is computed."""
    noise_samples: int | None
    """The number of samples per device from which the noise is estimated. None: all samples, which is exact."""

    @classmethod
    def of(cls, experiment: Experiment, data: Dataset, points: int, replay: bool | None, *, kept: bool) -> Effort:
        """Return the full effort if `replay` is True, else what is quick. `kept`: whether the run kept models."""
        if replay:
            return cls(True, True, None)
        seeds, runs = len(experiment.seeds), len(experiment.seeds) * len(experiment.strategies)
        parameters, samples = experiment.model.parameters(data), len(data.y_train)
        network = isinstance(experiment.model, ModuleModel)
        each = ITERATION_OF_NETWORK if network else ITERATION
        look_at = LOOK * parameters * samples * (each / ITERATION)
        again = runs * (each * experiment.devices * parameters * experiment.iterations + points * look_at)
        direct = isinstance(experiment.model, LeastSquares)
        optimum = seeds * OPTIMUM_LOOKS["direct" if direct else "iterative"] * look_at
        quick = again <= QUICK and not kept and replay is None
        return cls(quick, optimum <= QUICK, None if points * runs * look_at <= QUICK else NOISE_SAMPLES)


class MeasuredRun(NamedTuple):
    """What was measured at the models of one run."""

    measured: Measured
    curvature: Curvature
    fired: Flags | None = None
    """Who fired, (iterations, devices), if the run was made again."""
    models: Floats | None = None
    """The last models, if the run was made again."""


class FiringLooks(LookAt):
    """Notes at every iteration who fired, (iterations, devices), and calls `measure` at the iterations `look_at`."""

    def __init__(self, look_at: Iterable[int], shape: tuple[int, int], measure: Callable[[State], None]) -> None:
        super().__init__(look_at)
        self.fired: Flags = np.zeros(shape, dtype=bool)
        self._measure = measure

    def after(self, steps: Steps, state: State) -> None:
        self.fired[steps.k : steps.k + len(steps)] = steps.fired
        super().after(steps, state)

    def look(self, state: State) -> None:
        self._measure(state)


def replay_run(
    experiment: Experiment,
    of: SeedProblem,
    strategy: str,
    look_at: Ints,
    threads: int = 1,
    measured_one: Callable[[], None] = lambda: None,
) -> MeasuredRun:
    """Make the run of one strategy with one seed, and measure at its models at the iterations `look_at`.

    `measured_one` is called after each of them.
    """
    rows, curvatures = [], [of.curvature]
    middle_and_end = {int(look_at[len(look_at) // 2]), int(look_at[-1])}

    def measure(state: State) -> None:
        rows.append(look(state.models, of.problem, of.optimum))
        if of.curvature.known == "estimate" and state.k in middle_and_end:
            curvatures.append(of.problem.curvature(state.models.mean(axis=0, dtype=np.float64)))
        measured_one()

    looks = FiringLooks(look_at.tolist(), (experiment.iterations, experiment.devices), measure)
    lockstep = PaperLockstep(of.scenario, experiment.strategies[strategy], threads)
    state = drive(lockstep, lockstep.initial_state(), int(look_at[-1]), [looks])
    return MeasuredRun(Measured.of_rows(rows), Curvature.worst(curvatures), looks.fired, state.models)


def same_run(replay: MeasuredRun, recorded: Flags, final: Floats | None) -> Check:
    """Check that a run that was made again fires as recorded and ends with the same models."""
    assert replay.fired is not None
    if (differs := (replay.fired != recorded).any(axis=1)).any():
        k = int(np.argmax(differs))
        device = int(np.argmax(replay.fired[k] != recorded[k]))
        return finding("same-run", "fires-otherwise", iteration=k, device=device)
    if final is None:
        return finding("same-run", "fires-as-recorded")
    if np.array_equal(np.asarray(replay.models), final):
        return finding("same-run", "same")
    return finding("same-run", "ends-otherwise", iteration=len(recorded))


class _Progress:
    """Reports how much of the work is finished, from several threads."""

    def __init__(self, report: ReportProgress, total: int) -> None:
        self._report, self._total, self._what, self._lock = report, total, "", Lock()
        self.done = 0
        """How many of the `total` pieces of work are finished."""

    def begin(self, what: str) -> None:
        """Name the work that follows."""
        self._what = what
        self._report(what, self.done / self._total)

    def finish_one(self) -> None:
        """Count one more piece of work as finished."""
        with self._lock:
            self.done += 1
            self._report(self._what, self.done / self._total)


def in_parallel(pool: ThreadPoolExecutor, work: Callable[..., Any], items: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return `work(*item)` for each item, in their order; the calls run in the threads of `pool`."""
    futures = [pool.submit(copy_context().run, work, *item) for item in items]
    wait_for_all(pool, futures, Event())
    return [future.result() for future in futures]


def spread(iterations: int, points: int) -> Ints:
    """Return at most `points` of the numbers 0 .. `iterations`, including both ends, evenly spaced in log k."""
    evenly = np.geomspace(1, iterations, max(points - 1, 2)).round().astype(np.int64)
    return np.unique(np.concatenate([[0], evenly]))


def thinned(iterations: Iterable[int], points: int) -> Ints:
    """Return at most `points` of the given iterations, evenly spaced in log k."""
    every = np.array(sorted(iterations), dtype=np.int64)
    if len(every) <= points:
        return every
    wanted = spread(int(every[-1]), points)
    nearest = np.abs(every[None, :] - wanted[:, None]).argmin(axis=1)
    return np.unique(every[nearest])


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


def _load_graphs(result: Result, experiment: Experiment, seed: int, weighted: GraphsOverTime) -> Callable[[int], Graph]:
    """Return k -> G(k). Rows with the same links give the same object, as long as it is kept.

    Links are recorded without weights; those of a graph with weights of its own are those of `weighted`.
    """
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
        recorded = graph_of(ends[starts[row] : starts[row + 1]].tobytes())
        drawn = weighted.graph(k) if is_weighted else recorded
        return drawn if drawn.has_links_of(recorded) else recorded

    is_weighted = weighted.graph(0).own_weights is not None
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
