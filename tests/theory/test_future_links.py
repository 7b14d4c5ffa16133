"""What is known of the links after a run, kind of network by kind of network."""

from __future__ import annotations

import json

import pytest

from efhc.core.graph import Graph
from efhc.core.randomness import Randomness
from efhc.network.changing import RandomLinks, RandomWaypoint, Rotating
from efhc.network.topologies import EdgeSequenceFile, GivenLinks, GraphsOverTime, Network, Ring
from efhc.theory.connectivity import FutureLinks, future_links

CHANCE, CONNECTED = FutureLinks(by_chance=True), FutureLinks(by_chance=False)
APART = GivenLinks(links=((0, 1),))


class Own(Network):
    """A network of the user's own, which changes over time."""

    def over_time(self, devices: int, randomness: Randomness) -> GraphsOverTime:
        class Graphs:
            def graph(self, k: int) -> Graph:
                return Graph.of(devices, [(0, 1)])

        return Graphs()


def known(policy: Network, iterations: int = 10) -> FutureLinks:
    return future_links(policy.over_time(3, Randomness(0)), policy, iterations)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Ring(), CONNECTED),
        (Rotating(topology=Ring()), CONNECTED),
        (RandomLinks(topology=Ring(), up_probability=1), CONNECTED),
        (RandomLinks(topology=Ring(), up_probability=0.01), CHANCE),
        (RandomLinks(topology=Ring(), up_probability=0.99), CHANCE),
        (RandomWaypoint(), CHANCE),
        (Own(), CHANCE),
        (APART, FutureLinks(by_chance=False, cut_off=2)),
        (RandomLinks(topology=Ring(), up_probability=0), FutureLinks(by_chance=False, cut_off=0)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_networks(policy, expected):
    assert known(policy) == expected


def test_sequences_of_links(tmp_path):
    whole, cut, rest = [[0, 1], [1, 2]], [[0, 1]], [[1, 2]]
    for lists, at_end, iterations, expected in (
        ([whole, whole, cut], "hold", 3, 2),
        ([whole, whole, cut], "hold", 2, None),  # the run ends before the graph that is held
        ([whole, whole, cut], "repeat", 10, None),
        ([cut, whole], "hold", 10, None),
        ([cut, rest], "repeat", 10, None),
        ([cut, cut], "repeat", 10, 2),
    ):
        path = tmp_path / "links.json"
        path.write_text(json.dumps(lists))
        policy = EdgeSequenceFile.model_validate({"path": str(path), "at_end": at_end})
        assert known(policy, iterations) == FutureLinks(by_chance=False, cut_off=expected)
