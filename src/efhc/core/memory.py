"""What a strategy remembers from one iteration to the next: named arrays, one row per device, per link, or one in all.

A strategy says what it remembers as `{"name": Memory(...)}`. Drivers create the arrays, give them to the strategy,
save them in checkpoints like models, and count them in the forecast of memory. A strategy keeps nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from efhc.core.graph import Graph

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Memory:
    """One named array of a strategy.

    The rows of `per="link"` are the directed links of the graph, in the order of `Graph.directed`: row e is what device
    `sender[e]` remembers about its link to `receiver[e]`. They are forgotten with the link.
    """

    per: Literal["device", "link", "run"] = "device"
    """Whether there is one entry per device, per directed link, or one for the whole run."""
    size: int | Literal["model"] | None = None
    """How many numbers an entry has: as many as the model has parameters, a given number, or a single one (None)."""
    dtype: Literal["model", "float64", "int64", "bool"] = "model"
    """The type of the numbers: "model" is the precision of the models."""
    start: float | Literal["models"] = 0.0
    """What the entries are at first: a number, or the device's own initial model (of a link: the sender's)."""

    def shape(self, graph: Graph, parameters: int) -> tuple[int, ...]:
        """Return the shape of the array on this graph."""
        rows = {"device": (graph.devices,), "link": (2 * len(graph.links),), "run": ()}[self.per]
        entry = () if self.size is None else (parameters if self.size == "model" else self.size,)
        return rows + entry

    def type(self, precision: np.dtype) -> np.dtype:
        """Return the type of the numbers, where the models have this precision."""
        return np.dtype(precision if self.dtype == "model" else self.dtype)

    def bytes(self, devices: int, links: int, parameters: int, precision: np.dtype) -> int:
        """Return the size of the array."""
        entries = {"device": devices, "link": 2 * links, "run": 1}[self.per]
        width = 1 if self.size is None else parameters if self.size == "model" else self.size
        return entries * width * self.type(precision).itemsize


Memories = Mapping[str, Memory]


def begin(memories: Memories, graph: Graph, models: np.ndarray) -> dict[str, np.ndarray]:
    """Create the arrays of a run that begins with these models."""
    return {name: _begun(memory, graph, models) for name, memory in memories.items()}


def carry_over(memories: Memories, arrays: Arrays, before: Graph, now: Graph, models: np.ndarray) -> Arrays:
    """Return the arrays for the next graph: rows of links that are gone are forgotten, and new links begin anew."""
    if now.has_links_of(before):
        return arrays
    carried = dict(arrays)
    for name, memory in memories.items():
        if memory.per == "link":
            carried[name] = _begun(memory, now, models)
            here, there = both_have(before, now)
            carried[name][there] = arrays[name][here]
    return carried


def _begun(memory: Memory, graph: Graph, models: np.ndarray) -> np.ndarray:
    array = np.empty(memory.shape(graph, models.shape[1]), memory.type(models.dtype))
    if memory.start == "models":
        array[...] = models if memory.per == "device" else models[graph.directed.sender]
    else:
        array[...] = memory.start
    return array


def both_have(before: Graph, now: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Return where the directed links that both graphs have are in each of them."""
    old, new = (one.directed.sender * one.devices + one.directed.receiver for one in (before, now))
    _, here, there = np.intersect1d(old, new, assume_unique=True, return_indices=True)
    return here, there


def problem_with(memories: object) -> str | None:
    """Return what is wrong with a strategy's declaration of its memory, in a few words; None if nothing is."""
    if not isinstance(memories, Mapping):
        return f"a {type(memories).__name__} instead of a table of efhc.Memory by name"
    for name, memory in memories.items():
        if not isinstance(name, str) or not isinstance(memory, Memory):
            return f"{name!r}: {type(memory).__name__}"
        if problem := _problem_with(memory):
            return f"{name}: {problem}"
    return None


def _problem_with(memory: Memory) -> str | None:
    size, start = memory.size, memory.start
    problems = {
        f"per = {memory.per!r}": memory.per not in ("device", "link", "run"),
        f"dtype = {memory.dtype!r}": memory.dtype not in ("model", "float64", "int64", "bool"),
        f"size = {size!r}": size not in (None, "model") and not (type(size) is int and size > 0),
        f"start = {start!r} with dtype = {memory.dtype!r}": start != "models" and not _can_hold(memory.dtype, start),
        f"start = 'models' with size = {size!r} per {memory.per}": start == "models"
        and (size != "model" or memory.per == "run"),
    }
    return next((problem for problem, is_there in problems.items() if is_there), None)


def _can_hold(dtype: str, start: object) -> bool:
    """Return whether numbers of this type can be what `start` says."""
    if not isinstance(start, int | float) or not np.isfinite(start):
        return False
    limits = {
        "bool": start in (0, 1),
        "int64": float(start).is_integer() and abs(start) < 2**62,
        "model": abs(start) < LARGEST,
    }
    return limits.get(dtype, True)


LARGEST = 3e38
"""What models hold in single precision."""


def total_bytes(memories: Memories, devices: int, links: int, parameters: int, precision: np.dtype) -> int:
    """Return the size of all arrays."""
    return sum(memory.bytes(devices, links, parameters, precision) for memory in memories.values())
