"""What the messages of an exchange do to its two ends, in one go, where messages take no time.

A driver that holds both ends may use it instead of sending; the tests hold it to the messages. Each function returns
None and changes nothing where the case is not the plain one: then the messages have to do it.
"""

from __future__ import annotations

from typing import NamedTuple

from efhc.core.device import LEAST_SHARE, Combine, Device, Exchange, Link, Reaction, Step, take_share
from efhc.core.protocol import Effect


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


def settle_at_once(decider: Device, follower: Device, combine: Combine) -> tuple[list[Effect], list[Effect]]:
    """`Ready`, `Commit` and `Acknowledge` of an exchange both of whose models have arrived: the effects of each end."""
    first, second = Reaction(decider, combine), Reaction(follower, combine)
    link, back = decider.links[follower.number], follower.links[decider.number]
    for reaction, end, neighbour, there in ((first, link, follower, back), (second, back, decider, link)):
        exchange, other = end.exchange, there.exchange
        assert exchange is not None
        assert other is not None
        reaction.device.steps.append(Step(neighbour.number, exchange.share, exchange.sent, other.sent))
    first.end(follower.number, link, "committed")
    second.end(decider.number, back, "committed")
    return first.effects, second.effects
