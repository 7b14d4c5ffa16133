"""Who tells whom what in an iteration of `core.law`: whole models, exchanged, or changes of what neighbours know.

`Telling` has one method for each kind of mixing. Each returns what devices know of each other afterwards, what was
sent, and over which links devices are pulled together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.core.cost import BITS_PER_NUMBER, airtime_bits, exchange_bits
from efhc.core.law_arithmetic import LawArithmetic, Messages
from efhc.core.parts import EstimatesMixing, Parts
from efhc.core.state import State
from efhc.core.views import Now

KIND_BITS = 8
"""In front of every message: what it is."""


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


class Told(NamedTuple):
    """What devices know of each other after the messages of an iteration."""

    known: Floats
    """x_hat_i of each device."""
    fired: Flags
    """Which devices sent something of their own accord."""
    bits: Ints
    """Bits sent over each directed link, lost ones included."""
    pool: Floats
    """The array whose rows are pulled together."""
    mine: Ints
    """For each directed link, the row of what its receiver knows of its sender ..."""
    theirs: Ints
    """... and the row of what its sender knows of its receiver."""
    used: Flags
    """The directed links over which devices are pulled together."""


@dataclass(frozen=True, eq=False)
class Telling:
    """The messages of one iteration. Methods write what is remembered to `memory`."""

    parts: Parts
    state: State
    now: Now
    active: Flags
    """The links that may be used."""
    asked: Asked
    memory: dict[str, np.ndarray]
    arithmetic: LawArithmetic

    def exchange(self) -> Told:
        """Events 1 to 3 of the paper: both ends of a used link send their whole models x_i(k)."""
        graph, models, now = self.now.graph, self.state.models, self.now
        (i, j), (sender, receiver, link, _), devices = graph.links.T, graph.directed, np.arange(graph.devices)
        drifts = self.arithmetic.drift(models, devices, self.state.last_broadcast)
        fired = self.asked.fired(drifts, graph.devices, devices)
        used = self.active & (now.new_links | fired[i] | fired[j])
        bits = exchange_bits(graph, used, models.shape[1])
        if self.parts.budget:  # a link is used if both ends can pay for all that they would like to use
            credit, wanted = self._credit(), airtime_bits(graph, bits)
            affordable = credit >= wanted
            used = used & affordable[i] & affordable[j]
            bits = exchange_bits(graph, used, models.shape[1])
            paid = airtime_bits(graph, bits)
            fired = fired & affordable & ((paid > 0) | (wanted == 0))
            self.memory["credit"] = credit - paid
        if now.lost is not None:  # an exchange of which a message is lost does not take place, and is paid for
            lost = np.zeros(len(used), dtype=bool)
            np.logical_or.at(lost, link, now.lost)
            used = used & ~lost
        known = self.arithmetic.replaced("known", self.state.last_broadcast, fired, models, devices)
        return Told(known, fired, bits, models, sender, receiver, used[link])

    def broadcast(self, y: Floats) -> Told:
        """What all neighbours know of a device changes by one message to all. New neighbours are told what is known."""
        (sender, receiver, link, back), known = self.now.graph.directed, self.state.last_broadcast
        active, devices = self.active[link], np.arange(len(y))
        after, sent = self._send("known", y, devices, known)
        first = np.where(active & self.now.new_links[link], whole_message_bits(y), 0)
        if self.parts.budget:
            unpaid = self._pay(first, np.where(active, sent[sender], 0))
            after, sent = self.arithmetic.kept("known", after, unpaid, known), np.where(unpaid, 0, sent)
        bits = np.where(active, sent[sender], 0) + first
        return Told(after, sent > 0, bits, after, sender, receiver, active & self._mixes(bits, back))

    def send_to_each(self, y: Floats) -> Told:
        """What a neighbour knows of a device changes by a message of its own, which it acknowledges."""
        (sender, _, link, back), lost = self.now.graph.directed, self.now.lost
        estimates, met, active = self.memory["estimates"], self.memory["met"], self.active[link]
        after, sent = self._send("estimates", y, sender, estimates, active & met)
        meets = active & ~met
        first = np.where(meets, whole_message_bits(y), 0)
        if self.parts.budget:
            unpaid = self._pay(first, sent)[sender]
            after, sent = self.arithmetic.kept("estimates", after, unpaid, estimates), np.where(unpaid, 0, sent)
        after = self.arithmetic.replaced("estimates", after, meets, y, sender)
        bits = arrived = sent + first
        if lost is not None:
            after = self.arithmetic.kept("estimates", after, lost & (bits > 0), estimates)
            arrived, meets = np.where(lost, 0, bits), meets & ~lost
        met = met | meets
        self.memory["estimates"], self.memory["met"] = after, met
        used = active & met & met[back] & self._mixes(arrived, back)
        fired = np.zeros(len(y), dtype=bool)
        fired[sender[sent > 0]] = True
        return Told(self.state.last_broadcast, fired, bits, after, np.arange(len(sender)), back, used)

    def _send(self, role: str, y: Floats, who: Ints, known: Floats, among: Flags | None = None) -> tuple[Floats, Ints]:
        """Return what is known after the messages of those rows `among` whose trigger fires, and the bits of each."""
        asked = self.asked
        if asked.is_entrywise:
            assert asked.thresholds is not None
            thresholds, chosen = asked.thresholds[who], np.ones(len(who), dtype=bool)
        else:
            thresholds = np.zeros(len(who))
            chosen = asked.fired(self.arithmetic.drift(y, who, known), len(y), who)
        chosen = chosen if among is None else chosen & among
        assert self.parts.codec is not None
        return self.arithmetic.send(role, Messages(self.parts.codec, y, who, known, thresholds, chosen))

    def _mixes(self, arrived: Ints, back: Ints) -> Flags:
        """Return the directed links over which devices mix in this iteration, given the bits that arrived."""
        mixing = self.parts.mixing
        assert isinstance(mixing, EstimatesMixing)
        if self.now.k % mixing.every:
            return np.zeros(len(arrived), dtype=bool)
        return np.ones(len(arrived), dtype=bool) if mixing.when == "always" else (arrived > 0) | (arrived[back] > 0)

    def _credit(self) -> Floats:
        """Return each device's credit in bits, with this iteration's share of what ZT would spend."""
        assert self.parts.budget is not None
        income = self.parts.budget.share * BITS_PER_NUMBER * self.state.models.shape[1]
        credit: Floats = self.memory["credit"] + np.where(self.now.graph.degrees > 0, income, 0.0)
        return credit

    def _pay(self, first: Ints, messages: Ints) -> Flags:
        """Pay for the bits of each directed link; returns the devices that cannot pay for all of their `messages`.

        What new neighbours are told `first` is paid in any case.
        """
        graph = self.now.graph
        credit, cost = self._credit() - airtime_bits(graph, first), airtime_bits(graph, messages)
        unpaid: Flags = cost > credit
        self.memory["credit"] = credit - np.where(unpaid, 0.0, cost)
        return unpaid


def whole_message_bits(models: Floats) -> int:
    """Return the bits of a message with all numbers of a model, as they are held."""
    return int(KIND_BITS + 8 * models.dtype.itemsize * models.shape[1])
