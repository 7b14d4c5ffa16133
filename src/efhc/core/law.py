"""One iteration of a strategy that is a table of parts, for all devices in lockstep. `core.iteration` is EF-HC's case.

    y_i = x_i - alpha (u_i - h_i)                      the local step; u_i = g_i for SGD (`core.local_steps`)

Then the link law adds f_i to the model, and h and momentum follow (`LocalStep.pulled`):

    exchange     f_i = sum_j v_ij beta_ij (x_j - x_i), of the models before the local step
    half-steps   x_hat_i <- x_hat_i + C(y_i - x_hat_i) where the trigger fires; each message from i to j is a step
                 beta_ij rate (x_hat_j before - x_hat_i after) of i, and the opposite step of j (`core.half_steps`)
    estimates    x_hat_i likewise;  f_i = rate sum_j beta_ij (x_hat_j - x_hat_i), after all messages

The two ends of a link add opposite terms, so sum_i f_i = 0 and sum_i h_i = 0: mixing never moves the mean model,
whatever a codec leaves out. No argument is changed, except that compiled arithmetic may write to the gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.core.arithmetic import PLAIN_LAW, LawArithmetic, Messages, Places, Terms, finite_rows
from efhc.core.cost import airtime_bits, exchange_bits, whole_message_bits
from efhc.core.graph import Graph
from efhc.core.half_steps import LEAST_SCALE, MOST_LOAD, steps_that_count
from efhc.core.local_steps import Moment, Rows, total_descent
from efhc.core.memory import both_have
from efhc.core.parts import ChosenLinks, EstimatesMixing, ExchangeMixing, HalfStepsMixing, Now, Parts
from efhc.core.state import Diverged, State
from efhc.core.step_limits import NoLimit, factor_of


@dataclass(frozen=True, eq=False)
class TriggerDecision:
    """The decision of the trigger in an iteration: thresholds, or which devices fire."""

    thresholds: Floats | None
    """threshold_i(k)"""
    fires: Callable[[Floats], Flags] | None = None
    """Returns v_i of all devices from their drifts, for a trigger that looks at them."""
    is_entrywise: bool = False
    """Whether thresholds apply to coordinates instead of the whole model."""

    def fired(self, drifts: Floats, devices: int, sender: Ints) -> Flags:
        """Return which senders fire, where `drifts` has one entry per sender."""
        if self.thresholds is not None:
            return drifts >= self.thresholds[sender]
        assert self.fires is not None
        largest = np.zeros(devices)
        np.maximum.at(largest, sender, drifts)
        return self.fires(largest)[sender]


class Happened(NamedTuple):
    """What an iteration did. `bits` also count towards `Now.spent` of later iterations."""

    fired: Flags
    """Which devices sent something because their trigger fired."""
    bits: Ints
    """Bits sent over each directed link, including those that were lost."""
    consensus_error: float


def iterate_parts(
    parts: Parts,
    state: State,
    now: Now,
    gradients: Callable[[int, Floats], Floats],
    decision: TriggerDecision,
    arithmetic: LawArithmetic = PLAIN_LAW,
) -> tuple[State, Happened]:
    """Make one iteration. `state.memory` holds the arrays that `strategies.forms` declares for these parts.

    `gradients(s, models)` returns the gradients on batch s of the iteration. Raises `Diverged` if a model is no longer
    finite; the arguments are then unchanged.
    """
    iteration = _Iteration(parts, state, now, decision, arithmetic)
    rows, down = iteration.descend(gradients)
    mixing = parts.mixing
    if isinstance(mixing, ExchangeMixing):
        rows, known, happened = iteration.exchange(rows, down)
    elif isinstance(mixing, HalfStepsMixing):
        rows, known, happened = iteration.half_steps(arithmetic.stepped(rows, down, now.step_size), mixing)
    else:
        assert isinstance(mixing, EstimatesMixing)
        rows, known, happened = iteration.estimates(arithmetic.stepped(rows, down, now.step_size), mixing)
    models = rows["model"]
    error = arithmetic.consensus_error(models)
    if not np.isfinite(error):
        raise Diverged(state.k, "model", finite_rows(models))
    memory = iteration.memory | {name: rows[name] for name in rows if name != "model"}
    return State(state.k + 1, models, known, state.local, memory), happened._replace(consensus_error=error)


@dataclass(eq=False)
class _Iteration:
    """An iteration in progress. `memory` is what is remembered after it, except the rows of `LocalStep`."""

    parts: Parts
    state: State
    now: Now
    decision: TriggerDecision
    arithmetic: LawArithmetic

    def __post_init__(self) -> None:
        self.memory = dict(self.state.memory)
        links, graph = self.parts.links, self.now.graph
        self.links = links.choose(self.now) if links else ChosenLinks(graph.all_links)
        weights = graph.weights if self.links.weights is None else self.links.weights
        self.weights: Floats = weights[graph.directed.link]
        """beta_ij of each directed link."""

    def descend(self, gradients: Callable[[int, Floats], Floats]) -> tuple[Rows, Floats]:
        """Return the rows after the local steps, with the models from before them, and u - h."""
        local, memory, models, now = self.parts.local, self.memory, self.state.models, self.now
        rows = {"model": models} | {name: memory[name] for name in ("correction", *local.memory) if name in memory}
        alpha = np.full((len(models), 1), now.step_size, models.dtype)
        degrees = now.graph.degrees
        if "moved" in memory:  # only chosen links count
            degrees = np.bincount(now.graph.links[self.links.active].ravel(), minlength=len(models))
        gate = np.ones((len(models), 1))
        if "steps" in memory:
            gate[:, 0] = np.where(degrees > 0, np.minimum(1.0, memory["steps"] / np.maximum(degrees, 1)), 1.0)

        def direction(s: int, x: Floats) -> Floats:
            moment = Moment(alpha, np.full(len(models), now.k * local.steps + s + 1), gate)
            down, remembered = self.arithmetic.descent(local, {**rows, "model": x}, gradients(s, x), moment)
            rows.update(remembered)
            return down

        return rows, total_descent(local.steps, models, alpha, direction)

    # The paper's exchange

    def exchange(self, rows: Rows, down: Floats) -> tuple[Rows, Floats, Happened]:
        """Events 1 to 4 of the paper: both ends of a used link send their whole models x_i(k)."""
        now, graph, models = self.now, self.now.graph, self.state.models
        (i, j), devices = graph.links.T, np.arange(graph.devices)
        drifts = self.arithmetic.drift(models, devices, self.state.last_broadcast)
        fired = self.decision.fired(drifts, graph.devices, devices)
        used = self.links.active & (now.new_links | fired[i] | fired[j])
        bits = exchange_bits(graph, used, models.shape[1])
        if self.parts.budget:  # a link is used if both ends can pay for all links that they want to use
            credit, wanted = self._credit(), airtime_bits(graph, bits)
            affordable = credit >= wanted
            used = used & affordable[i] & affordable[j]
            bits = exchange_bits(graph, used, models.shape[1])
            paid = airtime_bits(graph, bits)
            fired = fired & affordable & ((paid > 0) | (wanted == 0))
            self.memory["credit"] = credit - paid
        if now.lost is not None:  # an exchange of which a message is lost is paid for, and does not take place
            lost = np.zeros(len(used), dtype=bool)
            np.logical_or.at(lost, graph.directed.link, now.lost)
            used = used & ~lost
        if self.parts.local.follows_links:
            terms = self._terms(used[graph.directed.link], self.weights)
            rows = self.arithmetic.remembered(self.parts.local, rows, (models, models), terms, now.step_size)
        x = self.arithmetic.mix_and_descend(graph, used, self.links.weights, models, down, now.step_size)
        known = self.arithmetic.replaced("known", self.state.last_broadcast, fired, models)
        return {**rows, "model": x}, known, Happened(fired, bits, 0.0)

    # Half-steps and estimates: what neighbours know of each other

    def half_steps(self, rows: Rows, mixing: HalfStepsMixing) -> tuple[Rows, Floats, Happened]:
        """Make a step at both ends for each message: the law of `core.half_steps`, without delays."""
        if mixing.settle:
            return self.settling(rows, mixing)
        known, who, mine, theirs = self._known()
        after, bits, first, _ = self._send(rows["model"], known, who)
        sender, _, _, back = self.now.graph.directed
        sends = bits > 0
        receives = sends[back]  # a message is a step at both ends
        learning, (i, j) = self._learning(sends), self.now.graph.links.T
        highest = 0.5 / np.maximum(self.now.graph.degrees[i], self.now.graph.degrees[j])
        weights = np.minimum(mixing.rate * self.weights, highest[self.now.graph.directed.link])
        if not isinstance(mixing.limit, NoLimit):
            for e in np.flatnonzero(sends):
                weights[e] *= factor_of(mixing.limit, after[mine[e]], known[theirs[e]])
        places = _places(self.now.graph, sends.tobytes(), is_per_link="known" in self.memory, both_ends=True)
        terms = Terms(places, weights[places.message], learning[places.message])
        self.memory["steps"] = np.bincount(sender, sends.astype(np.int64) + receives, self.now.graph.devices)
        fired = np.bincount(sender, sends, self.now.graph.devices) > 0
        return self._pulled(rows, known, after, terms, Happened(fired, bits + first, 0.0))

    def settling(self, rows: Rows, mixing: HalfStepsMixing) -> tuple[Rows, Floats, Happened]:
        """Make the same steps where the law settles: E = moved - moved of the other end.

        A device sends one message after the other, by ascending neighbour; each contains the steps of those before it.
        """
        memory, graph, local = self.memory, self.now.graph, self.parts.local
        sender, _, _, back = graph.directed
        x, known, link_steps = rows["model"], memory["known"], memory["moved"] - memory["moved"][back]
        scale = memory["scale"] * MOST_LOAD / np.where(memory["load"] > 0, memory["load"], MOST_LOAD)
        memory["scale"] = np.where(memory["load"] > 0, np.clip(scale, LEAST_SCALE, 1.0), 1.0)
        weights = np.minimum(mixing.rate * self.weights * memory["scale"][sender], MOST_LOAD / 2)
        since = memory["since"] + 1
        thresholds, chosen, first = self._firing(x, known + link_steps, sender)
        after, bits, step, pull, load = self._send_each(
            x, known, link_steps, weights, (thresholds, chosen, first), mixing
        )
        is_sent, made = bits > 0, (bits > 0) & (memory["news"] > 0) & (weights > 0)
        learning = self._learning(is_sent, steps_that_count(since, since, mixing.most_steps, self.now.k))
        memory["since"], memory["news"] = np.where(is_sent, 0.0, since), np.where(is_sent, 0.0, memory["news"])
        memory["news"][is_sent[back]] = 1.0
        learned, link_correction = np.zeros_like(x) if local.correction else None, memory.get("link_correction")
        if link_correction is not None:
            link_correction = memory["link_correction"] = link_correction.copy()
        own, theirs = np.flatnonzero(made), np.flatnonzero(made[back])
        np.add.at(pull, sender[theirs], -step[back[theirs]])
        np.add.at(load, sender[theirs], weights[back[theirs]])
        # A device makes the steps of its own messages first.
        for ends, messages, sign in ((own, own, 1), (theirs, back[theirs], -1)):
            if learned is not None:
                lessons = learning[messages, None].astype(x.dtype) * (sign * step[messages])
                np.add.at(learned, sender[ends], lessons)
                if link_correction is not None:
                    link_correction[ends] += lessons
        memory["known"], memory["moved"], memory["load"] = after, memory["moved"] + step, load
        memory["steps"] = np.bincount(sender, made.astype(np.int64) + made[back], graph.devices)
        rows = local.pulled(rows, pull, learned, np.full((graph.devices, 1), self.now.step_size))
        fired = np.bincount(sender, is_sent, graph.devices) > 0
        return rows, self.state.last_broadcast, Happened(fired, bits + first, 0.0)

    def _send_each(
        self,
        x: Floats,
        known: Floats,
        link_steps: Floats,
        weights: Floats,
        firing: tuple[Floats, Flags, Ints],
        mixing: HalfStepsMixing,
    ) -> tuple[Floats, Ints, Floats, Floats, Floats]:
        """Send one message after the other. The step limit is applied to `weights`, in place.

        Returns what is known afterwards, the bits and the step of each directed link, and for each device the sums of
        its own steps and of their weights.
        """
        graph, has_news, (thresholds, chosen, first) = self.now.graph, self.memory["news"] > 0, firing
        sender, _, _, back = graph.directed
        after, step, bits = known.copy(), np.zeros_like(known), np.zeros(len(sender), np.int64)
        pull, load = np.zeros_like(x), np.zeros(graph.devices)
        credit = self._credit() - airtime_bits(graph, first) if self.parts.budget else None
        place = np.arange(len(sender)) - np.searchsorted(sender, sender)  # of a link among those of its sender
        assert self.parts.codec is not None
        for turn in range(int(place.max(initial=-1)) + 1):
            those = np.flatnonzero(place == turn)
            who = sender[those]
            models, every = x[who] + pull[who] - link_steps[those], np.arange(len(those))
            messages = Messages(self.parts.codec, models, every, known[those], thresholds[those], chosen[those])
            received, sent = self.arithmetic.send("message", messages)
            goes = sent > 0
            if credit is not None:
                cost = sent / np.maximum(1, graph.degrees[who])
                goes &= cost <= credit[who]
                credit[who] -= np.where(goes, cost, 0.0)
            sends = those[goes]
            after[sends], bits[sends] = received[goes], sent[goes]
            for e in sends.tolist():
                weights[e] *= factor_of(mixing.limit, after[e] + link_steps[e], known[back[e]] - link_steps[e])
            steps = sends[has_news[sends]]
            difference = (known[back[steps]] - after[steps]) - x.dtype.type(2) * link_steps[steps]
            step[steps] = weights[steps, None].astype(x.dtype) * difference
            pull[sender[steps]] += step[steps]
            load[sender[steps]] += weights[steps]
        if credit is not None:
            self.memory["credit"] = credit
        return after, bits, step, pull, load

    def estimates(self, rows: Rows, mixing: EstimatesMixing) -> tuple[Rows, Floats, Happened]:
        """Mix what neighbours know: see `EstimatesMixing`. All neighbours of a device know the same of it."""
        known, who, _, _ = self._known()
        after, bits, first, fired = self._send(rows["model"], known, who)
        _, _, link, back = self.now.graph.directed
        bits = bits + first
        used = np.zeros(len(bits), dtype=bool)
        if self.now.k % mixing.every == 0:
            used = self.links.active[link] & ((mixing.when == "always") | (bits > 0) | (bits[back] > 0))
        terms = self._terms(used, mixing.rate * self.weights)
        return self._pulled(rows, after, after, terms, Happened(fired, bits, 0.0))

    def _known(self) -> tuple[Floats, Ints, Ints, Ints]:
        """Return what is known, the device of each of its rows, and the rows of the two ends of each directed link."""
        sender, receiver, _, back = self.now.graph.directed
        if "known" in self.memory:
            return self.memory["known"], sender, np.arange(len(sender)), back
        return self.state.last_broadcast, np.arange(self.now.graph.devices), sender, receiver

    def _firing(self, y: Floats, known: Floats, who: Ints) -> tuple[Floats, Flags, Ints]:
        """Return thresholds and which rows of what is known fire, and the bits of Event 1 of each directed link."""
        graph, decision, sender = self.now.graph, self.decision, self.now.graph.directed.sender
        active, per_link = self.links.active[graph.directed.link], "known" in self.memory
        # If each link has its own version, both ends send their models when it comes up, whether or not it is chosen.
        meets = self.now.new_links[graph.directed.link] & (active | per_link)
        first = np.where(meets, whole_message_bits(y), 0)
        thresholds: Floats = np.zeros(len(who))
        chosen = np.ones(len(who), dtype=bool)
        if decision.is_entrywise:
            assert decision.thresholds is not None
            thresholds = decision.thresholds[who]
        else:
            chosen = decision.fired(self.arithmetic.drift(y, who, known), len(y), who)
        if isinstance(self.parts.mixing, HalfStepsMixing) and self.now.met is not None and self.now.met.any():
            met = self.now.met[graph.directed.link]  # a device always sends to neighbours that it has just met
            row = met if per_link else np.bincount(sender, met, len(who)) > 0
            chosen, thresholds = chosen | row, np.where(row, 0.0, thresholds)
        if per_link:
            chosen = chosen & active
        return thresholds, chosen, first

    def _send(self, y: Floats, known: Floats, who: Ints) -> tuple[Floats, Ints, Ints, Flags]:
        """Return what is known after the messages, their bits and those of Event 1 per directed link, and which rows
        of what is known were sent.
        """
        graph, sender, per_link = self.now.graph, self.now.graph.directed.sender, "known" in self.memory
        active = self.links.active[graph.directed.link]
        thresholds, chosen, first = self._firing(y, known, who)
        assert self.parts.codec is not None
        after, sent = self.arithmetic.send("known", Messages(self.parts.codec, y, who, known, thresholds, chosen))
        bits = sent if per_link else np.where(active, sent[sender], 0)
        if self.parts.budget:
            unpaid = self._pay(first, bits)
            after, bits = self.arithmetic.kept("known", after, unpaid[who], known), np.where(unpaid[sender], 0, bits)
            sent = np.where(unpaid[who], 0, sent)
        return after, bits, first, sent > 0

    def _terms(self, used: Flags, weights: Floats) -> Terms:
        """Return one term per used directed link, for its sender, with what is known after all messages."""
        places, learning = _places(self.now.graph, used.tobytes()), self._learning(used)
        return Terms(places, weights[places.message], learning[places.message])

    def _learning(self, used: Flags, steps: Floats | int = 1) -> Floats:
        """Return theta steps / (sum of alpha since a directed link was last used): how much h learns of a term."""
        theta = self.parts.local.correction * steps
        if "elapsed" not in self.memory:
            return np.full(len(used), theta / self.now.step_size)
        elapsed = self.memory["elapsed"] + self.now.step_size
        self.memory["elapsed"] = np.where(used, 0.0, elapsed)
        return theta / elapsed

    def _pulled(
        self, rows: Rows, before: Floats, after: Floats, terms: Terms, happened: Happened
    ) -> tuple[Rows, Floats, Happened]:
        link_correction = self.memory.get("link_correction")
        if link_correction is not None:
            link_correction = self.memory["link_correction"] = link_correction.copy()
        rows = self.arithmetic.pulled(
            self.parts.local, rows, (before, after), terms, self.now.step_size, link_correction
        )
        if "known" not in self.memory:
            return rows, after, happened
        self.memory["known"] = after
        return rows, self.state.last_broadcast, happened

    # Budgets

    def _credit(self) -> Floats:
        """Return each device's credit in bits, with the income of this iteration."""
        assert self.parts.budget is not None
        income = self.parts.budget.income(self.state.models.shape[1])
        credit: Floats = self.memory["credit"] + np.where(self.now.graph.degrees > 0, income, 0.0)
        return credit

    def _pay(self, first: Ints, messages: Ints) -> Flags:
        """Pay for the bits of each directed link. Returns the devices that cannot pay for all of their `messages`.

        The `first` models for new neighbours are paid in any case.
        """
        graph = self.now.graph
        credit, cost = self._credit() - airtime_bits(graph, first), airtime_bits(graph, messages)
        unpaid: Flags = cost > credit
        self.memory["credit"] = credit - np.where(unpaid, 0.0, cost)
        return unpaid


@lru_cache(maxsize=16)
def _places(graph: Graph, used: bytes, *, is_per_link: bool = False, both_ends: bool = False) -> Places:
    """Return the places of the terms of used directed links: for senders; with `both_ends`, for receivers as well.

    A device makes the steps of its own messages first, then those of its neighbours', each by ascending neighbour.
    """
    sender, receiver, _, back = graph.directed
    sends = np.flatnonzero(np.frombuffer(used, dtype=bool))
    receives = np.sort(back[sends]) if both_ends else sends[:0]  # directed links from the receivers on
    link = np.concatenate([sends, receives])
    newer = np.repeat([False, True], [len(sends), len(receives)])
    order = np.argsort(sender[link], kind="stable")
    link, newer = link[order], newer[order]
    mine, theirs = (np.arange(len(sender)), back) if is_per_link else (sender, receiver)
    device, message = sender[link], np.where(newer, back[link], link)
    starts = np.searchsorted(device, np.arange(graph.devices + 1))
    return Places(device, theirs[link], mine[link], newer, message, link, starts)


def take_back(h: Floats, link_correction: Floats, before: Graph, now: Graph) -> Floats:
    """Return h_i - sum_j lambda_ij over the links that are gone, by ascending neighbour: h without their part."""
    stays = np.zeros(len(link_correction), dtype=bool)
    stays[both_have(before, now)[0]] = True
    h = h.copy()
    for e in np.flatnonzero(~stays):
        h[before.directed.sender[e]] -= link_correction[e]
    return h
