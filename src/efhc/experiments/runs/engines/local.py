"""Runs on the cores of this machine, as threads of this process: they share the data, and nothing has to be started.

The compiled loops and torch let go of Python's lock, so threads use all cores; where there are very many, the engine
of processes is `cluster.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from itertools import groupby
from threading import Event, Lock
from typing import Any

from threadpoolctl import threadpool_limits

from efhc.base.errors import EfhcError
from efhc.base.inputs import using_inputs
from efhc.base.threads import leave_interrupts_to_python
from efhc.drivers.observers import ObserverFactory
from efhc.experiments.runs.driver_tables import driver_of
from efhc.experiments.runs.events import FollowerFactory
from efhc.experiments.runs.keeping import CHECKPOINT_SECONDS, FAILURES, RunOptions, Stopped
from efhc.experiments.runs.make import make_run
from efhc.experiments.runs.resources import Plan, plan
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.store import Progress, Store


@dataclass(frozen=True)
class LocalEngine:
    """Makes runs in threads of this process, on `jobs` cores. Default: all."""

    jobs: int | None = None
    keeps_models: bool = False
    """Whether the models of all runs stay in memory."""
    checkpoint_seconds: float = CHECKPOINT_SECONDS

    def session(self) -> AbstractContextManager[None]:
        return nullcontext()

    def make(
        self,
        runs: list[Run],
        store: Store,
        progress: Progress,
        observers: ObserverFactory | None = None,
        followers: Sequence[FollowerFactory] = (),
    ) -> dict[str, EfhcError]:
        # BLAS with several threads is slower on matrices this small, and its rounding depends on their number.
        with threadpool_limits(1, "blas"), ExitStack() as inputs:
            for run in {id(run.inputs): run for run in runs}.values():
                inputs.enter_context(using_inputs(run.inputs.files))
            failures: dict[str, EfhcError] = {}
            for use, alike in self._planned(runs):
                failures |= _Batch(store, progress, observers, followers, use, self.checkpoint_seconds).make(alike)
            return failures

    def _planned(self, runs: list[Run]) -> Iterator[tuple[Plan, list[Run]]]:
        """Yield consecutive runs that need the same memory, with how many of them to make at once."""

        def needs(run: Run) -> tuple[object, ...]:
            asked = run.experiment
            sizes = asked.devices, asked.model.parameters(run.data), asked.precision, asked.batch_size
            return driver_of(asked), *sizes

        for _, group in groupby(runs, needs):
            alike = list(group)
            yield plan(alike[0].experiment, alike[0].data, self.jobs, len(alike), keeps_models=self.keeps_models), alike


class _Batch:
    """Makes several runs at once. All stop if the user interrupts, or if an error concerns them all."""

    def __init__(
        self,
        store: Store,
        progress: Progress,
        observers: ObserverFactory | None,
        followers: Sequence[FollowerFactory],
        use: Plan,
        checkpoint_seconds: float,
    ) -> None:
        self._store, self._progress, self._observers, self._followers = store, progress, observers, followers
        self._use, self._checkpoint_seconds = use, checkpoint_seconds
        self._stop, self._reporting = Event(), Lock()

    def make(self, runs: list[Run]) -> dict[str, EfhcError]:
        failures: dict[str, EfhcError] = {}
        for run in runs:
            run.scenarios.expect(run)

        def attempt(run: Run) -> None:
            try:
                self._make(run)
            except FAILURES as error:
                failures[run.key] = error.about(run.name)
            except BaseException:
                self._stop.set()  # before this thread begins with another run
                raise
            finally:
                run.scenarios.release(run)

        leave_interrupts_to_python()
        with ThreadPoolExecutor(self._use.runs_at_once, thread_name_prefix="efhc-run") as pool:
            wait_for_all(pool, [pool.submit(copy_context().run, attempt, run) for run in runs], self._stop)
        return failures

    def _make(self, run: Run) -> None:
        if self._stop.is_set():
            return

        def tell(share: float) -> None:
            with self._reporting:
                self._progress(run, min(share, 0.999999))

        scenario = run.scenarios.of(run, self._use.threads_per_run, self._store.warn)
        with self._store.keeper(run) as keeper:
            if keeper is not None:
                own = [self._observers(*run.pair, scenario)] if self._observers else []
                options = RunOptions(self._use.threads_per_run, own, tell, self._stop, self._checkpoint_seconds)
                make_run(run, scenario, keeper, options, self._followers)
        with self._reporting:
            self._progress(run, 1.0)


def wait_for_all(pool: ThreadPoolExecutor, runs: Iterable[Future[Any]], stop: Event) -> None:
    """Wait until all are done. If one raises or the user interrupts, set `stop`, wait for the others and raise."""
    every = list(runs)
    waiting = set(every)
    try:
        while waiting:  # with a timeout, because a signal that comes just before a wait is handled after it
            done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_EXCEPTION)
            for run in done:
                run.result()
    except BaseException as error:
        stop.set()
        pool.shutdown(cancel_futures=True)
        if isinstance(error, Stopped):  # because another run has failed, which may end later: raise its error instead
            reasons = [run.exception() for run in every if not run.cancelled()]
            raise next((one for one in reasons if one and not isinstance(one, Stopped)), error) from None
        raise
