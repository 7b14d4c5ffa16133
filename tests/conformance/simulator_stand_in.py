"""A stand-in with the interface of the event-driven simulator: devices learn, and no message takes any time.

It serves tests of what keeps and shows runs. Replace it by the simulator, where that does as well.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from efhc.drivers.record import Piece

TIMELINE = {
    "seconds": pl.Float64(),
    "steps": pl.Int64(),
    "broadcasts": pl.Int64(),
    "exchanges": pl.Int64(),
    "bytes": pl.Int64(),
    "devices": pl.Int64(),
    "accuracy": pl.Float64(),
    "accuracy_min": pl.Float64(),
    "accuracy_max": pl.Float64(),
    "mean_model_accuracy": pl.Float64(),
    "consensus_error": pl.Float64(),
    "imbalance": pl.Float64(),
}
EXCHANGES = {
    "start": pl.Float64(),
    "end": pl.Float64(),
    "device": pl.Int32(),
    "neighbour": pl.Int32(),
    "device_k": pl.Int64(),
    "neighbour_k": pl.Int64(),
    "beta": pl.Float64(),
    "event": pl.Int8(),
    "outcome": pl.String(),
    "bytes": pl.Int64(),
}
STEPS = {"device": pl.Int32(), "k": pl.Int64(), "seconds": pl.Float64(), "fired": pl.Boolean(), "loss": pl.Float64()}
NETWORK = {"iteration": pl.Int64(), "link_from": pl.List(pl.Int32), "link_to": pl.List(pl.Int32)}


class StandInRecord:
    """Rows of the four tables, taken piece by piece."""

    def __init__(self) -> None:
        self.pieces = 0
        self.rows: dict[str, list[tuple]] = {}

    @property
    def is_large(self) -> bool:
        return len(self.rows.get("timeline", ())) >= 3

    def add(self, table: str, *row) -> None:
        self.rows.setdefault(table, []).append(row)

    def take(self) -> Piece:
        first = self.pieces
        self.pieces += bool(self.rows)
        schemas = {"timeline": TIMELINE, "exchanges": EXCHANGES, "steps": STEPS, "network": NETWORK}
        tables = {
            name: pl.DataFrame(self.rows.get(name, []), schema=schema, orient="row") for name, schema in schemas.items()
        }
        self.rows = {}
        return Piece(first, self.pieces, tables)


class StandIn:
    """One step of every device per `advance`, and one exchange."""

    def __init__(self, scenario, trigger, settings, iterations, randomness, threads=1) -> None:
        self._scenario, self._iterations, self._k = scenario, iterations, 0
        self.record, self.local = StandInRecord(), {}
        self.models = scenario.initial_models()
        self.warnings = ["the link 0-1 carried nothing"] if type(trigger).__name__ == "ZeroThreshold" else []
        self._rate = 1.0 if type(trigger).__name__ == "ZeroThreshold" else 0.5

    @property
    def is_over(self) -> bool:
        return self._k == self._iterations

    @property
    def progress(self) -> float:
        return self._k / self._iterations

    def advance(self) -> None:
        k, record, devices = self._k, self.record, len(self.models)
        if k == 0:
            links = self._scenario.network.graph(0).links
            record.add("network", 0, links[:, 0].tolist(), links[:, 1].tolist())
        gradients = np.empty_like(self.models)
        batch = self._scenario.reader().batch(k)
        losses, _ = self._scenario.learner.backend.grads(self.models, batch, {}, gradients)
        self.models = self.models - np.float32(self._rate) * gradients
        self._k = k = k + 1
        for device, loss in enumerate(losses):
            record.add("steps", device, k - 1, float(k), True, float(loss))
        record.add("exchanges", k - 1.0, float(k), 0, 1, k, k, 0.25, 2, "committed", 100)
        accuracies, of_mean = self._scenario.learner.accuracies(self.models, {})
        found = accuracies.mean(), accuracies.min(), accuracies.max(), of_mean
        error = float(((self.models - self.models.mean(axis=0)) ** 2).sum())
        record.add("timeline", float(k), k * devices, k * devices, k, 100 * k, devices, *map(float, found), error, 0.0)

    def checkpoint(self):
        tensors = {"models": self.models, "k": np.array([self._k])}
        return tensors, {"pieces": str(self.record.pieces)}

    def restore(self, tensors, facts) -> None:
        if tensors["models"].shape != self.models.shape:
            raise ValueError("models of another shape")
        self.models, self._k = tensors["models"], int(tensors["k"].item())
        self.record.pieces = int(facts["pieces"])
