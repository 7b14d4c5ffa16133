"""The state of a run as text and tensors, and back: plain data, and the rows that it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from efhc.drivers.event_driven.plain_data import from_json, rows_in, to_json
from efhc.drivers.event_driven.rows import Row, Rows


def attributes(part: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return these attributes of a part of a run, by name."""
    return {name: getattr(part, name) for name in names}


def set_attributes(part: Any, names: Sequence[str], state: Mapping[str, Any]) -> None:
    """Set these attributes of a part of a run to what `attributes` returned."""
    for name in names:
        setattr(part, name, state[name])


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
