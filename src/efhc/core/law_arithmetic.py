"""The arithmetic of `core.law` in NumPy: one function per pass over the models. These change none of their arguments.

A driver may give the law one that is compiled (`efhc.kernels.compiled_law`); the tests hold the two together.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.core.arithmetic import consensus_error, drift
from efhc.core.graph import Graph
from efhc.core.parts import Codec


class Pull(NamedTuple):
    """What draws devices together: device i gets sum_e weight_e (pool[theirs_e] - pool[mine_e]) over its links e."""

    pool: Floats
    mine: Ints
    theirs: Ints
    weights: Floats
    """Per directed link, the same in both directions; 0 where a link is not used."""
    correction: Floats | float
    """theta / A_e: what the correction learns of each term. One number for all links, or one per directed link."""


class Local(NamedTuple):
    """What the local steps go by: m and h, one row per device, or None; mu, and alpha(k)."""

    momentum: Floats | None
    correction: Floats | None
    mu: float
    step_size: float


class Messages(NamedTuple):
    """What devices may send: row r of `known` is what is known of the model of device who[r]."""

    codec: Codec
    models: Floats
    who: Ints
    known: Floats
    thresholds: Floats
    """Per row, that of its coordinates."""
    chosen: Flags
    """The rows of which anything is sent."""


class LawArithmetic(Protocol):
    """What an iteration computes with. `who` has the device of each row of `known`; `role` names the array."""

    def descend(self, models: Floats, gradients: Floats, local: Local) -> Floats:
        """y = x - alpha (mu m + g - h). The result may take the memory of `gradients`."""
        ...

    def drift(self, models: Floats, who: Ints, known: Floats) -> Floats:
        """(1/n)^(1/2) ||models[who[r]] - known[r]||_2 for each row r of `known`."""
        ...

    def send(self, role: str, messages: Messages) -> tuple[Floats, Ints]:
        """Return what is known after the messages of the chosen rows, and the bits of each row's message."""
        ...

    def replaced(self, role: str, known: Floats, chosen: Flags, models: Floats, who: Ints) -> Floats:
        """Return `known` with models[who[r]] in the chosen rows. `known` may be what `send` returned."""
        ...

    def kept(self, role: str, changed: Floats, chosen: Flags, before: Floats) -> Floats:
        """Return `changed`, which `send` returned, with the chosen rows as they were `before`."""
        ...

    def pull(self, graph: Graph, pull: Pull, y: Floats, models: Floats, local: Local) -> tuple[Floats, Local]:
        """x' = y + f; m' = mu m + (1 - mu)(x - x') / alpha; h' = h + sum_e correction_e f_e. Returns x', and m' and h'.

        x' may take the memory of y.
        """
        ...

    def consensus_error(self, models: Floats) -> float:
        """sum_i ||w_i - w_bar||^2"""
        ...


class _Plain:
    """`LawArithmetic` in NumPy."""

    @np.errstate(over="ignore", invalid="ignore")
    def descend(self, models: Floats, gradients: Floats, local: Local) -> Floats:
        kind, (m, h, mu, alpha) = models.dtype.type, local
        direction = gradients if m is None else gradients + kind(mu) * m
        direction = direction if h is None else direction - h
        y: Floats = models - kind(alpha) * direction
        return y

    def drift(self, models: Floats, who: Ints, known: Floats) -> Floats:
        return drift(models[who], known)

    def send(self, role: str, messages: Messages) -> tuple[Floats, Ints]:
        codec, models, who, known, thresholds, chosen = messages
        after, bits = known.copy(), np.zeros(len(known), dtype=np.int64)
        for row in np.flatnonzero(chosen):
            after[row], bits[row] = codec.send(models[who[row]], known[row], float(thresholds[row]))
        return after, bits

    def replaced(self, role: str, known: Floats, chosen: Flags, models: Floats, who: Ints) -> Floats:
        return np.where(chosen[:, None], models[who], known)

    def kept(self, role: str, changed: Floats, chosen: Flags, before: Floats) -> Floats:
        return np.where(chosen[:, None], before, changed)

    @np.errstate(over="ignore", invalid="ignore")
    def pull(self, graph: Graph, pull: Pull, y: Floats, models: Floats, local: Local) -> tuple[Floats, Local]:
        kind, (m, h, mu, alpha) = models.dtype.type, local
        f, learned = np.zeros_like(y), np.zeros_like(y)
        scales = np.broadcast_to(pull.correction, pull.weights.shape)
        for e in np.flatnonzero(pull.weights):
            term = kind(pull.weights[e]) * (pull.pool[pull.theirs[e]] - pull.pool[pull.mine[e]])
            f[graph.directed.sender[e]] += term
            learned[graph.directed.sender[e]] += kind(scales[e]) * term
        after = y + f
        m = None if m is None else kind(mu) * m + kind((1 - mu) / alpha) * (models - after)
        return after, local._replace(momentum=m, correction=None if h is None else h + learned)

    def consensus_error(self, models: Floats) -> float:
        return consensus_error(models)


PLAIN_LAW: LawArithmetic = _Plain()
