"""The record of a node for the result of a run: its steps, its exchanges, and some of its models.

The files lie in the folder `record` of the state folder and only grow: rows of one size, end to end, little-endian. A
row that a kill has cut off is removed at the next start. Rows are written in large pieces, at checkpoints and at the
end; after a restart, rows of iterations that are made again follow those of the first time.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from os import SEEK_END
from pathlib import Path
from typing import Any

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.saving import writing
from efhc.core.device import Exchange
from efhc.core.protocol import Token
from efhc.core.state import NOTHING, Local
from efhc.runtime.node_settings import RecordingSettings
from efhc.runtime.status import OUTCOMES

FOLDER = "record"
BUFFER = 1 << 20
"""Bytes that are held before they are written."""

STEP = np.dtype([
    ("k", "<i8"), ("seconds", "<f8"), ("fired", "?"), ("loss", "<f8"), ("drift", "<f8"), ("threshold", "<f8"),
    ("bandwidth", "<f8"),
])  # fmt: skip
"""A row per iteration, when w_i(k+1) is there; the loss is that of the batch at w_i(k)."""
EXCHANGE = np.dtype([
    ("start", "<f8"), ("end", "<f8"), ("neighbour", "<i4"), ("device_k", "<i8"), ("neighbour_k", "<i8"),
    ("beta", "<f8"), ("event", "i1"), ("outcome", "i1"), ("bytes", "<i8"), ("norm", "<f8"),
])  # fmt: skip
"""A row per exchange that this device decides, or gives up in doubt. The outcome is a place in `OUTCOMES`."""


class _Rows:
    """A file of rows, to which rows are added."""

    def __init__(self, path: Path, row_bytes: int, heading: bytes = b"") -> None:
        """A file that begins with another heading is begun anew."""
        self._path = path
        self._waiting: list[bytes] = []
        self._size = 0
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a+b") as file:
                length = file.seek(0, SEEK_END)
                file.seek(0)
                is_same = length > 0 and file.read(len(heading)) == heading
                rows = (length - len(heading)) // row_bytes
                file.truncate(len(heading) + rows * row_bytes if is_same else 0)
        if not is_same:
            self.add(heading)

    def add(self, row: bytes) -> None:
        self._waiting.append(row)
        self._size += len(row)
        if self._size > BUFFER:
            self.flush()

    def flush(self) -> None:
        """Write everything to the file. Raises `SaveError` if the disk is full."""
        with writing(self._path), self._path.open("ab") as file:
            file.writelines(self._waiting)
        self._waiting, self._size = [], 0


class Recorder:
    """Records what a node does, if its settings ask for it. All methods are called in the event loop."""

    def __init__(self, state: Path, settings: RecordingSettings, parameters: int, dtype: np.dtype[Any] | str) -> None:
        self._settings, self._parameters, self._dtype = settings, parameters, np.dtype(dtype).newbyteorder("<")
        self._folder = state / FOLDER
        self._is_on = settings.start > 0
        # The wall clock is read once: if it jumps later, no row is out of order.
        self._started = time.time() - settings.start - time.monotonic()
        self._offered: dict[Token, float] = {}
        after = settings.models_after
        self._models_after = None if after == "every" else frozenset(after)
        """The numbers of iterations after which the model is kept. None: all."""
        self._next_model = settings.begin
        self._files: dict[str, _Rows] = {}
        """The files that were begun, by name."""

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() + self._started

    def seconds_to_start(self) -> float:
        """Return after how many seconds the run begins or goes on: nodes that are launched together begin together."""
        return max(0.0, self._settings.begin - self.seconds) if self._is_on else 0.0

    def step(self, k: int, fired: bool, loss: float, drift: float, threshold: float, bandwidth: float) -> None:
        if self._is_on:
            self._add_row("steps", STEP, (k, self.seconds, fired, loss, drift, threshold, bandwidth))

    def offered(self, token: Token) -> None:
        """An exchange of this name has been offered: it starts now."""
        if self._is_on:
            self._offered[token] = self.seconds

    def exchange(self, neighbour: int, exchange: Exchange, outcome: str, norm: float = math.nan) -> None:
        """An exchange is over at this end. `norm` is that of a step that is given up in doubt."""
        start = self._offered.pop(exchange.token, self.seconds)
        if not self._is_on or not (exchange.decides or outcome == "unresolved"):
            return  # the row is written by the end that decides
        models = (exchange.partner is not None) + (exchange.received is not None) if outcome != "refused" else 0
        iterations = exchange.k, exchange.partner_k
        size = models * self._parameters * self._dtype.itemsize
        self.add_exchange(start, neighbour, iterations, exchange.share, outcome, size, norm, exchange.event)

    def add_exchange(
        self, start: float, neighbour: int, iterations: tuple[int, int], weight: float, outcome: str, size: int,
        norm: float = math.nan, event: int = 2,
    ) -> None:  # fmt: skip
        """Add the row of an exchange, or of a frame that was first sent at the second `start`, which is over now."""
        if self._is_on:
            row = start, self.seconds, neighbour, *iterations, weight, event, OUTCOMES.index(outcome), size, norm
            self._add_row("exchanges", EXCHANGE, row)

    def _add_row(self, name: str, row: np.dtype[Any], values: tuple[Any, ...]) -> None:
        if name not in self._files:
            self._files[name] = _Rows(self._folder / f"{name}.bin", row.itemsize)
        self._files[name].add(np.array(values, dtype=row).tobytes())

    def after_iteration(self, k: int, model: Floats, local: Local = NOTHING) -> None:
        """The device has w_i(k). Keep it if it is one of the iterations to record."""
        if self._models_after is None or k in self._models_after:
            self._keep(k, model, local)

    def at_time(self, k: int, model: Floats, local: Local = NOTHING) -> None:
        """The device has w_i(k) now. Keep it if the time has come."""
        every = self._settings.models_seconds
        if every is not None and (now := self.seconds) >= self._next_model:
            self._next_model = (math.floor(now / every) + 1) * every
            self._keep(k, model, local)

    def seconds_to_next_model(self) -> float:
        """Return after how many seconds `at_time` keeps a model; infinity for never."""
        if not self._is_on or self._settings.models_seconds is None:
            return math.inf
        return max(0.0, self._next_model - self.seconds)

    def _keep(self, k: int, model: Floats, local: Local) -> None:
        if not self._is_on:
            return
        if "models" not in self._files:
            layout = {name: [np.asarray(rows).dtype.str, list(np.shape(rows)[1:])] for name, rows in local.items()}
            heading = {"model": [self._dtype.str, [self._parameters]], "local": layout}
            line, row_bytes = json.dumps(heading).encode() + b"\n", _model_row(heading).itemsize
            self._files["models"] = _Rows(self._folder / "models.bin", row_bytes, line)
        file = self._files["models"]
        file.add(np.array((k, self.seconds), dtype=[("k", "<i8"), ("seconds", "<f8")]).tobytes())
        for numbers in (np.asarray(model, dtype=self._dtype), *local.values()):
            file.add(np.ascontiguousarray(numbers).tobytes())

    def flush(self) -> None:
        """Write what is held. Raises `SaveError` if the disk is full."""
        for rows in self._files.values():
            rows.flush()


def _model_row(heading: Mapping[str, Any]) -> np.dtype[Any]:
    own = [(f"local/{name}", kind, tuple(shape)) for name, (kind, shape) in heading["local"].items()]
    kind, shape = heading["model"]
    return np.dtype([("k", "<i8"), ("seconds", "<f8"), ("model", kind, tuple(shape)), *own])


# Reading


def read_steps(state: Path) -> np.ndarray:
    """Return the steps that a node recorded, in the order written."""
    return _read(state / FOLDER / "steps.bin", STEP)


def last_second(state: Path) -> float:
    """Return the second of the last step that a node recorded; 0 if there is none."""
    return float(read_steps(state)["seconds"].max(initial=0.0))


def read_exchanges(state: Path) -> np.ndarray:
    """Return the exchanges that a node recorded, in the order written."""
    return _read(state / FOLDER / "exchanges.bin", EXCHANGE)


def read_models(state: Path) -> np.ndarray:
    """Return the models that a node recorded as rows with `k`, `seconds`, `model` and `local/NAME`, from disk."""
    path = state / FOLDER / "models.bin"
    if not path.exists():
        return np.empty(0, dtype=_model_row({"model": ["<f4", [0]], "local": {}}))
    with path.open("rb") as file:
        heading = file.readline()
    row = _model_row(json.loads(heading))
    count = (path.stat().st_size - len(heading)) // row.itemsize
    if not count:
        return np.empty(0, dtype=row)
    return np.memmap(path, dtype=row, mode="r", offset=len(heading), shape=(count,))


def _read(path: Path, row: np.dtype[Any]) -> np.ndarray:
    if not path.exists():
        return np.empty(0, dtype=row)
    content = path.read_bytes()
    return np.frombuffer(content, dtype=row, count=len(content) // row.itemsize)
