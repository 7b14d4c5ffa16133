"""The state of a run as JSON, and back: numbers exactly, tuples as tuples, shared rows as shared rows."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from efhc.core import device_state, protocol
from efhc.drivers.event_driven.rows import Row

CLASSES = {
    name: found
    for module in (device_state, protocol)
    for name, found in vars(module).items()
    if isinstance(found, type) and (is_dataclass(found) or hasattr(found, "_fields"))
}
"""What a device and its messages are made of, by name."""


PLAIN = (int, float, str, bool, type(None))
"""What JSON holds as it is. NumPy's numbers become Python's."""


def to_json(state: Any) -> str:
    """Return plain data as JSON."""
    return json.dumps(_packed(state))


def from_json(text: str, row: Callable[[int], Row]) -> Any:
    """Return what `to_json` was given; `row(index)` is the handle of a row, one object per index."""
    return _unpacked(json.loads(text), row)


def rows_in(text: str) -> list[int]:
    """Return the rows that a state holds, in ascending order."""
    found: set[int] = set()

    def note(pair: dict[str, Any]) -> Any:
        if "row" in pair:
            found.add(pair["row"])
        return pair

    json.loads(text, object_hook=note)
    return sorted(found)


def _packed(value: Any) -> Any:
    kind = type(value)
    if kind in PLAIN or isinstance(value, np.number | np.bool_):
        return value if kind in PLAIN else value.item()
    if kind is list:
        return [_packed(one) for one in value]
    if kind is tuple:
        return {"tuple": [_packed(one) for one in value]}
    if kind is Row:
        return {"row": value.index}
    if kind in (dict, set, deque):
        pairs = value.items() if kind is dict else ((one, None) for one in value)
        return {kind.__name__: [[_packed(key), _packed(one)] for key, one in pairs]}
    if CLASSES.get(kind.__name__) is kind:
        own = [getattr(value, name.name) for name in fields(value)] if is_dataclass(value) else value
        return {"class": kind.__name__, "values": [_packed(one) for one in own]}
    raise TypeError(f"a checkpoint cannot hold {kind.__name__}")


def _unpacked(value: Any, row: Callable[[int], Row]) -> Any:
    if isinstance(value, list):
        return [_unpacked(one, row) for one in value]
    if not isinstance(value, dict):
        return value
    if "class" in value:
        return CLASSES[value["class"]](*(_unpacked(one, row) for one in value["values"]))
    ((kind, content),) = value.items()
    if kind == "row":
        return row(int(content))
    if kind == "tuple":
        return tuple(_unpacked(one, row) for one in content)
    pairs = [(_unpacked(key, row), _unpacked(one, row)) for key, one in content]
    return dict(pairs) if kind == "dict" else {"set": set, "deque": deque}[kind](key for key, _ in pairs)
