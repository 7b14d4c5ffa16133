"""How much a run may spend on communication, and the accuracy that it reaches with that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import polars as pl

from efhc.base.errors import InputError
from efhc.report.claims.panels import accuracy_within

COLUMNS = {
    "transmission_time": "transmission_time_total",
    "broadcasts": "broadcasts_total",
    "zt": "transmission_time_total",
}
"""What a budget limits, and the column of a run's curve that adds it up."""


@dataclass(frozen=True)
class TuningBudget:
    """An upper limit on the total transmission time, or on the broadcasts of all devices together."""

    kind: str
    """A key of `COLUMNS`."""
    amount: float
    """For the kind "zt", the share of the transmission time that ZT takes with the same seed."""
    totals: Mapping[int, float] = field(default_factory=dict, compare=False)
    """For the kind "zt", what ZT takes with each seed."""

    @classmethod
    def parse(cls, text: str) -> TuningBudget:
        """Read `transmission_time=500`, `broadcasts=2000` or `zt=2%`."""
        kind, _, number = (part.strip() for part in text.partition("="))
        percent = kind == "zt" and number.endswith("%")
        try:
            amount = float(number.removesuffix("%")) / 100 if percent else float(number)
        except ValueError:
            amount = math.nan
        if kind not in COLUMNS or not (0 < amount < math.inf) or (kind == "zt" and not percent):
            allowed = "transmission_time=T, broadcasts=N or zt=P% (a share of what ZT spends), with a number above 0"
            raise InputError("--budget", repr(text) if text else "nothing", allowed)
        return cls(kind, amount)

    def __str__(self) -> str:
        return f"{self.kind}={self._number}" if self.kind != "zt" else f"zt={100 * self.amount:.6g}%"

    @property
    def words(self) -> str:
        """The budget as figures name it: "2000 broadcasts"."""
        if self.kind == "zt":
            return f"{100 * self.amount:.6g} % of ZT's transmission time"
        return f"{self._number} broadcasts" if self.kind == "broadcasts" else f"transmission time {self._number}"

    @property
    def _number(self) -> int | float:
        return int(self.amount) if self.amount.is_integer() else self.amount

    @property
    def needs_zt(self) -> bool:
        """Whether ZT has to be run before anything can be measured."""
        return self.kind == "zt" and not self.totals

    def measured_by(self, curves: pl.DataFrame) -> TuningBudget:
        """Return the budget with what ZT takes, given the curves of ZT."""
        totals = curves.group_by("seed").agg(pl.col("transmission_time_total").max())
        return replace(self, totals=dict(totals.iter_rows()))

    def of_seed(self, seed: int) -> float:
        """Return what the run with this seed may spend."""
        return self.amount * self.totals[seed] if self.kind == "zt" else self.amount

    def accuracies(self, curves: pl.DataFrame, share: float = 1.0) -> list[float]:
        """Return each seed's accuracy when it has spent `share` of the budget; if it never does, at its end."""
        # `accuracy_within` reads accuracies against transmission time; here it is what the budget limits.
        against = curves.with_columns(pl.col(COLUMNS[self.kind]).alias("transmission_time_total"))
        budgets = {seed: share * self.of_seed(seed) for seed in curves["seed"].unique()}
        return accuracy_within(against, budgets)["accuracy"].to_list()

    def spent(self, curves: pl.DataFrame) -> list[float]:
        """Return how much of the budget each seed has spent."""
        return [min(total, self.of_seed(seed)) for seed, total in self._totals(curves)]

    def is_exceeded(self, curves: pl.DataFrame) -> bool:
        """Return whether every seed has spent more: further iterations cannot change the accuracies any more."""
        return all(total > self.of_seed(seed) for seed, total in self._totals(curves))

    def _totals(self, curves: pl.DataFrame) -> list[tuple[int, float]]:
        totals = curves.group_by("seed", maintain_order=True).agg(pl.col(COLUMNS[self.kind]).max())
        return [(seed, float(total)) for seed, total in totals.iter_rows()]
