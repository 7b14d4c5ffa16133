"""A run in which all devices step together: the driver, its observers and what is kept of the run come together."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.memory import Memories, begin
from efhc.core.state import Local, State
from efhc.drivers.event_driven.settings import LockstepDriver
from efhc.drivers.general import driver_for
from efhc.drivers.lockstep import Lockstep
from efhc.drivers.observers import LookAt, Observer, drive
from efhc.drivers.record import Piece, Record
from efhc.drivers.recording import Recording
from efhc.drivers.steps import Steps
from efhc.experiments.runs.evaluation import Evaluation
from efhc.experiments.runs.keeping import Checkpoint, Keeper, Making, Stopped
from efhc.experiments.runs.live.of_lockstep import LockstepTelling
from efhc.experiments.runs.live.totals import Totals
from efhc.experiments.runs.run import Run
from efhc.scenarios.scenario import Scenario

LOCAL = "local/"
"""In front of the names of what devices keep to themselves, in a checkpoint."""
MEMORY = "memory/"
"""In front of the names of what the strategy remembers."""
SECONDS = "seconds"
"""The name of the time for which the run was made, in the texts of a checkpoint."""


def make_lockstep(making: Making) -> tuple[Floats, Local]:
    """Make the iterations after the last checkpoint, or all. Returns the last models and what devices keep."""
    run, scenario, keeper, experiment = making.run, making.scenario, making.keeper, making.run.experiment
    (strategy,) = experiment.strategies.values()
    settings = experiment.driver
    assert isinstance(settings, LockstepDriver)
    driver = driver_for(scenario, strategy, making.threads, settings.loss or 0.0)
    initial = driver.initial_state()
    wanted = snapshot_iterations(run) if experiment.keep_models_every else []

    def restore(checkpoint: Checkpoint) -> tuple[State, Record, float, Totals]:
        left = set(wanted) - set(keeper.snapshots)
        restored = _checked(checkpoint, initial, driver.memories, scenario, experiment.iterations, left)
        return *restored, float(checkpoint.facts.get(SECONDS, 0.0)), Totals.of(checkpoint.facts)

    state, record, seconds, totals = keeper.resume(restore) or (initial, Record(), 0.0, Totals())
    # Observers see no iteration after one whose models cannot be evaluated: with them, evaluation is in line.
    is_alone = not making.observers and not wanted
    evaluates_beside = making.threads > 1 and is_alone and isinstance(driver, Lockstep) and driver.leaves_cores(state)
    making.tell_begin(state.k)
    telling = LockstepTelling(making.followers, record, scenario, strategy, experiment.iterations, seconds, totals)
    with ThreadPoolExecutor(1, thread_name_prefix="efhc-evaluation") as beside:
        evaluation = Evaluation(record, scenario.learner, beside if evaluates_beside else None, telling.evaluated)
        keeping = _Keeping(keeper, record, evaluation, state, making.checkpoint_seconds, telling)
        everyone = [
            _Recording(record, evaluation, scenario, run, keeping, telling),
            telling,
            *([_Snapshots(keeper, wanted)] if wanted else []),
            keeping,
            *making.observers,  # one that raises finds the iteration whole
            _Telling(making.progress, making.stop, experiment.iterations),
        ]
        try:
            state = drive(driver, state, experiment.iterations, everyone)
            keeping.settle()
        except BaseException:
            keeping.save()  # stopped or failed: whatever is whole is kept
            raise
    last = record.take()
    keeper.put_away(last)
    _warn_if_apart(making, last)
    return state.models, state.local


APART = 1e8
"""A sum of squared distances between models above which nobody can have learned anything."""


def _warn_if_apart(making: Making, last: Piece) -> None:
    """Say so if the models of the devices have run away from each other, which no error has told."""
    errors = last.tables["metrics"]["consensus_error"]
    if len(errors) and errors[-1] > APART:
        advice = "try a smaller rate or correction of the strategy, or a smaller step_size"
        making.keeper.warn(f"{making.run.name}: the models ran apart (consensus error {errors[-1]:.1e}); {advice}")


def snapshot_iterations(run: Run) -> list[int]:
    """Return the iterations whose models are kept, with `keep_models_every`."""
    every, iterations = run.experiment.keep_models_every or run.experiment.iterations, run.experiment.iterations
    return [*range(0, iterations, every), iterations]


class _Recording(Recording):
    """Records every iteration, and evaluates the models after those that the experiment says."""

    def __init__(
        self,
        record: Record,
        evaluation: Evaluation,
        scenario: Scenario,
        run: Run,
        keeping: _Keeping,
        telling: LockstepTelling,
    ) -> None:
        super().__init__(scenario, record)
        self._evaluation, self._experiment, self._keeping = evaluation, run.experiment, keeping
        self._telling = telling

    def next_look(self, k: int) -> int | None:
        return self._experiment.next_evaluation(k)

    def after(self, steps: Steps, state: State) -> None:
        self._keeping.wait()
        super().after(steps, state)
        if self._experiment.is_evaluated_after(state.k):
            self._telling.before_evaluation(steps, state)
            self._evaluation.begin(state)


class _Snapshots(LookAt):
    """Keeps the models of given iterations."""

    def __init__(self, keeper: Keeper, iterations: Sequence[int]) -> None:
        super().__init__(iterations)
        self._keeper = keeper

    def look(self, state: State) -> None:
        self._keeper.snapshot(state.k, state.models)


class _Keeping(Observer):
    """Puts full pieces away, and makes a checkpoint every few seconds."""

    def __init__(
        self,
        keeper: Keeper,
        record: Record,
        evaluation: Evaluation,
        state: State,
        seconds: float,
        telling: LockstepTelling,
    ) -> None:
        self._keeper, self._record, self._evaluation, self._seconds = keeper, record, evaluation, seconds
        self._telling = telling
        self._whole: State | None = state
        """The latest state whose iterations have all been recorded. None if models could not be evaluated."""
        self._saved_at = time.monotonic()

    def wait(self) -> None:
        """Save nothing until `after` is called: the latest iterations are being recorded."""
        self._whole = None

    def after(self, steps: Steps, state: State) -> None:
        self._whole = state
        if time.monotonic() - self._saved_at > self._seconds:
            self.save()
        elif self._record.is_large:
            self.settle()
            self._keeper.put_away(self._record.take())

    def settle(self) -> None:
        """Wait until all models that were to be evaluated have been. Nothing is saved if that fails."""
        whole, self._whole = self._whole, None
        self._evaluation.finish()
        self._telling.settle()
        self._whole = whole

    def save(self) -> None:
        """Make a checkpoint of the latest whole iteration, if there is one."""
        self.settle()
        state, record = self._whole, self._record
        if state is not None and state.k > 0:
            tensors = {
                "models": state.models,
                "last_broadcast": state.last_broadcast,
                "k": np.array([state.k]),
                "time_total": np.array([record.time_total]),
                **{LOCAL + name: rows for name, rows in state.local.items()},
                **{MEMORY + name: array for name, array in state.memory.items()},
            }
            facts = {SECONDS: f"{self._telling.seconds:.3f}", **self._telling.totals.facts}
            self._keeper.checkpoint(record.take(), tensors, facts)
        self._saved_at = time.monotonic()


class _Telling(Observer):
    """Reports the share of the iterations that is done, and stops the run when `stop` is set."""

    def __init__(self, progress: Callable[[float], None], stop: Event, iterations: int) -> None:
        self._progress, self._stop, self._iterations = progress, stop, iterations

    def begin(self, state: State) -> None:
        self._tell(state)

    def after(self, steps: Steps, state: State) -> None:
        self._tell(state)

    def _tell(self, state: State) -> None:
        self._progress(state.k / self._iterations)
        if self._stop.is_set() and state.k < self._iterations:
            raise Stopped


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
    k, time_total = int(tensors["k"].item()), float(tensors["time_total"].item())
    if not 0 < k <= iterations:
        raise ValueError(f"it tells of {k} iterations of {iterations}")
    if k != checkpoint.position:
        raise ValueError(f"its pieces end after {checkpoint.position} iterations instead of {k}")
    local = {name.removeprefix(LOCAL): rows for name, rows in tensors.items() if name.startswith(LOCAL)}
    expected = {"models": initial.models, "last_broadcast": initial.last_broadcast}
    expected |= {LOCAL + name: rows for name, rows in initial.local.items()}
    links_of = scenario.network.graph(k - 1)  # the state after k iterations remembers the links of the last one
    expected |= {MEMORY + name: array for name, array in begin(memories, links_of, initial.models).items()}
    found = {name: rows for name, rows in tensors.items() if name not in {"k", "time_total"}}
    if found.keys() != expected.keys():
        raise ValueError(f"it holds {', '.join(sorted(found))} instead of {', '.join(sorted(expected))}")
    for name, rows in found.items():
        if rows.shape != expected[name].shape or rows.dtype != expected[name].dtype:
            raise ValueError(f"{name} is {rows.dtype} of shape {rows.shape}")
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            raise ValueError(f"{name} is not finite")
    if not np.isfinite(time_total):
        raise ValueError("time_total is not finite")
    if missing := [one for one in without_models if one <= k]:
        raise ValueError(f"the models of iteration {min(missing)} are missing")
    memory = {name.removeprefix(MEMORY): array for name, array in tensors.items() if name.startswith(MEMORY)}
    state = State(k, tensors["models"], tensors["last_broadcast"], local, memory)
    return state, Record(first=k, time_total=time_total)
