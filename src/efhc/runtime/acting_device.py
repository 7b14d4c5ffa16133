"""A free-running device with a network and a state folder: what the link laws share.

A link law is a subclass: `ExchangeDevice` or `HalfStepsDevice`. It lets its core change the device and carries out what
the core wants done: messages, the disk, and counting. Methods are called in the event loop, unless they say else.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.local_rows import LocalRows
from efhc.core.local_steps import Moment
from efhc.core.state import Local
from efhc.runtime.messages import Hello, Message
from efhc.runtime.mode import NodeParts
from efhc.runtime.neighbours import NeighbourRecord
from efhc.runtime.outbox import STATE, Outbox
from efhc.runtime.state.store import Restored, Store
from efhc.runtime.status import NeighbourStatus
from efhc.runtime.transport import Transport
from efhc.runtime.worker import Worker

FACTS = ("broadcasts", "unresolved", "unresolved_norm", "lost")
"""What of the status a checkpoint keeps."""


class ActingDevice(ABC):
    """One device of a free-running node."""

    messages: ClassVar[tuple[type, ...]]
    """What neighbours say with this link law."""
    device: Any

    def __init__(
        self, parts: NodeParts, store: Store, outbox: Outbox, transport: Transport, training: Worker,
        pause: threading.Event,
    ) -> None:  # fmt: skip
        self._settings, self._trainer, self._iterations, self._session = parts[:4]
        _, self._status, self._recorder, self._log = parts[4:]
        self._store, self._outbox, self._transport, self._training = store, outbox, transport, training
        self._loop, self._pause = asyncio.get_running_loop(), pause
        local = self._trainer.parts.local
        self._rows = LocalRows(local, 1, self._trainer.parameters, self._trainer.dtype.name)
        self.neighbours: dict[int, NeighbourRecord] = {}
        """All that this node ever had to do with: if one comes back, the two ends compare what they counted."""
        self.gradients: Floats | None = None
        """The sum of all local steps that the model contains, if it is recorded."""
        self._start: Floats | None = None
        self.checkpoints_waiting = 0
        """Checkpoints that are not on the disk yet; each holds a model."""
        self.bandwidth: Callable[[], float | None] = lambda: None
        """Returns b_i for the threshold; None if it is the experiment's."""
        self.on_failure: Callable[[asyncio.Task[None]], None] = lambda task: None
        """Called when a task of the device has ended."""
        self.has_model = asyncio.Event()
        """Set once the device has a model."""

    # What a link law does

    @abstractmethod
    def restore_or_begin(self) -> None:
        """Make the device: from the state folder, or a new one. Called in the worker thread, before all else."""

    @abstractmethod
    def _durable(self) -> tuple[Any, dict[str, Any]]:
        """Return what a checkpoint keeps of the device, and facts of this link law."""

    @abstractmethod
    async def iterate(self) -> None:
        """Make one iteration."""

    @abstractmethod
    def finish(self) -> None:
        """All iterations are made."""

    @abstractmethod
    def leave(self) -> None:
        """The node is to stop: begin nothing new."""

    @abstractmethod
    def abandon(self) -> None:
        """The node stops now: give up what may be given up."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether a device that has finished has nothing left to do with a neighbour that is connected."""

    @abstractmethod
    def may_settle(self, neighbour: int) -> bool:
        """Whether something between the two is not over, and a connection is there to end it."""

    @abstractmethod
    def counts_for(self, neighbour: int) -> tuple[int, int]:
        """Return `committed` and `undecided` of the HELLO to a neighbour."""

    @property
    @abstractmethod
    def in_doubt(self) -> set[int]:
        """The neighbours with which something is in doubt."""

    @abstractmethod
    def connected(self, neighbour: int, theirs: Hello, *, was_up: bool, is_same: bool) -> None:
        """A connection is up. `was_up`: its link was, `is_same`: and the neighbour was not restarted meanwhile."""

    @abstractmethod
    def link_down(self, neighbour: int) -> None:
        """A neighbour is out of reach, and may come back."""

    @abstractmethod
    def forget(self, neighbour: int) -> None:
        """A neighbour was taken off the table."""

    @abstractmethod
    def received(self, neighbour: int, message: Any) -> str | None:
        """A message has come. Returns why it is refused, if it is."""

    @abstractmethod
    def look_after(self, neighbour: int, now: float) -> None:
        """Called twice a second: do what is due if nothing comes from a neighbour."""

    # State

    def _note_begun(self) -> None:
        self._status.session, self._status.iteration = self.device.session, self.device.k
        if self.device.model is not None:
            self.has_model.set()

    def _take(self, found: Restored) -> None:
        """Go on from the facts and tensors of the last checkpoint."""
        for note in found.notes:
            self._log("state mended", level="warning", what=note)
        facts, tensors = found.facts, found.tensors
        for name in FACTS:
            setattr(self._status, name, facts[name])
        for number, of_neighbour in facts["neighbours"].items():
            self.record_of(int(number)).take(of_neighbour)
        self._trainer.local = {
            name.removeprefix("local/"): rows for name, rows in tensors.items() if name.startswith("local/")
        }
        if self._rows.arrays:
            self._rows.restore(tensors)
        for name, rows in self._trainer.decisions.memory.items():
            rows[self.device.number] = tensors[f"trigger/{name}"]
        self._start, self.gradients = tensors.get("start"), tensors.get("gradients")

    def _note_start(self, model: Floats | None) -> None:
        if self._settings.record.gradients and model is not None:
            self._start, self.gradients = model, np.zeros(len(model))

    def checkpoint(self, lanes: Iterable[int] = ()) -> None:
        """Keep the whole state, and begin the journal anew. What follows in `lanes` of the outbox waits for it."""
        self.checkpoints_waiting += 1
        kept, own_facts = self._durable()
        facts = {name: getattr(self._status, name) for name in FACTS} | own_facts
        facts["neighbours"] = {str(number): record.facts() for number, record in self.neighbours.items()}
        tensors = {f"local/{name}": np.asarray(rows) for name, rows in self._trainer.local.items()}
        if self._rows.arrays:
            tensors |= {name: rows.copy() for name, rows in self._rows.tensors().items()}
        for name, rows in self._trainer.decisions.memory.items():
            tensors[f"trigger/{name}"] = rows[self.device.number].copy()
        if self._start is not None and self.gradients is not None:
            tensors |= {"start": self._start, "gradients": self.gradients}
        self._outbox.write([STATE, *lanes], self._store.checkpoint, kept, facts, tensors)
        self._outbox.do(STATE, self._note_checkpoint)

    def _note_checkpoint(self) -> None:
        self.checkpoints_waiting -= 1
        self._recorder.flush()

    # Local steps

    async def _descend(self, k: int, model: Floats, gate: Callable[[], float]) -> tuple[float, Floats]:
        """Return the loss, and u - h: the direction of the local steps of iteration k, which begin at `model`.

        `gate` returns how much momentum counts at the moment when a gradient is there.
        """
        trainer, steps, began = self._trainer, self._trainer.parts.local.steps, self._loop.time()
        alpha = trainer.step_size(k)
        column, x, first = np.full((1, 1), alpha, trainer.dtype), model, 0.0
        for s in range(steps):
            until = began + self._settings.pace if s == steps - 1 else 0.0
            gradient, loss, trainer.local = await self._training.call(self._gradient, k * steps + s, x, until)
            first = loss if s == 0 else first
            moment = Moment(column, np.array([k * steps + s + 1]), np.array([[gate()]]))
            down = self._rows.descent([0], x[None], gradient[None], [alpha], moment)[0]
            if steps > 1:
                x = x - column[0] * down
        return first, down if steps == 1 else (model - x) / column[0]

    def _gradient(self, number: int, model: Floats, until: float) -> tuple[Floats, float, Local]:
        """In the worker thread: a gradient, which takes until some time of the loop's clock."""
        found = self._trainer.gradient(number, model)
        left = until - self._loop.time()
        if left > 0:
            self._pause.wait(left)
        return found

    # Counting

    def record_of(self, neighbour: int) -> NeighbourRecord:
        """Return what is remembered of a neighbour."""
        if neighbour not in self.neighbours:
            self.neighbours[neighbour] = NeighbourRecord(NeighbourStatus(neighbour))
        return self.neighbours[neighbour]

    @staticmethod
    def _count(record: NeighbourRecord, outcome: str) -> None:
        record.status.exchanges[outcome] += 1
        record.committed += outcome == "committed"
        record.given_up += outcome == "unresolved"

    def _note_unresolved(self, neighbour: int, norm: float) -> None:
        self._count(self.record_of(neighbour), "unresolved")
        self._status.unresolved += 1
        self._status.unresolved_norm += norm
        self._log("unresolved", level="warning", neighbour=neighbour, norm=norm)

    def _note_broadcast(self) -> None:
        status = self._status
        status.broadcasts += 1
        if self._settings.bandwidth == "measured":
            drift, threshold, bandwidth = status.drift, status.threshold, status.bandwidth
            self._log("broadcast", k=self.device.k, drift=drift, threshold=threshold, bandwidth=bandwidth)

    def problem_with(self, neighbour: int, message: Message) -> str | None:
        """Return why a message cannot be one of this neighbour, if it cannot."""
        if not isinstance(message, self.messages):
            return f"it sent {type(message).__name__}, which is no message of this mode and link law"
        return None
