"""The laws of `core.half_steps`, under 400 hostile schedules, or as many as EFHC_SCHEDULES says (`make fuzz`: 10,000).

A failure names the integer that replays it.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from efhc.core.half_steps import Frame
from efhc.core.step_limits import StepLimit
from half_steps import hostile
from half_steps.driver import Driver
from half_steps.timed import Clockwork, Delay
from half_steps.witness import Witness

SCHEDULES = int(os.environ.get("EFHC_SCHEDULES", "400"))
# A smaller integer is another schedule, not a simpler one: nothing is to be shrunk.
integers = given(st.integers(0, 2**32 - 1))
many = settings(max_examples=SCHEDULES, phases=[Phase.explicit, Phase.reuse, Phase.generate])


@many
@integers
def test_no_schedule_breaks_a_law(schedule):
    hostile.check(schedule)


def test_a_failure_names_the_integer_that_replays_it(monkeypatch):
    monkeypatch.setattr(Witness, "check_rest", lambda self, h: 1 / 0)
    with pytest.raises(ZeroDivisionError) as failure:
        hostile.check(1234)
    assert failure.value.__notes__ == ["schedule 1234; to replay it: python tests/core/half_steps/hostile.py 1234"]


def test_a_schedule_is_a_function_of_its_integer():
    def trace(schedule):
        lines = []
        hostile.run(schedule, trace=lambda *words: lines.append(" ".join(map(str, words))))
        return lines

    assert trace(7) == trace(7)
    assert trace(7) != trace(8)


def test_schedules_are_as_hostile_as_they_say():
    """Every fault, every law with something to hold, and enough steps."""
    seen = set()

    def note(*words):
        seen.update(word for word in ("forgets", "crashes", "lose", "forged", "Unresolved", "TakeBack", "Start()")
                    if any(word in str(one) for one in words))  # fmt: skip

    networks = [hostile.Network(schedule, trace=note) for schedule in range(200)]
    for network in networks:
        network.run(60)
        network.come_to_rest()
    witnesses = [network.witness for network in networks]
    assert seen == {"forgets", "crashes", "lose", "forged", "Unresolved", "TakeBack", "Start()"}
    assert sum(witness.steps for witness in witnesses) > 3000
    assert {network.devices for network in networks} == set(range(2, 7))
    assert sum(witness.start_norm is not None and not witness.reused for witness in witnesses) > 10
    assert {witness.theta > 0 for witness in witnesses} == {True, False}


def test_a_device_that_waits_for_a_model_says_so_until_it_is_heard():
    """Device 1 has lost its state, and the message that says so is lost as well."""
    network = Driver(parameters=1, rate=0.5, theta=0.1)
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
    network = Driver(parameters=1, rate=0.5, theta=0.1)
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


# Norm: complete bipartite graph of 16 + 16 devices that always send, no gradients


SIDE = 16
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
    rate: float, delay: Delay, *, start: str = "two sides", limit: StepLimit | None = None, slowest: float = 1.0
) -> np.ndarray:
    """sum |x_i - mean|^2 over 40 computing times, as a share of its start. One side computes `slowest` times longer."""
    values = np.repeat([1.0, -1.0], SIDE) if start == "two sides" else np.random.default_rng(3).normal(size=2 * SIDE)
    network = Clockwork(
        values.tolist(), LINKS, rate=rate, delay=delay, compute=[1.0] * SIDE + [slowest] * SIDE, limit=limit
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
    assert max(norms(0.55, DELAYS["0"], limit=Unguarded(rate=0.55))) > 2
    assert max(norms(1.0, DELAYS["0"], limit=Unguarded(rate=1.0))) > 100


@pytest.mark.parametrize(("rate", "slowest"), [(0.25, 8.0), (0.5, 5.0)])
def test_clocks_may_differ_a_few_times(rate, slowest):
    assert max(norms(rate, DELAYS["0"], start="at random", slowest=slowest)) <= 1 + 1e-9


def test_clocks_that_differ_tenfold_make_models_run_apart():
    """A limit of the law: a fast end uses the same old version again and again. docs/asynchrony.md says so."""
    assert max(norms(0.5, DELAYS["0"], start="at random", slowest=10.0)) > 1000
