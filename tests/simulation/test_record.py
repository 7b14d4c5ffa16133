from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from problems import graphs

from efhc.core.iteration import State
from efhc.simulation.lockstep import Step
from efhc.simulation.record import Record, consensus_error


class Accuracies:
    """A learner that knows only how good models are."""

    def accuracies(self, models):
        return np.abs(models[:, 0]) % 1.0


@given(st.data(), st.integers(0, 6))
def test_a_record_comes_back_from_a_checkpoint_bit_for_bit(data, rows):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    record = Record()
    for k in range(rows):
        graph = data.draw(graphs(5))
        step = Step(k, graph, rng.random(5) < 0.5, rng.random(len(graph.links)) < 0.5, rng.random(), rng.random(5))
        record.add(
            State(k + 1, rng.normal(size=(5, 3)), rng.normal(size=(5, 3))), step, Accuracies(), evaluate=k % 2 == 0
        )
    again = Record.from_arrays(record.to_arrays())
    assert len(again) == len(record) == rows
    assert_frame_equal(again.metrics(), record.metrics(), check_exact=True)
    assert_frame_equal(again.events(), record.events(), check_exact=True)

    again.keep(2)
    assert again.metrics()["iteration"].to_list() == list(range(min(rows, 2)))


def test_a_record_whose_parts_do_not_fit_is_refused():
    arrays = Record().to_arrays()
    arrays["fired_counts"] = np.array([2])
    with pytest.raises(ValueError, match="different numbers of iterations"):
        Record.from_arrays(arrays)


@given(st.integers(1, 6), st.integers(0, 2**32))
def test_consensus_error_is_the_papers(devices, seed):
    models = np.random.default_rng(seed).normal(size=(devices, 4))
    mean = models.mean(axis=0)
    assert consensus_error(models) == pytest.approx(sum(np.linalg.norm(w - mean) ** 2 for w in models), abs=1e-12)
