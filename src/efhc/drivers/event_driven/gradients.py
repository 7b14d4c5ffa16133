"""Gradients under way: each starts at the model of its moment, and all are computed when the first falls due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.state import Diverged, Local
from efhc.drivers.event_driven.checkpoints import Saved
from efhc.learning.backends.backend import Batch
from efhc.scenarios.scenario import DeviceReader, Scenario


def as_rows(models: Sequence[Floats]) -> Floats:
    """Return the models in one array, (m, n), as `np.stack` does, which takes longer for short ones."""
    rows: Floats = np.concatenate(models).reshape(len(models), -1)
    return rows


class Gradients(Saved):
    """The gradients of all devices of a run, and what the devices keep to themselves (running statistics)."""

    def __init__(self, scenario: Scenario, reader: DeviceReader) -> None:
        self._backend, self.reader = scenario.learner.backend, reader
        self._devices = len(scenario.bandwidths.values)
        self.initial_local: Local = self._backend.initial_local(self._devices)
        self.local: Local = {name: values.copy() for name, values in self.initial_local.items()}
        self.next_local: Local = {name: values.copy() for name, values in self.initial_local.items()}
        """What `local` becomes with the step that is under way."""
        self.under_way: dict[int, tuple[int, Floats]] = {}
        """The devices whose gradient has started and is not computed yet: the number of its batch, and the model."""
        self.computed: dict[int, tuple[Floats, float]] = {}
        """The gradient and the loss of each device whose step is under way."""

    def start(self, number: int, batch: int, model: Floats) -> None:
        """The gradient of a device starts at this model, with its batch of this number."""
        self.under_way[number] = batch, model

    def drop(self, number: int) -> None:
        """Forget the gradient of a device that crashed or left."""
        self.under_way.pop(number, None)
        self.computed.pop(number, None)

    def take(self, number: int) -> tuple[Floats, float]:
        """Return the gradient of a device and its loss, and let its own statistics follow."""
        if number not in self.computed:
            self._compute()
        self._follow(number)
        return self.computed.pop(number)

    def _follow(self, number: int) -> None:
        for name, values in self.local.items():
            values[number] = self.next_local[name][number]

    def forget_local(self, number: int) -> None:
        """A device starts anew."""
        for name, values in self.local.items():
            values[number] = self.initial_local[name][number]

    def at(self, numbers: Sequence[int], batches: Sequence[int], models: Floats) -> Floats:
        """Return the gradients of some devices at these models, now, and let their own statistics follow."""
        those, of_each, found = np.array(numbers), np.array(batches), np.empty_like(models)
        self._check(those, self._losses(those, models, self.reader.batch(those, of_each), found), of_each)
        for number in numbers:
            self._follow(number)
        return found

    def _compute(self) -> None:
        """Compute all gradients under way in one call: what they start from is fixed."""
        numbers = np.array(sorted(self.under_way))
        under_way = [self.under_way[number] for number in numbers.tolist()]
        batches, models = np.array([batch for batch, _ in under_way]), as_rows([model for _, model in under_way])
        gradients = np.empty_like(models)
        losses = self._losses(numbers, models, self.reader.batch(numbers, batches), gradients)
        self._check(numbers, losses, batches)
        self.computed |= dict(zip(numbers.tolist(), zip(gradients, losses.tolist(), strict=True), strict=True))
        self.under_way.clear()

    def _check(self, numbers: Ints, losses: Floats, batches: Ints) -> None:
        if not np.isfinite(losses).all():
            finite = np.ones(self._devices, dtype=bool)
            finite[numbers] = np.isfinite(losses)
            raise Diverged(int(batches[np.argmin(np.isfinite(losses))]), "loss", finite)

    def _losses(self, numbers: Ints, models: Floats, batch: Batch, out: Floats) -> Floats:
        local = {name: values[numbers] for name, values in self.local.items()}
        losses, after = self._backend.grads(models, batch, local, out)
        for name, values in after.items():
            self.next_local[name][numbers] = values
        return losses

    # Checkpoints

    SAVED: ClassVar = ("under_way", "computed")

    def tensors(self) -> dict[str, np.ndarray]:
        """Return what devices keep to themselves."""
        kinds = (("local", self.local), ("next_local", self.next_local))
        return {f"{kind}/{name}": values for kind, local in kinds for name, values in local.items()}
