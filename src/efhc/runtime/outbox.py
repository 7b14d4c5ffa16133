"""Carry out what a device wants done, in its order: what follows a `Keep` waits until it is on the disk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from efhc.runtime.worker import Worker


class Outbox:
    """Things to do, of two kinds: those that take no time, and those that the disk thread does."""

    def __init__(self, disk: Worker) -> None:
        self._disk = disk
        self._waiting: deque[tuple[Callable[[], None], bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.failed: BaseException | None = None
        """What the disk thread raised. Nothing is done after it: nobody may rely on what could not be kept."""
        self.on_failure: Callable[[], None] = lambda: None

    def do(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Call this in the event loop, after all that was given before."""
        if self.failed is not None:
            return
        if self._task is None:
            call(*arguments)
        else:
            self._waiting.append((lambda: call(*arguments), False))

    def write(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Call this in the disk thread, after all that was given before and before all that follows."""
        if self.failed is not None:
            return
        self._waiting.append((lambda: call(*arguments), True))
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    async def wait(self) -> None:
        """Wait until all that was given is done. Raises what the disk thread raised."""
        while self._task is not None:
            await asyncio.shield(self._task)
        if self.failed is not None:
            raise self.failed

    async def _work(self) -> None:
        try:
            while self._waiting:
                call, is_write = self._waiting.popleft()
                if is_write:
                    await self._disk.call(call)
                else:
                    call()
                del call  # it may hold models
        except Exception as error:  # whatever it is, the node must stop
            self.failed = error
            self._waiting.clear()
            self.on_failure()
        finally:
            self._task = None
