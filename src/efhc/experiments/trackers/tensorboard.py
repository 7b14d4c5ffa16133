"""TensorBoard: event files in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from efhc.base.extras import importing
from efhc.experiments.trackers.tensorboard_files import first_missing
from efhc.experiments.trackers.tracker import Point, TrackedRun, Tracker, as_folder

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

FOLDER = "tensorboard"


class TensorBoard(Tracker):
    """Event files in DIR/tensorboard/NAME-OF-RUN: `tensorboard --logdir DIR` shows them. Needs efhc[tensorboard].

    Without a run directory they are in runs/EXPERIMENT-DATE-TIME. TensorBoard keeps float32: numbers are rounded to
    seven digits.
    """

    kind: Literal["tensorboard"] = "tensorboard"

    def open(self, run: TrackedRun) -> EventFiles:
        with importing("tensorboard"):
            import tensorboardX  # noqa: F401
        return EventFiles(run, _folder(run))


def _folder(run: TrackedRun) -> Path:
    if run.folder is not None:
        return run.folder / FOLDER / run.name
    return Path("runs") / f"{as_folder(run.group)}-{run.began:%Y%m%d-%H%M%S}" / run.name


class EventFiles:
    """The event files of one run, one for each time it was gone on with."""

    def __init__(self, run: TrackedRun, folder: Path) -> None:
        self._run, self._folder = run, folder
        self._writer: SummaryWriter | None = None
        self._first = first_missing(folder) if run.k > 0 else 0
        """The first step that may be missing. Rows of this step and later ones are written, again if they are there."""
        self._end: Any = None
        """What tells TensorBoard's table of settings that the run has ended."""

    def has(self, point: Point) -> bool:
        return point.step < self._first

    def add(self, points: Sequence[Point]) -> None:
        writer = self._writer or self._begin(points[0].step)
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

    def _begin(self, step: int) -> SummaryWriter:
        """Start a file. TensorBoard drops what earlier files have of this step and later ones, which are made again."""
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams

        is_new = not self._folder.is_dir() or not any(self._folder.iterdir())
        # TensorBoard reads files in the order of their names: time in seconds, host, suffix.
        self._writer = writer = SummaryWriter(
            str(self._folder), purge_step=None if is_new else step, filename_suffix=f".{step:012d}"
        )
        experiment, start, self._end = hparams(dict(self._run.settings), {"accuracy": None})
        if is_new:
            writer.file_writer.add_summary(experiment)
            writer.file_writer.add_summary(start)
            lines = [f"| {name} | {str(value).replace('|', '&#124;')} |" for name, value in self._run.settings.items()]
            writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *lines]))
        return writer
