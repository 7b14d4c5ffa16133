"""The compiled arithmetic of the law agrees with NumPy's, whatever the strategy, the precision and the threads."""

from __future__ import annotations

import numpy as np
import pytest

import efhc
from efhc.core.arithmetic import PLAIN_LAW
from efhc.drivers.general import GeneralLockstep
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.run import Runs

STRATEGIES = {
    "entrywise": efhc.Entrywise(momentum=0.5),
    "entrywise with a budget": efhc.Entrywise(budget=efhc.Budget(share=0.05)),
    "one-way": efhc.OneWay(r=2500.0, momentum=0.9),
    "Adam": efhc.Composed(local={"kind": "adam", "correction": 0.1}, mixing="half-steps"),
    "several local steps": efhc.Composed(
        local={"kind": "corrected", "momentum": 0.5, "steps": 3}, trigger="always", mixing="half-steps"
    ),
    "clipped half-steps": efhc.Composed(
        trigger="always",
        mixing={"kind": "half-steps", "rate": 1.0, "guard": "degree", "limit": {"kind": "clip", "radius": 0.1}},
    ),
    "choco": efhc.ChocoSGD(codec=efhc.TopKCodec(share=0.1), rate=0.2),
    "sparq": efhc.SparqSGD(codec=efhc.SignCodec(), rate=0.2, every=2),
    "d2": efhc.ExactDiffusion(rate=0.5),
    "matcha": efhc.Matcha(momentum=0.9),
    "corrected exchange": efhc.Composed(local=efhc.DriftCorrected(), budget=efhc.Budget(share=0.5)),
}
EXCHANGES = ("matcha", "corrected exchange")
"""Their mixing adds up in another order when it is compiled."""
NETWORKS = {"static": efhc.Geometric(radius=0.6), "random links": efhc.RandomLinks(up_probability=0.7)}


class InNumPy:
    """NumPy's arithmetic, which needs no arrays to write to."""

    def __getattr__(self, name):
        return getattr(PLAIN_LAW, name)

    def reuse(self, role, array):
        pass


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_compiled_and_plain_agree(name, precision, network):
    # Drifts differ in their last bits, which decide nothing here. The gradients of a softmax have no ties, of which the
    # last bit would decide what top-k sends.
    network, model = NETWORKS[network], efhc.Softmax()
    experiment = Experiment(devices=7, seeds=0, precision=precision, network=network, model=model)
    scenario = draw_scenario(experiment, Runs().inputs(experiment).data, 0)
    compiled, plain = (GeneralLockstep(scenario, STRATEGIES[name], threads) for threads in (2, 1))
    plain._arithmetic = InNumPy()
    one, other = compiled.initial_state(), plain.initial_state()
    rounding = (1e-5 if precision == "float32" else 1e-12) if name in EXCHANGES else 0.0
    for _ in range(12):
        one, steps = compiled.advance(one, 1)
        other, others = plain.advance(other, 1)
        np.testing.assert_allclose(one.models, other.models, rtol=0, atol=rounding)
        np.testing.assert_allclose(one.last_broadcast, other.last_broadcast, rtol=0, atol=rounding)
        assert one.memory.keys() == other.memory.keys()
        for key, found in one.memory.items():
            scale = max(1.0, np.abs(other.memory[key]).max(initial=0))
            np.testing.assert_allclose(found, other.memory[key], rtol=0, atol=10 * scale * rounding, err_msg=key)
        assert np.array_equal(steps.bits, others.bits)
        assert np.array_equal(steps.fired, others.fired)
