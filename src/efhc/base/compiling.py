"""Compiling loops with numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """To machine code when first called, kept on disk. Sums may be reordered: that is what makes them vectors."""
    options: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz"}, "nogil": True}
    kernel: Callable[..., Any]
    try:
        kernel = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # nowhere to keep it: neither beside this file nor in the user's cache
        kernel = numba.njit(**options)(function)
    return kernel
