"""Two and three devices whose times and models are worked out by hand, and must come out exactly.

A model of n = 4 numbers takes 4 / b_i seconds, and every message its latency in addition. An exchange takes

    Offer      latency
    Accept     latency                           (not if two offers cross)
    Body       n / b_i + latency, each way
    Ready      latency                           from the end that does not decide, once it holds both models
    Commit     latency                           from the end that decides, once it holds both models and the Ready
    Acknowledge latency

and every time here is a sum of powers of two, so that floating-point sums are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import PARAMETERS, Firing, WatchedLinks, run, tiny

import efhc

MODEL_BYTES = 8 * PARAMETERS
STAND_STILL: dict[str, Any] = {"step_size": lambda k: 0.0}


def driver(links: Any, **fields: Any) -> efhc.EventDriven:
    return efhc.EventDriven(links=links, **{"sample_seconds": 1000.0} | fields)


def exchanges(simulator: Any) -> list[tuple[Any, ...]]:
    """start, end, who decides, the other, their k, beta"""
    assert {row[8] for row in simulator.record.exchanges} == {"committed"}
    return [row[:7] for row in simulator.record.exchanges]


def step_times(simulator: Any, device: int) -> list[float]:
    return [seconds for who, _, seconds, *_ in simulator.record.steps if who == device]


def initial(simulator: Any) -> np.ndarray:
    models: np.ndarray = simulator.scenario.initial_models()
    return models


@pytest.mark.parametrize("kind", [efhc.PerLink, efhc.SharedLinks])
def test_two_offers_that_cross(kind):
    """Latency 1/4; device 0's model takes 1 s, device 1's takes 2 s; a gradient takes 4 s; both fire at k = 0.

    0     both offer                                     the offers cross
    1/4   both hold an offer: beta = 1/2, both send their model
    3/2   device 1 has u_0 (1/4 + 1 + 1/4), says Ready   device 0 decides: it has the lower number
    7/4   device 0 has that Ready
    5/2   device 0 has u_1 (1/4 + 2 + 1/4), commits
    11/4  device 1 has the Commit, acknowledges
    3     device 0 has the Acknowledge
    4     both step: w_i(1) = w_i(0) + 1/2 (u_j - u_i)   each is now the mean
    """
    links = WatchedLinks(kind(latency=0.25))
    simulator = run(
        tiny(2, [[0, 1]], [4, 2], iterations=1, driver=driver(links, compute={"seconds": 4.0}), **STAND_STILL)
    )
    assert links.sent("header") == [
        (0.0, 0, 1, 0.25),
        (0.0, 1, 0, 0.25),
        (1.5, 1, 0, 1.75),
        (2.5, 0, 1, 2.75),
        (2.75, 1, 0, 3.0),
    ]
    assert links.sent("model") == [(0.25, 0, 1, 1.5), (0.25, 1, 0, 2.5)]
    assert simulator.record.exchanges == [(0.0, 2.5, 0, 1, 0, 0, 0.5, 2, "committed", 2 * MODEL_BYTES, None)]
    assert step_times(simulator, 0) == step_times(simulator, 1) == [4.0]
    assert simulator.now == 4.0
    first = initial(simulator)
    assert np.array_equal(simulator.models, first + 0.5 * (first[::-1] - first))


@pytest.mark.parametrize("kind", [efhc.PerLink, efhc.SharedLinks])
def test_one_offer_that_is_accepted(kind):
    """Latency 1/4; device 0's model takes 2 s, device 1's takes 1 s; only device 1 fires, at k = 0.

    0     device 1 offers
    1/4   device 0 accepts, and sends its model at once
    1/2   device 1 has the Accept, sends its model
    7/4   device 0 has u_1 (1/2 + 1 + 1/4), says Ready   device 1 decides: it offered
    2     device 1 has that Ready
    5/2   device 1 has u_0 (1/4 + 2 + 1/4), commits
    11/4  device 0 has the Commit, acknowledges
    3     device 1 has the Acknowledge
    """
    links = WatchedLinks(kind(latency=0.25))
    experiment = tiny(2, [[0, 1]], [2, 4], iterations=1, driver=driver(links, compute={"seconds": 4.0}))
    simulator = run(experiment, trigger=Firing({0: {1}}))
    assert links.sent("header") == [
        (0.0, 1, 0, 0.25),
        (0.25, 0, 1, 0.5),
        (1.75, 0, 1, 2.0),
        (2.5, 1, 0, 2.75),
        (2.75, 0, 1, 3.0),
    ]
    assert links.sent("model") == [(0.25, 0, 1, 2.5), (0.5, 1, 0, 1.75)]
    assert simulator.record.exchanges == [(0.0, 2.5, 1, 0, 0, 0, 0.5, 2, "committed", 2 * MODEL_BYTES, None)]
    assert [(row[0], row[3]) for row in simulator.record.steps] == [(0, False), (1, True)]


def test_three_devices_in_a_row_on_links_of_their_own():
    """Latency 1/2; every model takes 1 s; all fire at k = 0. Device 1 sends both its models at the same time.

    1/2   all three send their models         beta = min(1/2, 1/3) = 1/3 on both links
    2     all have them; 1 and 2 say Ready    0 decides about {0, 1}, and 1 about {1, 2}
    5/2   0 and 1 commit
    3     1 and 2 have the Commit
    """
    links = WatchedLinks(efhc.PerLink(latency=0.5))
    experiment = tiny(3, [[0, 1], [1, 2]], iterations=1, driver=driver(links, compute={"seconds": 8.0}), **STAND_STILL)
    simulator = run(experiment)
    assert links.sent("model") == [(0.5, 0, 1, 2.0), (0.5, 1, 0, 2.0), (0.5, 1, 2, 2.0), (0.5, 2, 1, 2.0)]
    third = 1 / 3
    assert exchanges(simulator) == [(0.0, 2.5, 0, 1, 0, 0, third), (0.0, 2.5, 1, 2, 0, 0, third)]
    a, b, c = initial(simulator)
    assert np.allclose(simulator.models, [a + (b - a) / 3, (a + b + c) / 3, c + (b - c) / 3], rtol=0, atol=1e-15)


def test_three_devices_in_a_row_that_share_their_bandwidth():
    """The same, but device 1's two models share its bandwidth, and take 2 s.

    2     1 has u_0 (1/2 + 1 + 1/2) and u_2, says Ready to 0
    5/2   0 has that Ready
    3     0 and 2 have u_1 (1/2 + 2 + 1/2); 0 commits; 2 says Ready to 1
    7/2   1 has the Commit of {0, 1}, and that Ready: it commits {1, 2}
    4     2 has the Commit; 0 has the Acknowledge
    9/2   1 has the Acknowledge
    """
    links = WatchedLinks(efhc.SharedLinks(latency=0.5))
    experiment = tiny(3, [[0, 1], [1, 2]], iterations=1, driver=driver(links, compute={"seconds": 8.0}))
    simulator = run(experiment)
    assert links.sent("model") == [(0.5, 0, 1, 2.0), (0.5, 1, 0, 3.0), (0.5, 1, 2, 3.0), (0.5, 2, 1, 2.0)]
    assert exchanges(simulator) == [(0.0, 3.0, 0, 1, 0, 0, 1 / 3), (0.0, 3.5, 1, 2, 0, 0, 1 / 3)]
    assert links.sent("header")[-3:] == [(3.5, 1, 0, 4.0), (3.5, 1, 2, 4.0), (4.0, 2, 1, 4.5)]


def test_a_transfer_that_another_one_joins_half_way():
    """Shared, latency 1/2; b = 4, 2, 4. A gradient takes 8 s on 0 and 1, and 1 s on 2. 0 fires at k = 0, 2 at k = 1.

    0     0 offers
    1/2   1 accepts, and sends u_1, which takes 2 s alone
    1     0 has the Accept, sends u_0                  2 makes its first step, fires at its k = 1, offers
    3/2   1 accepts, and sends u_1 to 2 as well: each gets 1 number per second; 2 of the first 4 are through
    2     2 has the Accept, sends u_2                  2 makes its last step and has finished
    5/2   1 has u_0 (1 + 1 + 1/2), says Ready
    3     0 has that Ready
    7/2   the first u_1 is through, 2 numbers of the second are left; 1 has u_2 (2 + 1 + 1/2), says Ready to 2
    4     0 has u_1, commits                           2 has that Ready
    9/2   the second u_1 is through (7/2 + 2/2)        1 has the Commit of 0
    5     2 has u_1, commits, and applies at once
    11/2  1 has the Commit of 2
    8     0 and 1 make their first steps
    """
    links = WatchedLinks(efhc.SharedLinks(latency=0.5))
    compute = {"seconds": [8.0, 8.0, 1.0]}
    settings = driver(links, compute=compute, sample_seconds=0.5)
    experiment = tiny(3, [[0, 1], [1, 2]], [4, 2, 4], iterations=2, driver=settings, **STAND_STILL)
    simulator = run(experiment, trigger=Firing({0: {0}, 1: {2}}))
    assert links.sent("model") == [(0.5, 1, 0, 4.0), (1.0, 0, 1, 2.5), (1.5, 1, 2, 5.0), (2.0, 2, 1, 3.5)]
    assert exchanges(simulator) == [(0.0, 4.0, 0, 1, 0, 0, 1 / 3), (1.0, 5.0, 2, 1, 1, 0, 1 / 3)]
    assert [step_times(simulator, device) for device in range(3)] == [[8.0, 16.0], [8.0, 16.0], [1.0, 2.0]]
    assert simulator.now == 16.0
    a, b, c = initial(simulator)
    assert np.allclose(simulator.models, [a + (b - a) / 3, (a + b + c) / 3, c + (b - c) / 3], rtol=0, atol=1e-15)
    # From 5 s on, device 2 has made the step of its exchange with 1, and 1 has not, until it steps at 8 s.
    imbalance = {row["seconds"]: row["imbalance"] for row in simulator.record.timeline}
    assert imbalance.keys() == {half / 2 for half in range(33)}
    step = np.linalg.norm(b - c) / 3
    assert all(imbalance[half / 2] == 0 for half in range(10))
    assert [imbalance[half / 2] for half in range(10, 16)] == pytest.approx([step] * 6, rel=1e-12)
    assert all(imbalance[half / 2] == 0 for half in range(16, 33))


def test_a_busy_link_is_owed_one_offer_and_shares_are_set_aside():
    """No latency; a model takes 2 s, a gradient 1 s; both fire always; alpha = 0; a and b are the first models.

    0   the first exchange, beta = 1/2, u = (a, b)
    1   k = 1: both fire, the link is busy, both owe an offer
    2   k = 2 begins with the first exchange in flight: 1/2 is set aside, and half of the rest is free for the next
        the models are there, the first exchange is committed; the second: beta = 1/4, u = (a - a/2) / (1/2) = a
    3   the first step: both models are (a + b) / 2
    4   k = 4 begins with 1/4 set aside; the second exchange is committed; the third: beta = 3/8, half of the rest,
        and u_0 = ((a + b) / 2 - a/4) / (3/4) = (a + 2 b) / 3, u_1 = (2 a + b) / 3
    5   the second step: w_0 = (a + b) / 2 + (b - a) / 4 = (a + 3 b) / 4
    6   the third exchange is committed, and the fourth begins: beta = 5/16
    7   the third step: w_0 = (a + 3 b) / 4 + 3/8 (a - b) / 3 = 3/8 a + 5/8 b; the run ends, with the fourth unfinished
    """
    links = WatchedLinks(efhc.PerLink())
    simulator = run(tiny(2, [[0, 1]], 2.0, driver=driver(links, seconds=7.0), **STAND_STILL))
    *committed, last = simulator.record.exchanges
    assert last[:9] == (6.0, 7.0, 0, 1, 6, 6, 0.3125, 2, "unfinished")
    assert [row[:7] for row in committed] == [
        (0.0, 2.0, 0, 1, 0, 0, 0.5),
        (2.0, 4.0, 0, 1, 2, 2, 0.25),
        (4.0, 6.0, 0, 1, 4, 4, 0.375),
    ]
    arrived = [row for row in links.sent("model") if row[0] < 6]
    assert arrived == [(t, i, 1 - i, t + 2) for t in (0.0, 2.0, 4.0) for i in (0, 1)]
    assert step_times(simulator, 0) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert simulator.now == 7.0
    a, b = initial(simulator)
    assert np.allclose(simulator.models, [0.375 * a + 0.625 * b, 0.625 * a + 0.375 * b], rtol=0, atol=1e-15)


def test_a_link_that_comes_up_is_event_1_and_one_that_goes_down_cuts_what_is_under_way(tmp_path):
    """Graphs of 4 s: none, {0, 1}, none, {0, 1}. A gradient takes 1 s, a model 1 s, latency 1/2; nobody ever fires.

    4      the link is new at k = 4 of both: both offer
    9/2    both send their models; 6: both have them; 13/2: 0 commits; 7: 1 has the Commit
    12     the link is new again

    With a latency of 1 s, the Ready of 7 would be there at 8, but the link goes down first. At 12, 1 asks.
    """
    path = tmp_path / "graphs.json"
    path.write_text("[[], [[0, 1]]]")
    links = WatchedLinks(efhc.PerLink(latency=0.5))
    network = {"kind": "edge-sequence", "path": str(path)}
    settings = driver(links, network_seconds=4.0)
    simulator = run(tiny(2, network, iterations=14, driver=settings), trigger=Firing({}))
    rows = [row[:9] for row in simulator.record.exchanges]
    assert rows == [(4.0, 6.5, 0, 1, 4, 4, 0.5, 1, "committed"), (12.0, 14.5, 0, 1, 12, 12, 0.5, 1, "committed")]
    assert simulator.record.network == [(0, [], []), (1, [0], [1]), (2, [], []), (3, [0], [1])]
    assert simulator.now == 15.5  # when the last Acknowledge is there
    slow = driver(efhc.PerLink(latency=1.0), network_seconds=4.0)
    simulator = run(tiny(2, network, iterations=14, driver=slow), trigger=Firing({}))
    assert simulator.record.exchanges[0][:9] == (4.0, 8.0, 0, 1, 4, 4, 0.5, 1, "withdrawn")
    assert {row[8] for row in simulator.record.exchanges} <= {"withdrawn", "refused", "committed"}
    assert simulator.warnings == []


AGAIN = {
    "Commit": (
        5,
        [(12.5, 0, 1, 12.75), (12.5, 1, 0, 12.75), (12.75, 0, 1, 13.0), (12.75, 1, 0, 13.0), (13.0, 1, 0, 13.25)],
    ),
    "Acknowledge": (6, [(12.5, 0, 1, 12.75), (12.75, 1, 0, 13.0)]),
}


@pytest.mark.parametrize("lost", AGAIN)
def test_what_was_lost_after_the_decision_is_said_again_when_patience_ends(lost):
    """As in `test_two_offers_that_cross`, with a patience of 10 s.

    Both ends got on at 5/2, when u_1 was there and 0 said Commit: their patience ends at 25/2.

    Commit       lost: at 25/2, 0 says Commit again and 1 asks by a Ready; both are there at 51/4, where 1 makes
                 the step and acknowledges, while 0 answers the Ready from its record; 1 acknowledges that too
    Acknowledge  lost: at 25/2, 0 says Commit again, and 1 acknowledges again
    """
    place, again = AGAIN[lost]
    links = WatchedLinks(efhc.PerLink(latency=0.25), lose=[place])
    settings = driver(links, compute={"seconds": 32.0}, patience_seconds=10.0)
    simulator = run(tiny(2, [[0, 1]], [4, 2], iterations=1, driver=settings, **STAND_STILL))
    assert [row for row in links.sent("header") if row[0] > 3] == again
    assert exchanges(simulator) == [(0.0, 2.5, 0, 1, 0, 0, 0.5)]
    first = initial(simulator)
    assert np.array_equal(simulator.models, first + 0.5 * (first[::-1] - first))


def test_what_was_lost_before_the_decision_is_withdrawn_when_patience_ends():
    """As before; the Ready is lost at 7/4, but u_1 is there at 5/2: patience ends at 25/2.

    25/2  0, which decides, withdraws; 1, which is ready, asks
    51/4  1 hears that it is withdrawn; both owe an offer, to be made in the next iteration
    32    both have finished, and offer what they owe; as from 0 on, 0 commits at 32 + 5/2
    35    0 has the last Acknowledge
    """
    links = WatchedLinks(efhc.PerLink(latency=0.25), lose=[4])
    settings = driver(links, compute={"seconds": 32.0}, patience_seconds=10.0)
    simulator = run(tiny(2, [[0, 1]], [4, 2], iterations=1, driver=settings, **STAND_STILL))
    assert simulator.record.exchanges == [
        (0.0, 12.5, 0, 1, 0, 0, 0.5, 2, "withdrawn", 2 * MODEL_BYTES, None),
        (32.0, 34.5, 0, 1, 1, 1, 0.5, 2, "committed", 2 * MODEL_BYTES, None),
    ]
    asked = [row for row in links.sent("header") if 3 < row[0] < 32]
    assert asked == [(12.5, 0, 1, 12.75), (12.5, 1, 0, 12.75), (12.75, 0, 1, 13.0)]
    assert simulator.now == 35.0
    first = initial(simulator)
    assert np.array_equal(simulator.models, first + 0.5 * (first[::-1] - first))


def test_an_exchange_that_moves_is_never_timed_out():
    """A model takes 64 s, and patience is 1 s. The two offers cross, and that of device 1 is lost at 1/4.

    1/4     1 has the Offer of 0, and sends its model; 0 knows of no answer, so its own stays at home
    5/4     patience would end at both ends, but a model is moving
    64.5    0 has u_1
    65.5    nothing has moved for 1 s: both withdraw
    256     both offer what they owe; 256.25, models; 320.5, both are there; 320.75, 0 commits
    """
    links = WatchedLinks(efhc.PerLink(latency=0.25), lose=[1])
    settings = driver(links, compute={"seconds": 256.0}, patience_seconds=1.0)
    simulator = run(tiny(2, [[0, 1]], 1 / 16, iterations=1, driver=settings))
    assert [(row[0], row[1], row[8]) for row in simulator.record.exchanges] == [
        (0.0, 65.5, "withdrawn"),
        (256.0, 320.75, "committed"),
    ]
    assert links.sent("model") == [(0.25, 1, 0, 64.5), (256.25, 0, 1, 320.5), (256.25, 1, 0, 320.5)]
