"""Asked for many iterations at once, a scenario has the numbers that it has for them one by one."""

from __future__ import annotations

import numpy as np
import pytest

from efhc.base.errors import InputError
from efhc.core.randomness import Coins, Randomness
from efhc.core.schedules import Constant, Cosine, Diminishing, WarmUp
from efhc.core.triggers import (
    AlwaysTrigger,
    Bandwidths,
    CoinTrigger,
    EntrywiseTrigger,
    NeverTrigger,
    NormTrigger,
    PeriodTrigger,
)
from efhc.experiments.config.experiment import SCHEDULES as SCHEDULE_KINDS
from efhc.scenarios.scenario import Thresholds
from efhc.strategies.composed import TRIGGERS
from efhc.strategies.paper import EventTriggered

DEVICES = 7
BANDWIDTHS = Bandwidths(np.random.default_rng(0).uniform(500, 9500, DEVICES), 5000.0)
BUILT_IN = [
    *(NormTrigger(r=250 / 3, rho=rho, every=every) for rho in ("own", "nominal", "mean") for every in (1, 3)),
    *(EntrywiseTrigger(r=1000 / 7, rho=rho) for rho in ("own", "nominal", "mean")),
    *(CoinTrigger(probability=p) for p in (None, 0.5)),
    PeriodTrigger(every=4),
    AlwaysTrigger(),
    NeverTrigger(),
    EventTriggered(r=70.0),
]
SCHEDULES = [
    Constant(value=0.07),
    *(Diminishing(initial=0.1, timescale=t, power=p) for t in (1.0, 3.7) for p in (0, 0.3, 0.5, 1)),
    WarmUp(iterations=30),
    Cosine(iterations=90, warm_up=20),
]
BLOCK = Coins.BLOCK
STRETCHES = [(0, 1), (0, 40), (17, 100), (BLOCK - 3, 7), (BLOCK - 1, 2 * BLOCK), (10**6 + 1, 60)]


def thresholds_of(decay) -> Thresholds:
    return Thresholds(decay, BANDWIDTHS, Coins(Randomness(3), DEVICES).reader())


@pytest.mark.parametrize("trigger", BUILT_IN, ids=repr)
@pytest.mark.parametrize("decay", SCHEDULES, ids=repr)
def test_thresholds_of_many_iterations_are_those_of_each(trigger, decay):
    for k, count in STRETCHES:
        many = thresholds_of(decay).thresholds_of_many(trigger, k, count)
        one_by_one = thresholds_of(decay)
        assert many.tolist() == [one_by_one.thresholds(trigger, k + step).tolist() for step in range(count)]


def test_every_built_in_trigger_and_schedule_is_among_them():
    assert {type(trigger) for trigger in BUILT_IN} >= set(TRIGGERS.built_in().values())
    assert {type(schedule) for schedule in SCHEDULES} == set(SCHEDULE_KINDS.built_in().values())


class Own:
    """A strategy of the user's, which wants a number for k."""

    def thresholds(self, k, gamma, bandwidths, coins):
        return gamma / bandwidths.values if k % 2 else [float(coins(k)[0])] * len(bandwidths.values)


def test_a_strategy_of_the_users_own_is_asked_iteration_by_iteration():
    many = thresholds_of(Constant()).thresholds_of_many(Own(), 3, 5)
    assert many.tolist() == [thresholds_of(Constant()).thresholds(Own(), 3 + step).tolist() for step in range(5)]


def test_one_that_remembers_is_refused():
    class Counting:
        asked = 0

        def thresholds(self, k, gamma, bandwidths, coins):
            self.asked += 1
            return np.full(len(bandwidths.values), float(self.asked))

    with pytest.raises(InputError, match="computed twice"):
        thresholds_of(Constant()).thresholds_of_many(Counting(), 0, 3)


def test_a_threshold_that_is_no_number_names_its_iteration():
    with pytest.raises(InputError, match="NaN as thresholds at k = 7"):
        thresholds_of(lambda k: float("nan") if k == 7 else 1.0).thresholds_of_many(NormTrigger(), 5, 5)
