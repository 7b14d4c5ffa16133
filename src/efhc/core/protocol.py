"""Messages of the exchange between two devices, events of a device, and effects that its driver carries out.

All of it is plain data; `core.device` is the law, and docs/asynchrony.md draws the order of the messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from efhc.core.device import Exchange

Model = Any
"""An array, into which the law never looks."""
Token = tuple[int, int, int]
"""The name that one end gives an exchange: device, session of the device, count. No token is used twice."""


# Messages. `token` is the sender's name of the exchange, `of` is the receiver's.


class Offer(NamedTuple):
    """The sender offers to exchange models. It is at its iteration k and has reserved the share q_i."""

    token: Token
    share: float
    k: int


class Accept(NamedTuple):
    """The sender accepts an offer, and has reserved the share q_j."""

    token: Token
    of: Token
    share: float
    k: int


class Refuse(NamedTuple):
    """The sender cannot accept an offer now. It will make an offer itself."""

    of: Token


class Body(NamedTuple):
    """The model u_i of the sender. No other message is large."""

    token: Token
    of: Token
    model: Model


class Ready(NamedTuple):
    """The sender has both models and has stored the step. When it is repeated, it requests the decision."""

    token: Token
    of: Token


class Commit(NamedTuple):
    """The sender has decided: both ends make the step."""

    token: Token
    of: Token


class Acknowledge(NamedTuple):
    """The sender has stored the other end's commit."""

    of: Token


class Withdraw(NamedTuple):
    """The sender did not commit the exchange and never will."""

    token: Token
    of: Token | None


class ModelRequest(NamedTuple):
    """The sender is new and requests a model and its k."""


class ModelReply(NamedTuple):
    """The model w_i(k) of the sender, to start from; None if the sender itself waits for one."""

    k: int
    model: Model | None


Message = Offer | Accept | Refuse | Body | Ready | Commit | Acknowledge | Withdraw | ModelRequest | ModelReply


# Events


class Begin(NamedTuple):
    """Iteration k begins: the gradient at w_i(k) starts now."""

    drift: float
    """(1/n)^(1/2) ||w_i(k) - w_hat_i||"""
    threshold: float


class Stepped(NamedTuple):
    """The device has a new model: w_i(k+1), or w_i with further steps if the device has finished."""

    model: Model
    made: int
    """The number of steps of `steps_in_order` that it contains. Later steps are made with the next model."""


class Finish(NamedTuple):
    """The last iteration is done. The device fires no more, but answers offers, and applies steps at once."""


class Leave(NamedTuple):
    """The device is leaving: it begins nothing new, and may be switched off once it `is_idle`."""


class LinkUp(NamedTuple):
    """A neighbour has come into reach."""

    neighbour: int
    new: bool = True
    """Whether the two have just met (Event 1)."""


class LinkDown(NamedTuple):
    """A neighbour is out of reach; messages in flight between the two are lost."""

    neighbour: int


class Received(NamedTuple):
    """A message has arrived."""

    neighbour: int
    message: Message


class NoProgress(NamedTuple):
    """Nothing has happened on a link for longer than the retry time."""

    neighbour: int


class GiveUp(NamedTuple):
    """A neighbour that knows how an exchange ended will not return."""

    neighbour: int


Event = Begin | Stepped | Finish | Leave | LinkUp | LinkDown | Received | NoProgress | GiveUp


# Effects, to be carried out in their order


class Send(NamedTuple):
    """Send a message to a neighbour."""

    neighbour: int
    message: Message


JournalledChange = Literal["ready", "commit", "withdrawn", "unresolved"]
"""A change on which a neighbour may rely.

- "ready": the exchange is in doubt here, and Ready is sent next.
- "commit": one of the two ends has decided, and this end makes the step.
- "withdrawn": an exchange that was in doubt was not committed.
- "unresolved": an exchange in doubt was given up.
"""
Change = JournalledChange | Literal["model", "broadcast"]
"""A change of the device.

- "model": the device has a new w_i.
- "broadcast": the device has a new w_hat_i.
"""


class Keep(NamedTuple):
    """Store `durable(device)`.

    If the change is a `JournalledChange`, the driver must do so before any later effect of the same reaction is carried
    out. Any other change may wait for the next checkpoint.
    """

    change: Change


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
