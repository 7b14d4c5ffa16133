"""How far runs are: on a terminal, a bar with measure and speed; elsewhere, a plain line on stderr now and then.

Batch systems keep what a command prints: a line every half minute says there how far the runs are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from efhc.cli.terminal import cell, console, warn

if TYPE_CHECKING:
    from efhc.experiments.runs.progress import Overview

BAR_SECONDS = 0.1
"""The time between two movements of the bar."""
FIRST_SECONDS, LINE_SECONDS = 5.0, 30.0
"""When the first plain line is printed, and the time between two. A command that is done before prints none."""


class NowAndThen:
    """Calls something at most every few seconds."""

    def __init__(self, first: float, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock, self._due = every, clock, clock() + first
        self.has_called = False

    def call(self, do: Callable[[], None]) -> None:
        """Call `do` if it is time for it."""
        if (now := self._clock()) >= self._due:
            self._due, self.has_called = now + self._every, True
            do()


@contextmanager
def showing(runs: int, iterations: int, lines: NowAndThen | None = None) -> Iterator[Overview]:
    """Show how far `runs` with `iterations` in all are. `lines` says how often to print if this is no terminal."""
    from efhc.experiments.runs.progress import Overview

    overview, began = Overview(runs, iterations), time.monotonic()
    if console.is_terminal:
        with _bar(overview):
            yield overview
        return
    seldom = lines or NowAndThen(FIRST_SECONDS, LINE_SECONDS)
    overview.show = lambda: seldom.call(lambda: warn(overview.line()))
    yield overview
    if seldom.has_called:
        took = timedelta(seconds=round(time.monotonic() - began))
        warn(f"{overview.finished} of {runs} runs done in {took}")


@contextmanager
def _bar(overview: Overview) -> Iterator[None]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from efhc.experiments.runs.progress import PREPARING

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[words]}")
    with Progress(*columns, console=console) as bars:
        task = bars.add_task(PREPARING, total=overview.iterations, words="")
        seldom = NowAndThen(0.0, BAR_SECONDS)

        def move() -> None:
            run = overview.latest
            if run is None or overview.reached == 0:
                return
            score = f": {run.score}" if run.score else ""
            runs = [f"{overview.finished}/{overview.runs} runs"] if overview.runs > 1 else []
            words = ", ".join(runs + overview.speed.words(overview.iterations - overview.reached))
            bars.update(task, completed=overview.reached, description=cell(run.name + score), words=words)

        overview.show = lambda: seldom.call(move)
        yield
        move()
        bars.refresh()  # or a run that is done within a tick of the bar shows no score
        bars.update(task, completed=overview.iterations, description="done")
