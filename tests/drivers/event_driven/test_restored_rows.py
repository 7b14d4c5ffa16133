"""Rows of a checkpoint: the same models at the same places, the others free in the same order."""

from __future__ import annotations

import numpy as np
import pytest

from efhc.drivers.event_driven.checkpoints import from_json, packed, to_json, unpacked
from efhc.drivers.event_driven.rows import Rows


def test_rows_come_back_shared_and_the_others_are_free_in_the_same_order():
    rows = Rows(2, "float64", 8)
    held = [rows.holding(np.array([i, -i])) for i in range(6)]
    del held[3], held[1]
    state = {"held": held, "again": held[2]}
    text = packed(state, rows)
    assert text[0]["places"].tolist() == [0, 2, 4, 5]
    new = Rows(2, "float64", 0)
    restored = unpacked(*text, new, 8)
    assert restored["again"] is restored["held"][2]
    assert new.gathered(restored["held"])[:, 0].tolist() == [0, 2, 4, 5]
    fresh = [new.new() for _ in range(4)]
    assert [row.index for row in fresh] == [1, 3, 6, 7]
    del restored
    assert new.new().index in (0, 2, 4, 5)


def test_a_state_that_names_a_row_without_a_model_does_not_fit():
    rows = Rows(2, "float64", 8)
    tensors, facts = packed({"held": [rows.holding(np.ones(2))]}, rows)
    with pytest.raises(ValueError, match="no model at place 7"):
        unpacked(tensors, {"state": facts["state"].replace('{"row": 0}', '{"row": 7}')}, rows, 8)
    twice = {"rows": np.ones((2, 2)), "places": np.array([0, 0])}
    with pytest.raises(ValueError, match="not those of this run"):
        unpacked(twice, facts, rows, 8)


def test_arrays_come_back_shared_and_are_those_of_nobody_else():
    rows = Rows(3, "float32", 0)
    one, other = np.arange(3, dtype="float32"), np.zeros(3, "float32")
    tensors, facts = packed({"told": one, "heard": [other, one]}, rows)
    assert tensors["arrays"].tolist() == [[0, 1, 2], [0, 0, 0]]
    back = unpacked(tensors, facts, rows, 8)
    assert back["told"] is back["heard"][1]
    back["told"][:] = 7
    assert tensors["arrays"][0].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="not those of this run"):
        unpacked(tensors | {"arrays": np.full((2, 3), np.nan, "float32")}, facts, rows, 8)


def test_numbers_of_numpy_become_those_of_python():
    state = {"a": np.float64(0.1), "b": [np.int64(3), np.float32(0.5)], "c": np.True_}
    text, arrays = to_json(state)
    assert arrays == []
    back = from_json(text, lambda index: pytest.fail("no row"))
    assert back == {"a": 0.1, "b": [3, 0.5], "c": True}
    assert [type(one) for one in (back["a"], *back["b"], back["c"])] == [float, int, float, bool]
    with pytest.raises(TypeError, match="cannot hold object"):
        to_json({"a": object()})
