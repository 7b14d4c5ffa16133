"""Checkpoints of a run: its state as JSON and tensors, and back.

Numbers come back exactly, tuples as tuples, and shared arrays as shared ones.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

import numpy as np

from efhc.core import device, half_step_messages, half_steps, protocol, uplink


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


def packed(state: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the arrays that a state holds, and the state as text. Those that are shared stay so."""
    text, arrays = to_json(state)
    return {"arrays": np.stack(arrays)} if arrays else {}, {"state": text}


def unpacked(tensors: Mapping[str, np.ndarray], facts: Mapping[str, str], like: np.ndarray) -> dict[str, Any]:
    """Return what `packed` was given. Raises `ValueError` if the arrays are not of the kind of `like`, (0, n)."""
    # In version 0.2, the models of exchanges were rows, by their places.
    rows, places = tensors.get("rows", like), tensors.get("places", np.empty(0, np.int64)).tolist()
    arrays = tensors.get("arrays", like)
    for found in (rows, arrays):
        if found.dtype != like.dtype or found.shape[1:] != like.shape[1:] or not np.isfinite(found).all():
            raise ValueError("its models are not those of this run")
    held = {"row": dict(zip(places, map(np.copy, rows), strict=True)), "array": [*map(np.copy, arrays)]}
    state: dict[str, Any] = _unpacked(json.loads(facts["state"]), held)
    return state


# JSON


_NAMES_IN_FILES = {"ModelRequest": "AskModel", "ModelReply": "GiveModel"}
"""The names in the file stay when a class is renamed."""


def _name(kind: type) -> str:
    """The name of a class of `core`: two link laws may have messages of one name."""
    return f"{kind.__module__.rpartition('.')[2]}.{_NAMES_IN_FILES.get(kind.__name__, kind.__name__)}"


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


def _packed(value: Any, number_of: Callable[[np.ndarray], int]) -> Any:
    kind = type(value)
    if kind in PLAIN or isinstance(value, np.number | np.bool_):
        return value if kind in PLAIN else value.item()

    def packed(values: Any) -> list[Any]:
        return [_packed(one, number_of) for one in values]

    if kind in (list, tuple):
        return packed(value) if kind is list else {"tuple": packed(value)}
    if kind is np.ndarray:
        return {"array": number_of(value)}
    if kind in (dict, set, deque):
        pairs = value.items() if kind is dict else ((one, None) for one in value)
        return {kind.__name__: [packed(pair) for pair in pairs]}
    if CLASSES.get(_name(kind)) is kind:
        own = [getattr(value, name.name) for name in fields(value)] if is_dataclass(value) else value
        return {"class": _name(kind), "values": packed(own)}
    raise TypeError(f"a checkpoint cannot hold {kind.__name__}")


def _unpacked(value: Any, held: Mapping[str, Any]) -> Any:
    def unpacked(values: Any) -> list[Any]:
        return [_unpacked(one, held) for one in values]

    if isinstance(value, list):
        return unpacked(value)
    if not isinstance(value, dict):
        return value
    if "class" in value:
        return CLASSES[value["class"]](*unpacked(value["values"]))
    ((kind, content),) = value.items()
    if kind in held:
        return held[kind][content]
    if kind == "tuple":
        return tuple(unpacked(content))
    pairs = [unpacked(pair) for pair in content]
    return dict(pairs) if kind == "dict" else {"set": set, "deque": deque}[kind](key for key, _ in pairs)
