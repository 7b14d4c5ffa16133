"""A local step of the user's own sees one device at a time, or it is refused by its name."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

import efhc
from efhc.core.local_steps import LocalStep


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


@pytest.mark.parametrize(("local", "problem"), [(MeanDescent(), "other devices"), (Forgetful(), "memory")])
def test_one_that_looks_at_other_rows_is_refused(local, problem):
    strategy = {"kind": "composed", "local": local, "mixing": "half-steps"}
    with pytest.raises(efhc.InputError, match=problem):
        efhc.simulate(devices=4, iterations=2, strategies={"own": strategy})
