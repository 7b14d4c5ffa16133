"""`assump:weights`: every way to break it is noticed, and Metropolis weights never do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from problems import graphs_with_used_links
from scipy.sparse import csr_array

from efhc.core.graph import Graph
from efhc.core.mixing import mixing_matrix
from efhc.theory.connectivity.weights import ROUNDING, weights_breach

PATH = Graph.of(3, [(0, 1), (1, 2)])
GOOD = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
CYCLE = np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])


@pytest.fixture(params=[np.asarray, csr_array], ids=["dense", "sparse"])
def kind(request):
    return request.param


def changed(entries, base=GOOD):
    matrix = base.copy()
    for place, value in entries.items():
        matrix[place] = value
    return matrix


@given(graphs_with_used_links())
def test_metropolis_weights_are_sound_whichever_links_are_used(given_):
    graph, used = given_
    matrix = mixing_matrix(graph, used)
    for either in (matrix, matrix.toarray()):
        assert weights_breach(either) is None
        assert weights_breach(either, graph.links[used]) is None
        assert weights_breach(either, graph.links[used][:, ::-1]) is None


@given(graphs_with_used_links())
def test_other_links_than_those_used_are_noticed(given_):
    graph, used = given_
    matrix = mixing_matrix(graph, used)
    for link in np.flatnonzero(used):
        fewer = used.copy()
        fewer[link] = False
        breach = weights_breach(matrix, graph.links[fewer])
        assert breach.condition == "(a)"
        assert breach.device in graph.links[link]
        assert breach.reason == "not-received"
    for link in np.flatnonzero(~used):
        more = used.copy()
        more[link] = True
        breach = weights_breach(matrix, graph.links[more])
        assert breach.condition == "(a)"
        assert breach.device in graph.links[link]
        assert breach.reason == "ignored"


def test_the_good_one_is_good(kind):
    assert weights_breach(kind(GOOD)) is None
    assert weights_breach(kind(GOOD), PATH.links) is None
    assert weights_breach(kind(np.eye(3)), PATH.links[:0]) is None
    assert weights_breach(kind(np.eye(1))) is None


def test_negative(kind):
    # sums are 1 and all is symmetric: only the sign is wrong
    matrix = np.array([[1.2, -0.2, 0], [-0.2, 1.0, 0.2], [0, 0.2, 0.8]])
    assert weights_breach(kind(matrix))[:2] == ("(a)", 0)
    matrix = np.array([[0.8, 0.2, 0], [0.2, 1.0, -0.2], [0, -0.2, 1.2]])
    assert weights_breach(kind(matrix))[:2] == ("(a)", 1)


@pytest.mark.parametrize("place", [(0, 0), (1, 2), (2, 1)])
@pytest.mark.parametrize(("value", "condition"), [(np.nan, "(a)"), (-np.inf, "(a)"), (np.inf, "(b)")])
def test_not_a_number_or_not_finite(kind, value, condition, place):
    for links in (PATH.links, None):
        breach = weights_breach(kind(changed({place: value})), links)
        assert breach[:2] == (condition, place[0])


def test_no_weight_for_oneself(kind):
    assert weights_breach(kind(np.array([[0.0, 1.0], [1.0, 0.0]])))[:2] == ("(a)", 0)
    matrix = np.array([[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]])
    breach = weights_breach(kind(matrix), PATH.links)
    assert breach == ("(a)", 1, "diagonal", 0)


def test_weight_on_a_link_that_was_not_used(kind):
    breach = weights_breach(kind(GOOD), np.array([[0, 1]]))
    assert breach == ("(a)", 1, "not-received", 0)
    assert weights_breach(kind(GOOD), np.array([[1, 2]]))[:2] == ("(a)", 0)
    assert weights_breach(kind(GOOD), np.empty((0, 2), dtype=np.int64))[:2] == ("(a)", 0)


def test_no_weight_on_a_link_that_was_used(kind):
    breach = weights_breach(kind(GOOD), np.array([[0, 1], [0, 2], [1, 2]]))
    assert breach == ("(a)", 0, "ignored", 0)
    # one direction is enough of a breach: 2 gives weight to 1, 1 gives none to 2
    one_way = np.array([[2 / 3, 1 / 3, 0], [1 / 3, 2 / 3, 0], [0, 1 / 3, 2 / 3]])
    assert weights_breach(kind(one_way), PATH.links)[:2] == ("(a)", 1)


def test_explicit_zeros_are_no_weights():
    explicit = csr_array((GOOD.ravel(), (np.repeat(range(3), 3), np.tile(range(3), 3))), shape=(3, 3))
    assert explicit.nnz == 9
    assert weights_breach(explicit, PATH.links) is None


def test_entries_in_parts_count_together_and_the_matrix_stays_as_it_was():
    parts = csr_array((np.array([0.5, 0.25, 0.25, 0.25, 0.25, 0.5]), [0, 1, 1, 0, 0, 1], [0, 3, 6]), shape=(2, 2))
    for _ in range(2):
        assert weights_breach(parts, np.array([[0, 1]])) is None
    assert parts.toarray().tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize("device", [0, 1, 2])
@pytest.mark.parametrize("off", [0.1, -0.1, 1e-6])
def test_a_row_that_does_not_sum_to_one(kind, device, off):
    breach = weights_breach(kind(changed({(device, device): GOOD[device, device] + off})), PATH.links)
    assert breach[:2] == ("(b)", device)
    assert breach.reason == "row-sum"
    assert breach.off == pytest.approx(abs(off))


def test_the_worst_row_is_named(kind):
    breach = weights_breach(kind(changed({(0, 0): 0.6, (2, 2): 0.4})))
    assert breach[:2] == ("(b)", 2)


def test_columns_that_do_not_sum_to_one(kind):
    # rows do: 1/(1 + d_i) for everybody, the usual mistake
    matrix = np.array([[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 2, 1 / 2]])
    breach = weights_breach(kind(matrix), PATH.links)
    assert breach[:2] == ("(b)", 1)
    assert breach.reason == "column-sum"


def test_doubly_stochastic_and_not_symmetric(kind):
    assert weights_breach(kind(CYCLE)) == ("(c)", 0, "asymmetric", 0)
    among_others = np.eye(5)
    among_others[np.ix_([1, 3, 4], [1, 3, 4])] = CYCLE
    assert weights_breach(kind(among_others))[:2] == ("(c)", 1)
    # with the links: both ways are used, so a weight of 0 is a breach before that
    assert weights_breach(kind(CYCLE), np.array([[0, 1], [0, 2], [1, 2]]))[:2] == ("(a)", 0)
    positive = 0.5 * CYCLE + 0.5 / 3
    assert weights_breach(kind(positive), np.array([[0, 1], [0, 2], [1, 2]]))[:2] == ("(c)", 0)


def test_rounding_is_forgiven(kind):
    little = 0.1 * ROUNDING
    assert weights_breach(kind(changed({(0, 0): 2 / 3 + little})), PATH.links) is None
    assert weights_breach(kind(changed({(0, 1): 1 / 3 + little, (1, 0): 1 / 3 - little})), PATH.links) is None
