"""Which links an iteration may use. MATCHA's numbers are held to their definitions, with the matrices written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import graphs
from quadratic_runs import now_at, ring

from efhc.core.graph import Graph
from efhc.strategies.parts import link_choices, matchings
from efhc.strategies.parts.matchings import matching_of_links

BUDGETS = [0.2, 0.5, 1.0]

GEOMETRIC = Graph.of(8, [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (4, 5), (4, 6), (5, 6), (6, 7), (3, 6)])
"""Two clusters, and a bridge that a good choice uses more often."""


def laplacian_of(graph, pairs):
    """Return the Laplacian of some links of the graph, term by term."""
    L = np.zeros((graph.devices, graph.devices))
    for i, j in pairs:
        difference = np.zeros(graph.devices)
        difference[i], difference[j] = 1, -1
        L += np.outer(difference, difference)
    return L


def laplacians_of(graph, of_link):
    return [laplacian_of(graph, graph.links[of_link == number].tolist()) for number in range(of_link.max() + 1)]


@given(graphs())
def test_all_links_are_all(graph):
    chosen = link_choices.AllLinks().choose(now_at(0, graph))
    assert chosen.active.tolist() == [True] * len(graph.links)
    assert chosen.weights is None


@given(graphs(), st.integers(0, 2))
def test_a_tree_is_the_same_in_every_iteration_and_keeps_connected_what_was(graph, k):
    active = link_choices.TreeLinks().choose(now_at(k, graph)).active
    tree = Graph.of(graph.devices, graph.links[active])
    assert np.array_equal(matchings.averaging_of_parts(tree), matchings.averaging_of_parts(graph))
    parts = np.linalg.matrix_rank(matchings.averaging_of_parts(graph))
    assert len(tree.links) == graph.devices - parts
    assert np.array_equal(active, link_choices.TreeLinks().choose(now_at(k + 1, graph)).active)


def test_links_are_sampled_with_their_probability_and_independently():
    graph, draws = ring(6), 4000
    active = np.array(
        [link_choices.SampledLinks(probability=0.3).choose(now_at(k, graph)).active for k in range(draws)]
    )
    deviation = np.sqrt(0.3 * 0.7 / draws)
    assert np.abs(active.mean(axis=0) - 0.3).max() < 4.5 * deviation
    both = active[:, 0] & active[:, 1]
    assert abs(both.mean() - 0.09) < 4.5 * np.sqrt(0.09 * 0.91 / draws)
    follows = active[1:, 0] & active[:-1, 0]
    assert abs(follows.mean() - 0.09) < 4.5 * np.sqrt(0.09 * 0.91 / draws)


@pytest.mark.parametrize("choice", [link_choices.SampledLinks(), link_choices.MatchaLinks()])
def test_the_same_seed_and_iteration_choose_the_same_links_and_others_do_not(choice):
    draws = [choice.choose(now_at(k, GEOMETRIC, seed=seed)).active.tolist() for seed in range(4) for k in range(4)]
    again = [choice.choose(now_at(k, GEOMETRIC, seed=seed)).active.tolist() for seed in range(4) for k in range(4)]
    assert draws == again
    assert len(set(map(tuple, draws))) > 4


def assert_are_few_matchings(graph):
    of_link = matching_of_links(graph)
    assert of_link.shape == (len(graph.links),)
    for number in range(of_link.max(initial=-1) + 1):
        ends = graph.links[of_link == number].ravel().tolist()
        assert ends
        assert len(set(ends)) == len(ends)
    assert of_link.max(initial=-1) <= graph.degrees.max()  # at most D + 1 of them


@given(graphs())
def test_matchings_are_matchings_and_few(graph):
    assert_are_few_matchings(graph)


@pytest.mark.parametrize("probability", [0.2, 0.5, 0.8, 1.0])
def test_matchings_of_larger_graphs_are_matchings_and_few(probability):
    rng = np.random.default_rng(0)
    for _ in range(20):
        later, earlier = np.tril_indices(20, -1)
        linked = rng.random(len(later)) < probability
        assert_are_few_matchings(Graph.of(20, np.column_stack([earlier, later])[linked]))


@settings(max_examples=25)
@given(graphs(), st.sampled_from(BUDGETS))
def test_probabilities_keep_the_budget_and_the_expected_mixing_contracts(graph, budget):
    of_link, p, weight = matchings.matchings(graph, budget)
    assert ((p >= 0) & (p <= 1)).all()
    assert p.sum() <= budget * len(p) + 1e-9
    if len(graph.links):
        assert matchings.contraction(graph, p[of_link], weight) < 1 - 1e-6


@pytest.mark.parametrize("budget", [0.15, 0.4, 0.7])
def test_no_other_probabilities_connect_the_graph_better(budget):
    of_link, p, _ = matchings.matchings(GEOMETRIC, budget)
    L = laplacians_of(GEOMETRIC, of_link)

    def connectivity(p):
        return np.linalg.eigvalsh(sum(one * part for one, part in zip(p, L, strict=True)))[1]

    rng, M = np.random.default_rng(0), len(p)
    others = [np.full(M, budget)]
    for _ in range(2000):  # points of the allowed set, most of them near those found
        near = np.clip(p + rng.normal(scale=rng.choice([0.01, 0.1, 0.5]), size=M), 1e-9, 1)
        others.append(near * min(1, budget * M / near.sum()))
    assert connectivity(p) > 1.05 * connectivity(others[0])
    assert max(map(connectivity, others)) <= connectivity(p) * (1 + matchings.CLOSE_ENOUGH)


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_contraction_is_that_of_the_second_moment_over_all_draws_and_the_weight_minimises_it(budget):
    graph = GEOMETRIC
    of_link, p, weight = matchings.matchings(graph, budget)
    L, M = laplacians_of(graph, of_link), len(p)

    def contraction(alpha):
        moment = np.zeros((graph.devices, graph.devices))
        for draw in np.ndindex(*[2] * M):
            chance = np.prod([one if on else 1 - one for one, on in zip(p, draw, strict=True)])
            W = np.eye(graph.devices) - alpha * sum(on * part for on, part in zip(draw, L, strict=True))
            moment += chance * W.T @ W
        return np.linalg.norm(moment - 1 / graph.devices, 2)

    for alpha in (0.1, weight, 0.6):
        assert matchings.contraction(graph, p[of_link], alpha) == pytest.approx(contraction(alpha), abs=1e-12)
    assert contraction(weight) <= min(map(contraction, np.linspace(0.02, 1, 50))) + 1e-6


def test_matchings_are_drawn_as_wholes_with_their_probabilities_and_the_budget_is_kept_on_average():
    draws, choice = 4000, link_choices.MatchaLinks(budget=0.4)
    of_link, p, weight = matchings.matchings(GEOMETRIC, 0.4)
    chosen = [choice.choose(now_at(k, GEOMETRIC)) for k in range(draws)]
    active = np.array([one.active for one in chosen])
    for number, probability in enumerate(p):
        used = active[:, of_link == number]
        assert (used == used[:, :1]).all()
        deviation = np.sqrt(probability * (1 - probability) / draws)
        assert abs(used[:, 0].mean() - probability) <= 4.5 * deviation
    first_of_each = np.unique(of_link, return_index=True)[1]
    assert active[:, first_of_each].mean() == pytest.approx(0.4, abs=0.02)
    assert chosen[0].weights.tolist() == [weight] * len(GEOMETRIC.links)


def test_with_the_whole_budget_all_links_are_always_used():
    assert link_choices.MatchaLinks(budget=1.0).choose(now_at(3, GEOMETRIC)).active.all()


@pytest.mark.parametrize("graph", [Graph.of(1, []), Graph.of(3, []), Graph.of(5, [(0, 1), (2, 3)])])
@pytest.mark.parametrize(
    "choice",
    [link_choices.AllLinks(), link_choices.TreeLinks(), link_choices.SampledLinks(), link_choices.MatchaLinks()],
)
def test_devices_without_neighbours_are_no_problem(graph, choice):
    assert choice.choose(now_at(0, graph)).active.shape == (len(graph.links),)
