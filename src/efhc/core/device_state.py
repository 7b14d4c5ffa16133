"""The state of a device that exchanges models: plain data, which a checkpoint can hold. `core.device` changes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from efhc.core.protocol import Body, Model, Token

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
    early_body: Body | None = None
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
    copies: bool = False
    """Whether the device waits for a neighbour's model to start from."""
    model_requested_from: int | None = None
    """The neighbour that was sent the request for a model."""
    without_model: list[int] = field(default_factory=list)
    """The neighbours that wait for a model themselves."""
    rounds: bool = False
    """Whether models are sent in a lower precision: `combine` then rounds them to it."""


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
    """Free a share that an exchange does not move after all: now if it is of this iteration's u_i, else in the next."""
    if exchange.sent is device.offers:
        device.free += share


def is_idle(device: Device) -> bool:
    """Whether nothing is in flight, in doubt, or waiting for an acknowledgement."""
    return not device.unacknowledged and all(link.exchange is None for link in device.links.values())


def durable(device: Device) -> Device:
    """Return what is left after a crash: the model, steps, decisions and exchanges in doubt."""
    doubts = {j: Link(up=False, exchange=link.exchange) for j, link in device.links.items() if link.in_doubt}
    return Device(
        device.number, device.session, device.model, device.last_broadcast, device.k, doubts, 0, list(device.steps),
        dict(device.unacknowledged), finished=device.finished, copies=device.copies, rounds=device.rounds,
    )  # fmt: skip


def _neighbour_of(step: Step) -> int:
    return step.neighbour
