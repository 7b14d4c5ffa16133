"""The status of a node as Prometheus reads it. A number that is not known yet has no line."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from efhc.runtime.status import STATES, NeighbourStatus, NodeStatus

Samples = Iterable[tuple[dict[str, str], Any]]
"""Pairs of labels and a value."""


def as_prometheus(status: NodeStatus) -> str:
    """Return the text that /metrics answers."""
    return "".join(_lines(status))


def _lines(status: NodeStatus) -> Iterator[str]:
    facts = {"device": str(status.device), "version": status.version, "mode": status.mode}
    yield from _metric("info", "What the node is; always 1.", [(facts, 1)])
    states = [({"state": state}, int(state == status.state)) for state in STATES]
    yield from _metric("state", "1 for the state that the node is in.", states)
    yield from _numbers(NodeStatus, "", [({}, status)])
    links = [({"neighbour": str(one.device)}, one) for one in status.neighbours]
    ends = [(label | {"outcome": how}, count) for label, one in links for how, count in one.exchanges.items()]
    yield from _metric("exchanges_total", "Exchanges that ended, by neighbour and outcome.", ends)
    yield from _numbers(NeighbourStatus, "link_", links)


def _numbers(kind: type[Any], prefix: str, labelled: Samples) -> Iterator[str]:
    """Yield the lines of all fields of a status that are metrics."""
    for each in fields(kind):
        if name := each.metadata.get("metric"):
            values = [(labels, getattr(status, each.name)) for labels, status in labelled]
            yield from _metric(prefix + name, each.metadata["meaning"], values)


def _metric(name: str, meaning: str, samples: Samples) -> Iterator[str]:
    yield f"# HELP efhc_{name} {meaning}\n"
    yield f"# TYPE efhc_{name} {'counter' if name.endswith('_total') else 'gauge'}\n"
    for labels, value in samples:
        if value is not None:
            inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            number = len(value) if isinstance(value, list) else value
            yield f"efhc_{name}{{{inner}}} {_number(number)}\n" if inner else f"efhc_{name} {_number(number)}\n"


def plain_number(value: Any) -> int | float:
    """Return a number or truth value, which may be one of NumPy, as a number of Python."""
    try:
        return operator.index(value)
    except TypeError:
        return float(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    number = plain_number(value)
    if isinstance(number, float) and not math.isfinite(number):
        return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}[str(number)]
    return repr(number)
