"""Runs in threads of this process, on the cores of this machine. The runs share the data.

The compiled loops and torch release Python's lock, so threads use all cores. For very many cores, `cluster.py` makes
runs in processes.
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
from efhc.experiments.runs.events import FollowerFactory
from efhc.experiments.runs.keeping import CHECKPOINT_SECONDS, FAILURES, MadeMeanwhile, RunKeeper, RunOptions, Stopped
from efhc.experiments.runs.resources import Plan, plan
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.store import Progress, RunStore
from efhc.experiments.runs.tables import EVENT_DRIVEN, devices_table, driver_of
from efhc.scenarios.scenario import Scenario


@dataclass(frozen=True)
class LocalEngine:
    """Makes runs in threads of this process, on `jobs` cores. Default: all."""

    jobs: int | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS

    def session(self) -> AbstractContextManager[None]:
        return nullcontext()

    def make(
        self,
        runs: list[Run],
        store: RunStore,
        progress: Progress,
        observers: ObserverFactory | None = None,
        followers: Sequence[FollowerFactory] = (),
    ) -> dict[str, EfhcError]:
        failures: dict[str, EfhcError] = {}
        stop, reporting = Event(), Lock()

        def report(run: Run, share: float) -> None:
            with reporting:
                progress(run, share)

        def make_one(run: Run, threads: int) -> None:
            scenario = run.scenarios.of(run, threads, store.warn)
            with store.keeper(run) as keeper:
                if keeper is not None:
                    if keeper.backend not in (None, scenario.learner.backend.name):
                        scenario = run.scenarios.of(run, threads, store.warn, keeper.backend)
                    own = [observers(*run.pair, scenario)] if observers else []
                    options = RunOptions(
                        threads, own, lambda share: report(run, min(share, 0.999999)), stop, self.checkpoint_seconds
                    )
                    make_run(scenario, keeper, options, followers)
            report(run, 1.0)

        def attempt(run: Run, threads: int) -> None:
            try:
                if not stop.is_set():
                    make_one(run, threads)
            except FAILURES as error:
                failures[run.key] = error.about(run.name)
            except BaseException:
                stop.set()  # before this thread begins with another run
                raise
            finally:
                run.scenarios.release(run)

        leave_interrupts_to_python()
        # BLAS with several threads is slower on matrices this small, and its rounding depends on their number.
        with threadpool_limits(1, "blas"), ExitStack() as inputs:
            for one in {id(run.inputs): run.inputs for run in runs}.values():
                inputs.enter_context(using_inputs(one.files))
            for use, alike in self._planned(runs, keeps_models=store.path is None):
                for run in alike:
                    run.scenarios.expect(run)
                with ThreadPoolExecutor(use.runs_at_once, thread_name_prefix="efhc-run") as pool:
                    each = [pool.submit(copy_context().run, attempt, run, use.threads_per_run) for run in alike]
                    wait_for_all(pool, each, stop)
        return failures

    def _planned(self, runs: list[Run], *, keeps_models: bool) -> Iterator[tuple[Plan, list[Run]]]:
        """Yield consecutive runs that need the same memory, with how many of them to make at once."""

        def needs(run: Run) -> tuple[object, ...]:
            one = run.experiment
            sizes = one.devices, one.model.parameters(run.data), one.precision, one.batch_size
            return driver_of(one), *sizes

        for _, group in groupby(runs, needs):
            alike = list(group)
            yield plan(alike[0].experiment, alike[0].data, self.jobs, len(alike), keeps_models=keeps_models), alike


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


def make_run(
    scenario: Scenario,
    keeper: RunKeeper,
    options: RunOptions | None = None,
    followers: Sequence[FollowerFactory] = (),
) -> None:
    """Make a run from its last checkpoint, or from the start, to its end, and emit its events to `followers`.

    When `options.stop` is set, the run saves a checkpoint and raises `Stopped`. On any other error, a run in lockstep
    saves what is complete, and an event-driven run goes on from its last checkpoint when it is made again. A run that
    another process completes meanwhile is not made to its end.
    """
    run, stream = keeper.run, keeper.stream
    keeper.use(scenario.learner.backend.name)
    if driver_of(run.experiment) == EVENT_DRIVEN.driver:
        from efhc.experiments.runs.event_driven_run import make_event_driven as make
    else:
        from efhc.experiments.runs.lockstep_run import make_lockstep as make
    stream.follow(followers)
    if keeper.is_open:
        keeper.show()
    try:
        models, local = make(scenario, keeper, options or RunOptions())
        keeper.finish(models, local, devices_table(scenario, run.seed))
    except MadeMeanwhile:
        pass
    except FAILURES as error:
        stream.end("failed", str(error))
        raise
    except BaseException as error:
        stream.end("stopped", str(error) or None)
        raise
    stream.end("done", None)
