"""How much a run may spend on communication, and the accuracy that it reaches with that."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from efhc.base.errors import InputError
from efhc.report.claims.panels import accuracy_at

COLUMNS = {"transmission_time": "transmission_time_total", "broadcasts": "broadcasts_total"}
"""What a budget limits, and the column of a run's curve that adds it up."""


@dataclass(frozen=True)
class Budget:
    """An upper limit on the total transmission time, or on the broadcasts of all devices together."""

    kind: str
    """A key of `COLUMNS`."""
    amount: float

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read `transmission_time=500` or `broadcasts=2000`."""
        kind, _, number = (part.strip() for part in text.partition("="))
        try:
            amount = float(number)
        except ValueError:
            amount = math.nan
        if kind not in COLUMNS or not (0 < amount < math.inf):
            allowed = "transmission_time=T or broadcasts=N, a positive number"
            raise InputError("--budget", repr(text), allowed)
        return cls(kind, amount)

    def __str__(self) -> str:
        return f"{self.kind}={self._number}"

    @property
    def words(self) -> str:
        """The budget as figures name it: "2000 broadcasts"."""
        return f"{self._number} broadcasts" if self.kind == "broadcasts" else f"transmission time {self._number}"

    @property
    def _number(self) -> int | float:
        return int(self.amount) if self.amount.is_integer() else self.amount

    def accuracies(self, curves: pl.DataFrame, share: float = 1.0) -> list[float]:
        """Return each seed's accuracy when it has spent `share` of the budget; if it never does, at its end."""
        # `accuracy_at` reads accuracies against transmission time; here they are read against what the budget limits.
        against = curves.with_columns(pl.col(COLUMNS[self.kind]).alias("transmission_time_total"))
        return accuracy_at(against, share * self.amount)["accuracy"].to_list()

    def spent(self, curves: pl.DataFrame) -> list[float]:
        """Return how much of the budget each seed has spent."""
        return [min(total, self.amount) for total in self._totals(curves)]

    def is_exceeded(self, curves: pl.DataFrame) -> bool:
        """Return whether every seed has spent more: further iterations cannot change the accuracies any more."""
        return all(total > self.amount for total in self._totals(curves))

    def _totals(self, curves: pl.DataFrame) -> list[float]:
        totals = curves.group_by("seed", maintain_order=True).agg(pl.col(COLUMNS[self.kind]).max())
        return [float(total) for total in totals.to_series(1)]
