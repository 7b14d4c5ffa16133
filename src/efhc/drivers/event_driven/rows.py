"""Models as rows of one array. Holders of a model share its row, which is free again once the last one is gone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.base.threads import in_ranges
from efhc.core.device import Device, steps_in_order
from efhc.kernels import model_loops as loops


class Row:
    """A handle on a row. It is never copied: who keeps a model keeps this object, and the last one to go frees it."""

    __slots__ = ("_free", "index")

    def __init__(self, index: int, free: list[int]) -> None:
        self.index, self._free = index, free

    def __del__(self) -> None:
        self._free.append(self.index)


class Rows:
    """All models of a run, (rows, n): those of devices, their last broadcasts, gradients, and models in flight."""

    def __init__(self, parameters: int, precision: str, room: int, threads: int = 1) -> None:
        self.array: Floats = np.empty((room, parameters), dtype=precision)
        self._free = list(range(room))[::-1]
        self._threads = threads

    def restore(self, models: Floats, places: Sequence[int], room: int) -> dict[int, Row]:
        """Hold these models at these places, and nothing else, in at least `room` rows; returns the handles by place.

        The free rows come in the order in which they would if the others had been taken one after the other. Handles
        of before must not be used any more.
        """
        count = max([room, *(place + 1 for place in places)], default=room)
        self.array = np.empty((count, models.shape[1]), models.dtype)
        self.array[places] = models
        taken = set(places)
        self._free = [index for index in range(count)[::-1] if index not in taken]
        return {index: Row(index, self._free) for index in places}

    def new(self) -> Row:
        """Return a free row; its content is undefined."""
        if not self._free:
            room = len(self.array)
            self.array.resize((room + room // 4 + 8, self.array.shape[1]), refcheck=False)  # there are no views of it
            self._free.extend(range(len(self.array) - 1, room - 1, -1))
        return Row(self._free.pop(), self._free)

    def holding(self, model: Floats) -> Row:
        """Return a new row that holds this model."""
        row = self.new()
        self.array[row.index] = model
        return row

    def combined(self, terms: Sequence[tuple[float, Row]]) -> Row:
        """Return a new row that holds sum_t weight_t row_t."""
        row = self.new()
        rows = np.array([other.index for _, other in terms])
        weights = np.array([weight for weight, _ in terms], dtype=self.array.dtype)
        loops.combine_rows(self.array, rows, weights, row.index)
        return row

    def drifts(self, rows: list[int], others: list[int]) -> list[float]:
        """(1/n)^(1/2) ||w - w_hat|| for pairs of rows."""
        if not rows:
            return []
        drifts = np.empty(len(rows))
        in_ranges(
            loops.drift_rows,
            (self.array, np.array(rows), self.array, np.array(others), drifts),
            len(rows),
            self._threads,
        )
        return drifts.tolist()

    def step(self, devices: Sequence[Device], gradients: Sequence[Row], step_sizes: Sequence[float]) -> list[float]:
        """Events 3 and 4: w_i + sum beta (u_j - u_i) - alpha g_i, in the row of the gradient g_i.

        Where u_i is w_i itself, this is the row of P W - alpha G to the last bit. Returns how far each new model has
        drifted from the device's last broadcast.
        """
        places: list[int] = []
        partners: list[int] = []
        weights: list[float] = []
        takes: list[bool] = []
        for device, gradient in zip(devices, gradients, strict=True):
            own = device.model
            places += (own.index, gradient.index, device.last_broadcast.index, len(partners))
            for _, beta, sent, received in steps_in_order(device):
                partners.append(received.index)
                weights.append(beta)
                takes.append(sent is own)
                if sent is not own:
                    partners.append(sent.index)
                    weights.append(-beta)
                    takes.append(False)
        places += (0, 0, 0, len(partners))
        kind = self.array.dtype
        terms = loops.AddedTerms(
            np.array(places).reshape(-1, 4),
            np.array(partners, np.int64),
            np.array(weights, kind),
            np.array(takes, bool),
        )
        drifts = np.empty(len(devices))
        arguments = self.array, terms, np.array(step_sizes, kind), drifts
        in_ranges(loops.mix_picked, arguments, len(devices), self._threads)
        return drifts.tolist()

    def gathered(self, rows: Sequence[Row]) -> Floats:
        """Return the models of these rows in an array of their own."""
        places: Ints = np.array([row.index for row in rows], dtype=np.int64)
        return self.array[places]
