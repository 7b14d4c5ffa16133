"""Gradients under way: each starts at the model of its moment, and all are computed when the first falls due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.device_state import Device
from efhc.core.state import Diverged, Local
from efhc.drivers.event_driven.rows import Row, Rows
from efhc.learning.backends.backend import Batch, RowBackend
from efhc.scenarios.device_reader import DeviceReader
from efhc.scenarios.scenario import Scenario


class Gradients:
    """The gradients of all devices of a run, and what the devices keep to themselves (running statistics)."""

    def __init__(self, scenario: Scenario, reader: DeviceReader, rows: Rows) -> None:
        self._backend, self.reader, self._rows = scenario.learner.backend, reader, rows
        devices = len(scenario.bandwidths.values)
        self.initial_local: Local = self._backend.initial_local(devices)
        self.local: Local = {name: values.copy() for name, values in self.initial_local.items()}
        self.next_local: Local = {name: values.copy() for name, values in self.initial_local.items()}
        """What `local` becomes with the step that is under way."""
        self.under_way: dict[int, int] = {}
        """The devices whose gradient has started and is not computed yet, and their k."""
        self.computed: dict[int, tuple[Row, float]] = {}
        """The gradient and the loss of each device whose step is under way."""

    def start(self, device: Device) -> None:
        """The gradient at w_i(k) starts."""
        self.under_way[device.number] = device.k

    def drop(self, number: int) -> None:
        """Forget the gradient of a device that crashed or left."""
        self.under_way.pop(number, None)
        self.computed.pop(number, None)

    def take(self, number: int, devices: list[Device]) -> tuple[Row, float]:
        """Return the gradient of a device and its loss, and let its own statistics follow."""
        if number not in self.computed:
            self._compute(devices)
        for name, values in self.local.items():
            values[number] = self.next_local[name][number]
        return self.computed.pop(number)

    def forget_local(self, number: int) -> None:
        """A device starts anew."""
        for name, values in self.local.items():
            values[number] = self.initial_local[name][number]

    def _compute(self, devices: list[Device]) -> None:
        """Compute all gradients under way in one call: what they start from is fixed."""
        numbers = np.array(sorted(self.under_way))
        batch = self.reader.batch(numbers, np.array([self.under_way[number] for number in numbers.tolist()]))
        places = [self._rows.new() for _ in numbers]
        models = np.array([devices[number].model.index for number in numbers.tolist()])
        losses = self._losses(numbers, models, batch, np.array([place.index for place in places]))
        if not np.isfinite(losses).all():
            finite = np.ones(len(devices), dtype=bool)
            finite[numbers] = np.isfinite(losses)
            first = int(np.argmin(finite))
            raise Diverged(self.under_way[first], "loss", finite)
        for number, place, loss in zip(numbers.tolist(), places, losses.tolist(), strict=True):
            self.computed[number] = place, loss
        self.under_way.clear()

    def _losses(self, numbers: Ints, models: Ints, batch: Batch, places: Ints) -> Floats:
        array = self._rows.array
        if isinstance(self._backend, RowBackend):
            return self._backend.grads_of_rows(array, models, batch, array, places)
        out = np.empty((len(models), array.shape[1]), dtype=array.dtype)
        local = {name: values[numbers] for name, values in self.local.items()}
        losses, after = self._backend.grads(array[models], batch, local, out)
        array[places] = out
        for name, values in after.items():
            self.next_local[name][numbers] = values
        return losses

    # Checkpoints

    def state(self) -> dict[str, Any]:
        """Return plain data that `restore` goes on from, together with `tensors`."""
        return {"under_way": self.under_way, "computed": self.computed}

    def tensors(self) -> dict[str, np.ndarray]:
        """Return what devices keep to themselves."""
        kinds = (("local", self.local), ("next_local", self.next_local))
        return {f"{kind}/{name}": values for kind, local in kinds for name, values in local.items()}

    def restore(self, state: dict[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` and `tensors` returned."""
        self.under_way, self.computed = state["under_way"], state["computed"]
        for name, values in self.tensors().items():
            values[...] = tensors[name]
