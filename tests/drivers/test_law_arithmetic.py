"""The compiled arithmetic of the law agrees with NumPy's, whatever the strategy, the precision and the threads."""

from __future__ import annotations

import numpy as np
import pytest

import efhc
from efhc.core.law_arithmetic import PLAIN_LAW
from efhc.drivers.general import GeneralLockstep
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.run import Runs

STRATEGIES = {
    "entrywise": efhc.Entrywise(momentum=0.5),
    "entrywise per link": efhc.Entrywise(per="link", budget=efhc.Budget(share=0.05)),
    "one-way": efhc.OneWay(r=2500.0, momentum=0.9),
    "choco": efhc.ChocoSGD(codec=efhc.TopKCodec(share=0.1), rate=0.2),
    "sparq": efhc.SparqSGD(codec=efhc.SignCodec(), rate=0.2, every=2),
    "d2": efhc.ExactDiffusion(rate=0.5),
    "matcha": efhc.Matcha(momentum=0.9),
    "corrected exchange": efhc.Composed(local=efhc.DriftCorrected(), budget=efhc.Budget(share=0.5)),
}


class InNumPy:
    """NumPy's arithmetic, which needs no arrays to write to."""

    def __getattr__(self, name):
        return getattr(PLAIN_LAW, name)

    def reuse(self, role, array):
        pass


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_compiled_and_plain_agree(name, precision):
    # The gradients of a softmax have no ties, of which the last bit would decide what top-k sends.
    network = efhc.RandomLinks(up_probability=0.7)
    experiment = Experiment(devices=7, seeds=0, precision=precision, network=network, model=efhc.Softmax())
    scenario = draw_scenario(experiment, Runs().inputs(experiment).data, 0)
    compiled, plain = (GeneralLockstep(scenario, STRATEGIES[name], threads) for threads in (2, 1))
    plain._arithmetic = InNumPy()
    one, other = compiled.initial_state(), plain.initial_state()
    for _ in range(12 if precision == "float64" else 3):  # in single precision a rounding may decide what is sent
        one, steps = compiled.advance(one, 1)
        other, others = plain.advance(other, 1)
        tolerance = {"rtol": 0, "atol": 1e-5 if precision == "float32" else 1e-12}
        np.testing.assert_allclose(one.models, other.models, **tolerance)
        np.testing.assert_allclose(one.last_broadcast, other.last_broadcast, **tolerance)
        for key in one.memory:
            scale = max(1.0, np.abs(other.memory[key]).max(initial=0)) if one.memory[key].dtype != bool else 1
            np.testing.assert_allclose(one.memory[key], other.memory[key], rtol=0, atol=tolerance["atol"] * scale * 10)
        if precision == "float64":
            assert np.array_equal(steps.bits, others.bits)
            assert np.array_equal(steps.fired, others.fired)
