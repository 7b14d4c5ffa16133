"""One iteration of Alg. 1 for all devices at once: W(k+1) = P(k) W(k) - alpha(k) G(k).

Everything on the right-hand side is of iteration k and comes in as an argument.
`reference.py` is the same in plain loops; the tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from efhc import kernels
from efhc.base.arrays import Flags, Floats
from efhc.base.errors import EfhcError
from efhc.base.threads import in_ranges
from efhc.core.graph import Graph
from efhc.core.mixing import mix_and_descend

Local = Mapping[str, np.ndarray]
"""What devices keep to themselves and never mix (running statistics): name -> one row per device."""

NOTHING_LOCAL: Local = MappingProxyType({})


class State(NamedTuple):
    """What the next iteration needs."""

    k: int
    models: Floats
    """W(k), one row w_i per device."""
    last_broadcast: Floats
    """w_hat_i: each device's model when it last fired."""
    local: Local = NOTHING_LOCAL


class Info(NamedTuple):
    """What happened, for people to look at; nothing computes with it."""

    fired: Flags
    """v_i per device."""
    used: Flags
    """v_ij per link of the physical graph."""
    consensus_error: float
    """sum_i ||w_i - w_bar||^2 of the models it left."""


class Diverged(EfhcError):
    """Training left the numbers that there are; the state is still that of iteration k."""

    def __init__(self, k: int, what: str, finite: Flags) -> None:
        super().__init__(
            f"training diverged at iteration {k}: the {what} of device {int(np.argmin(finite))} is not finite; "
            "try a smaller step_size, and look at the scale of data and initial models"
        )


def finite_rows(models: Floats) -> Flags:
    """Which devices' models are finite. If all are (their squares overflowed), none is said to be."""
    finite: Flags = np.logical_and.reduce(np.isfinite(models), axis=1)
    return finite & ~finite.all()


def drift(models: Floats, last_broadcast: Floats, threads: int = 1) -> Floats:
    """(1/n)^(1/2) ||w_i - w_hat_i||_2 per device, summed in double precision."""
    drifts = np.empty(len(models))
    in_ranges(kernels.drift_rows, (models, last_broadcast, drifts), len(models), threads)
    return drifts


def consensus_error(models: Floats, threads: int = 1) -> float:
    """sum_i ||w_i - w_bar||^2, summed in double precision."""
    spreads = np.empty(-(-models.shape[1] // kernels.TILE))
    in_ranges(kernels.spread_tiles, (models, spreads), len(spreads), threads)
    return float(spreads.sum())


def iterate(
    state: State,
    graph: Graph,
    previous_graph: Graph,
    thresholds: Floats,
    gradients: Floats,
    step_size: float,
    threads: int = 1,
) -> tuple[State, Info]:
    """W(k+1) = P(k) W(k) - alpha(k) G(k), by the four events of Alg. 1.

    W: `state.models`; w_hat: `state.last_broadcast`; G: `gradients`, taken at W(k), before mixing; alpha: `step_size`;
    r rho_i gamma(k): `thresholds`; E(k), E(k-1): `graph`, `previous_graph`. Inside, v_i is `fired[i]`, v_ij is `used`.
    W(k+1) takes the memory of G, and w_hat changes in place; until the iteration is known to be good, neither W nor
    w_hat does.
    """
    k, models, last_broadcast, local = state
    i, j = graph.links.T

    new_links = graph.new_since(previous_graph)  # Event 1: neighbours that have just met exchange models
    fired = drift(models, last_broadcast, threads) >= thresholds  # Event 2: who drifted far enough broadcasts
    used = new_links | fired[i] | fired[j]  # whoever hears a broadcast answers it

    # Events 3 and 4: both ends of a used link average, P W, and every device descends, - alpha G
    next_models = mix_and_descend(graph, used, models, gradients, step_size, threads)

    error = consensus_error(next_models, threads)
    if not np.isfinite(error):
        raise Diverged(k, "model", finite_rows(next_models))
    in_ranges(kernels.copy_rows, (models, last_broadcast, fired), len(models), threads)  # w_hat_i(k+1) = w_i(k)
    return State(k + 1, next_models, last_broadcast, local), Info(fired, used, error)
