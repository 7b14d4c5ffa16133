"""How far runs are, in words: for the bar on a terminal, the lines in a log, and the bar in a notebook."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import timedelta
from html import escape
from importlib import import_module
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from efhc.experiments.runs.events import Event as RunEvent
    from efhc.experiments.runs.events import EventReader
    from efhc.experiments.runs.run import Run
    from efhc.learning.measures import Measure

PREPARING = "preparing (a first run compiles for about 6 s)"
"""What is shown until a run has begun."""
MOST_NAMED = 4
"""Runs that a plain line names at most."""

Clock = Callable[[], float]


RunProgress = Callable[[str, int, int], None]
"""Called with strategy, seed and number of iterations done, also for those that a resumed run already has."""
SPEED_SECONDS = 30.0
"""The time over which speed is measured."""


@dataclass
class Speed:
    """The mean number of iterations per second in the last half minute."""

    _points: deque[tuple[float, int]] = field(default_factory=deque)
    """Times, and how many iterations had been made by then."""

    def note(self, at: float, made: int) -> None:
        self._points.append((at, made))
        while len(self._points) > 2 and self._points[1][0] < at - SPEED_SECONDS:
            self._points.popleft()

    @property
    def per_second(self) -> float | None:
        """Iterations per second. None: too early to say."""
        if len(self._points) < 2:
            return None
        (began, first), (now, last) = self._points[0], self._points[-1]
        return (last - first) / (now - began) if now > began and last > first else None

    def words(self, left: int) -> list[str]:
        """Return how fast it goes, and how long `left` iterations will take, in words."""
        if (speed := self.per_second) is None:
            return []
        digits = 0 if speed >= 10 else 2
        return [f"{speed:,.{digits}f} it/s", f"{timedelta(seconds=round(left / speed))} left"]


@dataclass
class _Shown:
    name: str
    iterations: int
    k: int
    first_k: int
    """The number of iterations made when the run was first reported."""
    speed: Speed = field(default_factory=Speed)
    score: str = ""
    """Its measure after the last evaluation, in words. Empty: not evaluated yet."""
    is_done: bool = False

    def words(self) -> str:
        """The run in words: how far, how good, how fast, how long to go."""
        far = f"{self.name}: {self.k:,} of {self.iterations:,}"
        return ", ".join([far, *filter(None, [self.score]), *self.speed.words(self.iterations - self.k)])


def score_words(measure: Measure, value: float) -> str:
    """Return a measure with its value: "accuracy on own data 0.953"."""
    return f"{measure.label} {value:.3f}" if measure.metric == "accuracy" else f"{measure.label} {value:.4g}"


class Overview:
    """The progress of several runs, and their measure after the last evaluation. Several threads may report."""

    def __init__(self, runs: int, iterations: int, clock: Clock = time.monotonic) -> None:
        """`iterations` are those of all `runs` together."""
        self.runs, self.iterations, self._clock = runs, iterations, clock
        self.show: Callable[[], None] = lambda: None
        """Called whenever something has changed."""
        self.latest: _Shown | None = None
        """The run that was reported last."""
        self.score = ""
        """The measure of the run that was evaluated last, in words."""
        self.speed = Speed()
        self._shown: dict[Hashable, _Shown] = {}
        self._earlier: list[_Shown] = []
        """Runs whose names others have now: the same strategy and seed in another network."""
        self._early: dict[Hashable, str] = {}
        """The scores of runs that were evaluated before they were first reported."""
        self._made, self._lock = 0, RLock()

    def progress(self, run: Run, share: float) -> None:
        iterations = run.experiment.iterations
        self._reach(run.key, run.name, iterations, round(share * iterations), is_done=share == 1)

    def progress_of(self, iterations: int) -> RunProgress:
        """Return a callback that reports runs by strategy and seed; each has this number of `iterations`."""

        def progress(strategy: str, seed: int, done: int) -> None:
            self._reach((strategy, seed), f"{strategy}, seed {seed}", iterations, done, is_done=done >= iterations)

        return progress

    def follower(self, run: Run) -> EventReader:
        from efhc.experiments.runs.events import Evaluations, measured
        from efhc.learning.measures import measure_in

        evaluations, wanted = Evaluations(), run.whole.measure
        measure: Measure | None = None

        def read(event: RunEvent) -> None:
            nonlocal measure
            if (row := getattr(event, "row", None)) is None:
                return
            row, _ = evaluations.add(row)
            if measure is None and (known := measured(row)):
                measure = measure_in(wanted if wanted in known else None, known)
            if measure is not None and (value := row.get(measure.name)) is not None:
                self._evaluate(run, score_words(measure, value))

        read.rows_only = True  # type: ignore[attr-defined]
        return read

    def _evaluate(self, run: Run, score: str) -> None:
        with self._lock:
            self.score = score
            shown = self._shown.get(run.key) or self._shown.get(run.pair)
            if shown is not None:
                shown.score = score
            else:
                self._early[run.key] = self._early[run.pair] = score

    def _reach(self, key: Hashable, name: str, iterations: int, k: int, *, is_done: bool) -> None:
        with self._lock:
            run = self._shown.get(key)
            if run is None or k < run.k:
                self._earlier += [] if run is None else [run]
                run = self._shown[key] = _Shown(name, iterations, k, k, score=self._early.pop(key, ""))
            self._made += k - run.k
            run.k, run.is_done, self.latest = k, is_done, run
            if k > run.first_k:  # the time of the first ones is that of compiling
                run.speed.note(self._clock(), k)
                self.speed.note(self._clock(), self._made)
            self.show()

    @property
    def reached(self) -> int:
        """The iterations of all runs that are done, those of earlier commands included."""
        with self._lock:
            return sum(run.k for run in (*self._earlier, *self._shown.values()))

    @property
    def finished(self) -> int:
        with self._lock:
            return sum(run.is_done for run in (*self._earlier, *self._shown.values()))

    def line(self) -> str:
        """Return how far all is, and every run that is being made, in one line."""
        with self._lock:
            running = [run.words() for run in self._shown.values() if not run.is_done]
            parts = running[:MOST_NAMED] + [f"{len(running) - MOST_NAMED} more"] * (len(running) > MOST_NAMED)
            if self.runs > 1:
                done = f"{self.finished} of {self.runs} runs done"
                parts.insert(0, ", ".join([done, *self.speed.words(self.iterations - self.reached)]))
            return "; ".join(parts)


# In a notebook

DELAY, BETWEEN = 2.0, 0.5
"""Seconds until the bar is shown, and between two drawings."""


@contextmanager
def notebook_bar(runs: int, iterations: int) -> Iterator[Overview | None]:
    """Yield what a bar shows, if this is the kernel of a notebook; the bar goes in the end. Elsewhere yield None."""
    module: Any = sys.modules.get("IPython")  # a notebook has imported it
    if module is None or not hasattr(module.get_ipython(), "kernel"):
        yield None
        return
    overview, ended = Overview(runs, iterations), Event()
    # A thread of its own draws, so that runs wait for nothing; the context says which cell the bar belongs to.
    thread = Thread(target=copy_context().run, args=(_draw, overview, ended), name="efhc-notebook-bar", daemon=True)
    thread.start()
    try:
        yield overview
    finally:
        ended.set()
        thread.join()


def _draw(overview: Overview, ended: Event) -> None:
    display: Any = import_module("IPython.display").display  # which has no types

    if ended.wait(DELAY):
        return
    bar = display(_bundle(overview), raw=True, display_id=True)
    while not ended.wait(BETWEEN):
        bar.update(_bundle(overview), raw=True)
    bar.update({"text/html": "", "text/plain": ""}, raw=True)


def _bundle(overview: Overview) -> dict[str, str]:
    words = overview.line() if overview.reached else PREPARING
    lines = "<br>".join(map(escape, words.split("; ")))
    html = f'<progress value="{overview.reached}" max="{overview.iterations}"></progress> {lines}'
    return {"text/html": html, "text/plain": words}
