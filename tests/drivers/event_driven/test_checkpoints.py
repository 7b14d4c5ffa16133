"""Checkpoints as JSON and arrays: numbers come back exactly, and shared models as shared ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

from efhc.core import protocol
from efhc.drivers.event_driven.checkpoints import packed, to_json, unpacked

LIKE = np.empty((0, 3), np.float32)


def test_arrays_come_back_shared_and_are_those_of_nobody_else():
    one, other = np.arange(3, dtype="float32"), np.zeros(3, "float32")
    tensors, facts = packed({"told": one, "heard": [other, one]})
    assert tensors["arrays"].tolist() == [[0, 1, 2], [0, 0, 0]]
    back = unpacked(tensors, facts, LIKE)
    assert back["told"] is back["heard"][1]
    back["told"][:] = 7
    assert tensors["arrays"][0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("like", [np.empty((0, 2), np.float32), np.empty((0, 3), np.float64)])
def test_models_of_another_kind_and_those_that_are_not_finite_do_not_fit(like):
    tensors, facts = packed({"told": np.zeros(3, "float32")})
    with pytest.raises(ValueError, match="not those of this run"):
        unpacked(tensors, facts, like)
    with pytest.raises(ValueError, match="not those of this run"):
        unpacked({"arrays": np.full((1, 3), np.nan, "float32")}, facts, LIKE)


def test_rows_of_version_0_2_come_back_by_their_places():
    tensors = {"rows": np.array([[1, 2, 3], [4, 5, 6]], np.float32), "places": np.array([2, 5])}
    facts = {"state": json.dumps({"dict": [["held", [{"row": 5}, {"row": 2}, {"row": 5}]]]})}
    held = unpacked(tensors, facts, LIKE)["held"]
    assert [model.tolist() for model in held] == [[4, 5, 6], [1, 2, 3], [4, 5, 6]]
    assert held[0] is held[2]


def test_numbers_of_numpy_become_those_of_python():
    state = {"a": np.float64(0.1), "b": [np.int64(3), np.float32(0.5)], "c": np.True_}
    back = unpacked(*packed(state), LIKE)
    assert back == {"a": 0.1, "b": [3, 0.5], "c": True}
    assert [type(one) for one in (back["a"], *back["b"], back["c"])] == [float, int, float, bool]
    with pytest.raises(TypeError, match="cannot hold object"):
        to_json({"a": object()})


def test_messages_that_were_renamed_keep_their_names_in_files():
    messages = {"mail": [protocol.ModelRequest(), protocol.ModelReply(3, None)]}
    tensors, facts = packed(messages)
    assert [one["class"] for one in json.loads(facts["state"])["dict"][0][1]] == [
        "protocol.AskModel",
        "protocol.GiveModel",
    ]
    assert unpacked(tensors, facts, LIKE) == messages
