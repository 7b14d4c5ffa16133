"""What a node says while it runs: one JSON object per line, on stderr or in a file.

Every line has `time` (wall clock, UTC), `seconds` (monotonic, since the start), `level` and `event`. A stranger can make a
node say something as often as it likes: such lines are `limited`, and those beyond a limit are only counted.
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
PER_REASON, PER_EVENT, WINDOW = 5, 50, 60.0
"""Lines of one event with one reason, and with any reason, that are written within so many seconds."""


class Log:
    """Writes lines. Threads may share it."""

    def __init__(
        self, stream: TextIO | None = None, level: str = "info", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Write lines of at least this level to `stream`. Default: stderr."""
        self._stream, self._clock = stream or sys.stderr, clock
        self._least = LEVELS.index(level)
        self._start = self._window = clock()
        self._lock = threading.Lock()
        self._written: dict[tuple[str, str], int] = {}
        """Lines in this window, by event and reason; the reason "" is for all of the event."""
        self._left_out: dict[str, int] = {}

    def debug(self, event: str, **fields: Any) -> None:
        """Write what helps to find a fault."""
        self.log(event, "debug", **fields)

    def info(self, event: str, **fields: Any) -> None:
        """Write what happens as it should."""
        self.log(event, "info", **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Write what somebody should look at."""
        self.log(event, "warning", **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Write what ends the node, or a part of what it does."""
        self.log(event, "error", **fields)

    def limited(self, event: str, reason: str, level: str = "warning", **fields: Any) -> None:
        """Write what strangers can cause. Of too many lines with one reason, only the number is written later."""
        with self._lock:
            self._tell_what_was_left_out()
            of_reason, of_event = (event, reason[:LONGEST]), (event, "")
            written = self._written.get(of_reason, 0), self._written.get(of_event, 0)
            if written[0] >= PER_REASON or written[1] >= PER_EVENT:
                self._left_out[event] = self._left_out.get(event, 0) + 1
                return
            self._written[of_reason], self._written[of_event] = written[0] + 1, written[1] + 1
            self._write(event, level, {"reason": reason, **fields})

    def log(self, event: str, level: str = "info", **fields: Any) -> None:
        """Write one line."""
        with self._lock:
            self._tell_what_was_left_out()
            self._write(event, level, fields)

    def close(self) -> None:
        """Write what is left to be said. The stream stays open."""
        with self._lock:
            self._tell_what_was_left_out(now=True)

    def _tell_what_was_left_out(self, *, now: bool = False) -> None:
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
        line = {"time": moment, "seconds": round(self._clock() - self._start, 3), "level": level, "event": event}
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
