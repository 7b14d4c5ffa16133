"""TensorBoard: event files in a folder."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from efhc.base.extras import importing
from efhc.experiments.trackers.tracker import Point, TrackedRun, Tracker, as_folder
from efhc.learning.measures import measures_of, metrics_in

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

FOLDER = "tensorboard"
BEFORE, AFTER = 12, 4
"""Bytes in front of a message, its length and the checksum of that, and behind it."""


class TensorBoard(Tracker):
    """Event files in DIR/tensorboard/NAME-OF-RUN: `tensorboard --logdir DIR` shows them. Needs efhc[tensorboard].

    Without a run directory: runs/EXPERIMENT-DATE-TIME. Numbers are rounded to float32.
    """

    kind: Literal["tensorboard"] = "tensorboard"

    def open(self, run: TrackedRun) -> EventFiles:
        with importing("tensorboard"):
            import tensorboardX  # noqa: F401
        if run.folder is not None:
            return EventFiles(run, run.folder / FOLDER / run.name)
        return EventFiles(run, Path("runs") / f"{as_folder(run.group)}-{run.began:%Y%m%d-%H%M%S}" / run.name)


class EventFiles:
    """The event files of one run, one for each time it was gone on with."""

    def __init__(self, run: TrackedRun, folder: Path) -> None:
        self._run, self._folder = run, folder
        self._writer: SummaryWriter | None = None
        self._first = first_missing(folder) if run.k > 0 else 0
        """The first step that may be missing. Rows of this step and later ones are written, again if they are there."""
        self._end: Any = None
        """The message by which TensorBoard's table of settings shows that the run has ended."""

    def has(self, point: Point) -> bool:
        return point.step < self._first

    def add(self, points: Sequence[Point]) -> None:
        writer = self._writer or self._begin(points[0])
        for point in points:
            for name, value in point.values.items():
                writer.add_scalar(name, value, point.step, point.at)
        writer.flush()

    def close(self, state: str, problem: str | None) -> None:
        if self._writer is None:
            return
        self._writer.add_text("state", f"{state}: {problem}" if problem else state)
        self._writer.file_writer.add_summary(self._end)
        self._writer.close()

    def _begin(self, first: Point) -> SummaryWriter:
        """Start a file. TensorBoard drops what earlier files have of this step and later ones, which are made again."""
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams

        is_new = not self._folder.is_dir() or not any(self._folder.iterdir())
        # TensorBoard reads files in the order of their names: time in seconds, host, suffix.
        self._writer = writer = SummaryWriter(
            str(self._folder), purge_step=None if is_new else first.step, filename_suffix=f".{first.step:012d}"
        )
        known = [name for name in measures_of(metrics_in(first.values)) if name in first.values]
        measure = self._run.measure if self._run.measure in known else next(iter(known), "accuracy")
        experiment, start, self._end = hparams(dict(self._run.settings), {measure: None})
        if is_new:
            writer.file_writer.add_summary(experiment)
            writer.file_writer.add_summary(start)
            lines = [f"| {name} | {str(value).replace('|', '&#124;')} |" for name, value in self._run.settings.items()]
            writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *lines]))
        return writer


def first_missing(folder: Path) -> int:
    """Return the first step that may be missing in the files of a folder: of earlier ones, all rows are there.

    That is the last step that is there, since a process may have been killed in the middle of its row.
    """
    first = 0
    for event in (event for file in sorted(folder.glob("events.out.tfevents.*")) for event in events_in(file)):
        if event.HasField("session_log") and event.session_log.status == event.session_log.START:
            first = min(first, event.step)  # TensorBoard drops what earlier files have of this step and later ones
        elif event.HasField("summary"):
            first = max(first, event.step)
    return first


def events_in(file: Path) -> Iterator[Any]:
    """Yield the messages in a file. The rest of a file that was not written to its end is left out."""
    from tensorboardX.proto.event_pb2 import Event

    content, at = memoryview(file.read_bytes()), 0
    while at + BEFORE <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        begins, at = at + BEFORE, at + BEFORE + length + AFTER
        if at > len(content):
            return
        yield Event.FromString(bytes(content[begins : begins + length]))
