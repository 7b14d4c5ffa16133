"""Names for the arrays that pass between the parts; m devices, n parameters, E links."""

from __future__ import annotations

from typing import Any

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
