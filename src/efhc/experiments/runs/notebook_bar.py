"""A bar in a notebook while runs are made, if they take longer than a moment. It needs no widgets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from html import escape
from importlib import import_module
from threading import Event, Thread
from typing import Any

from efhc.experiments.runs.progress import PREPARING, Overview

DELAY, BETWEEN = 2.0, 0.5
"""Seconds until the bar is shown, and between two drawings."""


@contextmanager
def notebook_bar(runs: int, iterations: int) -> Iterator[Overview | None]:
    """Yield what a bar shows, if this is the kernel of a notebook; the bar goes in the end. Elsewhere yield None."""
    module: Any = sys.modules.get("IPython")  # whoever is in a notebook has imported it
    if module is None or not hasattr(module.get_ipython(), "kernel"):
        yield None
        return
    overview, ended = Overview(runs, iterations), Event()
    # A thread of its own draws, so that runs wait for nothing; the context says which cell the bar belongs to.
    thread = Thread(target=copy_context().run, args=(_draw, overview, ended), name="efhc-notebook-bar", daemon=True)
    thread.start()
    try:
        yield overview
    finally:
        ended.set()
        thread.join()


def _draw(overview: Overview, ended: Event) -> None:
    display: Any = import_module("IPython.display").display  # which has no types

    if ended.wait(DELAY):
        return
    bar = display(_bundle(overview), raw=True, display_id=True)
    while not ended.wait(BETWEEN):
        bar.update(_bundle(overview), raw=True)
    bar.update({"text/html": "", "text/plain": ""}, raw=True)


def _bundle(overview: Overview) -> dict[str, str]:
    words = overview.line() if overview.reached else PREPARING
    lines = "<br>".join(map(escape, words.split("; ")))
    html = f'<progress value="{overview.reached}" max="{overview.iterations}"></progress> {lines}'
    return {"text/html": html, "text/plain": words}
