"""Names for the arrays that pass between the parts; m devices, n parameters, E links."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
"""Models (m, n), gradients (m, n), bandwidths (m,) ..."""

Ints = NDArray[np.integer[Any]]
"""Labels, sample indices, links (E, 2) ..."""

Flags = NDArray[np.bool_]
"""Fired devices (m,), used links (E,) ..."""


def read_only(array: np.ndarray) -> Any:
    """Return a view for code that must not write to `array`, because others share it."""
    view = array.view()
    view.flags.writeable = False
    return view


K = TypeVar("K")
V = TypeVar("V")


class ArraysByKey(dict[K, V]):
    """A dict of arrays, or of dicts of them, whose repr names their types and shapes instead of their numbers."""

    SHOWN = 20

    def __repr__(self) -> str:
        entries = [f"{key!r}: {_in_short(value)}" for key, value in islice(self.items(), self.SHOWN)]
        more = [f"... {len(self) - self.SHOWN} more"] if len(self) > self.SHOWN else []
        return f"{{{', '.join([*entries, *more])}}}"


def _in_short(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} array {' x '.join(map(str, value.shape))}>"
    return repr(ArraysByKey(value)) if isinstance(value, Mapping) else f"<{type(value).__name__}>"
