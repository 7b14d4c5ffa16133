"""One node as a process: its signals, its status pages, and the mode that does the work, free-running or in lockstep.

A transport keeps at most one connection per neighbour. It calls `connected` when both ends have proved who they are and
agree, and `disconnected` when that connection is gone. Messages in between arrive whole, once and in order, but small
ones overtake models. A message under way on a connection that breaks is lost. All calls are made in one event loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from efhc.base.arrays import Floats
from efhc.base.errors import EfhcError
from efhc.runtime.logs import Log
from efhc.runtime.node_messages import Hello, Message
from efhc.runtime.node_settings import Metrics, Neighbour, NodeSettings
from efhc.runtime.pages import SOCKET_NAME, Pages
from efhc.runtime.recording import Recorder
from efhc.runtime.security import Security
from efhc.runtime.sockets import SocketTransport
from efhc.runtime.status import NeighbourStatus, NodeStatus
from efhc.runtime.training import Trainer, problem_with_model
from efhc.runtime.workers import Worker

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
    log: Log


class Mode(ABC):
    """The work of one node, and what both modes share: threads, checks of received models, and the node's status."""

    _transport: SocketTransport
    _loop: asyncio.AbstractEventLoop

    def __init__(self, parts: NodeParts) -> None:
        self._settings, self._trainer, self._iterations, self._session, self._fingerprint, self._log = parts
        settings, trainer = self._settings, self._trainer
        self._status = NodeStatus(
            settings.device, self._session, settings.mode, version("efhc"), os.getpid(), iterations=self._iterations
        )
        self._recorder = Recorder(settings.state, settings.record, trainer.parameters, trainer.dtype)
        self._training, self._disk = Worker("efhc-training"), Worker("efhc-disk")
        self.neighbours: dict[int, Any] = {}
        """A record of each neighbour that this node ever had, because one that leaves may come back."""
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
        """Request an orderly end."""

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

    def note_progress(self, neighbour: int) -> None:  # noqa: B027 - nodes in lockstep have no timeouts
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
    def _new_record(self, status: NeighbourStatus) -> Any:
        """Return the record of a neighbour that is new. It has this status, and what the mode needs besides."""

    def record_of(self, neighbour: int) -> Any:
        if neighbour not in self.neighbours:
            self.neighbours[neighbour] = self._new_record(NeighbourStatus(neighbour))
        return self.neighbours[neighbour]

    def status_of(self, neighbour: int) -> NeighbourStatus:
        status: NeighbourStatus = self.record_of(neighbour).status
        return status

    def _note_step(self) -> None:
        """Count a step. The status shows the rate of the last few seconds."""
        status, now = self._status, self._loop.time()
        status.steps += 1
        since, before = self._rate_start = self._rate_start or (now, status.steps)
        if now - since >= RATE_SECONDS:
            status.steps_per_second = (status.steps - before) / (now - since)
            self._rate_start = now, status.steps

    def _refuse_message(self, neighbour: int, problem: str) -> None:
        """End the connection to a neighbour because of a message. The neighbour may connect again."""
        self._status.refused += 1
        self.status_of(neighbour).last_problem = problem
        self._log("refused", level="warning", neighbour=neighbour, reason=problem)
        self._transport.disconnect(neighbour, problem)

    def _problem_with(self, model: Floats, own: Floats | None) -> str | None:
        return problem_with_model(model, own, self._settings.limits.norm)

    def _status_with(self, neighbours: Iterable[NeighbourStatus]) -> NodeStatus:
        """Return the status of the node with these neighbours."""
        status = self._status
        status.neighbours = list(neighbours)
        status.links_up = sum(neighbour.up for neighbour in status.neighbours)
        return status

    def _close_threads(self) -> None:
        """End the threads. A gradient that takes long is left behind and ends with the process."""
        self._training.close(LAST_GRADIENT)
        self._disk.close(self._settings.stop_seconds)


async def run_until_stopped(
    mode: Mode,
    transport: SocketTransport,
    state: Path,
    metrics: Metrics,
    read_neighbours: Callable[[], Sequence[Neighbour]],
    log: Log,
    security: Security | None = None,
) -> None:
    """Run a node until it is done, or until SIGTERM or SIGINT. A second signal ends it at once, as kill -9 would.

    SIGHUP reads the neighbours anew, and the certificate.
    """
    loop, began = asyncio.get_running_loop(), time.monotonic()
    hang_up = asyncio.Event()
    uncaught: list[BaseException] = []

    def stop(number: int) -> None:
        log("stopping", signal=signal.Signals(number).name)
        mode.stop()
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(one, os._exit, 128 + one)

    def note_uncaught(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log uncaught errors. Sockets fail in many ways; anything else is a bug, and the state may be wrong."""
        error = context.get("exception")
        if error is None or isinstance(error, OSError):
            log("network", level="debug", what=str(error or context.get("message")))
            return
        log("failed" if isinstance(error, EfhcError) else "bug", level="error", what=repr(error))
        uncaught.append(error)
        mode.stop()

    async def reread_on_hang_up() -> None:
        await mode.begun.wait()  # a signal that comes before is not forgotten
        while True:
            await hang_up.wait()
            hang_up.clear()
            if security is not None:
                security.refresh()
            try:
                neighbours = read_neighbours()
                mode.allow(neighbours)
            except EfhcError as error:  # the table of before stays
                log("neighbours not read", level="error", reason=str(error))
                continue
            transport.allow(neighbours)
            log("neighbours", devices=[neighbour.device for neighbour in neighbours])

    def status() -> NodeStatus:
        now = mode.status()
        now.uptime = time.monotonic() - began
        now.certificate_expires = security.expires if security is not None else None
        return now

    loop.set_exception_handler(note_uncaught)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGHUP, hang_up.set)
    reading = asyncio.create_task(reread_on_hang_up())
    async with Pages(status, state / SOCKET_NAME, metrics.port) as pages:
        log("starting", pid=os.getpid(), state=str(state), metrics_port=pages.port)
        await mode.run(transport)
    reading.cancel()
    log.close()
    if uncaught:
        raise uncaught[0]
