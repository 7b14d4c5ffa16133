"""The laws of `core.device`, under 500 hostile schedules, or as many as EFHC_SCHEDULES says (`make fuzz`: 10,000).

A failure names the integer that replays it.
"""

from __future__ import annotations

import os

import hostile
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from timed import Clockwork

from efhc.core.device import Reaction
from efhc.core.graph import Graph

SCHEDULES = int(os.environ.get("EFHC_SCHEDULES", "500"))
# A smaller integer is another schedule, not a simpler one: nothing is to be shrunk.
integers = given(st.integers(0, 2**32 - 1))
many = settings(max_examples=SCHEDULES, phases=[Phase.explicit, Phase.reuse, Phase.generate])


@many
@integers
def test_no_schedule_breaks_a_law(schedule):
    hostile.check(schedule)


def test_schedules_are_as_hostile_as_they_say():
    """Every fault, every law with something to hold, and enough exchanges."""
    networks = [hostile.run(schedule) for schedule in range(150)]
    witnesses = [network.witness for network in networks]
    assert sum(witness.committed for witness in witnesses) > 2000
    assert sum(len(witness.plain) for witness in witnesses) > 200
    assert {network.devices for network in networks} == set(range(2, 9))
    assert any(network.dead for network in networks)
    assert any(network.gone for network in networks)
    assert any(witness.restarted for witness in witnesses)
    assert any(witness.gradients for witness in witnesses)


@settings(max_examples=50)
@integers
def test_beta_is_that_of_metropolis_to_the_last_bit(schedule):
    """Degrees do not change, and nothing is in flight when the iterations of the two ends begin."""
    network = hostile.Network(schedule, faults=())
    network.run(200)
    network.come_to_rest()
    graph = Graph.of(network.devices, network.edges)
    weights = dict(zip(map(tuple, graph.links.tolist()), graph.metropolis_weights.tolist(), strict=True))
    for ends, beta in network.witness.plain:
        assert beta == weights[hostile.edge_of(*ends)]


# Spread: complete bipartite graph of 16 + 16 devices that always fire, equal link times, no gradients


def spreads(compute):
    """The spread of the models over 60 transfer times."""
    links = [(i, j) for i in range(16) for j in range(16, 32)]
    return list(Clockwork([1.0] * 16 + [-1.0] * 16, links, compute=compute).run(60))


@pytest.mark.parametrize("compute", [0.3, 1.0])
def test_the_spread_never_exceeds_its_start(compute):
    measured = spreads(compute)
    assert max(measured) <= 2 + 1e-9
    assert measured[-1] < 0.1


def test_the_spread_grows_if_models_are_offered_and_nothing_is_set_aside(monkeypatch):
    """u_i = w_i and q_i = 1 / (1 + d_i), whatever is in flight."""

    def reserve_shares(self):
        self.device.offers, self.device.set_aside, self.device.free = None, [], 1.0

    monkeypatch.setattr(Reaction, "reserve_shares", reserve_shares)
    assert max(spreads(0.3)) > 100


# Nobody waits


def test_a_silent_link_holds_up_no_other():
    """Device 0 hears nothing more from 1, in the middle of an exchange.

    For it a third of w_0 = 0 is set aside; the other two thirds, w_2 and w_3 agree on (0 + 2 + 3) / (8 / 3) = 15 / 8.
    """
    network = Clockwork([0.0, 1.0, 2.0, 3.0], [(0, 1), (0, 2), (2, 3)], compute=0.4)
    network.silent = {(1, 0)}
    for _ in network.run(40):
        pass
    assert network.cores[0].k == network.cores[1].k == pytest.approx(100, abs=1)
    assert network.exchanges > 4 * 30
    assert network.cores[1].model.value == 1.0
    assert network.cores[0].model.value == pytest.approx(2 / 3 * 15 / 8, abs=0.001)
    assert network.cores[3].model.value == pytest.approx(15 / 8, abs=0.001)


def test_gradient_steps_wait_for_no_message():
    network = Clockwork([0.0, 1.0], [(0, 1)], compute=1.0)
    network.silent = {(0, 1), (1, 0)}
    for _ in network.run(20.5):
        pass
    assert [core.k for core in network.cores] == [20, 20]


@pytest.mark.parametrize("schedule", [9823, 22743])
def test_two_finished_devices_that_withdraw_find_each_other_again(schedule):
    """Each offered anew at once, and crossed what the other one had just withdrawn, for ever."""
    hostile.check(schedule)
