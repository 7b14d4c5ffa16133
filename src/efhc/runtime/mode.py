"""The two modes of a node share this: their threads, checks of received models, and the node's status.

A transport keeps at most one connection per neighbour. It calls `connected` when both ends have proved who they are and
agree, and `disconnected` when that connection is gone. Messages in between arrive whole, once and in order, but small
ones overtake models. A message under way on a connection that breaks is lost. All calls are made in one event loop.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Floats
from efhc.runtime.logs import Log
from efhc.runtime.node_messages import Hello, Message
from efhc.runtime.node_settings import Neighbour, NodeSettings
from efhc.runtime.recording import Recorder
from efhc.runtime.sockets import SocketTransport
from efhc.runtime.status import NeighbourStatus, NodeStatus
from efhc.runtime.training import Trainer
from efhc.runtime.worker import Worker

RATE_SECONDS = 5.0
"""Seconds over which steps per second are counted."""
LAST_GRADIENT = 1.0
"""Seconds for which a node that ends waits for its training thread."""


class NodeParts(NamedTuple):
    """The parts of a node of either mode, besides its state folder."""

    settings: NodeSettings
    trainer: Trainer
    iterations: int
    session: int
    """The number of this start. No two starts of a device may have the same one."""
    fingerprint: dict[str, str]
    status: NodeStatus
    recorder: Recorder
    log: Log


class Mode(ABC):
    """The work of one node, free-running or in lockstep."""

    _transport: SocketTransport
    _loop: asyncio.AbstractEventLoop

    def __init__(self, parts: NodeParts) -> None:
        self._settings, self._trainer, self._iterations, self._session = parts[:4]
        self._fingerprint, self._status, self._recorder, self._log = parts[4:]
        self._training, self._disk = Worker("efhc-training"), Worker("efhc-disk")
        self.begun = asyncio.Event()
        """Set once the node listens and dials."""
        self._rate_start: tuple[float, int] | None = None
        """When the measurement of steps per second began, and the number of steps at that time."""

    # Called by the process

    @abstractmethod
    async def run(self, transport: SocketTransport) -> None:
        """Do the work. Return when it is done or after `stop`; raise whatever else ended it."""

    @abstractmethod
    def stop(self) -> None:
        """Ask for an orderly end."""

    @abstractmethod
    def allow(self, neighbours: Sequence[Neighbour]) -> None:
        """Replace the table of neighbours."""

    @abstractmethod
    def status(self) -> NodeStatus:
        """Return the status of the node."""

    # Called by the transport

    @abstractmethod
    def hello_for(self, neighbour: int) -> Hello:
        """Return the first message on a new connection to this neighbour."""

    @abstractmethod
    def connected(self, neighbour: int, theirs: Hello) -> None:
        """Handle a new connection. `disconnected` has been called for the one before it, if there was one."""

    @abstractmethod
    def disconnected(self, neighbour: int, reason: str) -> None:
        """Handle the end of a connection. `reason` is one line for people."""

    @abstractmethod
    def received(self, neighbour: int, message: Message) -> None:
        """Handle a message. A model in it is an array of its own, in the precision of the experiment."""

    def moved(self, neighbour: int) -> None:  # noqa: B027 - nodes in lockstep have no timeouts
        """Note that a part of a model has arrived here or was acknowledged by the neighbour."""

    def refused(self, who: str, reason: str, neighbour: int | None = None, *, again: bool = False) -> None:
        """Note that a connection was refused. `who` is an address or a device; `reason` is one line for people.

        `neighbour` is its number if it is in the table and has proved who it is. `again`: the last refusal was the same
        and has been logged.
        """
        self._status.refused += 1
        if neighbour is not None:
            self.status_of(neighbour).last_problem = reason
        if not again:
            self._log("refused", level="warning", who=who, reason=reason)

    def unreachable(self, neighbour: int, reason: str) -> None:
        """Note that a neighbour cannot be reached. Called once, however often the transport tries."""
        self.status_of(neighbour).last_problem = reason
        self._log("unreachable", level="warning", neighbour=neighbour, reason=reason)

    # For the modes

    @abstractmethod
    def status_of(self, neighbour: int) -> NeighbourStatus:
        """Return the status of a neighbour."""

    def _note_step(self, now: float) -> None:
        """Count a step. The status shows the rate of the last few seconds."""
        status = self._status
        status.steps += 1
        since, before = self._rate_start = self._rate_start or (now, status.steps)
        if now - since >= RATE_SECONDS:
            status.steps_per_second = (status.steps - before) / (now - since)
            self._rate_start = now, status.steps

    def _refuse_from(self, status: NeighbourStatus, problem: str) -> None:
        """End the connection to a neighbour because of a message. The neighbour may connect again."""
        self._status.refused += 1
        status.last_problem = problem
        self._log("refused", level="warning", neighbour=status.device, reason=problem)
        self._transport.disconnect(status.device, problem)

    def _problem_with(self, model: Floats, own: Floats | None) -> str | None:
        return problem_with_model(model, own, self._settings.limits.norm)

    def _with_traffic(self, neighbours: Iterable[NeighbourStatus]) -> NodeStatus:
        """Return the status of the node with these neighbours and the traffic of their connections."""
        status = self._status
        status.neighbours = list(neighbours)
        status.links_up = sum(neighbour.up for neighbour in status.neighbours)
        for neighbour in status.neighbours:
            vars(neighbour).update(vars(self._transport.traffic(neighbour.device)))
        return status

    def _close_threads(self) -> None:
        """End the threads. A gradient that takes long is left behind and ends with the process."""
        self._training.close(LAST_GRADIENT)
        self._disk.close(self._settings.stop_seconds)


def problem_with_model(model: Floats, own: Floats | None, limit: float) -> str | None:
    """Return why a received model is refused, or None. `own` is this node's model, if it has one.

    The norm of the model may be at most `limit` times that of `own`, or times 1.
    """
    norm = norm_of(model)
    if not math.isfinite(norm) and not np.isfinite(model).all():
        return "its model is not finite"
    largest = float(np.finfo(np.float64).max)  # above this, a norm is infinite although all numbers are finite
    allowed = largest if own is None else limit * max(1.0, norm_of(own))
    if norm > allowed:
        return f"the norm of its model is {norm:.3g}, above the limit of {allowed:.3g}"
    return None


def norm_of(model: Floats) -> float:
    """||w||, summed in double precision without a copy."""
    return math.sqrt(np.einsum("i,i->", model, model, dtype=np.float64))
