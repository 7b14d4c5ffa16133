"""What the messages of an exchange do to its two ends, in one go, where messages take no time.

A driver that holds both ends may use this instead of sending: first all offers of an instant, then all answers, as the
messages would come. The tests hold it to the messages. Where a case is not the plain one, nothing is changed, and the
messages have to do it.
"""

from __future__ import annotations

from typing import NamedTuple

from efhc.core.device import Combine, Reaction
from efhc.core.device_state import LEAST_SHARE, Device, Exchange, Link, Step, take_share
from efhc.core.protocol import Body


class Answer(NamedTuple):
    """What came of an offer."""

    decider: Device
    follower: Device
    beta: float
    """The weight of the exchange; 0 if it was refused, and the one who refused owes an offer."""
    event: int
    share: float
    """What the one who offered had set aside."""
    left: float
    """What it does not need of it: to be given back once all offers of the instant are answered."""
    crossed: bool = False


def offer_at_once(one: Device, link: Link) -> bool:
    """`Offer`: set a share aside for the exchange that is owed on a link; False if none may begin now."""
    if link.exchange is not None or link.begun_in == one.k or one.free <= LEAST_SHARE or not link.up:
        return False
    if one.finished or one.leaving or one.copies:
        return False
    link.offered = take_share(one)
    return True


def answer_at_once(one: Device, other: Device) -> Answer | None:
    """`Accept` or `Refuse` of what `one` offered; None if offers crossed and one was answered, or it takes messages."""
    link, back = one.links[other.number], other.links.get(one.number)
    share, link.offered = link.offered, 0.0
    if share == 0.0:  # the two offers crossed, and the other one was answered before
        return None
    if back is None or not back.up or back.exchange is not None or other.finished or other.leaving or other.copies:
        one.free += share
        return None
    event = 1 if link.new else link.owes
    if back.offered > 0.0:
        others, back.offered = back.offered, 0.0
        beta = share if share < others else others
        one.free += share - beta
        other.free += others - beta
        if other.number < one.number:
            return Answer(other, one, beta, 1 if back.new else back.owes, others, 0.0, crossed=True)
        return Answer(one, other, beta, event, share, 0.0, crossed=True)
    if back.begun_in == other.k or other.free <= LEAST_SHARE:
        link.begun_in, link.new, link.owes, back.owes = -1, False, 0, back.owes or 2
        return Answer(one, other, 0.0, event, share, share)
    others = take_share(other)
    beta = share if share < others else others
    other.free += others - beta
    return Answer(one, other, beta, event, share, share - beta)


def exchange_at_once(one: Device, other: Device, beta: float, combine: Combine) -> None:
    """All that follows an offer that was accepted, if models take no time either: both ends have the step."""
    sent, received = Reaction(one, combine).offered_model(), Reaction(other, combine).offered_model()
    one.steps.append(Step(other.number, beta, sent, received))
    other.steps.append(Step(one.number, beta, received, sent))
    for device, neighbour in ((one, other), (other, one)):
        link = device.links[neighbour.number]
        link.begun_in, link.new, link.owes = device.k, False, 0


def pair_at_once(decider: Device, follower: Device, beta: float, combine: Combine) -> tuple[Exchange, Exchange]:
    """Both ends of an exchange whose offer was accepted: their models may cross."""
    ours = Reaction(decider, combine).begin_exchange(decider.links[follower.number], beta, decides=True)
    theirs = Reaction(follower, combine).begin_exchange(follower.links[decider.number], beta, decides=False)
    ours.partner, ours.partner_k = theirs.token, theirs.k
    theirs.partner, theirs.partner_k = ours.token, ours.k
    return ours, theirs


def settle_at_once(one: Device, other: Device, body: Body) -> Exchange | None:
    """`Body` from `one` and what follows, if `other`'s model is there already: both ends commit.

    Returns the exchange as the end that decided sees it. What is owed on the link is left to the driver.
    """
    link, back = one.links.get(other.number), other.links.get(one.number)
    if link is None or back is None or one.finished or other.finished:
        return None
    sent, received = link.exchange, back.exchange
    if sent is None or received is None or sent.received is None:
        return None
    if sent.token != body.token or received.token != body.of:
        return None
    if sent.partner != received.token or received.partner != sent.token or not (link.up and back.up):
        return None
    one.steps.append(Step(other.number, sent.share, sent.sent, received.sent))
    other.steps.append(Step(one.number, received.share, received.sent, sent.sent))
    link.exchange = back.exchange = None
    return sent if sent.decides else received
