"""Work that goes on while pages are shown, in a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock, Thread


class Repeated:
    """Calls a function repeatedly, one call at a time, whenever `begin` is called and the pause is over.

    A pause lasts at least `seconds`, and `rest` times as long as the call before it.
    """

    def __init__(self, work: Callable[[], None], seconds: float, rest: float = 0.0) -> None:
        self._work, self._seconds, self._rest = work, seconds, rest
        self._lock = Lock()
        self._thread: Thread | None = None
        self._due = float("-inf")
        self.has_ended = False
        """Whether a call has ended."""

    def begin(self, *, now: bool = False) -> None:
        """Begin a call, `now` or if the pause is over, unless one goes on."""
        with self._lock:
            is_idle = self._thread is None or not self._thread.is_alive()
            if is_idle and (now or time.monotonic() >= self._due):
                thread = Thread(target=self._call, name="efhc-watch", daemon=True)
                thread.start()
                self._thread = thread  # only now: `wait` may join no thread that has not started

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the end of the call that goes on, if there is one, for this long at most. Default: without limit."""
        if (thread := self._thread) is not None:
            thread.join(seconds)

    def _call(self) -> None:
        began = time.monotonic()
        try:
            self._work()
        finally:
            ended, self.has_ended = time.monotonic(), True
            self._due = ended + max(self._seconds, self._rest * (ended - began))
