"""Messages between the ends of a link with half-steps, and the effects that a device asks its driver to carry out.

All of it is plain data; `core.half_steps` is the law.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from efhc.base.arrays import Floats
from efhc.core.cost import ACKNOWLEDGEMENT_BYTES, FRAME_HEADER_BYTES, whole_message_bits
from efhc.core.uplink import About

Token = tuple[int, int, int]
"""Names one end of a link from the moment the link comes up until it goes down: device, session of the device, count.

No token is used twice. Sessions have no order, so a driver must not deliver an introduction of an earlier session
after one of a later session."""


# Messages. In each, `source` is the token of the sender's end and `target` that of the receiver's.


class Introduction(NamedTuple):
    """The whole model of the sender, which is version 0. It is sent when a link comes up or is begun anew."""

    source: Token
    k: int
    degree: int
    """The number of neighbours that the sender sends to."""
    model: Any
    """None if the sender itself waits for a model to start from."""


class Acknowledgement(NamedTuple):
    """What the sender has received, and the number of its neighbours."""

    source: Token
    target: Token
    acknowledged: int
    """The newest version of the receiver's model that the sender has."""
    sent: int
    """The number of the last frame that the sender has sent."""
    degree: int


class Frame(NamedTuple):
    """One half-step. When it is sent again, only `acknowledged` and `degree` may change."""

    source: Token
    target: Token
    number: int
    """The version of the sender's model that the receiver has after this frame."""
    used: int
    """The version of the receiver's model with which the sender computed the step."""
    weight: float
    """c"""
    learning: float
    """l"""
    payload: Any
    """The change of what the receiver knows of the sender's model, as the codec encoded it."""
    bits: int
    """The number of bits that the payload counts."""
    k: int
    acknowledged: int
    degree: int
    about: About | None = None
    """The sender's description of itself, if it has changed since the receiver was last sent one."""

    @property
    def sent(self) -> int:
        """The number of the last frame that the sender has sent."""
        return self.number


Message = Introduction | Acknowledgement | Frame


def bytes_of(message: Message) -> int:
    """Return the number of bytes that a message counts, its header included."""
    if isinstance(message, Acknowledgement):
        return ACKNOWLEDGEMENT_BYTES
    if isinstance(message, Introduction):
        return FRAME_HEADER_BYTES + payload_bits(message) // 8
    size = len(message.payload) if isinstance(message.payload, bytes) else -(-message.bits // 8)
    return FRAME_HEADER_BYTES + size + (0 if message.about is None else message.about.bytes)


def payload_bits(message: Message) -> int:
    """Return the number of bits for which a message occupies the air. Headers and acknowledgements count none."""
    if isinstance(message, Frame):
        return message.bits
    if isinstance(message, Introduction) and message.model is not None:
        return whole_message_bits(message.model[None])
    return 0


# Effects


class Send(NamedTuple):
    """Send a message to a neighbour."""

    neighbour: int
    message: Message


class Committed(NamedTuple):
    """The device has made its half of a received frame's step. A journal must hold it before a later effect is sent."""

    neighbour: int
    frame: Frame


class TakeBack(NamedTuple):
    """The link is down: subtract from h what the link has added to it."""

    neighbour: int
    link_correction: Floats


class Unresolved(NamedTuple):
    """The link went down before frames were acknowledged: the other end may lack their steps, of this norm."""

    neighbour: int
    norm: float


class Start(NamedTuple):
    """The device waited for a model and now has one: `HalfSteps.model`, at iteration `HalfSteps.k`."""


class Violation(NamedTuple):
    """A neighbour sent a message that the law does not allow. The message changed nothing."""

    neighbour: int
    problem: str


Effect = Send | Committed | TakeBack | Unresolved | Start | Violation
