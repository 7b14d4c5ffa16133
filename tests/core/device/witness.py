"""Looks at devices from outside and says which law they break.

It knows models, gradients, what went over the wire and what the drivers were told to do. It never reads the books of
`core.device`: which exchanges a model contains follows from the models that were received, beta from the shares that
were sent.

    sum        sum w_i = sum w_i(0) - sum alpha g + committed steps that one end has applied and the other not yet
    hull       without gradients, every model, and every model sent, lies between the least and the greatest start value
    once       no device applies an exchange twice
    shares     shares set aside add up to less than 1, and so do the betas of one step: p_ii > 0
    metropolis with nothing in flight and unchanged degrees the share is 1 / (1 + d_i), to the last bit
    link       one exchange in flight per link, one begun per local iteration
    superseded what is sent is the model of the iteration in which the exchange was begun
    leave      a device that leaves begins no exchange (`hostile` looks at this one)
    rest       once faults have ended, nothing is in flight, and every owed exchange was made
"""

from __future__ import annotations

import math
from collections import defaultdict

from hostile_schedules import Broken

from efhc.core.protocol import Accept, Body, ModelReply, Offer

ROUNDING = 1e-9


class Weights:
    """A model of one coordinate: laws hold for each coordinate by itself. To the core it is an opaque handle."""

    __slots__ = ("applied", "gradient", "origin", "start", "talk", "value")

    def __init__(self, value, start=math.nan, gradient=0.0, applied=frozenset(), origin=None, talk=None):
        self.value, self.start, self.gradient = value, start, gradient
        """w, and where it comes from: its first value and the sum of alpha g since."""
        self.applied = applied
        """The exchanges that it contains."""
        self.origin = origin
        """The model out of which an offered one was made."""
        self.talk = talk
        """The exchange in which it was received."""

    def __repr__(self):
        return f"{self.value:.6g}"


class Talk:
    """An exchange as the wire shows it: two tokens, two shares, up to two models."""

    __slots__ = ("applied", "beta", "closed", "ends", "forgiven", "sent")

    def __init__(self, ends, beta):
        self.ends, self.beta, self.sent = ends, beta, {}
        self.applied, self.closed = set(), set()
        """The ends whose model in force contains it, and those that said that nothing came of it."""
        self.forgiven = False
        """An end lost its state, or never returns."""

    def step(self, end):
        """beta (u_j - u_i)"""
        other = self.other(end)
        if len(self.sent) < 2:
            raise Broken("sum", f"device {end} applied an exchange with {other} for which only one model was sent")
        return self.beta * (self.sent[other] - self.sent[end])

    def other(self, end):
        return self.ends[self.ends[0] == end]

    def __repr__(self):
        return f"{self.ends} beta {self.beta:.4g} sent {self.sent} applied by {sorted(self.applied)}"


class Issue:
    """A token that a device put on the wire, with an offer or an accept."""

    __slots__ = ("clean", "model", "number", "share")

    def __init__(self, share, model, number, *, clean):
        self.share, self.model, self.number, self.clean = share, model, number, clean


def combine(terms):
    """sum_t weight_t model_t"""
    return Weights(sum(weight * model.value for weight, model in terms), origin=terms[0][1])


class Witness:
    """One network's models in force, and what its wire has carried."""

    def __init__(self, *, gradients):
        self.gradients = gradients
        self.low, self.high = math.inf, -math.inf
        self.models = {}
        """By device: the model in force. That of a crashed device is the one that was kept."""
        self.issues, self.talks = {}, {}
        self.talks_of = defaultdict(list)
        self.one_sided = set()
        self.committed = 0
        self.plain = []
        """(ends, beta) of exchanges whose two ends had nothing in flight, at unchanged degrees."""
        self.aside = defaultdict(dict)
        """By device: share by token, for exchanges that may still move its model."""
        self.in_flight = {}
        """By directed link: the token."""
        self.begun = {}
        """By directed link: the iteration of the last exchange begun."""
        self.up = defaultdict(set)
        """By device: the neighbours that it sees."""
        self.undisturbed = defaultdict(bool)
        """By device: nothing was in flight when the iteration began, and nothing was cut or withdrawn in it."""
        self.owed = {}
        """By directed link: how many tokens there were when the device fired, or found the link to be new."""
        self.new = set()
        """Directed links that came up since the device last began an iteration."""
        self.finished = set()
        self.restarted = set()
        """What these have kept in doubt is not known here."""

    # Models

    def start(self, value):
        """A first model."""
        self.low, self.high = min(self.low, value), max(self.high, value)
        return Weights(value, start=value)

    def put_in_force(self, device, model):
        """A device has another model now: stepped, or went back to what it had kept."""
        before = self.models.get(device)
        old = before.applied if before else frozenset()
        self.models[device] = model
        for talk in model.applied - old:
            talk.applied.add(device)
            self._sort(talk)
        for talk in old - model.applied:
            talk.applied.discard(device)
            self._sort(talk)
        self._hull(device, model)
        self.check_sum()

    def _sort(self, talk):
        if len(talk.applied) == 1:
            self.one_sided.add(talk)
        else:
            self.one_sided.discard(talk)

    def check_sum(self):
        missing = -math.fsum(model.value - model.start + model.gradient for model in self.models.values())
        for talk in self.one_sided:
            (end,) = talk.applied
            if talk.forgiven or talk.other(end) not in talk.closed:
                missing += talk.step(end)
        if abs(missing) > ROUNDING:
            raise Broken("sum", f"off by {missing:.3g}; applied by one end: {list(self.one_sided)}")

    def _hull(self, device, model):
        if not self.gradients and not self.low - ROUNDING <= model.value <= self.high + ROUNDING:
            raise Broken("hull", f"device {device} has {model.value:.6g}, outside [{self.low:.6g}, {self.high:.6g}]")

    def stepped(self, device, steps, gradient):
        """w_i + sum beta (u_j - u_i) - alpha g, as the core wants it made."""
        before = self.models[device]
        value, applied = before.value, set(before.applied)
        if sum(step.beta for step in steps) >= 1:
            raise Broken("shares", f"device {device} gives away {[step.beta for step in steps]} in one step")
        for step in steps:
            value += step.beta * (step.received.value - step.sent.value)
            if step.received.talk in applied:
                raise Broken("once", f"device {device} applies {step.received.talk} twice")
            applied.add(step.received.talk)
        tokens = {token for token, (_, talk) in self.aside[device].items() if talk in applied}
        for token in tokens:
            del self.aside[device][token]
        return Weights(value - gradient, before.start, before.gradient + gradient, frozenset(applied))

    # The wire

    def sent(self, device, neighbour, message, model):
        """What arrives if this arrives: a copy, as bytes on a wire are. `model` is the one that the device has now."""
        if isinstance(message, Offer | Accept):
            self._issue(device, neighbour, message, model)
        elif isinstance(message, Body):
            return message._replace(model=self._body(device, neighbour, message))
        elif isinstance(message, ModelReply) and message.model is not None:
            return message._replace(model=Weights(message.model.value, start=message.model.value))
        return message

    def _issue(self, device, neighbour, message, model):
        link, token = (device, neighbour), message.token
        if token in self.issues:
            raise Broken("link", f"token {token} was given out twice")
        if link in self.in_flight:
            raise Broken(
                "link", f"device {device} begins an exchange with {neighbour} while {self.in_flight[link]} is on"
            )
        if self.begun.get(link) == message.k and device not in self.finished:
            raise Broken("link", f"device {device} begins a second exchange with {neighbour} in iteration {message.k}")
        clean = self.undisturbed[device] and device not in self.finished
        self.issues[token] = Issue(message.share, model, len(self.issues), clean=clean)
        if clean and message.share != 1.0 / (1.0 + len(self.up[device])):
            raise Broken(
                "metropolis", f"device {device} of degree {len(self.up[device])} has a share of {message.share}"
            )
        self.in_flight[link], self.begun[link] = token, message.k
        self.aside[device][token] = message.share, None
        if sum(share for share, _ in self.aside[device].values()) >= 1:
            raise Broken("shares", f"device {device} sets aside {self.aside[device]}")

    def _body(self, device, neighbour, message):
        mine, theirs = self.issues[message.token], self.issues[message.of]
        if message.model is not mine.model and message.model.origin is not mine.model:
            raise Broken("superseded", f"device {device} sends a model of another iteration in {message.token}")
        self._hull(device, message.model)
        pair = frozenset((message.token, message.of))
        talk = self.talks.get(pair)
        if talk is None:
            talk = self.talks[pair] = Talk((device, neighbour), min(mine.share, theirs.share))
            for end in talk.ends:
                self.talks_of[end].append(talk)
            if mine.clean and theirs.clean:
                self.plain.append(((device, neighbour), talk.beta))
        talk.sent[device] = message.model.value
        if message.token in self.aside[device]:
            self.aside[device][message.token] = talk.beta, talk
        return Weights(message.model.value, talk=talk)

    # What devices say and see

    def began(self, device):
        """Iteration k begins."""
        self.undisturbed[device] = not self.aside[device] and device not in self.restarted
        self.new = {link for link in self.new if link[0] != device}

    def fired(self, device):
        for neighbour in self.up[device]:
            self.owed[device, neighbour] = len(self.issues)

    def ended(self, device, neighbour, exchange, outcome):
        if self.in_flight.get((device, neighbour)) == exchange.token:
            del self.in_flight[device, neighbour]
        if outcome == "committed":
            self.committed += 1
            issued = self.issues[exchange.token].number
            if issued >= self.owed.get((device, neighbour), math.inf):
                del self.owed[device, neighbour]
            return
        self.begun.pop((device, neighbour), None)
        self.aside[device].pop(exchange.token, None)
        self.undisturbed[device] = False
        talk = self.talks.get(frozenset((exchange.token, exchange.partner)))
        if talk is not None:
            talk.closed.add(device)
            if outcome == "unresolved":
                talk.forgiven = True
            self.check_sum()

    def link_changed(self, device, neighbour, *, up):
        self.undisturbed[device] = False
        self._clear(device, neighbour)
        if up:
            self.up[device].add(neighbour)
            if device not in self.finished:
                self.new.add((device, neighbour))
                self.owed[device, neighbour] = len(self.issues)
        else:
            self.up[device].discard(neighbour)

    def _clear(self, device, neighbour):
        self.owed.pop((device, neighbour), None)
        self.begun.pop((device, neighbour), None)
        self.new.discard((device, neighbour))

    def has_finished(self, device):
        self.finished.add(device)
        for link in [link for link in self.new if link[0] == device]:
            self._clear(*link)

    def crashed(self, device):
        """All but what was kept is gone."""
        for neighbour in [j for i, j in self.in_flight if i == device]:
            del self.in_flight[device, neighbour]
        for neighbour in list(self.up[device]):
            self._clear(device, neighbour)
        self.aside[device].clear()
        self.restarted.add(device)
        self.up[device].clear()
        self.undisturbed[device] = False

    def lost(self, device):
        """What was kept is gone too, or nobody will ever read it."""
        for talk in self.talks_of[device]:
            talk.forgiven = True

    # Rest

    def check_rest(self):
        self.check_sum()
        left = [talk for talk in self.one_sided if not talk.forgiven]
        if left:
            raise Broken("sum", f"at rest, only one end has applied {left}")
        if self.in_flight:
            raise Broken("rest", f"still in flight: {self.in_flight}")
        if self.owed:
            raise Broken("rest", f"owed and never made: {sorted(self.owed)}")
