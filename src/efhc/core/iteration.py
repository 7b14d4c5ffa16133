"""One iteration of Alg. 1 for all devices at once: W(k+1) = P(k) W(k) - alpha(k) G(k).

Everything on the right-hand side is of iteration k and comes in as an argument; with the default arithmetic nothing
that comes in is changed. `reference.py` is the same in plain loops; the tests hold the two together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Flags, Floats
from efhc.core.arithmetic import PLAIN_LAW, LawArithmetic, finite_rows
from efhc.core.graph import Graph
from efhc.core.state import Diverged, State


class Info(NamedTuple):
    """What happened in an iteration, for people to look at; nothing computes with it."""

    fired: Flags
    """v_i per device."""
    used: Flags
    """v_ij per link of the physical graph."""
    consensus_error: float
    """sum_i ||w_i - w_bar||^2 of the models it left."""


def iterate(
    state: State,
    graph: Graph,
    previous_graph: Graph,
    thresholds: Floats,
    gradients: Floats,
    step_size: float,
    arithmetic: LawArithmetic = PLAIN_LAW,
) -> tuple[State, Info]:
    """W(k+1) = P(k) W(k) - alpha(k) G(k), by the four events of Alg. 1.

    W: `state.models`; w_hat: `state.last_broadcast`; G: `gradients`, taken at W(k), before mixing; alpha: `step_size`;
    r rho_i gamma(k): `thresholds`; E(k), E(k-1): `graph`, `previous_graph`. Inside, v_i is `fired[i]`, v_ij is `used`.
    Raises `Diverged` if a model of W(k+1) is not finite; W and w_hat are then as they were, whatever the `arithmetic`.
    """
    k, models, last_broadcast, local, _ = state
    i, j = graph.links.T

    new_links = graph.new_since(previous_graph)  # Event 1: neighbours that have just met exchange models
    drifts = arithmetic.drift(models, np.arange(len(models)), last_broadcast)
    fired = drifts >= thresholds  # Event 2: devices that drifted far enough broadcast
    used = new_links | fired[i] | fired[j]  # the receiver of a broadcast sends its model, too

    # Events 3 and 4: both ends of a used link average, P W, and every device descends, - alpha G
    next_models = arithmetic.mix_and_descend(graph, used, None, models, gradients, step_size)

    error = arithmetic.consensus_error(next_models)
    if not np.isfinite(error):
        raise Diverged(k, "model", finite_rows(next_models))
    next_last_broadcast = arithmetic.replaced("known", last_broadcast, fired, models)  # w_hat_i(k+1) = w_i(k)
    return State(k + 1, next_models, next_last_broadcast, local), Info(fired, used, error)
