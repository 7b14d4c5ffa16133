"""What devices say to one another (messages), what happens to a device (events), what it wants done (effects).

All of it is plain data. `core.device` is the only one who decides with it; docs/asynchrony.md draws who says what when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from efhc.core.device_state import Exchange

Model = Any
"""An opaque handle: an array, or a row of one."""
Token = tuple[int, int, int]
"""The name that one end gives an exchange: its device, that device's session, a count. No token comes twice."""


# Messages. `token` is the sender's name of the exchange, `of` the receiver's.


class Offer(NamedTuple):
    """Let us exchange models: I am at my iteration k and set the share q_i aside."""

    token: Token
    share: float
    k: int


class Accept(NamedTuple):
    """Yes; the share that I set aside is q_j."""

    token: Token
    of: Token
    share: float
    k: int


class Refuse(NamedTuple):
    """Not now. I owe you an offer."""

    of: Token


class Body(NamedTuple):
    """My model u_i: the only message that is large."""

    token: Token
    of: Token
    model: Model


class Ready(NamedTuple):
    """I hold both models and have kept the step. Said again, it asks what you decided."""

    token: Token
    of: Token


class Commit(NamedTuple):
    """Both of us make the step."""

    token: Token
    of: Token


class Acknowledge(NamedTuple):
    """I have kept that you committed."""

    of: Token


class Withdraw(NamedTuple):
    """The exchange is off: I did not commit it, and I never will."""

    token: Token
    of: Token | None


class AskModel(NamedTuple):
    """I am new: what are your model and your k?"""


class GiveModel(NamedTuple):
    """My model w_i(k), for you to start from; None if I wait for one myself."""

    k: int
    model: Model | None


Message = Offer | Accept | Refuse | Body | Ready | Commit | Acknowledge | Withdraw | AskModel | GiveModel


# Events


class Begin(NamedTuple):
    """Iteration k begins: the gradient at w_i(k) starts now."""

    drift: float
    """(1/n)^(1/2) ||w_i(k) - w_hat_i||"""
    threshold: float
    at_once: bool = False
    """Only note what is owed: the driver makes those exchanges by `core.at_once`."""


class Stepped(NamedTuple):
    """The model is now this one: w_i(k+1), or w_i with further steps if the device has finished."""

    model: Model
    made: int
    """The number of steps that it contains, which `steps_in_order` gave. Later ones are made with the next model."""


class Finish(NamedTuple):
    """The last iteration is done. The device fires no more, but it answers, and applies at once."""


class Leave(NamedTuple):
    """The device is to go: it begins nothing new, and may be switched off once it `is_idle`."""


class LinkUp(NamedTuple):
    """A neighbour has come into reach."""

    neighbour: int
    new: bool = True
    """Whether the two have just met (Event 1)."""


class LinkDown(NamedTuple):
    """A neighbour is out of reach; whatever was under way between the two is lost."""

    neighbour: int


class Received(NamedTuple):
    """A message has come."""

    neighbour: int
    message: Message


class NoProgress(NamedTuple):
    """Nothing has moved on this link for longer than the device's patience."""

    neighbour: int


class GiveUp(NamedTuple):
    """A neighbour that has to say how an exchange ended will not return."""

    neighbour: int


Event = Begin | Stepped | Finish | Leave | LinkUp | LinkDown | Received | NoProgress | GiveUp


# Effects, to be carried out in their order


class Send(NamedTuple):
    """Send a message to a neighbour."""

    neighbour: int
    message: Message


class Keep(NamedTuple):
    """Make `durable(device)` durable before any later effect of the same reaction is carried out."""

    what: str


class Fired(NamedTuple):
    """The device broadcasts in this iteration."""


class Apply(NamedTuple):
    """Make the steps of `steps_in_order` now, without a gradient, and report `Stepped`."""


class Copied(NamedTuple):
    """The device has its first model and may begin."""


class Ended(NamedTuple):
    """An exchange is over at this end: "committed", "refused", "withdrawn" or "unresolved"."""

    neighbour: int
    exchange: Exchange
    outcome: str


Effect = Send | Keep | Fired | Apply | Copied | Ended
