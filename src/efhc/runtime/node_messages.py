"""The messages of nodes beside those of the link laws: introductions of nodes, and the iterations of lockstep.

All of it is plain data; `runtime.wire` turns it into bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from efhc.core import half_step_messages as half_steps
from efhc.core import protocol

WIRE_VERSION = 1


class Hello(NamedTuple):
    """The first message of each end of a connection: its identity and state."""

    device: int
    session: int
    """The number of the device's present start, which is random. Another one than before: it was restarted."""
    fingerprint: dict[str, str]
    """All that both ends must agree on, by name; see `experiments.nodes.assemble.fingerprint`."""
    k: int
    """The iteration that the device is in. In lockstep, 2^63 - 1 until it knows from which one all go on."""
    committed: int = 0
    """Number of exchanges with the receiver that the sender has committed and not lost."""
    undecided: int = 0
    """Number of exchanges with the receiver that are in doubt at the sender, or were given up in doubt."""


class Goodbye(NamedTuple):
    """The sender closes the connection and gives the reason. Nothing follows."""

    reason: str
    """One line for people."""
    final: bool = False
    """Whether to connect again makes no sense: a mismatch, or the sender has been stopped by its user."""


class IterationHeader(NamedTuple):
    """Lockstep: whether the sender fires in iteration k, and the number of its neighbours."""

    k: int
    fired: bool
    """With half-steps: whether the sender sends the receiver a frame."""
    degree: int


class IterationModel(NamedTuple):
    """Lockstep: the model w_i(k) of the sender, for a link that is used."""

    k: int
    model: protocol.Model


class Presence(NamedTuple):
    """Lockstep: a device takes part in this session with these checkpoints. Receivers pass on what is new to them."""

    device: int
    session: int
    checkpoints: tuple[int, ...]
    """Iterations that it can start from, ascending; 0 is always one. None at all: it has begun without the receiver's
    present session, and does not go back for it."""


class RunEnded(NamedTuple):
    """Lockstep: the run ends for all devices. Receivers pass it on once."""

    reason: str
    """One line for people."""


Message = protocol.Message | half_steps.Message | IterationHeader | IterationModel | Presence | RunEnded
"""The messages on an open connection."""


def model_in(message: Any) -> protocol.Model | None:
    """Return the model that a message carries, if it carries one."""
    return getattr(message, "model", None)
