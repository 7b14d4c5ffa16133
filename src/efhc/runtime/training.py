"""One device's row of the learning problem: batches, gradients, thresholds, and the arithmetic of Events 3 and 4.

The numbers are those that `efhc run` computes for this device. Nothing here waits or reads a clock. A node calls it in
its worker thread, one call at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.device_state import Step
from efhc.core.local_steps import SGD
from efhc.core.protocol import Model
from efhc.core.state import Diverged, Local
from efhc.kernels import model_loops as loops
from efhc.runtime.wire_arithmetic import WireArithmetic
from efhc.scenarios.decisions import Decisions, drift_of
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import Form

COLUMNS = 64 * loops.TILE
"""Parameters that are mixed at a time: a whole number of tiles, so that the bits are those of whole rows."""


class Trainer:
    """The learning problem of one device."""

    def __init__(self, scenario: Scenario, device: int, form: Form) -> None:
        assert form.parts is not None
        self.scenario, self.device, self.form, self.parts = scenario, device, form, form.parts
        self._backend, self._reader = scenario.learner.backend, scenario.device_reader()
        self.decisions = Decisions(self.parts.trigger, form.own_memory, self._reader)
        """When the device sends."""
        self.parameters = self._backend.parameters
        """n"""
        self.dtype = np.dtype(scenario.learner.data.precision)
        # The backend knows what each of m devices keeps to itself; this one holds its own row of it.
        first = self._backend.initial_local(1)
        self.local: Local = {name: rows[:1].copy() for name, rows in first.items()}
        """What the device keeps to itself and never mixes, one row each."""

    def warm_up(self) -> None:
        """Compile what training needs, before anybody waits for an answer."""
        model = self.initial_model()
        gradient, _, _ = self.gradient(0, model)
        self.mixed(model, gradient, 0.0, [Step(0, 0.5, model, model)])
        self.drift(model, model)
        if self.form.half_steps is not None:
            arithmetic = WireArithmetic(self.parts.codec)
            arithmetic.encode(model + 1, model, 0.0)
            arithmetic.add_step((gradient, gradient.copy(), gradient.copy()), 0.5, 0.5, model, model)

    @property
    def is_plain(self) -> bool:
        """Whether the local step is w - alpha g."""
        return self.parts.local == SGD()

    def initial_model(self) -> Floats:
        """w_i(0), in memory of its own."""
        return self.scenario.initial_model(self.device)

    def threshold(self, k: int, bandwidth: float | None = None) -> float:
        """threshold_i(k); `bandwidth` is b_i if it is not the scenario's."""
        return float(self.decisions.threshold(self.device, k, bandwidth))

    def step_size(self, k: int) -> float:
        """alpha(k)"""
        return self.scenario.step_size(k)

    def gradient(self, k: int, model: Floats) -> tuple[Floats, float, Local]:
        """Return g_i(w_i(k)) in new memory, the loss on the batch, and what the device then keeps to itself.

        Raises `Diverged` if the loss is not finite.
        """
        batch = self._reader.batch(np.array([self.device]), np.array([k]))
        out = np.empty((1, self.parameters), dtype=self.dtype)
        losses, local = self._backend.grads(model[None], batch, self.local, out)
        if not np.isfinite(losses).all():
            raise Diverged(k, "loss", np.arange(self.device + 1) != self.device)
        return out[0], float(losses[0]), local

    def drift(self, model: Floats, last_broadcast: Floats) -> float:
        """(1/n)^(1/2) ||w_i - w_hat_i||"""
        return drift_of(model, last_broadcast)

    def mixed(self, model: Floats, gradient: Floats, alpha: float, steps: Sequence[Step]) -> Floats:
        """Events 3 and 4: w_i + sum beta (u_j - u_i) - alpha g_i, in the gradient's memory; returns it.

        `steps` come by ascending neighbour. Where each u_i is w_i itself, this is the row of P W - alpha G to the last
        bit. Models lie wherever they were received: a few columns of all are brought together at a time.
        """
        others: list[Model] = []
        weights: list[float] = []
        takes: list[bool] = []
        for step in steps:
            others.append(step.received)
            weights.append(step.beta)
            takes.append(step.sent is model)
            if step.sent is not model:
                others.append(step.sent)
                weights.append(-step.beta)
                takes.append(False)
        rows = len(others)
        terms = loops.Terms(
            np.array([[0, 1, 0, 0], [0, 0, 0, rows]]),
            np.arange(2, 2 + rows),
            np.array(weights, self.dtype),
            np.array(takes, bool),
        )
        alphas, unused = np.array([alpha], self.dtype), np.empty(1)
        for left in range(0, self.parameters, COLUMNS):
            columns = slice(left, min(left + COLUMNS, self.parameters))
            pool = np.stack([array[columns] for array in (model, gradient, *others)])
            loops.mix_picked(pool, terms, alphas, unused, 0, 1)
            gradient[columns] = pool[1]
        return gradient


def combined(terms: Sequence[tuple[float, Floats]], rounded_to: str | None = None) -> Floats:
    """Return sum_t weight_t model_t as a new model; its numbers rounded to a shorter type, if one is given.

    A few columns are made at a time, so that nothing of the size of a model is held besides.
    """
    (weight, first), *others = terms
    total = np.empty_like(first)
    kind = first.dtype.type
    for left in range(0, len(first), COLUMNS):
        columns = slice(left, left + COLUMNS)
        part = total[columns]
        np.multiply(first[columns], kind(weight), out=part)
        for other, model in others:
            part += model[columns] * kind(other)
        if rounded_to is not None:
            # What is too large for the shorter type becomes the largest that it has: an infinity would be refused.
            largest = np.finfo(rounded_to).max
            part[:] = np.clip(part, -largest, largest).astype(rounded_to)
    return total
