"""A device that exchanges models on its own clock: events in, effects out. Nothing here reads a clock, opens a socket
or draws a random number.

In its local iteration k,

    Event 1   links that came up since the last iteration exchange models                      (`Begin`)
    Event 2   drift >= threshold: broadcast, w_hat_i = w_i(k), so all links exchange models    (`Begin`)
    Event 3   w_i + sum of beta (u_j - u_i) over the exchanges committed since                 (`steps_in_order`)
    Event 4   - alpha(k) g_i(w_i(k)), which gives w_i(k+1)                                     (`Stepped`)

An exchange on the link {i, j} is a two-phase commit: either both ends make its step, or neither does.

    i: Offer(q_i)  ->  j: Accept(q_j), or Refuse and make an offer later     beta = min(q_i, q_j)
    i: Body(u_i)   <-> j: Body(u_j)                                          offers that cross need no Accept
    j has both models: it stores the step and sends Ready. From here on only i may decide.
    i has both models and the Ready: it stores its decision and the step, and sends Commit.
    j makes the step and sends Acknowledge, and i forgets its decision.

The device that offered decides; if two offers cross, the device with the lower number. Messages may be lost, repeated
or overtaken: each end names an exchange by a token, and a message counts only if both tokens match.

A device reserves the share of its model that exchanges in flight may move. With E the exchanges in flight when
iteration k begins, the device offers, throughout k,

    u_i = (w_i - sum_E q_e u_e) / (1 - sum_E q_e),      q_i = min(1 / (1 + d_i), half of what is free)

so that every model stays a weighted mean of models, whatever is delayed (docs/asynchrony.md has the proofs).

The law never looks into a model. `combine` makes a new one, sum_t weight_t model_t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from efhc.core import protocol
from efhc.core.protocol import Effect, Event, Model, Token

LEAST_SHARE = 1e-9
"""A share that is not worth an exchange. Rounding may make the sum of shares exceed 1 by less than this."""


@dataclass(slots=True)
class Exchange:
    """One end's view of an exchange in flight."""

    token: Token
    sent: Model
    """u_i, what this end sends."""
    share: float
    """q_i, and beta once the other end's share is known."""
    decides: bool
    event: int
    """The event, 1 or 2, for which this end has begun the exchange; 0 if it answers an offer."""
    k: int
    partner: Token | None = None
    partner_k: int = -1
    received: Model | None = None
    """u_j"""
    early_body: protocol.Body | None = None
    """A body that overtook the offer or acceptance before it."""
    ready: bool = False
    """Whether the end that does not decide has stored the step. If that is this end, it waits for the decision."""

    @property
    def in_doubt(self) -> bool:
        """Whether only the neighbour knows how the exchange ended."""
        return self.ready and not self.decides


@dataclass(slots=True)
class Link:
    """A link, and the exchange on it."""

    up: bool = True
    new: bool = False
    """It came up since the last iteration began (Event 1)."""
    pending_offer: int = 0
    """The event, 1 or 2, for which an offer will be made once the link is free; 0 for none."""
    exchange: Exchange | None = None
    begun_in: int = -1
    """The local iteration in which the last exchange began. There is at most one per iteration."""

    @property
    def in_doubt(self) -> bool:
        """Whether only the neighbour knows how the exchange in flight ended."""
        return self.exchange is not None and self.exchange.in_doubt


class Step(NamedTuple):
    """A committed exchange, whose step beta (u_j - u_i) is not yet part of the model."""

    neighbour: int
    beta: float
    sent: Model
    received: Model


class Decision(NamedTuple):
    """A commit that the other end has not acknowledged."""

    neighbour: int
    partner: Token


@dataclass(slots=True)
class Device:
    """The state of a device. Its driver reads it, and changes it only by events (`core.device.react`)."""

    number: int
    session: int
    """Counts the starts of the device, so that no token is used twice."""
    model: Model
    """w_i(k)"""
    last_broadcast: Model
    """w_hat_i"""
    k: int = 0
    links: dict[int, Link] = field(default_factory=dict)
    """The links that are up, and those with an exchange in doubt, by neighbour."""
    degree: int = 0
    """d_i, the number of links that are up."""
    steps: list[Step] = field(default_factory=list)
    """Committed, and not yet part of the model."""
    unacknowledged: dict[Token, Decision] = field(default_factory=dict)
    """The commits of this device that the other end has not acknowledged, by token."""
    set_aside: list[tuple[float, Model]] = field(default_factory=list)
    """(q_e, u_e) of the exchanges that were in flight when the iteration began."""
    free: float = 1.0
    """1 - sum of all shares set aside, those of this iteration included."""
    offers: Model | None = None
    """u_i of this iteration; None until it is needed."""
    count: int = 0
    """The number of tokens given out in this session."""
    finished: bool = False
    leaving: bool = False
    waits_for_model: bool = False
    """Whether the device waits for a neighbour's model to start from."""
    model_requested_from: int | None = None
    """The neighbour that was sent the request for a model."""
    without_model: list[int] = field(default_factory=list)
    """The neighbours that wait for a model themselves."""
    sends_rounded: bool = False
    """Whether models are sent in a lower precision: `combine` then rounds them to it."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight, in doubt, or waiting for an acknowledgement."""
        return not self.unacknowledged and all(link.exchange is None for link in self.links.values())


def steps_in_order(device: Device) -> list[Step]:
    """Event 3: the exchanges to aggregate, w_i + sum beta (u_j - u_i), by ascending neighbour."""
    return sorted(device.steps, key=_neighbour_of) if len(device.steps) > 1 else device.steps


def take_share(device: Device) -> float:
    """Set aside q_i = min(1 / (1 + d_i), half of what is free)."""
    share, half = 1.0 / (1.0 + device.degree), device.free / 2
    if half < share - LEAST_SHARE:  # not by rounding: with unchanged degrees beta is Metropolis' to the last bit
        share = half
    device.free -= share
    return share


def give_back(device: Device, exchange: Exchange, share: float) -> None:
    """Release a share. If it was reserved in an earlier iteration, it becomes free at the next `reserve_shares`."""
    if exchange.sent is device.offers:
        device.free += share


def durable(device: Device) -> Device:
    """Return what is left after a crash: the model, steps, decisions and exchanges in doubt."""
    doubts = {j: Link(up=False, exchange=link.exchange) for j, link in device.links.items() if link.in_doubt}
    return Device(
        device.number, device.session, device.model, device.last_broadcast, device.k, doubts, 0, list(device.steps),
        dict(device.unacknowledged), finished=device.finished, waits_for_model=device.waits_for_model,
        sends_rounded=device.sends_rounded,
    )  # fmt: skip


def _neighbour_of(step: Step) -> int:
    return step.neighbour


# Events in, effects out

Combine = Callable[[Sequence[tuple[float, Model]]], Model]
"""Makes a new model: sum_t weight_t model_t."""


def react(device: Device, event: Event, combine: Combine) -> list[Effect]:
    """Change the device as an event requires. Returns the effects that the driver must carry out, in order."""
    reaction = Reaction(device, combine)
    _REACTIONS[type(event)](reaction, event)
    return reaction.effects


def restarted(kept: Device, session: int) -> Device:
    """Return the device that starts from what `durable` kept, in a new session and without links."""
    device = durable(kept)
    device.session = session
    Reaction(device, _no_combine).reserve_shares()
    return device


class Reaction:
    """The change of a device by one event, and its effects."""

    __slots__ = ("combine", "device", "effects")

    def __init__(self, device: Device, combine: Combine) -> None:
        self.device, self.combine = device, combine
        self.effects: list[Effect] = []

    def send(self, neighbour: int, message: protocol.Message) -> None:
        self.effects.append(protocol.Send(neighbour, message))

    def keep(self, change: protocol.Change) -> None:
        self.effects.append(protocol.Keep(change))

    # Iterations

    def begin(self, event: protocol.Begin) -> None:
        """Events 1 and 2."""
        self.reserve_shares()
        fired = event.drift >= event.threshold
        if fired:
            self.device.last_broadcast = self.device.model
            self.effects += (protocol.Fired(), protocol.Keep("broadcast"))
        for link in self.device.links.values():
            if link.up:
                if link.new:
                    link.new, link.pending_offer = False, 1
                elif fired:
                    link.pending_offer = link.pending_offer or 2
        self.make_pending_offers()

    def stepped(self, event: protocol.Stepped) -> None:
        """Events 3 and 4 were made."""
        self.device.model = event.model
        del self.device.steps[: event.made]
        self.device.k += not self.device.finished
        self.keep("model")
        if self.device.finished:
            self.make_pending_offers()

    def finish(self, event: protocol.Finish) -> None:
        self.device.finished = True
        for link in self.device.links.values():
            link.new = False
        self.make_pending_offers()

    def leave(self, event: protocol.Leave) -> None:
        self.device.leaving, self.device.model_requested_from = True, None
        for link in self.device.links.values():
            link.new, link.pending_offer = False, 0

    def reserve_shares(self) -> None:
        """Reserve the shares that exchanges in flight and steps not yet made may still move. The rest is free."""
        self.device.offers = None
        self.device.set_aside = [
            (link.exchange.share, link.exchange.sent) for link in self.device.links.values() if link.exchange
        ]
        if self.device.steps:
            self.device.set_aside += [(step.beta, step.sent) for step in self.device.steps]
        self.device.free = 1.0 - sum([share for share, _ in self.device.set_aside]) if self.device.set_aside else 1.0

    def offered_model(self) -> Model:
        """u_i = (w_i - sum_E q_e u_e) / (1 - sum_E q_e)"""
        if self.device.offers is None:
            if self.device.set_aside:
                rest = 1.0 - sum([share for share, _ in self.device.set_aside])
                terms = [(-share / rest, sent) for share, sent in self.device.set_aside]
                self.device.offers = self.combine([(1.0 / rest, self.device.model), *terms])
            elif self.device.sends_rounded:
                self.device.offers = self.combine([(1.0, self.device.model)])
            else:
                self.device.offers = self.device.model
        return self.device.offers

    # An exchange, message by message

    def may_begin(self, link: Link) -> bool:
        """Return whether an exchange may begin on a link without one in flight."""
        if self.device.finished:  # it applies steps at once: every exchange is an iteration of its own
            self.reserve_shares()
        return (self.device.finished or link.begun_in != self.device.k) and self.device.free > LEAST_SHARE

    def begin_exchange(self, link: Link, share: float, *, decides: bool) -> Exchange:
        """Begin an exchange at this end with a share that was reserved."""
        self.device.count += 1
        token = self.device.number, self.device.session, self.device.count
        exchange = Exchange(
            token, self.offered_model(), share, decides, 1 if link.new else link.pending_offer, self.device.k
        )
        link.exchange, link.begun_in, link.new, link.pending_offer = exchange, self.device.k, False, 0
        return exchange

    def offer_if_free(self, neighbour: int, link: Link) -> None:
        """Make the pending offer of a link with the current model, unless an exchange is in flight on it."""
        is_barred = self.device.waits_for_model or self.device.leaving
        if link.pending_offer and link.up and link.exchange is None and not is_barred and self.may_begin(link):
            exchange = self.begin_exchange(link, take_share(self.device), decides=True)
            self.send(neighbour, protocol.Offer(exchange.token, exchange.share, self.device.k))

    def make_pending_offers(self, but: int | None = None) -> None:
        """Make pending offers: when an iteration begins, and in a finished device whenever a share is freed."""
        for neighbour, link in self.device.links.items():
            if link.pending_offer and neighbour != but:
                self.offer_if_free(neighbour, link)

    def on_offer(self, neighbour: int, link: Link, message: protocol.Offer) -> None:
        exchange = link.exchange
        if exchange is None:
            if self.device.leaving or self.device.waits_for_model or not self.may_begin(link):
                link.pending_offer = 0 if self.device.leaving else link.pending_offer or 2
                self.send(neighbour, protocol.Refuse(message.token))
                return
            exchange = self.begin_exchange(link, take_share(self.device), decides=False)
            self.send(neighbour, protocol.Accept(exchange.token, message.token, exchange.share, self.device.k))
        elif exchange.partner == message.token:  # a repeated offer
            return
        elif exchange.partner is None:  # the two offers crossed: they are one exchange
            exchange.decides = self.device.number < neighbour
        else:
            link.pending_offer = link.pending_offer or 2
            self.send(neighbour, protocol.Refuse(message.token))
            return
        self.pair(neighbour, link, exchange, message)

    def on_accept(self, neighbour: int, link: Link, message: protocol.Accept) -> None:
        exchange = link.exchange
        if exchange is None or exchange.token != message.of or exchange.partner not in (None, message.token):
            self.answer_from_record(neighbour, message)
        elif exchange.partner is None:
            self.pair(neighbour, link, exchange, message)

    def pair(self, neighbour: int, link: Link, exchange: Exchange, theirs: protocol.Offer | protocol.Accept) -> None:
        """Both shares are known: fix beta and send the model."""
        exchange.partner, exchange.partner_k = theirs.token, theirs.k
        if theirs.share < exchange.share:
            give_back(self.device, exchange, exchange.share - theirs.share)
            exchange.share = theirs.share
        self.send(neighbour, protocol.Body(exchange.token, theirs.token, exchange.sent))
        if exchange.early_body is not None:
            self.on_body(neighbour, link, exchange.early_body)

    def on_refuse(self, neighbour: int, link: Link, message: protocol.Refuse) -> None:
        exchange = link.exchange
        if exchange is None or exchange.token != message.of or exchange.in_doubt:
            return
        if exchange.partner is None:
            self.end(neighbour, link, "refused")
        else:  # the neighbour's own offer overtook this, and was taken for one that crossed
            self.withdraw(neighbour, link, exchange)

    def on_body(self, neighbour: int, link: Link, message: protocol.Body) -> None:
        exchange = link.exchange
        if exchange is None or exchange.token != message.of or exchange.partner not in (None, message.token):
            self.answer_from_record(neighbour, message)
        elif exchange.partner is None:
            exchange.early_body = message
        elif exchange.received is None:
            exchange.received = message.model
            if exchange.decides:
                self.commit_if_agreed(neighbour, link, exchange)
            else:
                exchange.ready = True
                self.keep("ready")
                self.send(neighbour, protocol.Ready(exchange.token, message.token))

    def on_ready(self, neighbour: int, link: Link, message: protocol.Ready) -> None:
        exchange = link.exchange
        if exchange is not None and exchange.token == message.of and exchange.partner == message.token:
            exchange.ready = exchange.ready or exchange.decides
            self.commit_if_agreed(neighbour, link, exchange)
        else:
            self.answer_from_record(neighbour, message)

    def answer_from_record(self, neighbour: int, message: protocol.Accept | protocol.Body | protocol.Ready) -> None:
        """Answer how an exchange ended that is over here. One without a stored decision was not committed."""
        decision = self.device.unacknowledged.get(message.of)
        committed = decision is not None and decision.partner == message.token
        self.send(neighbour, (protocol.Commit if committed else protocol.Withdraw)(message.of, message.token))

    def commit_if_agreed(self, neighbour: int, link: Link, exchange: Exchange) -> None:
        """Decide, if both models and the other end's Ready have arrived."""
        if exchange.ready and exchange.decides and exchange.received is not None and exchange.partner is not None:
            self.device.unacknowledged[exchange.token] = Decision(neighbour, exchange.partner)
            self.take_step(neighbour, exchange)
            self.keep("commit")
            self.send(neighbour, protocol.Commit(exchange.token, exchange.partner))
            self.end(neighbour, link, "committed")

    def on_commit(self, neighbour: int, link: Link, message: protocol.Commit) -> None:
        exchange = link.exchange
        if exchange is None or exchange.token != message.of:  # a repeated commit, whose step was made before
            self.send(neighbour, protocol.Acknowledge(message.token))
        elif exchange.in_doubt and exchange.partner == message.token:
            self.take_step(neighbour, exchange)
            self.keep("commit")
            self.send(neighbour, protocol.Acknowledge(message.token))
            self.end(neighbour, link, "committed")

    def take_step(self, neighbour: int, exchange: Exchange) -> None:
        self.device.steps.append(Step(neighbour, exchange.share, exchange.sent, exchange.received))

    def on_acknowledge(self, neighbour: int, link: Link, message: protocol.Acknowledge) -> None:
        decision = self.device.unacknowledged.get(message.of)
        if decision is not None and decision.neighbour == neighbour:
            del self.device.unacknowledged[message.of]

    def on_withdraw(self, neighbour: int, link: Link, message: protocol.Withdraw) -> None:
        exchange = link.exchange
        if exchange is None or exchange.partner not in (None, message.token):
            return
        if exchange.token == message.of or (message.of is None and exchange.partner is not None):
            if exchange.in_doubt:
                self.keep("withdrawn")
            self.end(neighbour, link, "withdrawn")
        elif exchange.partner is not None and not exchange.in_doubt:
            # The neighbour has paired its token with another exchange of this device.
            self.withdraw(neighbour, link, exchange)

    def withdraw(self, neighbour: int, link: Link, exchange: Exchange) -> None:
        """Withdraw an exchange that is not in doubt."""
        self.send(neighbour, protocol.Withdraw(exchange.token, exchange.partner))
        self.end(neighbour, link, "withdrawn")

    def end(self, neighbour: int, link: Link, outcome: str) -> None:
        """End an exchange at this end, so that the link is free for the next."""
        exchange, link.exchange = link.exchange, None
        assert exchange is not None
        self.effects.append(protocol.Ended(neighbour, exchange, outcome))
        if outcome == "committed":
            if self.device.finished:
                self.effects.append(protocol.Apply())
        else:
            link.begun_in = -1  # another may begin in this iteration
            give_back(self.device, exchange, exchange.share)
            if outcome == "withdrawn" and not self.device.leaving:
                link.pending_offer = link.pending_offer or exchange.event
        if not link.up:
            del self.device.links[neighbour]
        if self.device.finished:
            # After a commit the step is made first, so that the offered model contains it. What is withdrawn is tried
            # again after the retry time: two ends that withdraw and offer at once may miss each other for ever.
            if outcome != "committed":
                self.make_pending_offers(but=neighbour if outcome == "withdrawn" else None)
        elif link.up and outcome != "withdrawn":  # a withdrawn one is tried again in the next iteration
            self.offer_if_free(neighbour, link)

    # Links, retries, devices without a model

    def link_up(self, event: protocol.LinkUp) -> None:
        link = self.device.links.setdefault(event.neighbour, Link(up=False))
        if link.up:
            return
        link.up, link.new = True, event.new and not self.device.finished
        self.device.degree += 1
        self.repeat_decisions(event.neighbour, link)
        if self.device.model_requested_from is None:
            self.request_model()

    def link_down(self, event: protocol.LinkDown) -> None:
        link = self.device.links.get(event.neighbour)
        if link is None or not link.up:
            return
        link.up, link.new, link.pending_offer = False, False, 0
        self.device.degree -= 1
        if link.exchange is None:
            del self.device.links[event.neighbour]
        elif not link.in_doubt:
            self.end(event.neighbour, link, "withdrawn")
        if self.device.model_requested_from == event.neighbour:
            self.request_model()

    def no_progress(self, event: protocol.NoProgress) -> None:
        neighbour, link = event.neighbour, self.device.links.get(event.neighbour)
        if link is None or not link.up:
            return
        self.repeat_decisions(neighbour, link)
        exchange = link.exchange
        if exchange is None:
            if self.device.finished:
                self.offer_if_free(neighbour, link)
        elif not exchange.in_doubt:
            self.withdraw(neighbour, link, exchange)
        if self.device.model_requested_from == neighbour:
            self.request_model()

    def repeat_decisions(self, neighbour: int, link: Link) -> None:
        """Send Ready again for an exchange in doubt, and Commit for decisions without an acknowledgement."""
        exchange = link.exchange
        if exchange is not None and exchange.in_doubt and exchange.partner is not None:
            self.send(neighbour, protocol.Ready(exchange.token, exchange.partner))
        for token, decision in self.device.unacknowledged.items():
            if decision.neighbour == neighbour:
                self.send(neighbour, protocol.Commit(token, decision.partner))

    def give_up(self, event: protocol.GiveUp) -> None:
        link = self.device.links.get(event.neighbour)
        if link is not None and link.in_doubt:
            self.end(event.neighbour, link, "unresolved")
            self.keep("unresolved")

    def request_model(self) -> None:
        """Request a model from one neighbour at a time, in turn. Neighbours may be silent, or wait for one themselves.

        If all of them wait for a model, the device starts from its own, if it has one.
        """
        device = self.device
        if not device.waits_for_model or device.leaving:
            return
        there = sorted(neighbour for neighbour, link in device.links.items() if link.up)
        others = [neighbour for neighbour in there if neighbour not in device.without_model]
        if others or not there:
            last = -1 if device.model_requested_from is None else device.model_requested_from
            device.model_requested_from = next(
                (neighbour for neighbour in others if neighbour > last), min(others, default=None)
            )
            if device.model_requested_from is not None:
                self.send(device.model_requested_from, protocol.ModelRequest())
        elif device.model is not None:
            self.start_from(device.k, device.model)
        else:
            device.without_model = []  # it sends them a request again after the retry time

    def on_model_request(self, neighbour: int, link: Link, message: protocol.ModelRequest) -> None:
        device = self.device
        self.send(neighbour, protocol.ModelReply(device.k, None if device.waits_for_model else device.model))

    def on_model_reply(self, neighbour: int, link: Link, message: protocol.ModelReply) -> None:
        if self.device.leaving:
            return
        if self.device.waits_for_model and message.model is not None:
            self.start_from(message.k, message.model)
        elif self.device.waits_for_model and self.device.model_requested_from == neighbour:
            self.device.without_model.append(neighbour)
            self.request_model()

    def start_from(self, k: int, model: Model) -> None:
        """Start a device that waited for a model."""
        self.device.k, self.device.model, self.device.last_broadcast = k, model, model
        self.device.waits_for_model, self.device.model_requested_from, self.device.without_model = False, None, []
        self.effects += (protocol.Keep("model"), protocol.Copied())

    def received(self, event: protocol.Received) -> None:
        link = self.device.links.get(event.neighbour)
        if link is not None and link.up:
            _ANSWERS[type(event.message)](self, event.neighbour, link, event.message)


_REACTIONS: dict[type, Callable[[Reaction, Any], None]] = {
    protocol.Begin: Reaction.begin,
    protocol.Stepped: Reaction.stepped,
    protocol.Finish: Reaction.finish,
    protocol.Leave: Reaction.leave,
    protocol.LinkUp: Reaction.link_up,
    protocol.LinkDown: Reaction.link_down,
    protocol.Received: Reaction.received,
    protocol.NoProgress: Reaction.no_progress,
    protocol.GiveUp: Reaction.give_up,
}

_ANSWERS: dict[type, Callable[[Reaction, int, Link, Any], None]] = {
    protocol.Offer: Reaction.on_offer,
    protocol.Accept: Reaction.on_accept,
    protocol.Refuse: Reaction.on_refuse,
    protocol.Body: Reaction.on_body,
    protocol.Ready: Reaction.on_ready,
    protocol.Commit: Reaction.on_commit,
    protocol.Acknowledge: Reaction.on_acknowledge,
    protocol.Withdraw: Reaction.on_withdraw,
    protocol.ModelRequest: Reaction.on_model_request,
    protocol.ModelReply: Reaction.on_model_reply,
}


def _no_combine(terms: Sequence[tuple[float, Model]]) -> Model:
    raise AssertionError("shares are reserved without a new model")
