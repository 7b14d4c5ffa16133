"""The log of a node: one JSON object per line, on stderr or in a file.

Every line has `time` (wall clock, UTC), `seconds` (monotonic, since the start), `level`, `device` and `event`.
Any host on the network can cause `LIMITED` events: beyond a limit they are only counted.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from efhc.base.errors import printable

LEVELS = ("debug", "info", "warning", "error")
LONGEST = 500
"""The largest number of characters of a text that a line repeats."""
LIMITED = frozenset({"refused"})
"""Events that another process can cause without limit."""
PER_REASON, PER_EVENT, WINDOW = 10, 100, 60.0
"""How many lines of a limited event are written with the same reason, and with any, within how many seconds."""


class Log:
    """Writes lines. Threads may share it."""

    def __init__(
        self,
        device: int,
        stream: TextIO | None = None,
        level: str = "info",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write lines of at least this level to `stream`. Default: stderr."""
        self._device, self._stream, self._clock = device, stream or sys.stderr, clock
        self._least = LEVELS.index(level)
        self._start = self._window = clock()
        self._lock = threading.Lock()
        self._written: dict[tuple[str, str | None], int] = {}
        """Lines of limited events in this window, by event and reason; None is for all reasons."""
        self._left_out: dict[str, int] = {}

    def __call__(self, event: str, level: str = "info", **fields: Any) -> None:
        """Write one line. Of too many `LIMITED` events with one `reason`, only the number is written later."""
        with self._lock:
            self._write_left_out()
            if event not in LIMITED or self._is_within_limits(event, str(fields.get("reason", ""))[:LONGEST]):
                self._write(event, level, fields)
            else:
                self._left_out[event] = self._left_out.get(event, 0) + 1

    def _is_within_limits(self, event: str, reason: str) -> bool:
        of_reason, of_all = self._written.get((event, reason), 0), self._written.get((event, None), 0)
        if of_reason >= PER_REASON or of_all >= PER_EVENT:
            return False
        self._written[event, reason], self._written[event, None] = of_reason + 1, of_all + 1
        return True

    def close(self) -> None:
        """Write the number of lines that were left out. The stream stays open."""
        with self._lock:
            self._write_left_out(now=True)

    def _write_left_out(self, *, now: bool = False) -> None:
        """Begin a new window once the last one is over."""
        if not now and self._clock() - self._window < WINDOW:
            return
        left_out, seconds = self._left_out, self._clock() - self._window
        self._left_out, self._written, self._window = {}, {}, self._clock()
        for event, number in left_out.items():
            self._write(event, "warning", {"left_out": number, "within_seconds": round(seconds, 1)})

    def _write(self, event: str, level: str, fields: dict[str, Any]) -> None:
        if LEVELS.index(level) < self._least:
            return
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        seconds = round(self._clock() - self._start, 3)
        line = {"time": moment, "seconds": seconds, "level": level, "device": self._device, "event": event}
        try:
            self._stream.write(json.dumps(line | {name: _plain(value) for name, value in fields.items()}) + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # a full disk or a closed pipe: training is worth more than its log
            return


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: texts are cut, numbers that JSON lacks are texts."""
    if isinstance(value, str):
        return printable(value if len(value) <= LONGEST else value[: LONGEST - 3] + "...")
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, bool | int):
        return value
    item = getattr(value, "item", None)  # a number of NumPy
    return _plain(item()) if callable(item) else _plain(str(value))
