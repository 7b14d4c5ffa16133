"""Runs and trackers: followers pass on what they hear, and each tracker works in a thread of its own.

A run never waits for a tracker. A tracker that cannot begin is warned of once and told of no other run. One that fails
later is warned of once, and is given again what it could not log whenever there is something new, and once in the end.
A process that is killed loses what it has not passed on. When its runs go on, trackers are offered all their rows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

from efhc import __version__
from efhc.base.errors import EfhcError
from efhc.base.own_code import in_one_line
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import flat_settings, to_tables
from efhc.experiments.runs.live.followers import About, EndState, Follower, FollowerFactory, Row
from efhc.experiments.runs.run import Run, file_name
from efhc.experiments.runs.tables import LOCKSTEP
from efhc.experiments.trackers.tracker import Entry, KnowingEntry, Point, Setting, TrackedRun, Tracker

PATIENCE = 120.0
"""Seconds without any progress after which nobody waits for a tracker in the end.

It is longer than W&B itself waits for its server: up to 90 s to begin and end a run.
"""
LONGEST = 300
"""Characters of an error that are told."""

Warn = Callable[[str], None]


def name_of(run: Run) -> str:
    """Return the name of a run within its experiment."""
    return file_name(*run.pair)


@contextmanager
def tracking(
    experiments: Iterable[Experiment],
    folder: Path | None,
    warn: Warn,
    *,
    name: Callable[[Run], str] = name_of,
    patience: float = PATIENCE,
) -> Iterator[Sequence[FollowerFactory]]:
    """Yield what creates followers of runs, which log each run as its experiment says; none if nothing is logged.

    In the end it waits until trackers have all, as long as they get on. `folder` is the directory of the experiment or
    study, and `name` tells its runs apart.
    """
    trackers: list[Tracker] = []
    for one in (tracker for experiment in experiments for tracker in experiment.log):
        if one not in trackers:
            trackers.append(one)
    desks = [_Desk(tracker, warn) for tracker in trackers]
    began = datetime.now().astimezone()

    def follower(run: Run) -> Follower:
        return _Passing(run, name(run), folder, began, [desk for desk in desks if desk.tracker in run.whole.log])

    try:
        yield [follower] if desks else []
    finally:
        for desk in desks:
            desk.finish()
        for desk in desks:
            desk.wait(patience)


class _Passing(Follower):
    """Passes the evaluations of one run on to trackers."""

    def __init__(self, run: Run, name: str, folder: Path | None, began: datetime, desks: list[_Desk]) -> None:
        self._run, self._name, self._folder, self._began, self._desks = run, name, folder, began, desks
        self._files: list[_File] = []

    def begin(self, about: About, k: int) -> None:
        run = TrackedRun(
            name=self._name,
            group=about.experiment,
            strategy=about.strategy,
            seed=about.seed,
            key=about.key,
            k=k,
            settings={**settings_of(self._run), "parameters": about.parameters, "efhc": __version__},
            folder=self._folder,
            began=self._began,
            order="iteration" if about.driver == LOCKSTEP.driver else "seconds",
        )
        self._files = [_File(run, desk) for desk in self._desks]

    def recalled(self, rows: Callable[[], Iterable[Row]]) -> None:
        if not self._files:
            return
        waiting = [_Waiting(_point(row), is_recalled=True) for row in rows()]
        for file in self._files:
            file.waiting.extend(waiting)
            file.tell()

    def evaluated(self, row: Row) -> None:
        for file in self._files:
            file.waiting.append(_Waiting(_point(row), is_recalled=False))
            file.tell()

    def end(self, state: EndState, problem: str | None) -> None:
        for file in self._files:
            file.ended = "finished" if state == "done" else state, problem
            file.tell()


def _point(row: Row) -> Point:
    iteration = row.get("iteration")
    step = row["steps"] if iteration is None else iteration + 1
    return Point(int(step or 0), time.time(), {name: value for name, value in row.items() if value is not None})


class _Waiting(NamedTuple):
    """A point that a tracker has yet to get."""

    point: Point
    is_recalled: bool
    """Whether it is of an earlier session, so that the tracker may have it already."""


class _File:
    """What one tracker has of one run, and has yet to get."""

    def __init__(self, run: TrackedRun, desk: _Desk) -> None:
        self.run, self._desk = run, desk
        self.waiting: deque[_Waiting] = deque()
        self.ended: tuple[str, str | None] | None = None
        self._entry: Entry | None = None
        self._has: Callable[[Point], bool] | None = None
        self._is_complete = False
        self.tell()

    def tell(self) -> None:
        """Let the desk know that there is something new."""
        self._desk.inbox.put(self)

    def begin(self, tracker: Tracker) -> None:
        """Let the tracker begin with the run, if it has not."""
        if self._entry is None:
            opened = tracker.open(self.run)
            if not all(callable(getattr(opened, name, None)) for name in ("add", "close")):
                raise EfhcError(f"open returned {str(opened)[:40]!r}; allowed: an object with methods add and close")
            self._entry = opened
            self._has = opened.has if isinstance(opened, KnowingEntry) else None

    def bring(self) -> bool:
        """Bring the tracker up to date. Returns whether the run has ended and the tracker has all of it."""
        assert self._entry is not None
        ended = self.ended  # all points are there by now if it has
        waiting = list(self.waiting)
        has = self._has
        if new := [one.point for one in waiting if not (one.is_recalled if has is None else has(one.point))]:
            self._entry.add(new)
        for _ in waiting:
            self.waiting.popleft()
        if ended is not None and not self._is_complete:  # one call may do what several were asked for
            self._entry.close(*ended)
            self._is_complete = True
        return self._is_complete


class _Desk:
    """One tracker at work."""

    def __init__(self, tracker: Tracker, warn: Warn) -> None:
        self.tracker, self._warn = tracker, warn
        self._kind = str(getattr(tracker, "kind", type(tracker).__name__))
        self.inbox: SimpleQueue[_File | None] = SimpleQueue()
        self._open: dict[_File, None] = {}
        self._progress = 0
        self._has_given_up = self._has_warned = False
        self._thread = Thread(target=self._work, name=f"efhc-log-{self._kind}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Let the desk end once it has done what is in its inbox."""
        self.inbox.put(None)

    def wait(self, patience: float) -> None:
        """Wait for the desk to end, as long as it gets on."""
        seen, since = self._progress, time.monotonic()
        while self._thread.is_alive():
            self._thread.join(0.1)
            if self._progress != seen:
                seen, since = self._progress, time.monotonic()
            elif time.monotonic() - since > patience:
                self._warn(f"log: {self._kind} has not answered for {patience:g} s; the remaining rows are not logged")
                return

    def _work(self) -> None:
        while (file := self.inbox.get()) is not None:
            self._attempt(file)
            self._progress += 1
        for file in list(self._open):
            if not self._attempt(file):
                rows = f"{len(file.waiting)} rows" if file.waiting else "the end"
                self._say(f"{rows} of {file.run.name} could not be logged")
            self._progress += 1

    def _attempt(self, file: _File) -> bool:
        """Bring the tracker up to date on a run. Returns whether that has worked."""
        if self._has_given_up:
            return True
        try:
            file.begin(self.tracker)
        except BaseException as error:  # SystemExit, too: it would end this thread without a word
            self._has_given_up = True
            self._open.clear()
            self._say(f"{_words(error)}; runs go on without it")
            return True
        self._open[file] = None
        try:
            if file.bring():
                del self._open[file]
        except BaseException as error:
            if not self._has_warned:
                self._has_warned = True
                self._say(f"{_words(error)}; runs go on, and it is tried again")
            return False
        return True

    def _say(self, text: str) -> None:
        with suppress(Warning):  # where warnings are errors, they are errors of whoever waits for runs
            self._warn(f"log: {self._kind}: {text}")


def _words(error: BaseException) -> str:
    text = str(error) if isinstance(error, EfhcError) else in_one_line(error)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def settings_of(run: Run) -> dict[str, Setting]:
    """Return the settings of a run by their dotted names; those of its strategy begin with "strategy"."""
    tables = to_tables(run.experiment, "describe")
    (strategy,) = tables.pop("strategies").values()
    for name in ("name", "seeds", "log"):
        del tables[name]
    flat = dict(flat_settings({"strategy": {"name": run.strategy, **strategy}, "seed": run.seed, **tables}))
    return {name: value if isinstance(value, Setting) else str(value) for name, value in flat.items()}
