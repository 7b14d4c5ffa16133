"""What is kept of one run (one strategy, one seed): a row of metrics and the events of every iteration.

Row k tells of iteration k: who fired, which links were used and what they cost at W(k), the batch loss at W(k), and
the models that it left, W(k+1): their consensus error and, where evaluated, their accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from efhc.core.arrays import Floats
from efhc.core.iteration import State
from efhc.learning.learner import Learner
from efhc.simulation.lockstep import Step

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


def consensus_error(models: Floats) -> float:
    """sum_i ||w_i - w_bar||^2"""
    distance = models - models.mean(axis=0, dtype=np.float64)
    return float(np.einsum("ij,ij->", distance, distance))


def list_column(arrays: list[np.ndarray]) -> pl.Series:
    """A column that holds one list of numbers per row."""
    lists = pl.List(pl.Int32)
    # The cast is for arrays that happen to be all of one length, which polars makes a matrix of.
    return pl.Series(arrays, dtype=lists).cast(lists)


class Entry(NamedTuple):
    """One iteration: its row of metrics, who fired, the links used."""

    row: tuple[Any, ...]
    fired: np.ndarray
    links: np.ndarray


class Record:
    """Grows by one row per iteration; goes into a checkpoint and comes back bit for bit."""

    def __init__(self) -> None:
        # One list, so that an iteration is noted down whole or, if that is interrupted, not at all.
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, iterations: int) -> None:
        """Forget what came after so many iterations."""
        del self._entries[iterations:]

    def add(self, state: State, step: Step, learner: Learner, *, evaluate: bool) -> None:
        """Note down iteration `step.k`, which led to `state`."""
        total = step.transmission_time + (self._entries[-1].row[2] if self._entries else 0.0)
        accuracy: tuple[float | None, ...] = (None, None, None)
        mean_model_accuracy = None
        if evaluate:
            each = learner.accuracies(state.models)
            accuracy = float(each.mean()), float(each.min()), float(each.max())
            mean_model = state.models.mean(axis=0, dtype=np.float64).astype(state.models.dtype)
            mean_model_accuracy = float(learner.accuracies(mean_model[None])[0])
        row = (
            step.k,
            step.transmission_time,
            total,
            int(step.fired.sum()),
            int(step.used.sum()),
            float(step.losses.mean(dtype=np.float64)),
            *accuracy,
            consensus_error(state.models),
            mean_model_accuracy,
        )
        fired, links = np.flatnonzero(step.fired).astype(np.int32), step.links_used.astype(np.int32)
        self._entries.append(Entry(row, fired, links))

    def metrics(self) -> pl.DataFrame:
        """One row per iteration."""
        return pl.DataFrame([entry.row for entry in self._entries], schema=METRICS, orient="row")

    def events(self) -> pl.DataFrame:
        """One row per iteration: the devices that fired, and the two ends of every link used."""
        return pl.DataFrame(
            {
                "iteration": pl.Series([entry.row[0] for entry in self._entries], dtype=pl.Int64),
                "fired": list_column([entry.fired for entry in self._entries]),
                "link_from": list_column([entry.links[:, 0] for entry in self._entries]),
                "link_to": list_column([entry.links[:, 1] for entry in self._entries]),
            }
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything, as arrays that a checkpoint can hold. Null becomes NaN: nothing that is recorded is NaN."""
        return {
            "rows": np.array([entry.row for entry in self._entries], dtype=np.float64).reshape(-1, len(METRICS)),
            "fired_counts": np.array([len(entry.fired) for entry in self._entries], dtype=np.int64),
            "fired": np.concatenate([np.empty(0, np.int32), *(entry.fired for entry in self._entries)]),
            "links_counts": np.array([len(entry.links) for entry in self._entries], dtype=np.int64),
            "links": np.concatenate([np.empty((0, 2), np.int32), *(entry.links for entry in self._entries)]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Record:
        """The reverse of `to_arrays`."""
        record = cls()
        whole = [isinstance(kind, pl.Int64) for kind in METRICS.values()]
        rows = [
            tuple(int(v) if w else None if np.isnan(v) else v for v, w in zip(row, whole, strict=True))
            for row in arrays["rows"].tolist()
        ]
        fired = np.split(arrays["fired"], np.cumsum(arrays["fired_counts"]))[:-1]
        links = np.split(arrays["links"], np.cumsum(arrays["links_counts"]))[:-1]
        if not len(rows) == len(fired) == len(links):
            raise ValueError("its parts tell of different numbers of iterations")
        record._entries = list(map(Entry, rows, fired, links))
        return record
