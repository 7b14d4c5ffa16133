"""The laws of `core.half_steps`, under 400 hostile schedules, or as many as EFHC_SCHEDULES says (`make fuzz`: 10,000).

A failure names the integer that replays it.
"""

from __future__ import annotations

import itertools
import os
from random import Random

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from efhc.core.half_step_messages import Committed, Frame, Violation
from efhc.core.half_steps import LinkLaw
from efhc.core.step_limits import StepLimit
from efhc.core.uplink import About, Pacing, Uplink, redundant_links
from half_steps import hostile
from half_steps.driver import Driver
from half_steps.timed import Clockwork, Delay

SCHEDULES = int(os.environ.get("EFHC_SCHEDULES", "400"))
# A smaller integer is another schedule, not a simpler one: nothing is to be shrunk.
integers = given(st.integers(0, 2**32 - 1))
many = settings(max_examples=SCHEDULES, phases=[Phase.explicit, Phase.reuse, Phase.generate])


@many
@integers
def test_no_schedule_breaks_a_law(schedule):
    hostile.check(schedule)


def test_schedules_are_as_hostile_as_they_say():
    """Every fault, every law with something to hold, and enough steps."""
    events, seen = {"forgets", "crashes", "lose", "forged:", "Unresolved", "TakeBack", "Start"}, set()

    def note(*words):
        seen.update(word for one in words for word in (one.split() if isinstance(one, str) else [type(one).__name__]))

    networks = [hostile.Network(schedule, trace=note) for schedule in range(200)]
    for network in networks:
        network.run(60)
        network.come_to_rest()
    witnesses = [network.witness for network in networks]
    assert events <= seen
    assert sum(witness.steps for witness in witnesses) > 3000
    assert {network.devices for network in networks} == set(range(2, 7))
    assert sum(witness.start_norm is not None and not witness.reused for witness in witnesses) > 10
    laws = {(witness.law.settles, witness.law.window) for witness in witnesses}
    assert laws == {(False, 1), (True, 1), (True, 2), (True, 4)}
    assert {(witness.law.theta > 0, witness.law.most_steps) for witness in witnesses} >= {(True, 1), (True, 8)}
    directions = [(network, one) for network in networks for one in network.witness.directions.values()]
    assert sum(len(one.frames) > 1 for _, one in directions) > 200
    assert sum(network.paced for network in networks) > 40
    assert sum(bool(core.redundant) for network in networks for core in network.cores.values()) > 10


def test_a_device_that_waits_for_a_model_says_so_until_it_is_heard():
    """Device 1 has lost its state, and the message that says so is lost as well."""
    network = Driver(1, LinkLaw(0.5, 0.1, keeps_link_correction=True))
    network.create(0, np.array([1.0]))
    network.create(1, np.array([2.0]))
    network.link_up(0, 1)
    network.link_up(1, 0)
    deliver_all(network)
    network.forget(1, None)
    network.mail[1, 0].clear()
    assert network.cores[1].awaits(0)
    assert network.cores[1].is_idle
    network.retry(1, 0)
    deliver_all(network)
    network.step(0, 0.1, np.array([1.0]))
    deliver_all(network)
    network.check_all()
    network.witness.check_rest(network.h.values())
    assert network.witness.steps == 2


def test_a_device_that_makes_a_frame_again_from_its_journal_goes_on_sending():
    """The frame is the last that the other end had sent before it acknowledged; the copy in the journal is older."""
    network = Driver(1, LinkLaw(0.5, 0.1, keeps_link_correction=True))
    for i in range(2):
        network.create(i, np.array([float(i)]))
    network.link_up(0, 1)
    network.link_up(1, 0)
    deliver_all(network)
    for i in range(2):
        network.step(i, 0.1, np.zeros(1))
    network.deliver(0, 1)
    network.deliver(1, 0, place=1)  # the acknowledgement overtakes the frame
    network.keep(0)
    network.deliver(1, 0)
    network.crash(0)
    deliver_all(network)
    network.step(0, 0.1, np.zeros(1))
    assert isinstance(network.mail[0, 1][0], Frame)
    deliver_all(network)
    network.check_all()
    network.witness.check_rest(network.h.values())


def deliver_all(network):
    while links := [link for link, mail in network.mail.items() if mail]:
        network.deliver(*links[0])


def test_an_acknowledgement_that_overtakes_the_introduction_of_its_sender_counts():
    """Where nothing is lost, nothing is sent again; and a short message may be faster than a model."""
    network = Driver(1, LinkLaw(0.5))
    for i in range(2):
        network.create(i, np.array([float(i)]))
    network.link_up(0, 1)
    network.link_up(1, 0)
    network.deliver(0, 1)
    network.deliver(1, 0, place=1)
    deliver_all(network)
    assert all(core.is_idle for core in network.cores.values())
    network.step(0, 0.1, np.zeros(1))
    assert network.mail[0, 1]


# Frames that wait, and acknowledgements that do


def a_pair(law, values=(0.0, 1.0), *, codec=None):
    """Two neighbours that know each other."""
    network = Driver(1, law, codec=codec)
    for i, value in enumerate(values):
        network.create(i, np.array([value]))
    network.link_up(0, 1)
    network.link_up(1, 0)
    deliver_all(network)
    return network


def test_a_frame_that_waits_and_is_wrong_changes_nothing_and_is_refused_when_it_comes_again():
    network = a_pair(LinkLaw(1.0, settles=True, window=4))
    for _ in range(3):
        network.step(0, 0.1, np.array([1.0]))
    first, second, third = network.mail[0, 1]
    core = network.cores[1]
    wrong = second._replace(used=7)
    assert core.received(0, third, network.arithmetic) == core.received(0, wrong, network.arithmetic) == []
    made, answer = core.received(0, first, network.arithmetic)
    assert made == Committed(0, first)
    assert answer.message.acknowledged == core.links[0].last_received == 1
    (refusal,) = core.received(0, wrong, network.arithmetic)
    assert isinstance(refusal, Violation)
    assert core.links[0].last_received == 1
    *made, answer = core.received(0, second, network.arithmetic)
    assert made == [Committed(0, second), Committed(0, third)]
    assert answer.message.acknowledged == core.links[0].last_received == 3


def test_a_device_that_falls_silent_acknowledges_what_waited_for_its_next_step():
    network = a_pair(LinkLaw(1.0, settles=True, window=4))
    idle = Uplink(Pacing(), 1e6, 8, lambda j: 0.0, lambda j: True, 1.0, chooses_links=False)
    network.step(1, 0.1, np.zeros(1), uplink=idle)
    network.step(0, 0.1, np.zeros(1))
    deliver_all(network)
    assert network.cores[0].awaits(1)
    network.finish(1)
    deliver_all(network)
    assert network.cores[0].is_idle
    network.step(0, 0.1, np.ones(1))
    deliver_all(network)
    assert network.cores[0].is_idle, "a silent device acknowledges at once"


def test_a_device_says_what_is_new_about_itself_until_it_is_there_whatever_is_lost_and_crashes():
    """The rate of device 0 changes; the frame that says so is in both journals when both crash."""
    network = a_pair(LinkLaw(1.0, settles=True, window=2))
    for rate in (10.0, 100.0):
        uplink = Uplink(Pacing(), rate, 8, lambda j: 0.0, lambda j: True, 1.0, chooses_links=True)
        network.step(0, 0.1, np.ones(1), uplink=uplink)
    network.deliver(0, 1)
    network.deliver(0, 1)
    for i in range(2):
        network.crash(i)
    assert network.cores[1].links[0].about.rate == 100.0
    assert network.cores[0].links[1].about_sent.rate == 100.0
    network.step(0, 0.1, np.ones(1), uplink=uplink)
    deliver_all(network)
    assert network.cores[1].links[0].about == network.cores[0].about


# Links that are left out


@st.composite
def known_networks(draw):
    """A connected graph whose devices know of one another what is true, with many ties."""
    m = draw(st.integers(3, 8))
    tree = [(draw(st.integers(0, j - 1)), j) for j in range(1, m)]
    pairs = [(i, j) for j in range(m) for i in range(j)]
    links = set(tree) | draw(st.sets(st.sampled_from(pairs)))
    numbers = draw(st.permutations(range(m)))
    links = {tuple(sorted((numbers[i], numbers[j]))) for i, j in links}
    neighbours = {i: tuple(sorted({*sum(links, ())} & {a + b - i for a, b in links if i in (a, b)})) for i in range(m)}
    rates = st.sampled_from([1.0, 1.0, 2.0, 3.0, 50.0])
    return links, {i: About(draw(rates), draw(st.booleans()), neighbours[i]) for i in range(m)}


def better(links, abouts):
    """All links, the best one first."""
    rates = {link: sorted(abouts[i].rate for i in link) for link in links}
    return sorted(links, key=lambda link: ([-rate for rate in rates[link]], link))


def spanning(links, devices):
    """Kruskal: the links of the best spanning tree, of links in this order."""
    tree, parts = [], [{i} for i in range(devices)]
    for i, j in links:
        one, other = (next(part for part in parts if k in part) for k in (i, j))
        if one is not other:
            tree.append((i, j))
            parts.remove(other)
            one |= other
    return set(tree)


@settings(max_examples=max(300, SCHEDULES))
@given(known_networks())
def test_the_links_that_are_not_left_out_contain_the_best_spanning_tree(network):
    links, abouts = network
    redundant = {i: redundant_links(i, about, {j: abouts[j] for j in about.neighbours}) for i, about in abouts.items()}
    assert all((j in redundant[i]) == (i in redundant[j]) for i, j in links), "both ends choose alike"
    left = {(i, j) for i, j in links if j not in redundant[i]}
    assert spanning(better(links, abouts), len(abouts)) <= left
    assert all(abouts[i].is_slow or abouts[j].is_slow for i, j in links - left)


@settings(max_examples=100)
@given(known_networks())
def test_a_device_that_knows_little_leaves_out_little(network):
    _, abouts = network
    for i, about in abouts.items():
        known = {j: abouts[j] for j in about.neighbours}
        for j in known:
            fewer = {k: other for k, other in known.items() if k != j}
            assert redundant_links(i, about, fewer) <= redundant_links(i, about, known)
        assert len(redundant_links(i, about, known)) < max(1, len(known)), "the best link stays"


# Two devices that settle


def differences(schedule, law, moves=80):
    """Two devices without gradients: x_1 - x_0 after each event, as it is, and as if all frames had arrived."""
    random, network = Random(schedule), a_pair(law)
    deliver, faster, keeps_order = random.choice((0.3, 0.6, 0.8)), random.choice((0.1, 0.5, 0.7)), random.random() < 0.5
    found = []
    for _ in range(moves):
        links = [link for link, mail in network.mail.items() if mail]
        chance = random.random()
        if links and chance < deliver:
            link = random.choice(links)
            network.deliver(*link, 0 if keeps_order else random.randrange(len(network.mail[link])))
        elif links and chance < deliver + 0.05:
            network.mail[random.choice(links)].pop()
        elif chance > 0.97:
            network.retry(0, 1)
            network.retry(1, 0)
        else:
            network.step(int(random.random() < faster), 0.1, np.zeros(1))
        network.check_all()
        models = {i: x[0] for i, x in network.x.items()}
        actual = models[1] - models[0]
        for (_, target), direction in network.witness.directions.items():
            models[target[0]] -= sum(step[0] for step in direction.one_sided)
        found.append((actual, models[1] - models[0]))
        assert abs(sum(models.values()) - 1.0) < 1e-12
    return np.abs(found), network


def settle(network):
    """One device after the other sends, and what it sends arrives."""
    for turn in range(80):
        for i, j in ((0, 1), (1, 0)):
            network.retry(i, j)
        deliver_all(network)
        network.step(turn % 2, 0.1, np.zeros(1))
        deliver_all(network)
    network.check_all()
    return abs(network.x[1][0] - network.x[0][0])


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
def test_two_devices_never_differ_by_more_than_at_the_start_and_settle_at_their_average(rate, window):
    law = LinkLaw(rate, settles=True, window=window)
    for schedule in range(SCHEDULES // 20):
        found, network = differences(schedule, law)
        assert found.max() <= 1 + 1e-12, f"schedule {schedule}"
        before, after = abs(network.x[1][0] - network.x[0][0]), settle(network)
        assert after <= (1 - rate) ** 20 * before + 1e-9


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_two_devices_come_nearer_with_every_event_at_a_rate_up_to_one_half(rate):
    """... and one frame under way. At a rate of 1 two frames that cross each other change the difference's sign."""
    for schedule in range(SCHEDULES // 10):
        found, _ = differences(schedule, LinkLaw(rate, settles=True))
        assert np.diff(found, axis=0).max() <= 1e-12, f"schedule {schedule}"


# Norm: complete bipartite graph of 8 + 8 devices that always send, no gradients


SIDE = 8
LINKS = [(i, j) for i in range(SIDE) for j in range(SIDE, 2 * SIDE)]


def mixed(seed: int) -> Delay:
    """From 0.01 to 10 computing times, each direction of each link its own."""
    seconds = 10 ** np.random.default_rng(seed).uniform(-2, 1, (2 * SIDE, 2 * SIDE))
    return lambda i, j: float(seconds[i, j])


DELAYS: dict[str, Delay] = {
    "0": lambda i, j: 0.0,
    "equal and short": lambda i, j: 0.3,
    "equal": lambda i, j: 1.0,
    "equal and long": lambda i, j: 3.3,
    "mixed": mixed(0),
    "otherwise mixed": mixed(1),
}


def norms(
    rate: float,
    delay: Delay,
    *,
    start: str = "two sides",
    limit: StepLimit | None = None,
    slowest: float = 1.0,
    **law: int | bool,
) -> np.ndarray:
    """sum |x_i - mean|^2 over 40 computing times, as a share of its start. One side computes `slowest` times longer."""
    values = np.repeat([1.0, -1.0], SIDE) if start == "two sides" else np.random.default_rng(3).normal(size=2 * SIDE)
    network = Clockwork(
        values.tolist(),
        LINKS,
        law=LinkLaw(rate, **law),
        delay=delay,
        compute=[1.0] * SIDE + [slowest] * SIDE,
        limit=limit,
    )
    models = np.array([values, *network.run(40.0 * slowest)])
    assert network.frames > 4 * 2 * len(LINKS)
    squared = np.square(models - models.mean(axis=1, keepdims=True)).sum(axis=1)
    return squared / squared[0]


@pytest.mark.parametrize("start", ["two sides", "at random"])
@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_norm_never_exceeds_its_start(rate, delay, start):
    measured = norms(rate, DELAYS[delay], start=start)
    assert max(measured) <= 1 + 1e-9
    assert measured[-1] < 0.95


@pytest.mark.parametrize("start", ["two sides", "at random"])
@pytest.mark.parametrize("delay", DELAYS)
def test_the_norm_never_exceeds_its_start_at_rate_1_with_the_guard(delay, start):
    assert max(norms(1.0, DELAYS[delay], start=start)) <= 1 + 1e-9


class Unguarded(StepLimit):
    """Takes the guard off again: c = rate / (1 + D)."""

    kind: str = "unguarded"
    rate: float

    def factor(self, own, other):
        weight = self.rate / (1 + SIDE)
        return weight / min(weight, 0.5 / SIDE)


def test_the_norm_grows_beyond_the_largest_rate_without_a_guard(monkeypatch):
    monkeypatch.setattr("efhc.core.half_steps.factor_of", lambda limit, own, other: limit.factor(own, other))
    assert max(norms(0.5, DELAYS["0"], limit=Unguarded(rate=0.5))) <= 1 + 1e-9
    assert max(norms(0.6, DELAYS["0"], limit=Unguarded(rate=0.6))) > 2
    assert max(norms(1.0, DELAYS["0"], limit=Unguarded(rate=1.0))) > 100


@pytest.mark.parametrize(("rate", "slowest"), [(0.25, 8.0), (0.5, 5.0)])
def test_clocks_may_differ_a_few_times(rate, slowest):
    assert max(norms(rate, DELAYS["0"], start="at random", slowest=slowest)) <= 1 + 1e-9


def test_clocks_that_differ_tenfold_make_models_run_apart():
    """A limit of the law: a fast end uses the same old version again and again. docs/asynchrony.md says so."""
    assert max(norms(0.5, DELAYS["0"], start="at random", slowest=10.0)) > 1000


@pytest.mark.parametrize("window", [1, 4])
def test_clocks_that_differ_tenfold_do_no_harm_to_steps_that_settle(window):
    measured = norms(1.0, DELAYS["0"], start="at random", slowest=10.0, settles=True, window=window)
    assert max(measured) <= 1 + 1e-9
    assert measured[-1] < 1e-4


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("delay", ["0", "equal", "equal and long", "mixed"])
def test_steps_that_settle_bring_models_together_at_rate_1_without_a_guard(delay, window):
    measured = norms(1.0, DELAYS[delay], start="at random", settles=True, window=window)
    assert max(measured) <= 1 + 1e-9
    assert measured[-1] < 0.03


@pytest.mark.parametrize("window", [1, 4])
def test_steps_that_settle_may_go_too_far_at_first(window):
    """All devices of one side are alike, and all go to the other side at once; then the load makes steps smaller."""
    measured = norms(1.0, DELAYS["equal"], start="two sides", settles=True, window=window)
    assert 1 < max(measured) < 2.5
    assert measured[-1] < 0.1


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_two_devices_in_step_settle_although_their_messages_cross(rate):
    """Two frames that cross multiply the difference by 1 - 4 c; with c = 1/2 the two would swap for ever."""
    law = LinkLaw(rate, settles=True)
    network = Clockwork([1.0, -1.0], [(0, 1)], law=law, delay=DELAYS["equal"], compute=[1.0, 1.0])
    differences = np.abs([x[0] - x[1] for x in network.run(100.0)])
    assert max(differences[-10:]) < 1e-6


GRAPHS = {
    "pair": [(0, 1)],
    "path": [(i, i + 1) for i in range(7)],
    "ring": [(i, (i + 1) % 4) for i in range(4)],
    "star": [(0, i) for i in range(1, 10)],
    "complete": list(itertools.combinations(range(10), 2)),
    "complete bipartite": [(i, j) for i in range(5) for j in range(5, 10)],
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_models_settle_at_their_mean_on_every_kind_of_graph(name, rate):
    values = np.random.default_rng(1).standard_normal(1 + max(map(max, GRAPHS[name]))).tolist()
    law, compute = LinkLaw(rate, settles=True), [1.0] * len(values)
    *_, last = Clockwork(values, GRAPHS[name], law=law, delay=DELAYS["0"], compute=compute).run(150.0)
    assert np.std(last) < 1e-3
