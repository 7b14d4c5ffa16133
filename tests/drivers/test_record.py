from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from problems import graphs

from efhc.core.triggers import Bandwidths
from efhc.drivers.record import Record
from efhc.drivers.scenario import Scenario
from efhc.drivers.steps import Steps
from efhc.network.over_time import GraphList


@given(st.data(), st.integers(0, 6))
def test_a_record_comes_back_from_a_checkpoint_bit_for_bit(data, stretches):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    record, sequence = Record(5), [data.draw(graphs(5))]
    for _ in range(stretches):
        length = data.draw(st.integers(1, 4))
        graph = data.draw(graphs(5))
        steps = Steps(
            len(record), sequence[-1], graph, rng.random((length, 5)) < 0.5, rng.random((length, 5)), rng.random(length)
        )
        sequence += [graph] * length
        record.add(steps, rng.random(5) + 1, 7)
        if data.draw(st.booleans()):
            record.add_accuracies(rng.random(5), rng.random())
    again = Record.from_arrays(record.to_arrays())
    assert len(again) == len(record) == len(sequence) - 1
    assert_frame_equal(again.metrics(), record.metrics(), check_exact=True)
    network = GraphList(sequence[1:] or sequence)
    scenario = Scenario(network, Bandwidths(np.ones(5), 1.0), None, None, None, None, None)
    events = record.events(scenario)
    assert_frame_equal(again.events(scenario), events, check_exact=True)
    assert events["fired"].list.len().to_list() == record.metrics()["fired"].to_list()


def test_a_record_whose_parts_do_not_fit_is_refused():
    arrays = Record(3).to_arrays()
    arrays["fired"] = np.zeros((2, 3), dtype=bool)
    with pytest.raises(ValueError, match="different numbers of iterations"):
        Record.from_arrays(arrays)
