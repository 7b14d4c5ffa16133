"""Threads beside the event loop, one that trains and one that writes to disk, and calls that wait for the disk."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

STATE = -1
"""The lane of checkpoints in an `Outbox`; the other lanes are numbers of neighbours."""


class Worker:
    """One thread that makes calls one after the other. It does not keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Let the thread call a function after all earlier ones. The future has the result."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((future, partial(function, *arguments)))
        return future

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return the result of the function, which the thread calls even if this task is cancelled."""
        return await self.submit(function, *arguments)

    def close(self, seconds: float) -> bool:
        """Let the thread end after the calls that wait; returns whether it has ended within `seconds`."""
        self._calls.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (found := self._calls.get()) is not None:
            future, call = found
            try:
                value, error = call(), None
            except BaseException as raised:  # it belongs to the caller
                value, error = None, raised
            try:
                future.get_loop().call_soon_threadsafe(_settle, future, value, error)
            except RuntimeError:  # the loop is closed: nothing waits any more
                return
            del found, future, call, value, error  # models must not be held while the thread waits


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


class Outbox:
    """Calls and writes in order: a call that relies on a write waits until it is on the disk, and no other call does.

    There is one lane per neighbour and one for the state as a whole. Within a lane all is done in order, and calls
    after a write wait for it. Lanes do not wait for one another, so a long write delays only the calls that rely on it.
    All writes go to the disk thread in the order in which they are given.
    """

    def __init__(self, disk: Worker) -> None:
        self._disk = disk
        self._last_write: dict[int, asyncio.Future[Any]] = {}
        """By lane."""
        self._waiting: Counter[int] = Counter()
        """By lane, the number of writes and calls that are not over."""
        self._idle = asyncio.Event()
        self._idle.set()
        self.failed: BaseException | None = None
        """The error of the disk thread. Nothing is done after it: no neighbour may rely on a write that failed."""
        self.on_failure: Callable[[], None] = lambda: None

    def do(self, lane: int, call: Callable[..., Any], *arguments: Any) -> None:
        """Call this in the event loop, after all that was given to this lane before."""
        if self.failed is not None:
            return
        if self._waiting[lane]:
            self._do_after_write(lane, partial(call, *arguments))
        else:
            call(*arguments)

    def write(self, lanes: Iterable[int], call: Callable[..., Any], *arguments: Any) -> None:
        """Call this in the disk thread, after all earlier writes and before all that follows in these lanes."""
        if self.failed is not None:
            return
        written = self._disk.submit(call, *arguments)
        for lane in {*lanes} or {STATE}:
            self._last_write[lane] = written
            self._do_after_write(lane, written.result)

    async def wait(self) -> None:
        """Wait until all that was given is done. Raises what the disk thread raised."""
        await self._idle.wait()
        if self.failed is not None:
            raise self.failed

    def _do_after_write(self, lane: int, call: Callable[[], Any]) -> None:
        """Make a call when the last write of a lane is over, after the calls that wait for it already."""
        self._waiting[lane] += 1
        self._idle.clear()
        self._last_write[lane].add_done_callback(partial(self._go_on, lane, call))

    def _go_on(self, lane: int, call: Callable[[], Any], written: asyncio.Future[Any]) -> None:
        if self.failed is not None or written.cancelled():
            return
        try:
            call()
        except Exception as error:  # whatever it is, the node must stop
            self.failed = error
            self._idle.set()
            self.on_failure()
            return
        self._waiting[lane] -= 1
        if not self._waiting.total():
            self._idle.set()
