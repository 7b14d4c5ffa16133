"""Gradients under way: each starts at the model of its moment, and all are computed when the first falls due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.state import Diverged, Local
from efhc.drivers.event_driven.checkpoints import Saved
from efhc.drivers.event_driven.rows import Row, Rows
from efhc.learning.backends.backend import Batch, RowBackend
from efhc.scenarios.readers import DeviceReader
from efhc.scenarios.scenario import Scenario


class Gradients(Saved):
    """The gradients of all devices of a run, and what the devices keep to themselves (running statistics).

    Models and gradients are arrays.
    """

    def __init__(self, scenario: Scenario, reader: DeviceReader) -> None:
        self._backend, self.reader = scenario.learner.backend, reader
        self._devices = len(scenario.bandwidths.values)
        self.initial_local: Local = self._backend.initial_local(self._devices)
        self.local: Local = {name: values.copy() for name, values in self.initial_local.items()}
        self.next_local: Local = {name: values.copy() for name, values in self.initial_local.items()}
        """What `local` becomes with the step that is under way."""
        self.under_way: dict[int, tuple[int, Any]] = {}
        """The devices whose gradient has started and is not computed yet: the number of its batch, and the model."""
        self.computed: dict[int, tuple[Any, float]] = {}
        """The gradient and the loss of each device whose step is under way."""

    def start(self, number: int, batch: int, model: Any) -> None:
        """The gradient of a device starts at this model, with its batch of this number."""
        self.under_way[number] = batch, model

    def drop(self, number: int) -> None:
        """Forget the gradient of a device that crashed or left."""
        self.under_way.pop(number, None)
        self.computed.pop(number, None)

    def take(self, number: int) -> tuple[Any, float]:
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
        batches, models = zip(*(self.under_way[number] for number in numbers.tolist()), strict=True)
        places, losses = self._evaluated(numbers, models, np.array(batches))
        self._check(numbers, losses, np.array(batches))
        for number, place, loss in zip(numbers.tolist(), places, losses.tolist(), strict=True):
            self.computed[number] = place, loss
        self.under_way.clear()

    def _check(self, numbers: Ints, losses: Floats, batches: Ints) -> None:
        if not np.isfinite(losses).all():
            finite = np.ones(self._devices, dtype=bool)
            finite[numbers] = np.isfinite(losses)
            raise Diverged(int(batches[np.argmin(np.isfinite(losses))]), "loss", finite)

    def _evaluated(self, numbers: Ints, models: Sequence[Any], batches: Ints) -> tuple[Sequence[Any], Floats]:
        """Return the gradients of devices at these models, and their losses."""
        stacked = np.stack(models)
        out = np.empty_like(stacked)
        losses = self._losses(numbers, stacked, self.reader.batch(numbers, batches), out)
        return list(out), losses

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


class RowGradients(Gradients):
    """The same, where models and gradients are rows of one array."""

    def __init__(self, scenario: Scenario, reader: DeviceReader, rows: Rows) -> None:
        super().__init__(scenario, reader)
        self._rows = rows

    def _evaluated(self, numbers: Ints, models: Sequence[Row], batches: Ints) -> tuple[Sequence[Row], Floats]:
        places, batch = [self._rows.new() for _ in models], self.reader.batch(numbers, batches)
        here, there = (np.array([row.index for row in rows]) for rows in (models, places))
        array = self._rows.array
        if isinstance(self._backend, RowBackend):
            return places, self._backend.grads_of_rows(array, here, batch, array, there)
        out = np.empty((len(here), array.shape[1]), dtype=array.dtype)
        losses = self._losses(numbers, array[here], batch, out)
        array[there] = out
        return places, losses
