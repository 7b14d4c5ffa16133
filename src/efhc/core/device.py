"""One device on its own clock: events in, effects out. Nothing here reads a clock, opens a socket or draws a number.

The device trains and gossips at its own pace. In its local iteration k,

    Event 1   links that came up since the last iteration exchange models                       (`Begin`)
    Event 2   drift >= threshold: broadcast, w_hat_i = w_i(k), so every link exchanges models   (`Begin`)
    Event 3   w_i + sum of beta (u_j - u_i) over the exchanges committed since                  (`steps_in_order`)
    Event 4   - alpha(k) g_i(w_i(k)), which makes it w_i(k+1)                                   (`Stepped`)

An exchange on the link {i, j} takes a few messages, and either both ends make its step or neither does:

    i: Offer(q_i)  ->  j: Accept(q_j), or Refuse and owe i an offer      beta = min(q_i, q_j) from here on
    i: Body(u_i)   <-> j: Body(u_j)                                      offers that cross need no Accept
    j holds both models, keeps the step, says Ready: from here on only i may decide
    i holds both models and that Ready, keeps the fact and the step, says Commit
    j makes the step, says Acknowledge, and i may forget the fact

The one who offered decides; of offers that cross, the lower number. Messages may be lost, repeated or overtaken: each
end names an exchange by a token of its own, and a message counts only if both tokens fit.

What exchanges in flight may move is set aside. With E the exchanges in flight when iteration k begins, the device
offers, throughout k,

    u_i = (w_i - sum_E q_e u_e) / (1 - sum_E q_e),      q_i = min(1 / (1 + d_i), half of what is free)

so that every model stays a weighted mean of models, whatever is delayed (docs/asynchrony.md has the proofs).

A model is an opaque handle here: an array, or the number of a row. `combine` makes a new one, sum_t weight_t model_t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from efhc.core.device_state import (
    LEAST_SHARE,
    Decision,
    Device,
    Exchange,
    Link,
    Step,
    durable,
    give_back,
    take_share,
)
from efhc.core.protocol import (
    Accept,
    Acknowledge,
    Apply,
    AskModel,
    Begin,
    Body,
    Commit,
    Copied,
    Effect,
    Ended,
    Event,
    Finish,
    Fired,
    GiveModel,
    GiveUp,
    Keep,
    Leave,
    LinkDown,
    LinkUp,
    Model,
    NoProgress,
    Offer,
    Ready,
    Received,
    Refuse,
    Send,
    Stepped,
    Withdraw,
)

Combine = Callable[[Sequence[tuple[float, Model]]], Model]
"""Makes a new model: sum_t weight_t model_t."""


def react(device: Device, event: Event, combine: Combine) -> list[Effect]:
    """Change the device by what has happened; returns what is to be done about it, in order."""
    reaction = Reaction(device, combine)
    _REACTIONS[type(event)](reaction, event)
    return reaction.effects


def restarted(kept: Device, session: int) -> Device:
    """The device that starts from what `durable` kept, in a new session and without a link."""
    device = durable(kept)
    device.session = session
    Reaction(device, _no_model_is_made).reckon()
    return device


class Reaction:
    """What one event does to a device."""

    __slots__ = ("combine", "device", "effects")

    def __init__(self, device: Device, combine: Combine) -> None:
        self.device, self.combine = device, combine
        self.effects: list[Effect] = []

    # Iterations

    def begin(self, event: Begin) -> None:
        """Events 1 and 2."""
        self.reckon()
        fired = event.drift >= event.threshold
        if fired:
            self.device.last_broadcast = self.device.model
            self.effects += (Fired(), Keep("broadcast"))
        for link in self.device.links.values():
            if link.up:
                if link.new:
                    link.new, link.owes = False, 1
                elif fired:
                    link.owes = link.owes or 2
        if not event.at_once:
            self.offer_all_owed()

    def stepped(self, event: Stepped) -> None:
        """Events 3 and 4 were made."""
        self.device.model = event.model
        del self.device.steps[: event.made]
        self.device.k += not self.device.finished
        self.effects.append(Keep("model"))
        if self.device.finished:
            self.offer_all_owed()

    def finish(self, event: Finish) -> None:
        self.device.finished = True
        for link in self.device.links.values():
            link.new = False
        self.offer_all_owed()

    def leave(self, event: Leave) -> None:
        self.device.leaving, self.device.asked = True, None
        for link in self.device.links.values():
            link.new, link.owes = False, 0

    def reckon(self) -> None:
        """Set aside what exchanges in flight, and steps not yet made, may still move. What is left is w_i's own."""
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
            elif self.device.rounds:
                self.device.offers = self.combine([(1.0, self.device.model)])
            else:
                self.device.offers = self.device.model
        return self.device.offers

    # An exchange, message by message

    def may_begin(self, link: Link) -> bool:
        """Whether an exchange may begin on a link on which none is in flight."""
        if self.device.finished:  # it applies at once: every exchange is an iteration of its own
            self.reckon()
        return (self.device.finished or link.begun_in != self.device.k) and self.device.free > LEAST_SHARE

    def begin_exchange(self, link: Link, share: float, *, decides: bool) -> Exchange:
        """Begin an exchange at this end, for which a share was set aside."""
        self.device.count += 1
        token = self.device.number, self.device.session, self.device.count
        exchange = Exchange(token, self.offered_model(), share, decides, 1 if link.new else link.owes, self.device.k)
        link.exchange, link.begun_in, link.new, link.owes = exchange, self.device.k, False, 0
        return exchange

    def offer_if_free(self, neighbour: int, link: Link) -> None:
        """Make the offer that is owed on this link, with the model of this moment, if none is in flight on it."""
        barred = self.device.copies or self.device.leaving
        if link.owes and link.up and link.exchange is None and not barred and self.may_begin(link):
            exchange = self.begin_exchange(link, take_share(self.device), decides=True)
            self.effects.append(Send(neighbour, Offer(exchange.token, exchange.share, self.device.k)))

    def offer_all_owed(self, but: int | None = None) -> None:
        """Make the offers that are owed: when an iteration begins, and once finished whenever a share is freed."""
        for neighbour, link in self.device.links.items():
            if link.owes and neighbour != but:
                self.offer_if_free(neighbour, link)

    def on_offer(self, neighbour: int, link: Link, message: Offer) -> None:
        exchange = link.exchange
        if exchange is None:
            if self.device.leaving or self.device.copies or not self.may_begin(link):
                link.owes = 0 if self.device.leaving else link.owes or 2
                self.effects.append(Send(neighbour, Refuse(message.token)))
                return
            exchange = self.begin_exchange(link, take_share(self.device), decides=False)
            self.effects.append(Send(neighbour, Accept(exchange.token, message.token, exchange.share, self.device.k)))
        elif exchange.partner == message.token:  # it came twice
            return
        elif exchange.partner is None:  # the two offers crossed: they are one exchange
            exchange.decides = self.device.number < neighbour
        else:
            link.owes = link.owes or 2
            self.effects.append(Send(neighbour, Refuse(message.token)))
            return
        self.pair(neighbour, link, exchange, message)

    def on_accept(self, neighbour: int, link: Link, message: Accept) -> None:
        exchange = link.exchange
        if exchange is None or exchange.token != message.of or exchange.partner not in (None, message.token):
            self.answer_from_record(neighbour, message)
        elif exchange.partner is None:
            self.pair(neighbour, link, exchange, message)

    def pair(self, neighbour: int, link: Link, exchange: Exchange, theirs: Offer | Accept) -> None:
        """Both shares are known: beta is fixed, and the models cross."""
        exchange.partner, exchange.partner_k = theirs.token, theirs.k
        if theirs.share < exchange.share:
            give_back(self.device, exchange, exchange.share - theirs.share)
            exchange.share = theirs.share
        self.effects.append(Send(neighbour, Body(exchange.token, theirs.token, exchange.sent)))
        if exchange.early is not None:
            self.on_body(neighbour, link, exchange.early)

    def on_refuse(self, neighbour: int, link: Link, message: Refuse) -> None:
        exchange = link.exchange
        if exchange is None or exchange.token != message.of or exchange.in_doubt:
            return
        if exchange.partner is None:
            self.end(neighbour, link, "refused")
        else:  # the neighbour's own offer overtook this, and was taken for one that crossed
            self.withdraw(neighbour, link, exchange)

    def on_body(self, neighbour: int, link: Link, message: Body) -> None:
        exchange = link.exchange
        if exchange is None or exchange.token != message.of or exchange.partner not in (None, message.token):
            self.answer_from_record(neighbour, message)
        elif exchange.partner is None:
            exchange.early = message
        elif exchange.received is None:
            exchange.received = message.model
            if exchange.decides:
                self.commit_if_agreed(neighbour, link, exchange)
            else:
                exchange.ready = True
                self.effects += (Keep("ready"), Send(neighbour, Ready(exchange.token, message.token)))

    def on_ready(self, neighbour: int, link: Link, message: Ready) -> None:
        exchange = link.exchange
        if exchange is not None and exchange.token == message.of and exchange.partner == message.token:
            exchange.ready = exchange.ready or exchange.decides
            self.commit_if_agreed(neighbour, link, exchange)
        else:
            self.answer_from_record(neighbour, message)

    def answer_from_record(self, neighbour: int, message: Accept | Body | Ready) -> None:
        """Say how an exchange ended that is over here. What the record does not know was not committed."""
        decision = self.device.unacknowledged.get(message.of)
        committed = decision is not None and decision.partner == message.token
        self.effects.append(Send(neighbour, (Commit if committed else Withdraw)(message.of, message.token)))

    def commit_if_agreed(self, neighbour: int, link: Link, exchange: Exchange) -> None:
        """The decision: both models and the other end's Ready are here."""
        if exchange.ready and exchange.decides and exchange.received is not None and exchange.partner is not None:
            self.device.unacknowledged[exchange.token] = Decision(neighbour, exchange.partner)
            self.take_step(neighbour, exchange)
            self.effects += (Keep("commit"), Send(neighbour, Commit(exchange.token, exchange.partner)))
            self.end(neighbour, link, "committed")

    def on_commit(self, neighbour: int, link: Link, message: Commit) -> None:
        exchange = link.exchange
        if exchange is None or exchange.token != message.of:  # it came twice, and its step was taken the first time
            self.effects.append(Send(neighbour, Acknowledge(message.token)))
        elif exchange.in_doubt and exchange.partner == message.token:
            self.take_step(neighbour, exchange)
            self.effects += (Keep("commit"), Send(neighbour, Acknowledge(message.token)))
            self.end(neighbour, link, "committed")

    def take_step(self, neighbour: int, exchange: Exchange) -> None:
        self.device.steps.append(Step(neighbour, exchange.share, exchange.sent, exchange.received))

    def on_acknowledge(self, neighbour: int, link: Link, message: Acknowledge) -> None:
        decision = self.device.unacknowledged.get(message.of)
        if decision is not None and decision.neighbour == neighbour:
            del self.device.unacknowledged[message.of]

    def on_withdraw(self, neighbour: int, link: Link, message: Withdraw) -> None:
        exchange = link.exchange
        if exchange is None or exchange.partner not in (None, message.token):
            return
        if exchange.token == message.of or (message.of is None and exchange.partner is not None):
            if exchange.in_doubt:
                self.effects.append(Keep("withdrawn"))
            self.end(neighbour, link, "withdrawn")
        elif exchange.partner is not None and not exchange.in_doubt:
            # The neighbour pairs its token with another one of this device: the two ends do not mean the same exchange.
            self.withdraw(neighbour, link, exchange)

    def withdraw(self, neighbour: int, link: Link, exchange: Exchange) -> None:
        """Give an exchange up that this end may give up: it does not decide and is not ready, or has not committed."""
        self.effects.append(Send(neighbour, Withdraw(exchange.token, exchange.partner)))
        self.end(neighbour, link, "withdrawn")

    def end(self, neighbour: int, link: Link, outcome: str) -> None:
        """An exchange is over at this end, and the link is free for the next."""
        exchange, link.exchange = link.exchange, None
        assert exchange is not None
        self.effects.append(Ended(neighbour, exchange, outcome))
        if outcome == "committed":
            if self.device.finished:
                self.effects.append(Apply())
        else:
            link.begun_in = -1  # nothing came of it: another may be begun in this iteration
            give_back(self.device, exchange, exchange.share)
            if outcome == "withdrawn" and not self.device.leaving:
                link.owes = link.owes or exchange.event
        if not link.up:
            del self.device.links[neighbour]
        if self.device.finished:
            # After a commit the step is made first, so that the model that is offered contains it. What was withdrawn
            # is tried again when patience ends: two that withdraw and offer at once may miss one another for ever.
            if outcome != "committed":
                self.offer_all_owed(but=neighbour if outcome == "withdrawn" else None)
        elif link.up and outcome != "withdrawn":  # else it is tried again in the next iteration
            self.offer_if_free(neighbour, link)

    # Links, patience, newcomers

    def link_up(self, event: LinkUp) -> None:
        link = self.device.links.setdefault(event.neighbour, Link(up=False))
        if link.up:
            return
        link.up, link.new = True, event.new and not self.device.finished
        self.device.degree += 1
        self.ask_and_repeat(event.neighbour, link)
        if self.device.asked is None:
            self.ask_for_model()

    def link_down(self, event: LinkDown) -> None:
        link = self.device.links.get(event.neighbour)
        if link is None or not link.up:
            return
        link.up, link.new, link.owes = False, False, 0
        self.device.degree -= 1
        if link.exchange is None:
            del self.device.links[event.neighbour]
        elif not link.in_doubt:
            self.end(event.neighbour, link, "withdrawn")
        if self.device.asked == event.neighbour:
            self.ask_for_model()

    def no_progress(self, event: NoProgress) -> None:
        neighbour, link = event.neighbour, self.device.links.get(event.neighbour)
        if link is None or not link.up:
            return
        self.ask_and_repeat(neighbour, link)
        exchange = link.exchange
        if exchange is None:
            if self.device.finished:
                self.offer_if_free(neighbour, link)
        elif not exchange.in_doubt:
            self.withdraw(neighbour, link, exchange)
        if self.device.asked == neighbour:
            self.ask_for_model()

    def ask_and_repeat(self, neighbour: int, link: Link) -> None:
        """Ask how an exchange in doubt ended, and tell again what this device decided."""
        exchange = link.exchange
        if exchange is not None and exchange.in_doubt and exchange.partner is not None:
            self.effects.append(Send(neighbour, Ready(exchange.token, exchange.partner)))
        for token, decision in self.device.unacknowledged.items():
            if decision.neighbour == neighbour:
                self.effects.append(Send(neighbour, Commit(token, decision.partner)))

    def give_up(self, event: GiveUp) -> None:
        link = self.device.links.get(event.neighbour)
        if link is not None and link.in_doubt:
            self.end(event.neighbour, link, "unresolved")
            self.effects.append(Keep("unresolved"))

    def ask_for_model(self) -> None:
        """A newcomer asks one neighbour at a time, in turn: one may be a newcomer itself, or silent.

        If all are newcomers, it starts from the model that it has, if it has one.
        """
        device = self.device
        if not device.copies or device.leaving:
            return
        there = sorted(neighbour for neighbour, link in device.links.items() if link.up)
        others = [neighbour for neighbour in there if neighbour not in device.newcomers]
        if others or not there:
            last = -1 if device.asked is None else device.asked
            device.asked = next((neighbour for neighbour in others if neighbour > last), min(others, default=None))
            if device.asked is not None:
                self.effects.append(Send(device.asked, AskModel()))
        elif device.model is not None:
            self.start_from(device.k, device.model)
        else:
            device.newcomers = []  # it asks them again when its patience ends

    def on_ask_model(self, neighbour: int, link: Link, message: AskModel) -> None:
        device = self.device
        self.effects.append(Send(neighbour, GiveModel(device.k, None if device.copies else device.model)))

    def on_give_model(self, neighbour: int, link: Link, message: GiveModel) -> None:
        if self.device.leaving:
            return
        if self.device.copies and message.model is not None:
            self.start_from(message.k, message.model)
        elif self.device.copies and self.device.asked == neighbour:
            self.device.newcomers.append(neighbour)
            self.ask_for_model()

    def start_from(self, k: int, model: Model) -> None:
        """A newcomer has its first model."""
        self.device.k, self.device.model, self.device.last_broadcast = k, model, model
        self.device.copies, self.device.asked, self.device.newcomers = False, None, []
        self.effects += (Keep("model"), Copied())

    def received(self, event: Received) -> None:
        link = self.device.links.get(event.neighbour)
        if link is not None and link.up:
            _ANSWERS[type(event.message)](self, event.neighbour, link, event.message)


_REACTIONS: dict[type, Callable[[Reaction, Any], None]] = {
    Begin: Reaction.begin,
    Stepped: Reaction.stepped,
    Finish: Reaction.finish,
    Leave: Reaction.leave,
    LinkUp: Reaction.link_up,
    LinkDown: Reaction.link_down,
    Received: Reaction.received,
    NoProgress: Reaction.no_progress,
    GiveUp: Reaction.give_up,
}

_ANSWERS: dict[type, Callable[[Reaction, int, Link, Any], None]] = {
    Offer: Reaction.on_offer,
    Accept: Reaction.on_accept,
    Refuse: Reaction.on_refuse,
    Body: Reaction.on_body,
    Ready: Reaction.on_ready,
    Commit: Reaction.on_commit,
    Acknowledge: Reaction.on_acknowledge,
    Withdraw: Reaction.on_withdraw,
    AskModel: Reaction.on_ask_model,
    GiveModel: Reaction.on_give_model,
}


def _no_model_is_made(terms: Sequence[tuple[float, Model]]) -> Model:
    raise AssertionError("to reckon shares takes no model")
