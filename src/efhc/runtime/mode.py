"""What the two modes of a node share: their threads, the checks of received models, and how they tell who they are."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Floats
from efhc.runtime.logs import Log
from efhc.runtime.recording import Recorder
from efhc.runtime.settings import NodeSettings
from efhc.runtime.status import NeighbourStatus, NodeStatus
from efhc.runtime.training import Trainer
from efhc.runtime.transport import Transport
from efhc.runtime.worker import Worker

RATE_SECONDS = 5.0
"""Seconds over which steps per second are counted."""
LAST_GRADIENT = 1.0
"""Seconds for which a node that ends waits for its training thread."""


class NodeParts(NamedTuple):
    """What a node of either mode is made of, besides its state folder."""

    settings: NodeSettings
    trainer: Trainer
    iterations: int
    session: int
    """The number of this start: it must never have been one of this device."""
    fingerprint: dict[str, str]
    status: NodeStatus
    recorder: Recorder
    log: Log


def problem_with_model(model: Floats, own: Floats | None, limit: float) -> str | None:
    """Return why a received model is not taken, if it is not. `own` is this node's model, if it has one.

    Its norm may be at most `limit` times that of `own`, or times 1.
    """
    norm = norm_of(model)
    if not math.isfinite(norm) and not np.isfinite(model).all():
        return "its model is not finite"
    largest = float(np.finfo(np.float64).max)  # beyond, a norm is infinite although all numbers are finite
    allowed = largest if own is None else limit * max(1.0, norm_of(own))
    if norm > allowed:
        return f"the norm of its model is {norm:.3g}, above the limit of {allowed:.3g}"
    return None


class ModeBase(ABC):
    """The part of a `Listener` that does not depend on the mode."""

    _transport: Transport

    def __init__(self, parts: NodeParts) -> None:
        self._settings, self._trainer, self._iterations, self._session = parts[:4]
        self._fingerprint, self._status, self._recorder, self._log = parts[4:]
        self._training, self._disk = Worker("efhc-training"), Worker("efhc-disk")
        self.begun = asyncio.Event()
        """Set once the node has begun to listen and to dial."""
        self._counted_since: tuple[float, int] | None = None
        """When and at how many steps the last measurement of the rate began."""

    @abstractmethod
    def status_of(self, neighbour: int) -> NeighbourStatus:
        """What is known of a neighbour."""

    def _note_step(self, now: float) -> None:
        """A step was made. The rate that is shown is that of the last few seconds."""
        status = self._status
        status.steps += 1
        since, before = self._counted_since = self._counted_since or (now, status.steps)
        if now - since >= RATE_SECONDS:
            status.steps_per_second = (status.steps - before) / (now - since)
            self._counted_since = now, status.steps

    def refused(self, who: str, reason: str, neighbour: int | None = None, *, again: bool = False) -> None:
        """A connection was refused."""
        self._status.refused += 1
        if neighbour is not None:
            self.status_of(neighbour).last_problem = reason
        if not again:
            self._log("refused", level="warning", who=who, reason=reason)

    def unreachable(self, neighbour: int, reason: str) -> None:
        """A neighbour cannot be reached. This is said once, however often it is tried."""
        self.status_of(neighbour).last_problem = reason
        self._log("unreachable", level="warning", neighbour=neighbour, reason=reason)

    def _refuse_from(self, status: NeighbourStatus, problem: str) -> None:
        """A neighbour sent what this node does not take: the connection ends, and it may connect again."""
        self._status.refused += 1
        status.last_problem = problem
        self._log("refused", level="warning", neighbour=status.device, reason=problem)
        self._transport.disconnect(status.device, problem)

    def _problem_with(self, model: Floats, own: Floats | None) -> str | None:
        return problem_with_model(model, own, self._settings.limits.norm)

    def _with_traffic(self, neighbours: Iterable[NeighbourStatus]) -> NodeStatus:
        """Return how the node is, with these neighbours and what went over the connections to them."""
        status = self._status
        status.neighbours = list(neighbours)
        status.links_up = sum(neighbour.up for neighbour in status.neighbours)
        for neighbour in status.neighbours:
            traffic = self._transport.traffic(neighbour.device)
            for name in ("bytes_sent", "bytes_received", "model_bytes_sent", "model_bytes_received", "rate"):
                setattr(neighbour, name, getattr(traffic, name))
        return status

    def _close_threads(self) -> None:
        """End the threads. A gradient that takes long is left behind, and ends with the process."""
        self._training.close(LAST_GRADIENT)
        self._disk.close(self._settings.stop_seconds)


def norm_of(model: Floats) -> float:
    """||w||, summed in double precision without a copy."""
    return math.sqrt(np.einsum("i,i->", model, model, dtype=np.float64))
