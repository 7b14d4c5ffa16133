"""What is kept of a run off lockstep: samples of the whole, every exchange, every step, every graph.

timeline   a row per sample: how far all devices are, how good, and how far apart
exchanges  a row per exchange, written by the end that decides, when it is over there; an end in doubt that gives up
           writes a row of its own, "unresolved", with the norm of the step that it does not make
steps      a row per local iteration, written when w_i(k+1) is there
network    a row per graph G(k) that differs from the one before
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from efhc.drivers.record import Piece
from efhc.learning.measures import CLASSIFICATION, measures_of

TIMELINE: dict[str, pl.DataType] = {
    "seconds": pl.Float64(),
    "steps": pl.Int64(),
    "broadcasts": pl.Int64(),
    "exchanges": pl.Int64(),
    "bytes": pl.Int64(),
    "devices": pl.Int64(),
    "consensus_error": pl.Float64(),
    "imbalance": pl.Float64(),
    **dict.fromkeys(measures_of(CLASSIFICATION), pl.Float64()),
}
"""Those of metrics of the user's own follow as further columns."""
EXCHANGES: dict[str, pl.DataType] = {
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
    "norm": pl.Float64(),
}
STEPS: dict[str, pl.DataType] = {
    "device": pl.Int32(),
    "k": pl.Int64(),
    "seconds": pl.Float64(),
    "fired": pl.Boolean(),
    "loss": pl.Float64(),
}
NETWORK: dict[str, pl.DataType] = {
    "iteration": pl.Int64(),
    "link_from": pl.List(pl.Int32()),
    "link_to": pl.List(pl.Int32()),
}

PIECE_ROWS = 1 << 18
"""A piece is large enough to be put away when it has this many rows."""


@dataclass
class EventRecord:
    """Grows row by row, and is emptied by `take`."""

    pieces: int = 0
    """The number of pieces taken."""
    timeline: list[dict[str, Any]] = field(default_factory=list)
    exchanges: list[tuple[Any, ...]] = field(default_factory=list)
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    network: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def is_large(self) -> bool:
        """Whether it is time to take a piece."""
        return len(self.exchanges) + len(self.steps) + 64 * len(self.network) >= PIECE_ROWS

    def take(self) -> Piece:
        """Return everything recorded since the last piece. The record goes on after it."""
        own = dict.fromkeys((name for row in self.timeline for name in row if name not in TIMELINE), pl.Float64())
        tables = {
            name: pl.DataFrame(getattr(self, name), schema=schema, orient="row")
            for name, schema in (
                ("timeline", {**TIMELINE, **own}),
                ("exchanges", EXCHANGES),
                ("steps", STEPS),
                ("network", NETWORK),
            )
        }
        piece = Piece(self.pieces, self.pieces + 1, tables)
        self.pieces += 1
        self.timeline, self.exchanges, self.steps, self.network = [], [], [], []
        return piece
