"""A schedule of a hostile network is a function of one integer, which a failure names."""

from __future__ import annotations

import hostile as exchanges
import pytest
from half_steps import hostile as half_steps

NETWORKS = pytest.mark.parametrize(("hostile", "folder"), [(exchanges, "device"), (half_steps, "half_steps")])


@NETWORKS
def test_a_failure_names_the_integer_that_replays_it(hostile, folder, monkeypatch):
    monkeypatch.setattr(hostile.Network, "come_to_rest", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError) as failure:
        hostile.check(1234)
    assert failure.value.__notes__ == [f"schedule 1234; to replay it: python tests/core/{folder}/hostile.py 1234"]


@NETWORKS
def test_a_schedule_is_a_function_of_its_integer(hostile, folder):
    def trace(schedule):
        lines = []
        hostile.run(schedule, trace=lambda *words: lines.append(" ".join(map(str, words))))
        return lines

    assert trace(7) == trace(7) != trace(8)
