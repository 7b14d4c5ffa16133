"""What the messages of an exchange do to its two ends, in one go, where messages take no time.

A driver that holds both ends may use it instead of sending; the tests hold it to the messages. Each function returns
None and changes nothing where the case is not the plain one: then the messages have to do it.
"""

from __future__ import annotations

from typing import NamedTuple

from efhc.core.device import LEAST_SHARE, Combine, Device, Exchange, Link, Reaction, Step, take_share
from efhc.core.protocol import Body


class Done(NamedTuple):
    """An exchange that was begun and committed."""

    decider: Device
    follower: Device
    beta: float
    event: int


def _links(one: Device, other: Device) -> tuple[Link, Link] | None:
    """Both ends of a link on which both devices may begin an exchange."""
    link, back = one.links[other.number], other.links.get(one.number)
    if (
        back is None
        or link.exchange is not None
        or back.exchange is not None
        or link.begun_in == one.k
        or back.begun_in == other.k
        or one.free <= LEAST_SHARE
        or other.free <= LEAST_SHARE
        or one.finished
        or other.finished
        or other.leaving
        or other.copies
    ):
        return None
    return link, back


def exchange_at_once(one: Device, other: Device, combine: Combine) -> Done | None:
    """All of an exchange that `one` owes, from `Offer` to `Acknowledge`, if models take no time either."""
    links = _links(one, other)
    if links is None:
        return None
    link, back = links
    share, others = take_share(one), take_share(other)
    beta = share if share < others else others
    sent = one.offers = one.offers or Reaction(one, combine).offered_model()
    received = other.offers = other.offers or Reaction(other, combine).offered_model()
    one.steps.append(Step(other.number, beta, sent, received))
    other.steps.append(Step(one.number, beta, received, sent))
    crosses = back.owes and other.number < one.number
    done = Done(other, one, beta, back.owes) if crosses else Done(one, other, beta, link.owes)
    link.begun_in, link.new, link.owes = one.k, False, 0
    back.begun_in, back.new, back.owes = other.k, False, 0
    return done


def pair_at_once(one: Device, other: Device, combine: Combine) -> tuple[Exchange, Exchange] | None:
    """`Offer` and `Accept` of an exchange that `one` owes: both ends know beta, and their models may cross."""
    links = _links(one, other)
    if links is None:
        return None
    link, back = links
    crosses = bool(back.owes) and other.number < one.number
    exchange = Reaction(one, combine).begin_exchange(link, decides=not crosses)
    answer = Reaction(other, combine).begin_exchange(back, decides=crosses)
    exchange.share = answer.share = exchange.share if exchange.share < answer.share else answer.share
    exchange.partner, exchange.partner_k = answer.token, answer.k
    answer.partner, answer.partner_k = exchange.token, exchange.k
    return exchange, answer


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
    one.steps.append(Step(other.number, sent.share, sent.sent, received.sent))
    other.steps.append(Step(one.number, received.share, received.sent, sent.sent))
    link.exchange = back.exchange = None
    return sent if sent.decides else received
