"""Networks over time are functions of k, and keep what they promise: shares, windows, speeds, rests."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from efhc.base.errors import InputError
from efhc.core.graph import Graph
from efhc.core.randomness import Randomness
from efhc.network import AnyNetwork
from efhc.network.changing import RandomLinks, RandomWaypoint, Rotating
from efhc.network.topologies import Complete, ErdosRenyi, Geometric, GraphList, Ring, Star

SEED = Randomness(11)


def pairs(graph: Graph) -> set[tuple[int, int]]:
    return set(map(tuple, graph.links.tolist()))


CHANGING = [
    RandomLinks(topology=Complete()),
    Rotating(topology=Complete(), period=4),
    RandomWaypoint(slowest=0.05, fastest=0.2),
    RandomWaypoint(slowest=0.05, fastest=0.2, pause=2),
]


@pytest.mark.parametrize("network", CHANGING, ids=repr)
@given(order=st.lists(st.integers(0, 60), min_size=1, max_size=12))
@settings(max_examples=15, deadline=None)
def test_is_a_function_of_k_in_whatever_order(network: RandomLinks, order: list[int]):
    over_time = network.over_time(8, SEED)
    for k in order:
        assert pairs(over_time.graph(k)) == pairs(network.over_time(8, SEED).graph(k))


@pytest.mark.parametrize("network", CHANGING, ids=repr)
def test_changes_and_depends_on_the_seed(network: RandomLinks):
    def links(seed: int) -> list[frozenset[tuple[int, int]]]:
        over_time = network.over_time(8, Randomness(seed))
        return [frozenset(pairs(over_time.graph(k))) for k in range(20)]

    assert len(set(links(0))) > 1
    assert links(0) != links(1)


@pytest.mark.parametrize("network", CHANGING, ids=repr)
def test_neighbouring_iterations_are_kept_not_drawn_again(network: RandomLinks):
    over_time = network.over_time(8, SEED)
    for k in range(1, 5):
        previous = over_time.graph(k - 1)
        over_time.graph(k)
        assert over_time.graph(k - 1) is previous


# Random links


@pytest.mark.parametrize("p", [0.0, 0.1, 0.8, 1.0])
def test_each_link_is_up_a_share_p_of_the_time(p: float):
    devices, iterations = 10, 600
    over_time = RandomLinks(topology=Complete(), up_probability=p).over_time(devices, SEED)
    up = np.zeros((devices, devices))
    for k in range(iterations):
        i, j = over_time.graph(k).links.T
        up[i, j] += 1
    shares = up[np.triu_indices(devices, 1)] / iterations
    sigma = np.sqrt(p * (1 - p) / iterations)
    assert abs(shares.mean() - p) <= 4 * sigma / np.sqrt(len(shares))
    assert (abs(shares - p) <= 4.5 * sigma).all()


def test_links_come_and_go_independently_over_time():
    over_time = RandomLinks(topology=Complete(), up_probability=0.5).over_time(12, SEED)
    states = np.array([[pair in pairs(over_time.graph(k)) for pair in combinations(range(12), 2)] for k in range(300)])
    kept = (states[1:] == states[:-1]).mean()
    assert abs(kept - 0.5) < 4 * 0.5 / np.sqrt(states[1:].size)


def test_only_links_of_the_topology_are_ever_up():
    ring = pairs(Ring().graph(9, SEED))
    over_time = RandomLinks(topology=Ring(), up_probability=0.7).over_time(9, SEED)
    seen = [pairs(over_time.graph(k)) for k in range(50)]
    assert all(links <= ring for links in seen)
    assert set.union(*seen) == ring


def test_a_further_device_leaves_the_links_of_the_others_alone():
    network = RandomLinks(topology=ErdosRenyi(probability=0.5, connected=False))
    small, large = network.over_time(7, SEED), network.over_time(9, SEED)
    for k in range(20):
        assert pairs(small.graph(k)) == {(i, j) for i, j in pairs(large.graph(k)) if j < 7}


# Rotating


def union_connected(graphs: list[Graph], devices: int) -> bool:
    return Graph.of(devices, np.concatenate([graph.links for graph in graphs])).is_connected


@given(devices=st.integers(2, 12), seed=st.integers(0, 100), data=st.data())
@settings(max_examples=30, deadline=None)
def test_windows_of_period_are_connected_and_no_shorter_ones(devices: int, seed: int, data: st.DataObject):
    period = data.draw(st.integers(1, devices - 1))
    topology = data.draw(st.sampled_from([Complete(), Ring(), Star(), Geometric()]))
    over_time = Rotating(topology=topology, period=period).over_time(devices, Randomness(seed))
    graphs = [over_time.graph(k) for k in range(3 * period)]
    for start in range(2 * period):
        assert union_connected(graphs[start : start + period], devices)
        if period > 1:
            assert not union_connected(graphs[start : start + period - 1], devices)
    used = set.union(*map(pairs, graphs))
    assert len(used) == devices - 1  # a spanning tree
    assert used <= pairs(topology.graph(devices, Randomness(seed)))


def test_rotating_refuses_what_has_no_tree_of_so_many_links():
    with pytest.raises(InputError, match=r"^period: cannot use 5. .*4"):
        Rotating(topology=Complete(), period=5).over_time(5, SEED)
    apart = ErdosRenyi(probability=0, connected=False)
    with pytest.raises(InputError, match=r"^topology: cannot use a disconnected graph"):
        Rotating(topology=apart).over_time(5, SEED)


@pytest.mark.parametrize("kind", [Rotating, RandomLinks])
def test_what_is_wrong_with_the_topology_is_named_as_its_own(kind: type[Rotating]):
    with pytest.raises(InputError) as caught:
        kind(topology=Geometric(radius=0.001, attempts=2)).over_time(10, SEED)
    assert caught.value.field == "topology.radius"


# Random waypoint


def track(network: RandomWaypoint, iterations: int, devices: int = 6) -> np.ndarray:
    walkers = network.over_time(devices, SEED)
    return np.stack([walkers.positions(k) for k in range(iterations)])


@given(
    slowest=st.floats(0.001, 0.4), more=st.floats(0, 0.6), pause=st.integers(0, 4), radius=st.floats(0.05, 1.0),
    seed=st.integers(0, 1000),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_walkers_stay_in_the_square_and_no_faster_than_the_fastest(
    slowest: float, more: float, pause: int, radius: float, seed: int
):
    network = RandomWaypoint(slowest=slowest, fastest=slowest + more, pause=pause, radius=radius)
    walkers = network.over_time(5, Randomness(seed))
    points = np.stack([walkers.positions(k) for k in range(40)])
    assert points.min() >= 0
    assert points.max() <= 1
    assert (np.linalg.norm(np.diff(points, axis=0), axis=-1) <= slowest + more + 1e-9).all()
    for k in (0, 17, 39):
        near = {(i, j) for i, j in combinations(range(5), 2) if np.hypot(*(points[k, i] - points[k, j])) <= radius}
        assert pairs(walkers.graph(k)) == near


def test_on_a_straight_walk_the_speed_is_constant_and_within_bounds():
    steps = np.diff(track(RandomWaypoint(slowest=0.01, fastest=0.03), 800), axis=0)
    lengths = np.linalg.norm(steps, axis=-1)
    cross = steps[1:, :, 0] * steps[:-1, :, 1] - steps[1:, :, 1] * steps[:-1, :, 0]
    straight = abs(cross) < 1e-12
    assert straight.mean() > 0.8
    assert (lengths > 0).all()  # nobody rests
    before, after = lengths[:-1][straight], lengths[1:][straight]
    np.testing.assert_allclose(before, after, rtol=1e-9)
    assert before.min() >= 0.01 - 1e-12
    assert before.max() <= 0.03 + 1e-12
    assert before.min() < 0.013
    assert before.max() > 0.027  # the whole range is drawn from


@pytest.mark.parametrize("pause", [1, 2, 5])
def test_a_pause_rests_that_many_iterations(pause: int):
    iterations = 600
    points = track(RandomWaypoint(slowest=0.02, fastest=0.05, pause=pause), iterations)
    rests = []
    for walk in points.transpose(1, 0, 2):
        resting = [bool((a == b).all()) for a, b in pairwise(walk)]
        assert not resting[0]  # all set out at k = 0
        runs = "".join(".#"[rest] for rest in resting).split(".")
        rests += [len(run) for run in runs[:-1] if run]
    # A device is at a waypoint in `pause` consecutive iterations: `pause - 1` steps in a row do not move it.
    assert set(rests) == ({pause - 1} if pause > 1 else set())
    assert pause == 1 or len(rests) > 20


def test_a_further_walker_leaves_the_others_alone():
    network = RandomWaypoint(slowest=0.05, fastest=0.1, pause=1)
    assert np.array_equal(track(network, 60, devices=4), track(network, 60, devices=7)[:, :4])


# Lists of graphs, and the union


def test_a_list_is_repeated_or_its_last_one_held():
    graphs = [Graph.of(3, [(0, 1)]), Graph.of(3, []), Graph.of(3, [(1, 2)])]
    repeated, held = GraphList(graphs), GraphList(graphs, hold_last=True)
    assert all(repeated.graph(k) is graphs[k % 3] for k in range(10))
    assert all(held.graph(k) is graphs[min(k, 2)] for k in range(10))


def test_a_config_table_names_its_network():
    adapter = TypeAdapter(AnyNetwork)
    table = {"kind": "rotating", "period": 3, "topology": {"kind": "ring"}}
    assert adapter.validate_python(table) == Rotating(topology=Ring(), period=3)
    assert adapter.validate_python({"radius": 0.5}) == Geometric(radius=0.5)
    with pytest.raises(ValidationError):
        adapter.validate_python({"kind": "rotating", "period": 0})
    with pytest.raises(ValidationError, match="fastest"):
        RandomWaypoint(slowest=0.02, fastest=0.01)
