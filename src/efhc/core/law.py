"""One iteration of a strategy that is a table of parts, for all devices at once. EF-HC is the case of `core.iteration`.

    y_i = x_i - alpha (mu m_i + g_i - h_i)              the local step
    x_hat_i <- x_hat_i + C(y_i - x_hat_i)               what the neighbours know of i, where the trigger says so
    f_i = gamma sum_j w_ij (x_hat_j - x_hat_i)          mixing estimates; or exchange: sum_j v_ij beta_ij (x_j - x_i)
    x_i <- y_i + f_i
    h_i <- h_i + (theta / alpha) f_i,   m_i <- mu m_i + (1 - mu)(x_i_before - x_i) / alpha

The two ends of a link add opposite terms, so that sum_i f_i = 0 and sum_i h_i = 0: mixing never moves the mean model,
whatever is left out of messages. Nothing that comes in is changed, but that compiled arithmetic may write to the
gradients.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.core.iteration import finite_rows
from efhc.core.law_arithmetic import PLAIN_LAW, LawArithmetic, Local, Pull
from efhc.core.parts import ChosenLinks, EstimatesMixing, Parts
from efhc.core.state import Diverged, State
from efhc.core.telling import Asked, Telling
from efhc.core.views import Now


class Happened(NamedTuple):
    """What an iteration did, for people to look at."""

    fired: Flags
    """Which devices sent something of their own accord."""
    bits: Ints
    """Bits sent over each directed link, lost ones included."""
    consensus_error: float


def iterate_parts(
    parts: Parts, state: State, now: Now, gradients: Floats, asked: Asked, arithmetic: LawArithmetic = PLAIN_LAW
) -> tuple[State, Happened]:
    """Make one iteration. `state.memory` holds what `strategies.forms` says that these parts remember.

    mu: `parts.local.momentum`; theta: `parts.local.correction`; gamma: `parts.mixing.rate`; alpha: `now.step_size`;
    m, h: "momentum" and "correction" of the memory. Raises `Diverged` if a model is no longer finite; what came in is
    then as it was.
    """
    memory = dict(state.memory)
    theta, alpha = parts.local.correction, now.step_size
    local = Local(memory.get("momentum"), memory.get("correction"), parts.local.momentum, alpha)
    links = parts.links.choose(now) if parts.links else ChosenLinks(now.graph.all_links)

    y = arithmetic.descend(state.models, gradients, local)
    telling, rate = Telling(parts, state, now, links.active, asked, memory, arithmetic), 1.0
    if isinstance(parts.mixing, EstimatesMixing):
        rate = parts.mixing.rate
        told = telling.broadcast(y) if parts.mixing.per == "device" else telling.send_to_each(y)
    else:
        told = telling.exchange()

    weights = now.graph.metropolis_weights if links.weights is None else links.weights
    used_weights = np.where(told.used, rate * weights[now.graph.directed.link], 0.0)
    learns: Floats | float = theta / alpha
    if "elapsed" in memory:  # the correction of a link that is seldom used counts for all steps since then
        elapsed = memory["elapsed"] + alpha
        learns, memory["elapsed"] = theta / elapsed, np.where(told.used, 0.0, elapsed)
    pull = Pull(told.pool, told.mine, told.theirs, used_weights, learns)
    models, local = arithmetic.pull(now.graph, pull, y, state.models, local)

    error = arithmetic.consensus_error(models)
    if not np.isfinite(error):
        raise Diverged(state.k, "model", finite_rows(models))
    after = {"momentum": local.momentum, "correction": local.correction}
    memory |= {name: array for name, array in after.items() if array is not None}
    return State(state.k + 1, models, told.known, state.local, memory), Happened(told.fired, told.bits, error)
