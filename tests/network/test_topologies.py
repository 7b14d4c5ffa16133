"""Every topology is an undirected simple graph of the shape it says, a function of its seed, and stable as it grows."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy.spatial import cKDTree

from efhc.base.errors import InputError
from efhc.core.graph import Graph
from efhc.core.randomness import Randomness
from efhc.network import AnyTopology
from efhc.network.topologies import (
    FEW_POINTS,
    Complete,
    ErdosRenyi,
    Geometric,
    Grid,
    InternetAS,
    Ring,
    Star,
    Topology,
    links_within,
)

SEED = Randomness(7)
EVERY = [Geometric(), ErdosRenyi(), InternetAS(), Ring(), Grid(), Grid(torus=True), Star(), Complete()]
DRAWN = [Geometric(), ErdosRenyi(), InternetAS()]


def pairs(graph: Graph) -> set[tuple[int, int]]:
    return set(map(tuple, graph.links.tolist()))


@pytest.mark.parametrize("points", [1, 7, FEW_POINTS, FEW_POINTS + 1])
@pytest.mark.parametrize("on_a_grid", [False, True], ids=["anywhere", "on a grid"])  # where many are just in reach
def test_those_in_reach_are_found_whichever_way_is_faster(points: int, on_a_grid: bool):
    stream = np.random.default_rng(points)
    positions = stream.integers(0, 12, (points, 2)) / 10 if on_a_grid else stream.random((points, 2))
    expected = cKDTree(positions).query_pairs(0.3)
    assert {tuple(sorted(pair)) for pair in links_within(positions, 0.3).tolist()} == expected


@pytest.mark.parametrize("topology", EVERY, ids=repr)
@pytest.mark.parametrize("devices", [1, 2, 3, 7, 8, 9, 10, 12, 30])
def test_is_a_connected_simple_graph(topology: Topology, devices: int):
    if isinstance(topology, InternetAS) and devices < InternetAS.LEAST:
        return  # refused: see below
    for seed in range(5):
        graph = topology.graph(devices, Randomness(seed))
        assert graph.devices == devices
        assert len(pairs(graph)) == len(graph.links)
        assert all(0 <= i < j < devices for i, j in pairs(graph))
        assert graph.is_connected


@pytest.mark.parametrize("topology", EVERY, ids=repr)
def test_as_a_network_it_never_changes(topology: Topology):
    over_time = topology.over_time(10, SEED)
    assert over_time.graph(0) is over_time.graph(977)
    assert pairs(over_time.graph(3)) == pairs(topology.graph(10, SEED))


@given(devices=st.integers(1, 20), data=st.data())
@settings(max_examples=25, deadline=None)
def test_star_joins_all_to_its_center_and_nobody_else(devices: int, data: st.DataObject):
    center = data.draw(st.integers(0, devices - 1))
    graph = Star(center=center).graph(devices, SEED)
    assert len(graph.links) == devices - 1
    assert (graph.links == center).any(axis=1).all()


@pytest.mark.parametrize("devices", [1, 2, 3, 9])
def test_a_ring_joins_the_next_and_a_complete_graph_all(devices: int):
    assert pairs(Complete().graph(devices, SEED)) == set(combinations(range(devices), 2))
    ends = {(0, devices - 1)} if devices > 1 else set()
    assert pairs(Ring().graph(devices, SEED)) == {(i, i + 1) for i in range(devices - 1)} | ends


@given(rows=st.integers(1, 6), columns=st.integers(1, 6), torus=st.booleans())
@settings(max_examples=40, deadline=None)
def test_grid_joins_those_beside_above_and_below(rows: int, columns: int, torus: bool):
    def joined(a: int, b: int) -> bool:
        (row, column), (other_row, other_column) = divmod(a, columns), divmod(b, columns)
        up, across = abs(row - other_row), abs(column - other_column)
        if torus:
            up, across = min(up, rows - up), min(across, columns - across)
        return up + across == 1

    devices = rows * columns
    graph = Grid(rows=rows, torus=torus).graph(devices, SEED)
    assert pairs(graph) == {(a, b) for a, b in combinations(range(devices), 2) if joined(a, b)}


@pytest.mark.parametrize(("devices", "rows"), [(12, 3), (16, 4), (10, 2), (7, 1), (36, 6)])
def test_grid_without_rows_is_as_square_as_can_be(devices: int, rows: int):
    assert pairs(Grid().graph(devices, SEED)) == pairs(Grid(rows=rows).graph(devices, SEED))


@given(seed=st.integers(0, 2**32), devices=st.integers(1, 40), radius=st.floats(0.01, 1.5))
@settings(max_examples=40, deadline=None)
def test_geometric_is_the_brute_force_over_all_pairs(seed: int, devices: int, radius: float):
    points = np.random.default_rng(seed).random((devices, 2))
    near = {(i, j) for i, j in combinations(range(devices), 2) if np.hypot(*(points[i] - points[j])) <= radius}
    assert pairs(Geometric(radius=radius).draw(devices, np.random.default_rng(seed))) == near


def test_erdos_renyi_at_the_ends_of_its_probability():
    assert not len(ErdosRenyi(probability=0, connected=False).graph(12, SEED).links)
    assert pairs(ErdosRenyi(probability=1).graph(12, SEED)) == pairs(Complete().graph(12, SEED))


def test_erdos_renyi_links_each_pair_with_its_probability():
    p, devices, draws = 0.3, 12, 400
    counts = np.zeros((devices, devices))
    for seed in range(draws):
        i, j = ErdosRenyi(probability=p, connected=False).graph(devices, Randomness(seed)).links.T
        counts[i, j] += 1
    shares = counts[np.triu_indices(devices, 1)] / draws
    sigma = np.sqrt(p * (1 - p) / draws)
    assert abs(shares.mean() - p) < 4 * sigma / np.sqrt(len(shares))
    assert (abs(shares - p) < 4.5 * sigma).all()


@pytest.mark.parametrize(
    ("topology", "text"),
    [
        (Star(center=5), "center: cannot use 5. .*0 to 4"),
        (Grid(rows=3), "rows: cannot use 3. .*5"),
        (InternetAS(), "kind: cannot use internet-as on 5 devices. Use at least 7"),
    ],
)
def test_what_does_not_fit_the_number_of_devices_is_refused(topology: Topology, text: str):
    with pytest.raises(InputError, match=f"^{text}"):
        topology.graph(5, SEED)


SPARSE = [Geometric(radius=0.35), ErdosRenyi(probability=0.25)]


@pytest.mark.parametrize("topology", SPARSE, ids=repr)
def test_draws_again_until_connected(topology: Topology):
    redrawn = 0
    for seed in range(30):
        once = topology.model_copy(update={"connected": False}).graph(10, Randomness(seed))
        graph = topology.graph(10, Randomness(seed))
        assert graph.is_connected
        if once.is_connected:
            assert pairs(graph) == pairs(once)
        else:
            redrawn += 1
    assert 0 < redrawn < 30


@pytest.mark.parametrize(
    ("topology", "devices", "field"),
    [
        (Geometric(radius=0.01, attempts=3), 10, "radius"),
        (ErdosRenyi(probability=0, attempts=3), 10, "probability"),
        (Geometric(attempts=3), 2, "connected"),
    ],
)
def test_gives_up_after_its_attempts(topology: Topology, devices: int, field: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(topology), "draw", lambda self, devices, stream: Graph.of(devices, []))
    with pytest.raises(InputError, match=f"^{field}: no connected graph of {devices} devices in 3 draws") as caught:
        topology.graph(devices, SEED)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [Geometric, ErdosRenyi])
@given(seed=st.integers(0, 1000), devices=st.integers(1, 15), more=st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_a_further_device_leaves_the_others_alone(kind: type[Geometric], seed: int, devices: int, more: int):
    topology = kind(connected=False)
    small = topology.graph(devices, Randomness(seed))
    large = topology.graph(devices + more, Randomness(seed))
    assert pairs(small) == {(i, j) for i, j in pairs(large) if j < devices}
    assert np.array_equal(small.links, large.links[: len(small.links)])  # links of later devices stand last


@pytest.mark.parametrize("topology", DRAWN, ids=repr)
def test_same_seed_same_graph_other_seed_other_graph(topology: Topology):
    graphs = [frozenset(pairs(topology.graph(20, Randomness(seed)))) for seed in range(5)]
    again = [frozenset(pairs(topology.graph(20, Randomness(seed)))) for seed in range(5)]
    assert graphs == again
    assert len(set(graphs)) == 5


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "geometric", "radius": 0.0},
        {"kind": "geometric", "radius": float("nan")},
        {"kind": "geometric", "radius": "0.4"},
        {"kind": "geometric", "radios": 0.4},
        {"kind": "erdos-renyi", "probability": 1.01},
        {"kind": "grid", "rows": 0},
        {"kind": "star", "center": -1},
        {"kind": "moebius"},
    ],
    ids=str,
)
def test_refuses_parameters_out_of_range(table: dict[str, object]):
    with pytest.raises(ValidationError):
        TypeAdapter(AnyTopology).validate_python(table)


def test_a_table_without_a_kind_is_geometric_and_an_object_of_ones_own_will_do():
    class Mine:
        def graph(self, devices: int, randomness: Randomness) -> Graph:
            return Graph.of(devices, [])

    mine = Mine()
    adapter = TypeAdapter(AnyTopology)
    assert adapter.validate_python({"radius": 0.7}) == Geometric(radius=0.7)
    assert adapter.validate_python(mine) is mine


@pytest.mark.parametrize("topology", [Complete(), ErdosRenyi()], ids=str)
def test_graphs_beyond_memory_are_refused(topology):
    with pytest.raises(InputError) as caught:
        topology.graph(1_000_000, SEED)
    assert caught.value.field == "kind"
    assert "1000000 devices" in str(caught.value)
