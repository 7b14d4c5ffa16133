"""Weights & Biases: its server, or offline files to be sent later."""

from __future__ import annotations

import json
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from efhc.base.errors import EfhcError
from efhc.base.extras import importing
from efhc.base.saving import write_safely
from efhc.experiments.trackers.tracker import Point, TrackedRun, Tracker

PROJECT = "efhc"
ITERATIONS = "iterations"
"""What W&B's charts have on their x axis."""
INIT_SECONDS, FINISH_SECONDS = 30.0, 60.0
"""How long to wait for the server at the beginning and at the end of a run."""
FLUSH, FLUSH_SECONDS = "x_transaction_log_flush_interval", 1.0
"""A setting of W&B that not all of its versions have: how often it writes to its file."""
HEADER, BLOCK = 7, 32768
"""Bytes in front of the file and of each part of a record; bytes of a block, at whose end there may be padding."""
WHOLE, LAST = 1, 4
"""The kinds of parts with which a record ends."""


class WandB(Tracker):
    """Weights & Biases, as `wandb login` and the variables WANDB_... set it up. Needs efhc[wandb].

    The project is WANDB_PROJECT (default: efhc). See docs/trackers.md. Error reports to W&B are off unless
    WANDB_ERROR_REPORTING is set.
    """

    kind: Literal["wandb"] = "wandb"

    def open(self, run: TrackedRun) -> WandBEntry:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        with importing("wandb"):
            import wandb
        is_online = wandb.setup().settings.mode not in ("offline", "disabled", "dryrun")
        if is_online and not wandb.login(prompt=False, verify=False):
            raise EfhcError("W&B has no API key: log in by `wandb login`, or set WANDB_MODE=offline to send it later")
        return WandBEntry(run)


class WandBEntry:
    """One run in W&B."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        # Several runs at a time, and no lines of theirs between ours.
        settings = wandb.Settings(
            reinit="create_new",
            console="off",
            silent=True,
            init_timeout=INIT_SECONDS,
            finish_timeout=FINISH_SECONDS,
            finish_timeout_raises=True,
        )
        if FLUSH in wandb.Settings.model_fields:  # a process that is killed loses what is not in the file yet
            setattr(settings, FLUSH, FLUSH_SECONDS)
        self._order, which = run.order, _id_of(run)
        self._run = wandb.init(
            id=which,
            name=run.name,
            group=run.group,
            job_type=run.strategy,
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            dir=None if os.environ.get("WANDB_DIR") else run.folder,
            config={**run.settings, "efhc.key": run.key},
            resume="allow",
            settings=settings,
        )
        self._run.define_metric("*", step_metric=ITERATIONS)
        logged: list[Any] = []
        if run.k > 0:  # on the server, or in the files of earlier offline runs
            logged.append(self._run.summary.get(run.order))  # type: ignore[no-untyped-call]
            folder = Path(os.environ.get("WANDB_DIR") or run.folder or "", "wandb")
            for file in folder.glob(f"offline-run-*-{which}/*.wandb"):
                logged += [row.get(run.order) for row in offline_rows(file)]
        self._last = max((float(one) for one in logged if one is not None), default=float("-inf"))
        """Where the points end that W&B has."""

    def has(self, point: Point) -> bool:
        return point.values[self._order] <= self._last

    def add(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log({ITERATIONS: point.step, **point.values})
            self._last = point.values[self._order]

    def close(self, state: str, problem: str | None) -> None:
        self._run.summary.update({"state": state} | ({"problem": problem} if problem else {}))
        self._run.finish(exit_code=0 if state == "finished" else 1)


def _id_of(run: TrackedRun) -> str:
    """Return the W&B id of a run.

    A resumed run keeps its id; a new run gets a new one, which is saved for a later resume.
    """
    new = secrets.token_hex(8)
    if run.folder is None:
        return new
    kept = run.folder / "wandb" / f"{run.name}.id"
    if run.k > 0 and kept.exists():
        return kept.read_text()
    write_safely(kept, new.encode())
    return new


def offline_rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows that were logged, by column. The rest of a file that was not written to its end is left out."""
    for record in offline_records(file):
        if record.HasField("history"):
            yield {(item.nested_key or [item.key])[0]: json.loads(item.value_json) for item in record.history.item}


def offline_records(file: Path) -> Iterator[Any]:
    """Yield the messages in a file."""
    from wandb.proto import wandb_internal_pb2

    message = vars(wandb_internal_pb2)["Record"]
    content, at, parts = file.read_bytes(), HEADER, b""
    while at + HEADER <= len(content):
        if (left := BLOCK - at % BLOCK) < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        at += HEADER + length
        if at > len(content):
            return
        parts += content[at - length : at]
        if kind in (WHOLE, LAST):
            yield message.FromString(parts)
            parts = b""
