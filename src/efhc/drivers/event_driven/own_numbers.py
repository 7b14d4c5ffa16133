"""Numbers that the user's own code gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def as_number(given: Any) -> float:
    """Return a number of Python or NumPy as a float; NaN for anything else, booleans too."""
    if not isinstance(given, int | float | np.integer | np.floating) or isinstance(given, bool):
        return math.nan
    try:
        return float(given)
    except OverflowError:
        return math.nan
