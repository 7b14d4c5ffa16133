"""Runs on the cores of this machine, as threads of this process: they share the data, and nothing has to be started.

The compiled loops and torch let go of Python's lock, so threads use all cores; where there are very many, the engine
of processes is `cluster.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from threading import Event, Lock

from threadpoolctl import threadpool_limits

from efhc.experiments.runs.execute import run_alone, wait_for_all
from efhc.experiments.runs.resources import Plan, plan
from efhc.experiments.runs.store import BatchProgress, Run, RunStore


@dataclass(frozen=True)
class LocalEngine:
    """Uses `jobs` cores; left out, all."""

    jobs: int | None = None

    def session(self) -> AbstractContextManager[None]:
        return nullcontext()

    def make(self, runs: list[Run], store: RunStore, progress: BatchProgress) -> None:
        # BLAS with several threads is slower on matrices this small, and its rounding depends on their number.
        with threadpool_limits(1, "blas"):
            for use, alike in self._planned(runs):
                _make_alike(alike, use, store, progress)

    def _planned(self, runs: list[Run]) -> Iterator[tuple[Plan, list[Run]]]:
        """Runs that need the same memory, and how many of them at once."""

        def needs(run: Run) -> tuple[int, int, str]:
            return run.experiment.devices, run.experiment.model.parameters(run.data), run.experiment.precision

        for _, group in groupby(runs, needs):
            alike = list(group)
            yield plan(alike[0].experiment, alike[0].data, self.jobs, len(alike)), alike


def _make_alike(runs: list[Run], use: Plan, store: RunStore, progress: BatchProgress) -> None:
    """All stop where one fails, or the user interrupts; each is kept."""
    stop, telling = Event(), Lock()

    def make(run: Run) -> None:
        def tell(share: float) -> None:
            with telling:
                progress(run, share)

        def iterated(strategy: str, seed: int, done: int) -> None:
            tell(min(done / run.experiment.iterations, 0.999))

        if not stop.is_set():
            out = store.directory(run)
            run_alone(run.experiment, run.data, out, threads=use.threads_per_run, progress=iterated, stop=stop)
            tell(1.0)

    with ThreadPoolExecutor(use.runs_at_once, thread_name_prefix="efhc-run") as pool:
        wait_for_all(pool, [pool.submit(make, run) for run in runs], stop)
