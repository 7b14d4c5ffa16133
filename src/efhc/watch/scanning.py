"""Searches for runs in a thread of its own, so that no page waits until a large folder has been searched."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock, Thread

SCAN_SECONDS, REST = 1.0, 20
"""Least time between two scans, and the ratio of the pause after a scan to the time that the scan took."""
WAIT_SECONDS = 0.1
"""How long a page waits for a scan to end. After that, the page shows what the scan before found."""


class Scanner:
    """Calls a function again and again, and pauses in between for much longer than a call takes."""

    def __init__(self, scan: Callable[[], None]) -> None:
        self._scan = scan
        self._lock = Lock()
        self._thread: Thread | None = None
        self._due = float("-inf")
        self.has_scanned = False
        """Whether a scan has ended."""

    def scan_if_due(self) -> None:
        """Start a scan if the pause is over. Waits a short time for its end, and without limit for the first one."""
        with self._lock:
            is_due = time.monotonic() >= self._due
            thread = self._start() if is_due and not self._is_scanning() else self._thread
        if thread is not None:
            thread.join(WAIT_SECONDS if self.has_scanned else None)

    def scan_now(self) -> None:
        """Scan, and wait for the end. A scan that began earlier does not count."""
        if (earlier := self._thread) is not None:
            earlier.join()
        with self._lock:
            thread = self._thread if self._thread is not None and self._is_scanning() else self._start()
        thread.join()

    def _is_scanning(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start(self) -> Thread:
        self._thread = Thread(target=self._run, name="efhc-scan", daemon=True)
        self._thread.start()
        return self._thread

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self._scan()
        finally:
            ended, self.has_scanned = time.monotonic(), True
            self._due = ended + max(SCAN_SECONDS, REST * (ended - began))
