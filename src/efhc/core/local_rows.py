"""What local steps remember of each device, for drivers in which devices step one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.local_steps import LocalStep, Moment, Rows


class LocalRows:
    """The arrays that local steps remember, one row per device of a run. Models are not among them."""

    def __init__(self, local: LocalStep, devices: int, parameters: int, precision: str) -> None:
        self.local = local
        names = (("correction",) if local.correction else ()) + local.memory
        self.arrays: dict[str, Floats] = {name: np.zeros((devices, parameters), precision) for name in names}
        self._alphas = np.full(devices, np.inf)
        """alpha of each device's last local step; infinite if it has made none."""

    def descent(
        self, numbers: Sequence[int], models: Floats, gradients: Floats, alphas: Sequence[float], moments: Moment
    ) -> Floats:
        """Return u - h of these devices, and update what they remember."""
        down, remembered = self.local.descent(self._rows(numbers, models), gradients, moments)
        for name, rows in remembered.items():
            self.arrays[name][numbers] = rows
        self._alphas[numbers] = alphas
        return down

    def pulled(self, number: int, model: Floats, pull: Floats, learned: Floats | None = None) -> Floats:
        """Return the model of a device after links have added `pull` to it, and update what it remembers."""
        numbers, alpha = [number], self._alphas[[number], None]
        learned = None if learned is None else learned[None]
        rows = self.local.pulled(self._rows(numbers, model[None]), pull[None], learned, alpha)
        for name in self.arrays:
            self.arrays[name][number] = rows[name][0]
        after: Floats = rows["model"][0]
        return after

    def take_back(self, number: int, taught: Floats) -> None:
        """Subtract from h what a link has taught it."""
        self.arrays["correction"][number] -= taught

    def forget(self, number: int) -> None:
        """Forget what a device remembers: it starts anew."""
        self._alphas[number] = np.inf
        for rows in self.arrays.values():
            rows[number] = 0

    def _rows(self, numbers: Sequence[int], models: Floats) -> Rows:
        return {"model": models} | {name: rows[numbers] for name, rows in self.arrays.items()}

    # Checkpoints

    def tensors(self) -> dict[str, np.ndarray]:
        """Return all that changes during a run."""
        return {f"rows/{name}": rows for name, rows in self.arrays.items()} | {"rows/alphas": self._alphas}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Go on from what `tensors` returned."""
        for name, rows in self.tensors().items():
            rows[...] = tensors[name]
