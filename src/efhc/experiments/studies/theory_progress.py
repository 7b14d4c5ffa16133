"""How far a theory check is, and its work on several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any

from efhc.experiments.runs.engines.local import wait_for_all

Tell = Callable[[str, float], None]
"""Called with what is being done and the share of all work that is finished."""


@dataclass
class Work:
    """How much of all work is finished; every change is told."""

    total: float
    tell: Tell
    done: float = 0.0
    what: str = ""
    lock: Any = field(default_factory=Lock)

    def begin(self, what: str) -> None:
        """Say what is done from now on."""
        self.what = what
        self.tell(what, min(1.0, self.done / self.total))

    def finish(self, amount: float = 1.0) -> None:
        """Count `amount` of the total as finished."""
        with self.lock:
            self.done += amount
            self.tell(self.what, min(1.0, self.done / self.total))


def in_parallel(pool: ThreadPoolExecutor, work: Callable[..., Any], items: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return `work(*item)` for each item, in their order; the calls run in the threads of `pool`."""
    futures = [pool.submit(copy_context().run, work, *item) for item in items]
    wait_for_all(pool, futures, Event())
    return [future.result() for future in futures]
