"""One iteration of a strategy that is a table of parts, for all devices at once. EF-HC is the case of `core.iteration`.

    y_i = x_i - alpha (mu m_i + g_i - h_i)              the local step
    x_hat_i <- x_hat_i + C(y_i - x_hat_i)               what the neighbours know of i, where the trigger says so
    f_i = gamma sum_j w_ij (x_hat_j - x_hat_i)          mixing estimates; or exchange: sum_j v_ij beta_ij (x_j - x_i)
    x_i <- y_i + f_i
    h_i <- h_i + (theta / alpha) f_i,   m_i <- mu m_i + (1 - mu)(x_i_before - x_i) / alpha

The two ends of a link add opposite terms, so that sum_i f_i = 0 and sum_i h_i = 0: mixing never moves the mean model,
whatever is left out of messages. Nothing that comes in is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.core.cost import BITS_PER_NUMBER, airtime_bits
from efhc.core.iteration import finite_rows
from efhc.core.law_arithmetic import PLAIN_LAW, LawArithmetic, Pull
from efhc.core.parts import ChosenLinks, EstimatesMixing, Parts
from efhc.core.state import Diverged, State
from efhc.core.views import Now

KIND_BITS = 8
"""In front of every message: what it is."""


class Happened(NamedTuple):
    """What an iteration did, for people to look at."""

    fired: Flags
    """Which devices sent something of their own accord."""
    bits: Ints
    """Bits sent over each directed link, lost ones included."""
    consensus_error: float


@dataclass(frozen=True, eq=False)
class Asked:
    """What the trigger says in this iteration: one of the two."""

    thresholds: Floats | None
    """threshold_i(k)"""
    fires: Callable[[Floats], Flags] | None = None
    """v_i of all devices, given their drifts; of a trigger that looks at them."""
    is_entrywise: bool = False
    """Whether thresholds are those of coordinates."""

    def fired(self, drifts: Floats, devices: int, sender: Ints) -> Flags:
        """Return who fires, where `drifts` has one entry per sender."""
        if self.thresholds is not None:
            return drifts >= self.thresholds[sender]
        assert self.fires is not None
        largest = np.zeros(devices)
        np.maximum.at(largest, sender, drifts)
        return self.fires(largest)[sender]


class _Told(NamedTuple):
    """What devices know of each other after this iteration's messages."""

    known: Floats
    """x_hat_i of each device."""
    fired: Flags
    bits: Ints
    pool: Floats
    """The array whose rows are pulled together."""
    mine: Ints
    """For each directed link, the row of what its receiver knows of its sender ..."""
    theirs: Ints
    """... and the row of what its sender knows of its receiver."""
    used: Flags
    """The directed links over which devices are pulled together."""


def iterate_parts(
    parts: Parts, state: State, now: Now, gradients: Floats, asked: Asked, arithmetic: LawArithmetic = PLAIN_LAW
) -> tuple[State, Happened]:
    """Make one iteration. `state.memory` holds what `strategies.forms` says that these parts remember.

    Raises `Diverged` if a model is no longer finite; what came in is then as it was.
    """
    k, models, _, local, before = state
    memory = dict(before)
    chosen = parts.links.choose(now) if parts.links else ChosenLinks(now.graph.all_links)
    mu, theta, alpha = parts.local.momentum, parts.local.correction, now.step_size
    y = arithmetic.descend(models, gradients, memory.get("momentum"), memory.get("correction"), mu, alpha)
    if not isinstance(parts.mixing, EstimatesMixing):
        told, rate = _exchange(parts, state, now, chosen, asked, memory, arithmetic), 1.0
    elif parts.mixing.per == "device":
        told, rate = _broadcast(parts, state, y, now, chosen, asked, memory, arithmetic), parts.mixing.rate
    else:
        told, rate = _send_to_each(parts, state, y, now, chosen, asked, memory, arithmetic), parts.mixing.rate

    link = now.graph.directed.link
    weights = now.graph.metropolis_weights if chosen.weights is None else chosen.weights
    per_link: Floats | float = theta / alpha if theta else 0.0
    if "elapsed" in memory:  # the correction of a link that is seldom used counts for all steps since then
        elapsed = memory["elapsed"] + alpha
        per_link = theta / elapsed
        memory["elapsed"] = np.where(told.used, 0.0, elapsed)
    pull = Pull(told.pool, told.mine, told.theirs, np.where(told.used, rate * weights[link], 0.0), per_link)
    next_models, momentum, correction = arithmetic.pull(
        now.graph, pull, y, models, memory.get("momentum"), memory.get("correction"), mu, alpha
    )
    error = arithmetic.consensus_error(next_models)
    if not np.isfinite(error):
        raise Diverged(k, "model", finite_rows(next_models))
    if momentum is not None:
        memory["momentum"] = momentum
    if correction is not None:
        memory["correction"] = correction
    return State(k + 1, next_models, told.known, local, memory), Happened(told.fired, told.bits, error)


def _exchange(
    parts: Parts,
    state: State,
    now: Now,
    chosen: ChosenLinks,
    asked: Asked,
    memory: dict[str, np.ndarray],
    arithmetic: LawArithmetic,
) -> _Told:
    """Events 1 to 3 of the paper: both ends of a used link send their whole models."""
    graph, models, known = now.graph, state.models, state.last_broadcast
    (i, j), (sender, receiver, link, _), devices = graph.links.T, graph.directed, np.arange(graph.devices)
    fired = asked.fired(arithmetic.drift(models, devices, known), graph.devices, devices)
    used = chosen.active & (now.new_links | fired[i] | fired[j])
    whole = BITS_PER_NUMBER * models.shape[1]
    if parts.budget:  # a link is used if both ends can pay for all that they would like to use
        credit = _with_income(parts, memory, now, models.shape[1])
        affordable = credit >= airtime_bits(now.graph, np.where(used[link], whole, 0))
        used, fired = used & affordable[i] & affordable[j], fired & affordable
    bits = np.where(used[link], whole, 0)
    if parts.budget:
        memory["credit"] = credit - airtime_bits(now.graph, bits)
    if now.lost is not None:  # an exchange of which a message is lost does not take place, and is paid for
        lost = np.zeros(len(used), dtype=bool)
        np.logical_or.at(lost, link, now.lost)
        used = used & ~lost
    known = arithmetic.replaced("known", known, fired, models, devices)
    return _Told(known, fired, bits, models, sender, receiver, used[link])


def _broadcast(
    parts: Parts,
    state: State,
    y: Floats,
    now: Now,
    chosen: ChosenLinks,
    asked: Asked,
    memory: dict[str, np.ndarray],
    arithmetic: LawArithmetic,
) -> _Told:
    """What all neighbours know of a device changes by one message to all of them; a new neighbour is told the rest."""
    graph, known, (sender, receiver, link, back) = now.graph, state.last_broadcast, now.graph.directed
    devices, active, n = np.arange(graph.devices), chosen.active[link], y.shape[1]
    next_known, sent = _encoded(parts, "known", y, devices, known, asked, None, arithmetic)
    first = np.where(active & now.new_links[link], whole_message_bits(y), 0)
    if parts.budget:
        credit = _with_income(parts, memory, now, n) - airtime_bits(now.graph, first)
        cost = airtime_bits(now.graph, np.where(active, sent[sender], 0))
        unpaid = cost > credit
        next_known, sent = arithmetic.kept("known", next_known, unpaid, known), np.where(unpaid, 0, sent)
        memory["credit"] = credit - np.where(unpaid, 0.0, cost)
    bits = np.where(active, sent[sender], 0) + first
    used = active & _mixes(parts, now, bits, back)
    return _Told(next_known, sent > 0, bits, next_known, sender, receiver, used)


def _send_to_each(
    parts: Parts,
    state: State,
    y: Floats,
    now: Now,
    chosen: ChosenLinks,
    asked: Asked,
    memory: dict[str, np.ndarray],
    arithmetic: LawArithmetic,
) -> _Told:
    """What a neighbour knows of a device changes by a message of its own, which it acknowledges."""
    graph, (sender, _, link, back) = now.graph, now.graph.directed
    estimates, met, active, n = memory["estimates"], memory["met"], chosen.active[link], y.shape[1]
    next_estimates, sent = _encoded(parts, "estimates", y, sender, estimates, asked, active & met, arithmetic)
    meets = active & ~met
    first = np.where(meets, whole_message_bits(y), 0)
    if parts.budget:
        credit = _with_income(parts, memory, now, n) - airtime_bits(now.graph, first)
        cost = airtime_bits(now.graph, sent)
        unpaid = (cost > credit)[sender]
        next_estimates, sent = (
            arithmetic.kept("estimates", next_estimates, unpaid, estimates),
            np.where(unpaid, 0, sent),
        )
        memory["credit"] = credit - np.where(cost > credit, 0.0, cost)
    next_estimates = arithmetic.replaced("estimates", next_estimates, meets, y, sender)
    bits, arrived = sent + first, np.ones(len(sent), dtype=bool) if now.lost is None else ~now.lost
    if now.lost is not None:
        next_estimates = arithmetic.kept("estimates", next_estimates, now.lost & (bits > 0), estimates)
    memory["estimates"], memory["met"] = next_estimates, met | (meets & arrived)
    both_know = memory["met"] & memory["met"][back]
    used = active & both_know & _mixes(parts, now, np.where(arrived, bits, 0), back)
    fired = np.zeros(graph.devices, dtype=bool)
    fired[sender[sent > 0]] = True
    rows = np.arange(len(sender))
    return _Told(state.last_broadcast, fired, bits, next_estimates, rows, back, used)


def _encoded(
    parts: Parts,
    role: str,
    y: Floats,
    who: Ints,
    known: Floats,
    asked: Asked,
    among: Flags | None,
    arithmetic: LawArithmetic,
) -> tuple[Floats, Ints]:
    """Return what is known after the messages of those rows `among` whose trigger fires, and the bits of each."""
    if asked.is_entrywise:
        assert asked.thresholds is not None
        thresholds, chosen = asked.thresholds[who], np.ones(len(who), dtype=bool)
    else:
        thresholds = np.zeros(len(who))
        chosen = asked.fired(arithmetic.drift(y, who, known), len(y), who)
    chosen = chosen if among is None else chosen & among
    return arithmetic.send(role, parts.codec, y, who, known, thresholds, chosen)


def _mixes(parts: Parts, now: Now, bits: Ints, back: Ints) -> Flags:
    """Return the directed links over which devices mix in this iteration, given the bits that arrived."""
    mixing = parts.mixing
    assert isinstance(mixing, EstimatesMixing)
    if now.k % mixing.every:
        return np.zeros(len(bits), dtype=bool)
    return np.ones(len(bits), dtype=bool) if mixing.when == "always" else (bits > 0) | (bits[back] > 0)


def whole_message_bits(models: Floats) -> int:
    """Return the bits of a message with all numbers of a model, as they are held."""
    return int(KIND_BITS + 8 * models.dtype.itemsize * models.shape[1])


def _with_income(parts: Parts, memory: dict[str, np.ndarray], now: Now, parameters: int) -> Floats:
    """Return each device's credit in bits, with this iteration's share of what ZT would spend."""
    assert parts.budget is not None
    income = np.where(now.graph.degrees > 0, parts.budget.share * BITS_PER_NUMBER * parameters, 0.0)
    credit: Floats = memory["credit"] + income
    return credit
