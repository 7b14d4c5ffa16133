"""Checkpoints of a run: its state as JSON and tensors, and back.

Numbers come back exactly, tuples as tuples, and shared rows and arrays as shared ones.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

import numpy as np

from efhc.core import device, half_step_messages, half_steps, protocol, uplink
from efhc.drivers.event_driven.rows import Row, Rows


class Saved:
    """A part of a run of which a checkpoint holds the attributes named in `SAVED`."""

    SAVED: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """Return plain data that `restore` goes on from."""
        return {name: getattr(self, name) for name in self.SAVED}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        for name in self.SAVED:
            setattr(self, name, state[name])


def packed(state: dict[str, Any], rows: Rows) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the rows and arrays that a state holds, and the state as text. Those that are shared stay so."""
    text, arrays = to_json(state)
    places = rows_in(text)
    tensors = {"rows": rows.array[places], "places": np.array(places, dtype=np.int64)}
    return tensors | ({"arrays": np.stack(arrays)} if arrays else {}), {"state": text}


def unpacked(tensors: Mapping[str, np.ndarray], facts: Mapping[str, str], rows: Rows, room: int) -> dict[str, Any]:
    """Return what `packed` was given; its rows are put into `rows`, which then have room for at least `room`.

    Raises `ValueError` if the models are not of the sort of `rows`.
    """
    models, places = tensors["rows"], tensors["places"].tolist()
    arrays = tensors.get("arrays", models)
    fits = models.dtype == rows.array.dtype and models.shape == (len(places), rows.array.shape[1])
    fits = fits and arrays.dtype == rows.array.dtype and arrays.shape[1:] == models.shape[1:]
    if not fits or len(set(places)) < len(places) or not (np.isfinite(models).all() and np.isfinite(arrays).all()):
        raise ValueError("its models are not those of this run")
    handles = rows.restore(models, places, room if places else 0)

    def handle(index: int) -> Row:
        if index not in handles:
            raise ValueError(f"it has no model at place {index}")
        return handles[index]

    state: dict[str, Any] = from_json(facts["state"], handle, [array.copy() for array in arrays])
    return state


# JSON


def _name(kind: type) -> str:
    """The name of a class of `core`: two link laws may have messages of one name."""
    return f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"


CLASSES = {
    _name(found): found
    for module in (device, protocol, half_step_messages, half_steps, uplink)
    for found in vars(module).values()
    if isinstance(found, type) and (is_dataclass(found) or hasattr(found, "_fields"))
}
"""What a device and its messages are made of, by name."""


PLAIN = (int, float, str, bool, type(None))
"""What JSON holds as it is. NumPy's numbers become Python's."""


def to_json(state: Any) -> tuple[str, list[np.ndarray]]:
    """Return plain data as JSON, and the arrays in it, each once."""
    arrays: dict[int, tuple[int, np.ndarray]] = {}

    def number_of(array: np.ndarray) -> int:
        return arrays.setdefault(id(array), (len(arrays), array))[0]

    text = json.dumps(_packed(state, number_of))
    return text, [array for _, array in arrays.values()]


def from_json(text: str, row: Callable[[int], Row], arrays: Sequence[np.ndarray] = ()) -> Any:
    """Return what `to_json` was given; `row(index)` is the handle of a row, one object per index."""
    return _unpacked(json.loads(text), row, arrays)


def rows_in(text: str) -> list[int]:
    """Return the rows that a state holds, in ascending order."""
    found: set[int] = set()

    def note(pair: dict[str, Any]) -> Any:
        if "row" in pair:
            found.add(pair["row"])
        return pair

    json.loads(text, object_hook=note)
    return sorted(found)


def _packed(value: Any, number_of: Callable[[np.ndarray], int]) -> Any:
    kind = type(value)
    if kind in PLAIN or isinstance(value, np.number | np.bool_):
        return value if kind in PLAIN else value.item()

    def packed(values: Any) -> list[Any]:
        return [_packed(one, number_of) for one in values]

    if kind in (list, tuple):
        return packed(value) if kind is list else {"tuple": packed(value)}
    if kind in (np.ndarray, Row):
        return {"row": value.index} if kind is Row else {"array": number_of(value)}
    if kind in (dict, set, deque):
        pairs = value.items() if kind is dict else ((one, None) for one in value)
        return {kind.__name__: [packed(pair) for pair in pairs]}
    if CLASSES.get(_name(kind)) is kind:
        own = [getattr(value, name.name) for name in fields(value)] if is_dataclass(value) else value
        return {"class": _name(kind), "values": packed(own)}
    raise TypeError(f"a checkpoint cannot hold {kind.__name__}")


def _unpacked(value: Any, row: Callable[[int], Row], arrays: Sequence[np.ndarray]) -> Any:
    def unpacked(values: Any) -> list[Any]:
        return [_unpacked(one, row, arrays) for one in values]

    if isinstance(value, list):
        return unpacked(value)
    if not isinstance(value, dict):
        return value
    if "class" in value:
        return CLASSES[value["class"]](*unpacked(value["values"]))
    ((kind, content),) = value.items()
    if kind in ("row", "array"):
        return row(int(content)) if kind == "row" else arrays[int(content)]
    if kind == "tuple":
        return tuple(unpacked(content))
    pairs = [unpacked(pair) for pair in content]
    return dict(pairs) if kind == "dict" else {"set": set, "deque": deque}[kind](key for key, _ in pairs)
