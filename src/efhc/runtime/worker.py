"""Threads beside the event loop: one that trains, one that writes to disk. Neither delays a message."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """One thread that makes calls one after the other. It does not keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Let the thread call a function after all earlier ones. The future has the result."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((future, lambda: function(*arguments)))
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
            except RuntimeError:  # the loop is closed: nobody waits any more
                return
            del found, future, call, value, error  # models must not be held while the thread waits


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
