"""Runs that are interrupted, and results that must be the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from polars.testing import assert_frame_equal

import efhc


def interrupt_at(done: int, strategy: str | None = None, seed: int | None = None) -> Callable[[str, int, int], None]:
    """Return a progress callback that interrupts like Ctrl-C when this number of iterations of a run is done."""

    def progress(of: str, with_seed: int, iterations: int) -> None:
        if iterations >= done and strategy in (None, of) and seed in (None, with_seed):
            raise KeyboardInterrupt

    return progress


def assert_same(one: efhc.Result, other: efhc.Result, *, is_old: bool = False) -> None:
    """Bit for bit. `is_old`: the first is of an earlier version, and may lack columns that came later."""
    assert one.tables.keys() == other.tables.keys()
    for name, table in one.tables.items():
        known = other.tables[name].select(table.columns) if is_old else other.tables[name]
        assert_frame_equal(table, known, check_exact=True)
    assert one.models.keys() == other.models.keys()
    for pair, models in one.models.items():
        assert models.dtype == other.models[pair].dtype
        assert np.array_equal(models, other.models[pair])
