"""A local step of the user's own sees one device at a time, or it is refused by its name."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

import efhc
from efhc.core.local_steps import LocalStep
from efhc.core.step_limits import StepLimit


class SignDescent(LocalStep):
    """u = sign(m), m <- beta m + (1 - beta) g: a local step in one class."""

    kind: Literal["sign-descent"] = "sign-descent"
    beta: float = 0.9

    @property
    def memory(self):
        return ("smoothed",)

    def direction(self, rows, gradient, moment):
        smoothed = self.beta * rows["smoothed"] + (1 - self.beta) * gradient
        return np.sign(smoothed), {"smoothed": smoothed.astype(gradient.dtype)}


class MeanDescent(SignDescent):
    """Goes along the mean gradient, which no device knows."""

    kind: Literal["mean-descent"] = "mean-descent"

    def direction(self, rows, gradient, moment):
        return np.broadcast_to(gradient.mean(axis=0), gradient.shape) * np.ones_like(gradient), {
            "smoothed": rows["smoothed"]
        }


class Centred(SignDescent):
    """Goes along the difference from the mean gradient: permuting the rows does not show it."""

    kind: Literal["centred"] = "centred"

    def direction(self, rows, gradient, moment):
        return gradient - gradient.mean(axis=0), {"smoothed": rows["smoothed"]}


class Forgetful(SignDescent):
    """Remembers what it does not name."""

    kind: Literal["forgetful"] = "forgetful"

    def direction(self, rows, gradient, moment):
        return gradient, {"other": gradient}


@pytest.mark.parametrize("mixing", ["exchange", "half-steps"])
def test_an_own_local_step_runs_in_both_drivers_with_the_same_bits(mixing):
    strategies = {"own": efhc.Composed(local=SignDescent(), trigger="always", mixing=mixing)}
    common = {
        "devices": 5,
        "iterations": 15,
        "strategies": strategies,
        "seeds": 0,
        "step_size": efhc.Constant(value=0.01),
    }
    together = efhc.simulate(**common)
    apart = efhc.simulate(**common, driver={"kind": "event-driven", "links": "instant"})
    assert np.array_equal(together.models["own", 0], apart.models["own", 0])


@pytest.mark.parametrize(
    ("local", "problem"), [(MeanDescent(), "other devices"), (Centred(), "other devices"), (Forgetful(), "memory")]
)
def test_one_that_looks_at_other_rows_is_refused(local, problem):
    strategy = {"kind": "composed", "local": local, "mixing": "half-steps"}
    with pytest.raises(efhc.InputError, match=problem):
        efhc.simulate(devices=4, iterations=2, strategies={"own": strategy})


class Doubled(StepLimit):
    """Would get around the largest rate."""

    kind: Literal["doubled"] = "doubled"

    def factor(self, own, other):
        return 2.0


class ThreeNumbers:
    """A codec that forgets most of the model."""

    def send(self, model, known, threshold):
        return model[:3], 5


class Longer(SignDescent):
    """Returns numbers of another precision."""

    kind: Literal["longer"] = "longer"

    def direction(self, rows, gradient, moment):
        return gradient.astype(np.float64), {"smoothed": rows["smoothed"]}


BAD_PARTS = {
    "a limit above 1": ({"mixing": efhc.HalfStepsMixing(limit=Doubled())}, "limit doubled: cannot use 2.0"),
    "a codec of another shape": ({"codec": ThreeNumbers()}, r"codec ThreeNumbers: cannot use \w+ of shape \(3,\)"),
    "another precision": ({"local": Longer()}, "model in float64"),
}


@pytest.mark.parametrize("driver", ["lockstep", "event-driven"])
@pytest.mark.parametrize("what", BAD_PARTS)
def test_what_own_parts_return_is_checked_by_every_driver(what, driver):
    parts, problem = BAD_PARTS[what]
    table = efhc.Parts(efhc.AlwaysTrigger(), **{"mixing": efhc.HalfStepsMixing()} | parts)

    class Mine(efhc.Strategy):
        kind: Literal["mine"] = "mine"

        def parts(self):
            return table

    with pytest.raises(efhc.EfhcError, match=problem):
        efhc.simulate(devices=3, iterations=4, seeds=[0], network="complete", strategies={"S": Mine()}, driver=driver)
