"""Logging runs to trackers: a reader of each run's events queues its rows, and each tracker works in its own thread.

A run never waits for a tracker. A tracker that cannot open a run is reported once and logs no other run. One that fails
later is reported once, and gets the rows that it could not log again with the next ones, and once in the end. A process
that is killed loses the rows in its queue. When its runs are resumed, trackers are offered all their rows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from efhc import __version__
from efhc.base.errors import EfhcError
from efhc.base.own_code import in_one_line
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import flat_settings, to_tables
from efhc.experiments.runs.events import Begin, EndState, Evaluations, Follower, FollowerFactory, Row
from efhc.experiments.runs.run import Run, file_name
from efhc.experiments.runs.tables import LOCKSTEP
from efhc.experiments.trackers.tracker import Entry, Point, Setting, TrackedRun, Tracker
from efhc.strategies.forms import form_of

TIMEOUT = 120.0
"""Seconds without any progress after which the end of a command no longer waits for a tracker.

It is longer than W&B itself waits for its server: up to 90 s to begin and end a run.
"""
LONGEST = 300
"""Largest number of characters of an error that are printed."""

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
    timeout: float = TIMEOUT,
) -> Iterator[Sequence[FollowerFactory]]:
    """Yield, for each tracker of the experiments, what creates a reader of each run's events that logs the run.

    In the end it waits until trackers have logged all rows, as long as they make progress. `folder` is that of the
    experiment or study, and `name` distinguishes its runs.
    """
    trackers: list[Tracker] = []
    for one in (tracker for experiment in experiments for tracker in experiment.log):
        if one not in trackers:
            trackers.append(one)
    workers = [_Worker(tracker, warn) for tracker in trackers]
    began = datetime.now().astimezone()

    def tracked(run: Run, begin: Begin) -> TrackedRun:
        return TrackedRun(
            name=name(run),
            group=begin.experiment,
            strategy=begin.strategy,
            seed=begin.seed,
            key=begin.key,
            k=begin.k,
            settings={**settings_of(run), "parameters": begin.parameters, "efhc": __version__},
            folder=folder,
            began=began,
            measure=run.whole.measure,
            order="iteration" if begin.driver == LOCKSTEP.driver else "seconds",
        )

    try:
        yield [partial(_Log, worker, tracked) for worker in workers]
    finally:
        for worker in workers:
            worker.finish()
        for worker in workers:
            worker.wait(timeout)


def _point(row: Row) -> Point:
    iteration = row.get("iteration")
    step = row["steps"] if iteration is None else iteration + 1
    return Point(int(step or 0), time.time(), {name: value for name, value in row.items() if value is not None})


class _Log(Follower):
    """One run in one tracker, and the points that it has not logged yet."""

    rows_only = True

    def __init__(self, worker: _Worker, tracked: Callable[[Run, Begin], TrackedRun], run: Run) -> None:
        self._worker, self._tracked, self._run = worker, tracked, run
        self._is_on = worker.tracker in run.whole.log
        self._ended: tuple[str, str | None] | None = None
        self._entry: Entry | None = None
        self._is_closed = False
        self._evaluations, self._period = Evaluations(), 1
        self._last: tuple[Row, bool] | None = None
        """An evaluation that may get further rows, and whether it began in an earlier session."""
        self.queue: deque[tuple[Point, bool]] = deque()
        """Points, and whether they are of an earlier session, so that the tracker may have them already."""

    # In the thread of the run

    def begin(self, run: Begin) -> None:
        self.run = self._tracked(self._run, run)
        (strategy,) = self._run.experiment.strategies.values()
        self._period = form_of(strategy).period
        self._add([])

    def recalled(self, rows: Callable[[], Iterable[Row]]) -> None:
        if self._is_on:
            self._add([point for row in rows() for point in self._points(row, is_recalled=True)])

    def evaluated(self, row: Row) -> None:
        self._add(self._points(row, is_recalled=False))

    def end(self, state: EndState, problem: str | None) -> None:
        self._ended = "finished" if state == "done" else state, problem
        self._add([] if state == "stopped" else self._whole())  # when the run goes on, it may get further rows

    def _points(self, row: Row, *, is_recalled: bool) -> list[tuple[Point, bool]]:
        """Return the evaluations that are whole, given a further row. With a period, the next one shows that."""
        evaluation, begins = self._evaluations.add(row)
        whole = self._whole() if begins else []
        self._last = evaluation, is_recalled
        return whole if self._period > 1 else [*whole, *self._whole()]

    def _whole(self) -> list[tuple[Point, bool]]:
        last, self._last = self._last, None
        return [] if last is None else [(_point(last[0]), last[1])]

    def _add(self, points: list[tuple[Point, bool]]) -> None:
        if self._is_on:
            self.queue.extend(points)
            self._worker.inbox.put(self)

    # In the thread of the tracker

    def open(self) -> None:
        if self._entry is None:
            opened = self._worker.tracker.open(self.run)
            if not all(callable(getattr(opened, name, None)) for name in ("add", "close")):
                given = f"{str(opened)[:40]!r}"
                raise EfhcError(f"open returned {given} instead of an object with the methods add and close")
            self._entry = opened

    def flush(self) -> bool:
        """Log the points in the queue. Returns whether the run has ended and the tracker has all of it."""
        assert self._entry is not None
        ended = self._ended  # all points are there by now if it has
        queued, has = list(self.queue), getattr(self._entry, "has", None)
        if new := [point for point, is_recalled in queued if not (has(point) if has else is_recalled)]:
            self._entry.add(new)
        for _ in queued:
            self.queue.popleft()
        if ended is not None and not self._is_closed:  # several notifications may lead to one call each
            self._entry.close(*ended)
            self._is_closed = True
        return self._is_closed


class _Worker:
    def __init__(self, tracker: Tracker, warn: Warn) -> None:
        self.tracker, self._warn = tracker, warn
        self._kind = str(getattr(tracker, "kind", type(tracker).__name__))
        self.inbox: SimpleQueue[_Log | None] = SimpleQueue()
        self._open: dict[_Log, None] = {}
        self._progress = 0
        self._has_given_up = self._has_warned = False
        self._thread = Thread(target=self._work, name=f"efhc-log-{self._kind}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Let the thread end once its inbox is empty."""
        self.inbox.put(None)

    def wait(self, timeout: float) -> None:
        """Wait for the thread to end, as long as it makes progress."""
        seen, since = self._progress, time.monotonic()
        while self._thread.is_alive():
            self._thread.join(0.1)
            if self._progress != seen:
                seen, since = self._progress, time.monotonic()
            elif time.monotonic() - since > timeout:
                self._warn(f"log: {self._kind} has not answered for {timeout:g} s; the remaining rows are not logged")
                return

    def _work(self) -> None:
        while (log := self.inbox.get()) is not None:
            self._attempt(log)
            self._progress += 1
        for log in list(self._open):
            if not self._attempt(log):
                rows = f"{len(log.queue)} rows" if log.queue else "the end"
                self._report(f"{rows} of {log.run.name} could not be logged")
            self._progress += 1

    def _attempt(self, log: _Log) -> bool:
        """Log what is new of a run. Returns whether that has worked."""
        if self._has_given_up:
            return True
        try:
            log.open()
        except BaseException as error:  # SystemExit, too: it would end this thread silently
            self._has_given_up = True
            self._open.clear()
            self._report(f"{_words(error)}; logging to it is off")
            return True
        self._open[log] = None
        try:
            if log.flush():
                del self._open[log]
        except BaseException as error:
            if not self._has_warned:
                self._has_warned = True
                self._report(f"{_words(error)}; it is tried again later")
            return False
        return True

    def _report(self, text: str) -> None:
        with suppress(Warning):  # where warnings are errors, they are raised where the runs are waited for
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
