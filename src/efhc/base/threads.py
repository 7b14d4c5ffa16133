"""Threads: one pass over memory split among several, with a result that does not depend on the split; and Ctrl-C."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from threading import current_thread, main_thread
from typing import Any


@cache
def _pool() -> ThreadPoolExecutor:
    """One pool for all runs of the process: each run uses no more than its share of the cores."""
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


def leave_interrupts_to_python() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` in the main thread alone, as Python has it. Call it after importing polars.

    polars puts a handler of its own in front of Python's: it raises `KeyboardInterrupt` in whichever thread has a query
    running. There it would break off a run that is saving its checkpoint or its tables. Elsewhere than in the main
    thread, nothing can be done about it, and nothing is.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is not None and current_thread() is main_thread():
        signal.signal(signal.SIGINT, handler)
