"""Split one pass over memory among several threads. The result does not depend on where the pass is split."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from typing import Any


@cache
def _pool() -> ThreadPoolExecutor:
    """One pool for all runs of the process: each run asks for no more than its share of the cores."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="efhc-pass")


def in_ranges(kernel: Callable[..., Any], arguments: tuple[Any, ...], count: int, threads: int) -> None:
    """Call `kernel(*arguments, low, high)` for ranges that make up 0 .. count-1, in `threads` threads at once."""
    if threads == 1 or count == 1:
        kernel(*arguments, 0, count)
        return
    cuts = [count * part // threads for part in range(threads + 1)]
    parts = [_pool().submit(kernel, *arguments, low, high) for low, high in pairwise(cuts)]
    wait(parts)
    for part in parts:
        part.result()
