"""What a node asks of a network, and what it is told: an interface with two kinds, sockets and a double in memory.

A transport keeps at most one connection per neighbour. It says `connected` when both ends have proved who they are and
agree, and `disconnected` when that connection is gone; messages in between come whole, once and in the order sent, but
small ones overtake models. What was under way when a connection broke is lost. Everything is called in one event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from efhc.core.protocol import Model
from efhc.runtime.messages import Hello, Message
from efhc.runtime.settings import Neighbour


class Listener(Protocol):
    """Who is told what happens: the node."""

    def hello_for(self, neighbour: int) -> Hello:
        """Return what to say first on a new connection to this neighbour."""
        ...

    def connected(self, neighbour: int, theirs: Hello) -> None:
        """A connection is up. If there was one before, `disconnected` has been called for it."""
        ...

    def disconnected(self, neighbour: int, reason: str) -> None:
        """The connection is gone: `reason` is one line for people."""
        ...

    def received(self, neighbour: int, message: Message) -> None:
        """A message has come. Its model, if it carries one, is an array of its own in the experiment's precision."""
        ...

    def moved(self, neighbour: int) -> None:
        """A part of a model has arrived here, or the other end has acknowledged one."""
        ...

    def refused(self, who: str, reason: str, neighbour: int | None = None, *, again: bool = False) -> None:
        """A connection was refused: `who` is an address or a device, `reason` one line for people.

        `neighbour` is its number, if it is one of the table that has proved who it is. `again` says that the same was
        told before, and nothing has changed since.
        """
        ...

    def unreachable(self, neighbour: int, reason: str) -> None:
        """A neighbour cannot be connected to. It is tried again and again, and told once."""
        ...


@dataclass
class Traffic:
    """What went over the connections to one neighbour since the node started."""

    bytes_sent: int = 0
    bytes_received: int = 0
    model_bytes_sent: int = 0
    """Bytes of models, without headers, that were given to the network."""
    model_bytes_received: int = 0
    rate: float | None = None
    """Bytes of models per second that this neighbour acknowledged while one was under way, smoothed. None: unknown."""


class Transport(Protocol):
    """The network of one node."""

    async def start(self, listener: Listener, neighbours: Sequence[Neighbour]) -> None:
        """Listen and connect, and go on trying. Raises `EfhcError` if the address cannot be listened on."""
        ...

    def allow(self, neighbours: Sequence[Neighbour]) -> None:
        """Take a new table of neighbours: connections to devices that are no longer in it end."""
        ...

    def send(self, neighbour: int, message: Message) -> None:
        """Send a message, or forget it if there is no connection. The model in it must not be changed any more."""
        ...

    def withdraw(self, neighbour: int, model: Model) -> None:
        """Stop sending this very array as the `Body` of an exchange, if it is under way or waits."""
        ...

    def disconnect(self, neighbour: int, reason: str, *, final: bool = False) -> None:
        """End the connection to a neighbour and tell it why. If not final, it may come back."""
        ...

    def traffic(self, neighbour: int) -> Traffic:
        """Return what went over the connections to this neighbour."""
        ...

    def carried(self) -> int | None:
        """Return the bytes that are known to have arrived at neighbours, on all links; None if nothing takes time."""
        ...

    def backlog(self, rate: float) -> float:
        """Return the seconds after which all that was sent has left the node, at `rate` bytes per second for all links.

        What is on its way does not count, nor do the acknowledgements of connections.
        """
        ...

    async def drain(self, seconds: float) -> bool:
        """Wait until all that was sent has been acknowledged, at most so long; returns whether it has."""
        ...

    async def stop(self, reason: str) -> None:
        """Tell all neighbours why, and end all connections."""
        ...
