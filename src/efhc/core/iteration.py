"""One iteration of Alg. 1 for all devices at once: W(k+1) = P(k) W(k) - alpha(k) G(k).

Pure: everything on the right-hand side is of iteration k and comes in as an argument.
`reference.py` is the same in plain loops; the tests hold the two together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from efhc.core.arrays import Flags, Floats
from efhc.core.graph import Graph
from efhc.core.mixing import mixing_matrix


class State(NamedTuple):
    """What the next iteration needs."""

    k: int
    models: Floats
    """W(k), one row w_i per device."""
    last_broadcast: Floats
    """w_hat_i: each device's model when it last fired."""


class Info(NamedTuple):
    """What happened, for people to look at; nothing computes with it."""

    fired: Flags
    """v_i per device."""
    used: Flags
    """v_ij per link of the physical graph."""


def drift(models: Floats, last_broadcast: Floats) -> Floats:
    """(1/n)^(1/2) ||w_i - w_hat_i||_2 per device, summed in double precision."""
    change = models - last_broadcast
    squares: Floats = np.einsum("ij,ij->i", change, change, dtype=np.float64)
    distances: Floats = np.sqrt(squares / models.shape[1])
    return distances


def iterate(
    state: State, graph: Graph, previous_graph: Graph, thresholds: Floats, gradients: Floats, step_size: float
) -> tuple[State, Info]:
    """W(k+1) = P(k) W(k) - alpha(k) G(k), by the four events of Alg. 1.

    W: `state.models`; w_hat: `state.last_broadcast`; G: `gradients`, taken at W(k), before mixing; alpha: `step_size`;
    r rho_i gamma(k): `thresholds`; E(k), E(k-1): `graph`, `previous_graph`. Inside, v_i is `fired[i]`, v_ij is `used`.
    """
    k, models, last_broadcast = state
    i, j = graph.links.T

    new_links = graph.new_since(previous_graph)  # Event 1: neighbours that have just met exchange models
    fired = drift(models, last_broadcast) >= thresholds  # Event 2: a device that drifted far enough broadcasts
    next_last_broadcast = np.where(fired[:, None], models, last_broadcast)
    used = new_links | fired[i] | fired[j]  # whoever hears a broadcast answers it

    P = mixing_matrix(graph, used).astype(models.dtype)  # Event 3: both ends of a used link average
    next_models = P @ models - models.dtype.type(step_size) * gradients  # Event 4: gradient descent

    return State(k + 1, next_models, next_last_broadcast), Info(fired, used)
