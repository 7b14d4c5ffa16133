"""What a device remembers, as plain data that a checkpoint holds; `core.device` says what events do to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from efhc.core.protocol import Body, Model, Token

LEAST_SHARE = 1e-9
"""A share that is not worth an exchange. It is also how far shares may add up beyond their sum by rounding."""


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
    """1 or 2, for which event this end owed it; 0 if it only answers."""
    k: int
    partner: Token | None = None
    partner_k: int = -1
    received: Model | None = None
    """u_j"""
    early: Body | None = None
    """A body that overtook the message it follows."""
    ready: bool = False
    """The end that does not decide has kept the step: if that is this end, it waits to hear what was decided."""

    @property
    def in_doubt(self) -> bool:
        """Whether only the neighbour can say how it ends."""
        return self.ready and not self.decides


@dataclass(slots=True)
class Link:
    """A link, and what is to be done on it."""

    up: bool = True
    new: bool = False
    """It came up since the last iteration began (Event 1)."""
    owes: int = 0
    """An offer is to be made once the link is free, for Event 1 or 2; 0 for none."""
    exchange: Exchange | None = None
    begun_in: int = -1
    """The local iteration of the last exchange begun: one per iteration."""
    offered: float = 0.0
    """The share of an offer that is being answered at once; 0 between two instants."""

    @property
    def in_doubt(self) -> bool:
        """Whether only the neighbour can say how the exchange in flight ends."""
        return self.exchange is not None and self.exchange.in_doubt


class Step(NamedTuple):
    """A committed exchange: beta (u_j - u_i) is to be added to the model."""

    neighbour: int
    beta: float
    sent: Model
    received: Model


class Decision(NamedTuple):
    """A commit that the other end has not acknowledged yet."""

    neighbour: int
    partner: Token


@dataclass(slots=True)
class Device:
    """All that a device remembers. Its driver reads it, and changes it by events only (or by `core.at_once`)."""

    number: int
    session: int
    """Counts the times the device was started, so that no token comes twice."""
    model: Model
    """w_i(k)"""
    last_broadcast: Model
    """w_hat_i"""
    k: int = 0
    links: dict[int, Link] = field(default_factory=dict)
    """By neighbour: the links that are up, and those with an exchange in doubt."""
    degree: int = 0
    """d_i, the number of links that are up."""
    steps: list[Step] = field(default_factory=list)
    """Committed, and not yet part of the model."""
    unacknowledged: dict[Token, Decision] = field(default_factory=dict)
    """What this device decided, by its token, until the other end knows."""
    set_aside: list[tuple[float, Model]] = field(default_factory=list)
    """(q_e, u_e) of the exchanges that were in flight when the iteration began."""
    free: float = 1.0
    """1 - sum of all shares set aside, those of this iteration included."""
    offers: Model | None = None
    """u_i of this iteration, once somebody has asked for it."""
    count: int = 0
    """Tokens given out in this session."""
    finished: bool = False
    leaving: bool = False
    copies: bool = False
    """Whether it waits for a neighbour's model to start from."""
    asked: int | None = None
    """The neighbour that it asked for one."""
    newcomers: list[int] = field(default_factory=list)
    """The neighbours that have none to give: they wait for one as well."""
    rounds: bool = False
    """Whether models are sent with fewer digits than they have: `combine` then rounds to what can be sent."""


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
    """Free what an exchange does not move after all: at once if it is of this iteration's u_i, else with the next."""
    if exchange.sent is device.offers:
        device.free += share


def is_idle(device: Device) -> bool:
    """Whether nothing is in flight, in doubt, or waiting for an acknowledgement."""
    return not device.unacknowledged and all(link.exchange is None for link in device.links.values())


def durable(device: Device) -> Device:
    """What a crash leaves, if the last `Keep` was carried out: the model, steps, decisions and exchanges in doubt."""
    doubts = {j: Link(up=False, exchange=link.exchange) for j, link in device.links.items() if link.in_doubt}
    return Device(
        device.number, device.session, device.model, device.last_broadcast, device.k, doubts, 0, list(device.steps),
        dict(device.unacknowledged), finished=device.finished, copies=device.copies, rounds=device.rounds,
    )  # fmt: skip


def _neighbour_of(step: Step) -> int:
    return step.neighbour
