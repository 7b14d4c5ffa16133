"""Limits of half-steps: the factor is the sender's, and travels with the step."""

from __future__ import annotations

import numpy as np
import pytest

import efhc
from efhc.core.half_step_messages import Frame, Send
from efhc.core.half_steps import Arithmetic, HalfSteps, LinkLaw
from efhc.core.step_limits import ClippedSteps, NoLimit

WHOLE = Arithmetic(lambda model, told, threshold: (model.copy(), 32 * len(model)))


def a_pair(rate: float = 0.5, *, settles: bool = False) -> tuple[HalfSteps, HalfSteps]:
    """Two neighbours with unlike models that know each other."""
    one, other = (HalfSteps(i, 0, LinkLaw(rate, settles=settles), np.full(4, 10.0 * i)) for i in range(2))
    one.link_up(1)
    other.link_up(0)
    waiting = [(0, effect) for effect in one.announce()] + [(1, effect) for effect in other.announce()]
    while waiting:
        sender, effect = waiting.pop(0)
        assert isinstance(effect, Send)
        receiver = (one, other)[effect.neighbour]
        waiting += [(effect.neighbour, more) for more in receiver.received(sender, effect.message, WHOLE)]
    return one, other


@pytest.mark.parametrize("settles", [False, True])
def test_a_clipped_step_is_the_same_at_both_ends_and_no_longer_than_the_radius(settles):
    one, other = a_pair(settles=settles)
    limit = ClippedSteps(radius=4.0)
    (effect,) = one.stepped(one.model, 0.1, lambda versions: [0.0] * len(versions), WHOLE, limit=limit)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Frame)
    other.received(0, effect.message, WHOLE)
    mine, theirs = one.take_pull(), other.take_pull()
    assert mine is not None
    assert theirs is not None
    assert np.array_equal(mine[0], -theirs[0])
    assert np.linalg.norm(mine[0]) == pytest.approx(0.25 * 4.0)  # c = 1/2 / (1 + 1), times the radius


def test_nothing_is_limited_within_the_radius():
    near, far = np.zeros(3), np.full(3, 100.0)
    assert NoLimit().factor(near, far) == 1.0
    assert ClippedSteps(radius=1000.0).factor(near, far) == 1.0
    assert ClippedSteps(radius=1.0).factor(near, near) == 1.0
    assert ClippedSteps(radius=1.0).factor(near, far) == pytest.approx(1 / (100 * 3**0.5))


@pytest.mark.parametrize("network", [efhc.Geometric(radius=0.6), {"kind": "random-links"}])
def test_clipping_runs_in_both_drivers_with_the_same_bits(network):
    mixing = efhc.HalfStepsMixing(limit=efhc.ClippedSteps(radius=0.5))
    strategies = {"clipped": efhc.Composed(local=efhc.DriftCorrected(), mixing=mixing)}
    common = {"devices": 6, "iterations": 20, "strategies": strategies, "network": network, "seeds": 0}
    together = efhc.simulate(**common)
    apart = efhc.simulate(**common, driver={"kind": "event-driven", "links": "instant"})
    free = efhc.simulate(
        **{**common, "strategies": {"clipped": efhc.Composed(local=efhc.DriftCorrected(), mixing="half-steps")}}
    )
    key = ("clipped", 0)
    assert np.array_equal(together.models[key], apart.models[key])
    assert not np.array_equal(together.models[key], free.models[key])


def test_a_rate_above_one_half_needs_a_guard():
    with pytest.raises(efhc.InputError, match="guard"):
        efhc.simulate(
            strategies={"it": {"kind": "composed", "mixing": {"kind": "half-steps", "rate": 0.6}}}, iterations=1
        )
    assert efhc.HalfStepsMixing(rate=1.0, guard="degree").rate == 1.0


def test_the_guard_bounds_the_weight_by_the_larger_degree():
    one, _ = a_pair(rate=1.0)
    (effect,) = one.stepped(one.model, 0.1, lambda versions: [0.0] * len(versions), WHOLE)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Frame)
    assert effect.message.weight == 0.5  # min(1 / (1 + 1), 1 / (2 * 1))
