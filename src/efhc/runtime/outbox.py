"""Calls and writes in order: a call that relies on a write waits until it is on the disk, and no other call does.

There is one lane per neighbour and one for the state as a whole. Within a lane all is done in order, and calls after a
write wait for it. Lanes do not wait for one another, so a long write delays only the calls that rely on it. All writes
go to the disk thread in the order in which they are given.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from efhc.runtime.worker import Worker

STATE = -1
"""The lane of checkpoints; the other lanes are numbers of neighbours."""


class Outbox:
    """The calls that wait for the disk, by lane."""

    def __init__(self, disk: Worker) -> None:
        self._disk = disk
        self._lanes: dict[int, deque[asyncio.Future[Any] | Callable[[], None]]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.failed: BaseException | None = None
        """The error of the disk thread. Nothing is done after it: no neighbour may rely on a write that failed."""
        self.on_failure: Callable[[], None] = lambda: None

    def do(self, lane: int, call: Callable[..., Any], *arguments: Any) -> None:
        """Call this in the event loop, after all that was given to this lane before."""
        if self.failed is not None:
            return
        if lane in self._lanes:
            self._lanes[lane].append(lambda: call(*arguments))
        else:
            call(*arguments)

    def write(self, lanes: Iterable[int], call: Callable[..., Any], *arguments: Any) -> None:
        """Call this in the disk thread, after all earlier writes and before all that follows in these lanes."""
        if self.failed is not None:
            return
        written = self._disk.submit(call, *arguments)
        self._idle.clear()
        for lane in {*lanes} or {STATE}:
            self._lanes.setdefault(lane, deque()).append(written)
            written.add_done_callback(partial(self._go_on, lane))

    async def wait(self) -> None:
        """Wait until all that was given is done. Raises what the disk thread raised."""
        await self._idle.wait()
        if self.failed is not None:
            raise self.failed

    def _go_on(self, lane: int, written: asyncio.Future[Any]) -> None:
        """A write is over: do what waited for it."""
        if self.failed is not None or written.cancelled() or lane not in self._lanes:
            return  # an earlier write has found this one done
        waiting = self._lanes[lane]
        try:
            while waiting:
                first = waiting[0]
                if isinstance(first, asyncio.Future):
                    if not first.done():
                        return
                    waiting.popleft()
                    first.result()
                else:
                    waiting.popleft()
                    first()
        except Exception as error:  # whatever it is, the node must stop
            self.failed = error
            self._lanes.clear()
            self._idle.set()
            self.on_failure()
            return
        del self._lanes[lane]
        if not self._lanes:
            self._idle.set()
