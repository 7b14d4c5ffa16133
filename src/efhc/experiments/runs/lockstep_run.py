"""A run in which all devices step together: the driver, the events it emits, and what is kept of it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from efhc.base.arrays import Floats
from efhc.base.own_code import is_built_in
from efhc.core.graph import Graph
from efhc.core.memory import Memories, begin
from efhc.core.parts import ExchangeMixing, FeedbackTrigger
from efhc.core.state import Local, State
from efhc.drivers.general import driver_for
from efhc.drivers.lockstep import PaperLockstep
from efhc.drivers.observers import Observer, drive
from efhc.drivers.record import SUMS, Piece, Record, Recording, with_totals
from efhc.drivers.settings import LockstepDriver
from efhc.drivers.steps import Steps
from efhc.experiments.runs.early_stopping import EndsEarly, Patience
from efhc.experiments.runs.events import (
    EVENTS_PER_SECOND,
    SAMPLE_SECONDS,
    SAMPLE_SHARE,
    Allowance,
    Begin,
    Devices,
    Evaluated,
    Firings,
    Network,
    Reached,
    Recalled,
    Row,
    pairs,
)
from efhc.experiments.runs.keeping import Checkpoint, RunKeeper, RunOptions, Stopped, joined
from efhc.experiments.runs.moments import Moments
from efhc.experiments.runs.run import Run
from efhc.kernels.compiled_arithmetic import drift
from efhc.learning.backends.backend import ScoresNotFinite
from efhc.learning.measures import EVALUATION, Evaluation
from efhc.network.topologies import StaticGraph
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import form_of

LOCAL = "local/"
"""In front of the names of arrays that devices do not share, in a checkpoint."""
MEMORY = "memory/"
"""In front of the names of what the strategy remembers."""
OF_RECORD = ("k", "time_total", "largest_time", "moments")
"""The names of what a checkpoint has of the record and its moments of evaluation."""
SECONDS = "seconds"
"""The name of the time for which the run was made, in the texts of a checkpoint."""

REACHED_SECONDS = 0.1
"""Least time between two `Reached` events."""


def make_lockstep(scenario: Scenario, keeper: RunKeeper, options: RunOptions) -> tuple[Floats, Local]:
    """Make the iterations after the last checkpoint, or all. Returns the last models and what devices do not share."""
    run, stream = keeper.run, keeper.stream
    experiment = run.experiment
    (strategy,) = experiment.strategies.values()
    assert isinstance(experiment.driver, LockstepDriver)
    driver = driver_for(scenario, strategy, options.threads, experiment.driver.loss or 0.0)
    initial = driver.initial_state()
    wanted = snapshot_iterations(run)

    moments = Moments(experiment, scenario)

    def restore(checkpoint: Checkpoint) -> tuple[State, Record, float]:
        left = set(wanted) - set(keeper.snapshots)
        state, record = _checked(checkpoint, initial, driver.memories, scenario, experiment.iterations, left)
        moments.restore(checkpoint.tensors["moments"], record)
        return state, record, float(checkpoint.facts.get(SECONDS, 0.0))

    state, record, seconds = keeper.resume(restore) or (initial, Record(), 0.0)
    # With observers, models are evaluated in line, so that none is called after an evaluation that failed.
    is_alone = not options.observers and not wanted and experiment.early_stopping is None
    evaluates_beside = (
        options.threads > 1 and is_alone and isinstance(driver, PaperLockstep) and driver.leaves_cores(state)
    )
    stream.emit(Begin.of(run, scenario, state.k))
    if state.k > 0:
        kept = joined(keeper.kept("metrics"))
        sums = kept.select(pl.col(column).sum().alias(total) for total, column in SUMS.items())
        record.totals = sums.collect().row(0, named=True)
        stream.emit(Recalled(lambda: evaluated_rows(kept)))
    patience = Patience(experiment, scenario, lambda: evaluated_rows(kept) if state.k > 0 else ())
    with ThreadPoolExecutor(1, thread_name_prefix="efhc-evaluation") as pool:
        beside = pool if evaluates_beside else None
        keeping = _Keeping(keeper, scenario, record, moments, patience, seconds, options.checkpoint_seconds, beside)
        # Observers come after what keeps the run, so that the iteration is recorded if one raises.
        observers = [keeping, *options.observers, _Stopping(options, experiment.iterations)]
        try:
            if not keeping.ends_early(state.k):
                state = drive(driver, state, experiment.iterations, observers)
            keeping.finish_evaluation()
        except EndsEarly as end:
            state = end.state
        except BaseException:
            keeping.save()  # stopped or failed: whatever is whole is kept
            raise
    last = record.take()
    keeper.put_away(last)
    keeper.warn_if_apart(last.tables["metrics"]["consensus_error"])
    return state.models, state.local


def snapshot_iterations(run: Run) -> list[int]:
    """Return the iterations whose models are kept. Empty without `keep_models_every`."""
    every, iterations = run.experiment.keep_models_every, run.experiment.iterations
    return [] if every is None else [*range(0, iterations, every), iterations]


def evaluated_rows(metrics: pl.LazyFrame) -> Iterable[dict[str, Any]]:
    """Return the rows of all evaluations in metrics, which begin with the first iteration, with totals up to each."""
    return with_totals(metrics).drop_nulls(EVALUATION).collect().iter_rows(named=True)


# Observers


class _Keeping(Recording):
    """Records every iteration, evaluates models, emits events, puts full pieces away, and makes checkpoints."""

    def __init__(
        self,
        keeper: RunKeeper,
        scenario: Scenario,
        record: Record,
        moments: Moments,
        patience: Patience,
        seconds: float,
        checkpoint_seconds: float,
        beside: Executor | None,
    ) -> None:
        """`seconds` are those of earlier sessions.

        `beside` is where models are evaluated while the run goes on. None: in line.
        """
        super().__init__(scenario, record)
        self._experiment, self._learner, self._keeper = keeper.run.experiment, scenario.learner, keeper
        self._moments, self._patience = moments, patience
        self._events = _LockstepEvents(keeper, scenario, record, seconds)
        self._checkpoint_seconds, self._beside = checkpoint_seconds, beside
        self._pending: Future[None] | None = None
        """The evaluation that goes on beside the run."""
        self._whole: State | None = None
        """The latest state whose iterations have all been recorded. None if models could not be evaluated."""
        self._saved_at = time.monotonic()

    def next_look(self, k: int) -> int | None:
        every, iterations = self._experiment.keep_models_every, self._experiment.iterations
        snapshot = iterations if every is None else (k // every + 1) * every
        return min(self._moments.next(k, self.record), snapshot, iterations)

    def begin(self, state: State) -> None:
        self._whole = state
        self._events.begin(state)
        self._keep_models(state)

    def after(self, steps: Steps, state: State) -> None:
        self._whole = None  # nothing is saved while the latest iterations are being recorded
        super().after(steps, state)
        first = self._moments.evaluation_after(state.k, self.record)
        if first is not None:
            self.finish_evaluation()
            self._events.before_evaluation(state)
            self._evaluate(state, first)
        self._events.after(steps, state)
        self._keep_models(state)
        self._whole = state
        if time.monotonic() - self._saved_at > self._checkpoint_seconds:
            self.save()
        elif self.record.is_large or self._keeper.should_show:
            self.finish_evaluation()  # no row is evaluated meanwhile
            self._keeper.show(self._events.rows())
            if self.record.is_large:
                self._keeper.put_away(self._take())
        if self.ends_early(state.k):
            if self._experiment.keep_models_every is not None:
                self._keeper.snapshot(state.k, state.models)
            raise EndsEarly(state)

    def ends_early(self, k: int) -> bool:
        """Return whether the run ends after k iterations, before its last one. `Moments` has to know that it will."""
        over_after = self._patience.over_after
        return over_after is not None and self._moments.end_after(over_after + 1) <= k < self._experiment.iterations

    def _keep_models(self, state: State) -> None:
        every = self._experiment.keep_models_every
        if every is not None and (state.k % every == 0 or state.k == self._experiment.iterations):
            self._keeper.snapshot(state.k, state.models)

    def _evaluate(self, state: State, first: int) -> None:
        """Evaluate models that are in the record's last row. Raises `ScoresNotFinite`, if it is done in line."""
        if self._beside is None:
            self._measure(state.k - 1, first, state.models, state.local)
        else:
            local = {name: rows.copy() for name, rows in state.local.items()}
            measure = partial(self._measure, state.k - 1, first, state.models.copy(), local)
            self._pending = self._beside.submit(copy_context().run, measure)

    def _measure(self, iteration: int, first: int, models: Floats, local: Local) -> None:
        try:
            evaluation = self._learner.evaluate(models, local)
        except ScoresNotFinite as error:
            raise error.about(f"after iteration {iteration}") from error
        self.record.add_evaluation(evaluation, iteration, first=first)
        if self._experiment.early_stopping is not None:
            self._patience.note(self.record.row(iteration))
        self._events.evaluated(iteration, evaluation)

    def finish_evaluation(self) -> None:
        """Wait until all accuracies are in the record. Raises `ScoresNotFinite`; nothing can be saved after that."""
        whole, self._whole = self._whole, None
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
        self._whole = whole

    def save(self) -> None:
        """Make a checkpoint of the latest whole iteration, if there is one."""
        self.finish_evaluation()
        state, record = self._whole, self.record
        if state is not None and state.k > 0:
            tensors = {
                "models": state.models,
                "last_broadcast": state.last_broadcast,
                "k": np.array([state.k]),
                "time_total": np.array([record.time_total]),
                "largest_time": np.array([record.largest_time]),
                "moments": self._moments.pending,
                **{LOCAL + name: rows for name, rows in state.local.items()},
                **{MEMORY + name: array for name, array in state.memory.items()},
            }
            self._keeper.show(self._events.rows())
            self._keeper.checkpoint(self._take(), tensors, {SECONDS: f"{self._events.seconds:.3f}"})
        self._saved_at = time.monotonic()

    def _take(self) -> Piece:
        self._events.begin_piece()
        return self.record.take()


class _Stopping(Observer):
    """Reports the share of the iterations that is done, and stops the run when `stop` is set."""

    def __init__(self, options: RunOptions, iterations: int) -> None:
        self._options, self._iterations = options, iterations

    def begin(self, state: State) -> None:
        self._options.progress(state.k / self._iterations)
        if self._options.stop.is_set() and state.k < self._iterations:
            raise Stopped

    def after(self, steps: Steps, state: State) -> None:
        self.begin(state)


class _Noted(NamedTuple):
    """What is known of an iteration before its models are evaluated."""

    seconds: float
    totals: dict[str, float]
    drift: Floats | None
    threshold: Floats | None
    is_sampled: bool


class _LockstepEvents:
    """Emits the events of a run. It makes the driver stop at no iteration, and samples models rarely."""

    def __init__(self, keeper: RunKeeper, scenario: Scenario, record: Record, seconds: float) -> None:
        """`seconds` are those of earlier sessions."""
        experiment = keeper.run.experiment
        self._stream, self._record, self._last = keeper.stream, record, experiment.iterations
        self._began_at = time.monotonic() - seconds
        self._allowance = Allowance(EVENTS_PER_SECOND)
        self._known_graph: Graph | None = None
        """The last graph whose links were emitted. None after a resume."""
        self._graph_since: int | None = None
        """The iteration from which on the graph has its present links. None: that at which the run is resumed."""
        self._noted: dict[int, _Noted] = {}
        self._next_sample = self._next_reached = 0.0
        (strategy,) = experiment.strategies.values()
        parts = form_of(strategy).parts
        # A strategy that mixes estimates measures drift after the local step: only the iteration itself knows it.
        self._measures_drift = parts is not None and isinstance(parts.mixing, ExchangeMixing)
        has_thresholds = parts is not None and not isinstance(parts.trigger, FeedbackTrigger)
        self._trigger = parts.trigger if parts is not None and has_thresholds else None
        self._reader, self._network = scenario.reader(), scenario.network

    @property
    def seconds(self) -> float:
        """The time for which the run has been made, earlier sessions included."""
        return time.monotonic() - self._began_at

    def begin(self, state: State) -> None:
        if state.k == 0 or isinstance(self._network, StaticGraph):
            self._known_graph, self._graph_since = self._network.graph(0), 0

    def after(self, steps: Steps, state: State) -> None:
        if self._graph_since is None or steps.has_other_links:
            self._graph_since = steps.k
        if not self._stream.wants_samples:
            return
        if (now := time.monotonic()) >= self._next_reached or state.k == self._last:
            self._next_reached = now + REACHED_SECONDS
            self._stream.emit(Reached(time.time(), state.k))
        if count := min(self._allowance.left(), len(steps)):
            self._emit_network(steps.graph)
            self._emit_events(steps, count)

    def _emit_network(self, graph: Graph) -> None:
        """Emit the links in force, unless readers know them: the next events use no others."""
        known, self._known_graph = self._known_graph, graph
        if known is graph or (known is not None and np.array_equal(known.links, graph.links)):
            return
        assert self._graph_since is not None
        self._allowance.spend(len(graph.links))
        self._stream.emit(Network(self._graph_since, pairs(graph.links)))

    def _emit_events(self, steps: Steps, count: int) -> None:
        for place in range(len(steps) - 1 - (count - 1) * (len(steps) // count), len(steps), len(steps) // count):
            fired = np.flatnonzero(steps.fired[place]).tolist()
            used = pairs(steps.graph.links[np.flatnonzero(steps.used[place])])
            self._allowance.spend(len(fired) + len(used))
            self._stream.emit(Firings(steps.k + place, fired, used))

    def before_evaluation(self, state: State) -> None:
        """Note what changes while the models of a state are evaluated. Call it for each that is."""
        started = time.monotonic()
        is_sampled = self._stream.wants_samples and (started >= self._next_sample or state.k == self._last)
        drifts = thresholds = None
        if is_sampled:
            if self._measures_drift:
                drifts = drift(state.models, state.last_broadcast)
            if self._trigger is not None and (state.k < self._last or is_built_in(self._trigger)):
                with suppress(Exception):  # the user's own trigger: if it fails, the run itself says so
                    thresholds = self._reader.thresholds(self._trigger, state.k).copy()
            self._next_sample = started + SAMPLE_SECONDS
            self._wait_for(started)
        self._noted[state.k - 1] = _Noted(started - self._began_at, self._record.totals, drifts, thresholds, is_sampled)

    def begin_piece(self) -> None:
        """Note that the record is emptied: its rows are no longer there."""
        self._noted.clear()

    def rows(self) -> list[Row]:
        """Return the evaluated rows of the record, for a reader that is new. Call it while no model is evaluated."""
        return [self._row(iteration) for iteration in self._noted]

    def _row(self, iteration: int) -> Row:
        noted = self._noted[iteration]
        return {**self._record.row(iteration), **noted.totals, "seconds": round(noted.seconds, 3)}

    def evaluated(self, iteration: int, evaluation: Evaluation) -> None:
        """Emit the row of an iteration whose models have been evaluated, and a sample of its devices if it is time."""
        if not len(self._stream):
            return
        noted = self._noted[iteration]
        self._noted[iteration] = noted._replace(drift=None, threshold=None)  # they are large
        self._stream.emit(Evaluated(time.time(), iteration + 1, self._row(iteration)))
        if noted.is_sampled:
            started = time.monotonic()
            drifts, thresholds = (None if one is None else one.tolist() for one in (noted.drift, noted.threshold))
            accuracy, own = (evaluation.of_all("accuracy", len(evaluation.devices), own=own) for own in (False, True))
            self._stream.emit(Devices(time.time(), iteration + 1, accuracy, drifts, thresholds, own))
            self._wait_for(started)

    def _wait_for(self, started: float) -> None:
        """Put off the next sample of the devices, given when work on this one began."""
        now = time.monotonic()
        self._next_sample = max(self._next_sample, now + (now - started) / SAMPLE_SHARE)


def _checked(
    checkpoint: Checkpoint,
    initial: State,
    memories: Memories,
    scenario: Scenario,
    iterations: int,
    without_models: Collection[int],
) -> tuple[State, Record]:
    """Return the state and an empty record for the iterations after it. Raises `ValueError` if anything does not fit.

    `without_models` are the iterations whose models have not been kept and shall be; those up to the checkpoint cannot
    be made up for. Compiled loops check no index, so shapes, types and numbers are checked here.
    """
    tensors = checkpoint.tensors
    k = int(tensors["k"].item())
    time_total, largest_time = (float(tensors[name].item()) for name in ("time_total", "largest_time"))
    if not 0 < k <= iterations:
        raise ValueError(f"its number of iterations, {k}, is not between 1 and {iterations}")
    if k != checkpoint.position:
        raise ValueError(f"its pieces end after {checkpoint.position} iterations instead of {k}")
    local = {name.removeprefix(LOCAL): rows for name, rows in tensors.items() if name.startswith(LOCAL)}
    expected = {"models": initial.models, "last_broadcast": initial.last_broadcast}
    expected |= {LOCAL + name: rows for name, rows in initial.local.items()}
    links_of = scenario.network.graph(k - 1)  # the state after k iterations remembers the links of the last one
    expected |= {MEMORY + name: array for name, array in begin(memories, links_of, initial.models).items()}
    found = {name: rows for name, rows in tensors.items() if name not in OF_RECORD}
    if found.keys() != expected.keys():
        raise ValueError(f"it holds {', '.join(sorted(found))} instead of {', '.join(sorted(expected))}")
    for name, rows in found.items():
        if rows.shape != expected[name].shape or rows.dtype != expected[name].dtype:
            raise ValueError(f"{name} is {rows.dtype} of shape {rows.shape}")
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            raise ValueError(f"{name} is not finite")
    if not np.isfinite([time_total, largest_time]).all():
        raise ValueError("time_total or largest_time is not finite")
    if tensors["moments"].dtype != np.int64 or tensors["moments"].shape[1:] != (2,):
        raise ValueError("moments are not pairs of whole numbers")
    if missing := [one for one in without_models if one <= k]:
        raise ValueError(f"the models of iteration {min(missing)} are missing")
    memory = {name.removeprefix(MEMORY): array for name, array in tensors.items() if name.startswith(MEMORY)}
    state = State(k, tensors["models"], tensors["last_broadcast"], local, memory)
    return state, Record(first=k, time_total=time_total, largest_time=largest_time)
