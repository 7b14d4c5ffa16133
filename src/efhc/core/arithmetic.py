"""The arithmetic of an iteration, in NumPy: one function per pass over the models. No function changes its arguments.

`Arithmetic` is what `core.iteration.iterate` computes with. A driver that owns its arrays may give it one that is
compiled and works in place (`efhc.kernels.compiled_arithmetic`); the tests hold the two together. What overflows
becomes infinite or NaN without a warning: `iterate` looks for it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from efhc.base.arrays import Flags, Floats
from efhc.core.graph import Graph
from efhc.core.mixing import mix_and_descend


@np.errstate(over="ignore", invalid="ignore")
def drift(models: Floats, last_broadcast: Floats) -> Floats:
    """(1/n)^(1/2) ||w_i - w_hat_i||_2 per device, summed in double precision."""
    change = np.subtract(models, last_broadcast).astype(np.float64)
    drifts: Floats = np.sqrt(np.square(change).mean(axis=1))
    return drifts


@np.errstate(over="ignore", invalid="ignore")
def consensus_error(models: Floats) -> float:
    """sum_i ||w_i - w_bar||^2, summed in double precision."""
    seen_from_first = np.subtract(models, models[0]).astype(np.float64)  # so that little cancels
    return float(np.square(seen_from_first - seen_from_first.mean(axis=0)).sum())


def finite_rows(models: Floats) -> Flags:
    """Which devices' models are finite."""
    finite: Flags = np.logical_and.reduce(np.isfinite(models), axis=1)
    return finite


def replace_rows(rows: Floats, chosen: Flags, by: Floats) -> Floats:
    """`rows`, with row i of `by` where chosen[i]."""
    return np.where(chosen[:, None], by, rows)


class Arithmetic(Protocol):
    """The passes over the models that an iteration consists of.

    An implementation may write its result to `gradients` or `rows`, if it says so.
    """

    def drift(self, models: Floats, last_broadcast: Floats) -> Floats:
        """(1/n)^(1/2) ||w_i - w_hat_i||_2 per device."""
        ...

    def mix_and_descend(self, graph: Graph, used: Flags, models: Floats, gradients: Floats, step_size: float) -> Floats:
        """P W - alpha G, where P = `mixing_matrix(graph, used)`."""
        ...

    def consensus_error(self, models: Floats) -> float:
        """sum_i ||w_i - w_bar||^2"""
        ...

    def replace_rows(self, rows: Floats, chosen: Flags, by: Floats) -> Floats:
        """`rows`, with row i of `by` where chosen[i]."""
        ...


class PlainArithmetic:
    """The functions of this module."""

    drift = staticmethod(drift)
    mix_and_descend = staticmethod(mix_and_descend)
    consensus_error = staticmethod(consensus_error)
    replace_rows = staticmethod(replace_rows)


PLAIN = PlainArithmetic()
