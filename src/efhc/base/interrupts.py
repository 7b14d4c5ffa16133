"""Ctrl-C, and who hears it."""

from __future__ import annotations

import signal
from threading import current_thread, main_thread


def leave_interrupts_to_python() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` in the main thread alone, as Python has it. Call it after importing polars.

    polars puts a handler of its own in front of Python's: it raises `KeyboardInterrupt` in whichever thread has a query
    running. There it would break off a run that is saving its checkpoint or its tables. Elsewhere than in the main
    thread, nothing can be done about it, and nothing is.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is not None and current_thread() is main_thread():
        signal.signal(signal.SIGINT, handler)
