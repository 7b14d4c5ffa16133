"""Threads in which torch computes with one core each, so that its rounding does not depend on how many there are.

torch keeps the number of cores per thread, but a new thread starts with the number that was set last anywhere; that
one is put back, from a thread of its own, so that no other thread of the process notices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from efhc.learning.pytorch import torch

_STARTING = threading.Lock()

Item = TypeVar("Item")


class Workers:
    """`threads` threads with one core each; they end with this object."""

    def __init__(self, threads: int) -> None:
        set_before: list[int] = []

        def take_one_core() -> None:
            set_before.append(torch.get_num_threads())  # asking is also what makes a later setting stay
            torch.set_num_threads(1)

        all_started = threading.Barrier(threads)
        with _STARTING:
            self._pool = ThreadPoolExecutor(threads, "efhc-torch", initializer=take_one_core)
            list(self._pool.map(lambda _: all_started.wait(), range(threads)))
            put_back = threading.Thread(target=torch.set_num_threads, args=(set_before[0],))
            put_back.start()
            put_back.join()

    def each(self, task: Callable[[Item], Any], items: Iterable[Item]) -> None:
        """`task` of every item; the first error that one raises."""
        for done in [self._pool.submit(task, item) for item in items]:
            done.result()
