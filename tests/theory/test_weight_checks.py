"""`assump:weights`: every way to break it is noticed, and Metropolis weights never do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from problems import graphs_with_used_links
from scipy.sparse import csr_array

from efhc.core.mixing import mixing_matrix
from efhc.theory.checks import WEIGHT_ROUNDING, broken_weights

PATH, TRIANGLE = [(0, 1), (1, 2)], [(0, 1), (0, 2), (1, 2)]
GOOD = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
CYCLE = np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])


def changed(entries, base=GOOD):
    matrix = base.copy()
    for place, value in entries.items():
        matrix[place] = value
    return matrix


def breach(matrix, links=PATH):
    """The part of the assumption, the device and the reason; None if the weights are sound."""
    check = broken_weights(csr_array(matrix), np.array(links, dtype=np.int64).reshape(-1, 2), 5)
    if check is None:
        return None
    assert (check.subject, check.verdict, check.iteration) == ("weights", "broken", 5)
    return check.label.removeprefix("assump:weights-"), check.device, check.reason


@given(graphs_with_used_links())
def test_metropolis_weights_are_sound_whichever_links_are_used(given_):
    graph, used = given_
    for links in (graph.links[used], graph.links[used][:, ::-1]):
        assert broken_weights(mixing_matrix(graph, used), links, 0) is None


@pytest.mark.parametrize(
    ("matrix", "links", "expected"),
    [
        # Sums are 1 and all is symmetric: only the sign, or a weight of 0 for oneself, is wrong.
        ([[0.8, 0.2, 0], [0.2, 1.0, -0.2], [0, -0.2, 1.2]], PATH, ("(a)", 1, "negative")),
        ([[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]], PATH, ("(a)", 1, "diagonal")),
        (GOOD, [(0, 1)], ("(a)", 1, "not-received")),
        (GOOD, [(1, 2)], ("(a)", 0, "not-received")),
        (GOOD, [], ("(a)", 0, "not-received")),
        (GOOD, TRIANGLE, ("(a)", 0, "ignored")),
        # One direction is enough of a breach: 2 gives weight to 1, 1 gives none to 2.
        ([[2 / 3, 1 / 3, 0], [1 / 3, 2 / 3, 0], [0, 1 / 3, 2 / 3]], PATH, ("(a)", 1, "ignored")),
        (CYCLE, TRIANGLE, ("(a)", 0, "ignored")),
        # Rows sum to 1: 1/(1 + d_i) for everybody, the usual mistake.
        ([[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 2, 1 / 2]], PATH, ("(b)", 1, "column-sum")),
        (0.5 * CYCLE + 0.5 / 3, TRIANGLE, ("(c)", 0, "asymmetric")),
    ],
)
def test_a_breach_is_found_and_its_device_named(matrix, links, expected):
    assert breach(matrix, links) == expected


@pytest.mark.parametrize("place", [(0, 0), (1, 2), (2, 1)])
@pytest.mark.parametrize(("value", "condition"), [(np.nan, "(a)"), (-np.inf, "(a)"), (np.inf, "(b)")])
def test_not_a_number_or_not_finite(value, condition, place):
    assert breach(changed({place: value}))[:2] == (condition, place[0])


@pytest.mark.parametrize("device", [0, 1, 2])
@pytest.mark.parametrize("off", [0.1, -0.1, 1e-6])
def test_a_row_that_does_not_sum_to_one(device, off):
    matrix = changed({(device, device): GOOD[device, device] + off})
    assert breach(matrix) == ("(b)", device, "row-sum")
    assert broken_weights(csr_array(matrix), np.array(PATH), 0).values["off"] == pytest.approx(abs(off))


def test_explicit_zeros_are_no_weights():
    explicit = csr_array((GOOD.ravel(), (np.repeat(range(3), 3), np.tile(range(3), 3))), shape=(3, 3))
    assert explicit.nnz == 9
    assert breach(explicit) is None


def test_rounding_is_forgiven():
    little = 0.1 * WEIGHT_ROUNDING
    assert breach(changed({(0, 0): 2 / 3 + little})) is None
    assert breach(changed({(0, 1): 1 / 3 + little, (1, 0): 1 / 3 - little})) is None
