"""What is kept of one run (one strategy, one seed): a row of metrics and who fired, for every iteration.

Row k tells of iteration k: who fired, which links were used and what they cost at W(k), the batch loss at W(k), and
the models that it left, W(k+1): their consensus error and, where evaluated, their accuracy. Which links were used
follows from who fired and from the network, so it is worked out when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import polars as pl

from efhc.base.arrays import Flags, Floats
from efhc.core.graph import Graph
from efhc.drivers.scenario import Scenario
from efhc.drivers.steps import Steps

METRICS: dict[str, pl.DataType] = {
    "iteration": pl.Int64(),
    "transmission_time": pl.Float64(),
    "transmission_time_total": pl.Float64(),
    "fired": pl.Int64(),
    "links_used": pl.Int64(),
    "train_loss": pl.Float64(),
    "accuracy": pl.Float64(),
    "accuracy_min": pl.Float64(),
    "accuracy_max": pl.Float64(),
    "consensus_error": pl.Float64(),
    "mean_model_accuracy": pl.Float64(),
}
"""Columns of the metrics, after `strategy` and `seed`. Accuracies are null where they were not evaluated."""

_COLUMN = {name: position for position, name in enumerate(METRICS)}


def list_column(arrays: Iterable[np.ndarray]) -> pl.Series:
    """A column that holds one list of numbers per row."""
    lists = pl.List(pl.Int32)
    # The cast is for arrays that happen to be all of one length, which polars makes a matrix of.
    return pl.Series([array.astype(np.int32) for array in arrays], dtype=lists).cast(lists)


class Record:
    """Grows by a few iterations at a time; goes into a checkpoint and comes back bit for bit."""

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._rows: list[np.ndarray] = []
        """Metrics, (iterations, columns) each; NaN where there is none: nothing that is recorded is NaN."""
        self._fired: list[np.ndarray] = []
        """Who fired, a bit per device, (iterations, bytes) each."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, steps: Steps, bandwidths: Floats, parameters: int) -> None:
        """Note down what these iterations did."""
        times = steps.transmission_times(bandwidths, parameters)
        before = self._rows[-1][-1, _COLUMN["transmission_time_total"]] if self._rows else 0.0
        rows = np.full((len(steps), len(METRICS)), np.nan)
        for name, values in {
            "iteration": steps.k + np.arange(len(steps)),
            "transmission_time": times,
            "transmission_time_total": np.cumsum([before, *times])[1:],
            "fired": steps.fired.sum(axis=1),
            "links_used": steps.used.sum(axis=1),
            "train_loss": steps.losses.mean(axis=1, dtype=np.float64),
            "consensus_error": steps.consensus_errors,
        }.items():
            rows[:, _COLUMN[name]] = values
        self._rows.append(rows)
        self._fired.append(np.packbits(steps.fired, axis=1))
        self._length += len(steps)

    @property
    def is_evaluated(self) -> bool:
        """Whether it is known how good the models are that the last iteration left."""
        return not np.isnan(self._rows[-1][-1, _COLUMN["accuracy"]])

    def add_accuracies(self, accuracies: Floats, of_mean_model: float) -> None:
        """Note down how good the models are that the last iteration left."""
        last = self._rows[-1][-1]
        values = accuracies.mean(), accuracies.min(), accuracies.max(), of_mean_model
        names = "accuracy", "accuracy_min", "accuracy_max", "mean_model_accuracy"
        last[[_COLUMN[name] for name in names]] = values

    def metrics(self) -> pl.DataFrame:
        """One row per iteration."""
        rows = pl.DataFrame(self._table(), schema=list(METRICS), orient="row")
        return rows.fill_nan(None).select(pl.col(name).cast(kind) for name, kind in METRICS.items())

    def _table(self) -> np.ndarray:
        return np.concatenate([np.empty((0, len(METRICS))), *self._rows])

    def fired(self) -> Flags:
        """(iterations, devices)"""
        return np.unpackbits(self._packed(), axis=1, count=self._devices).astype(bool)

    def _packed(self) -> np.ndarray:
        return np.concatenate([np.empty((0, -(-self._devices // 8)), np.uint8), *self._fired])

    def events(self, scenario: Scenario) -> pl.DataFrame:
        """One row per iteration: the devices that fired, and the two ends of every link used."""
        fired = self.fired()
        links = [graph.links[used] for graph, used in self._used(fired, scenario)]
        return pl.DataFrame(
            {
                "iteration": pl.Series(range(len(fired)), dtype=pl.Int64),
                "fired": list_column(map(np.flatnonzero, fired)),
                "link_from": list_column(ends[:, 0] for ends in links),
                "link_to": list_column(ends[:, 1] for ends in links),
            }
        )

    @staticmethod
    def _used(fired: Flags, scenario: Scenario) -> Iterator[tuple[Graph, Flags]]:
        for k, now in enumerate(fired):
            previous_graph, graph = scenario.graphs(k)
            nothing = np.empty((1, 0))
            yield graph, Steps(k, previous_graph, graph, now[None], nothing, nothing).used[0]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything, as arrays that a checkpoint can hold."""
        return {"rows": self._table(), "fired": self._packed(), "devices": np.array([self._devices])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Record:
        """The reverse of `to_arrays`."""
        rows, fired = arrays["rows"], arrays["fired"]
        if len(rows) != len(fired) or rows.shape[1:] != (len(METRICS),):
            raise ValueError("its parts tell of different numbers of iterations")
        record = cls(int(arrays["devices"][0]))
        record._rows, record._fired, record._length = [rows] * bool(len(rows)), [fired], len(rows)
        return record
