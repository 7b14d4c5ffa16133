"""The device of `core.device`, and the hands that do what it wants done: messages, the disk, and counting.

Nothing here decides anything about an exchange, and nothing here knows time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.device import react, restarted
from efhc.core.device_state import Device, Exchange, Step, durable, steps_in_order
from efhc.core.protocol import (
    Apply,
    Copied,
    Effect,
    Ended,
    Event,
    Fired,
    GiveUp,
    Keep,
    Offer,
    Received,
    Send,
    Stepped,
)
from efhc.runtime.logs import Log
from efhc.runtime.neighbours import NeighbourRecord
from efhc.runtime.outbox import STATE, Outbox
from efhc.runtime.recording import Recorder
from efhc.runtime.settings import NodeSettings
from efhc.runtime.state.store import Restored, Store
from efhc.runtime.status import NeighbourStatus, NodeStatus
from efhc.runtime.training import Trainer, combined
from efhc.runtime.transport import Transport

JOURNALLED = {"ready", "commit", "withdrawn", "unresolved"}
"""What a neighbour may rely on. The model itself is kept by checkpoints only."""


class ActingDevice:
    """One device with a network and a state folder. Its methods are called in the event loop, unless they say else."""

    device: Device

    def __init__(
        self,
        settings: NodeSettings,
        trainer: Trainer,
        store: Store,
        outbox: Outbox,
        transport: Transport,
        status: NodeStatus,
        recorder: Recorder,
        log: Log,
    ) -> None:
        self._settings, self._trainer, self._store, self._outbox = settings, trainer, store, outbox
        self._transport, self._status, self._recorder, self._log = transport, status, recorder, log
        self.neighbours: dict[int, NeighbourRecord] = {}
        """All that this node ever had to do with: if one comes back, the two ends compare what they counted."""
        self.gradients: Floats | None = None
        """The sum of all gradient steps that the model contains, if it is recorded."""
        self._start: Floats | None = None
        self.checkpoints_waiting = 0
        """Checkpoints that are not on the disk yet; each holds a model."""
        self.on_apply: Callable[[], None] = lambda: None
        """Called when the steps of `steps_in_order` are to be made without a gradient."""
        self.on_copied: Callable[[], None] = lambda: None
        """Called when the device has its first model."""

    # State

    def restore_or_begin(self, session: int, iterations: int) -> None:
        """Make the device: from the state folder, or a new one. Called in the worker thread, before all else.

        `session` must never have been one of this device, also if the folder was restored from a backup.
        """
        found = self._store.restore()
        if found is None:
            copies = self._settings.join == "copy"
            model = None if copies else self._trainer.initial_model()
            self.device = Device(self._settings.device, session, model, model, copies=copies)
            self._note_start(model)
        else:
            self._take(found)
            self.device = restarted(self._with_steps_made(found.device), session)
            self.device.finished = self.device.finished and self.device.k >= iterations
        self.device.rounds = self._settings.wire == "float16"
        self._status.session, self._status.iteration = self.device.session, self.device.k

    def _take(self, found: Restored) -> None:
        """Go on from the facts and tensors of the last checkpoint."""
        for note in found.notes:
            self._log("state mended", level="warning", what=note)
        facts, tensors = found.facts, found.tensors
        for name in ("broadcasts", "unresolved", "unresolved_norm", "lost"):
            setattr(self._status, name, facts[name])
        for number, of_neighbour in facts["neighbours"].items():
            self.record_of(int(number)).take(of_neighbour)
        for step in found.device.steps[facts["pending"] :]:  # committed after the checkpoint
            self._count(self.record_of(step.neighbour), "committed")
        self._trainer.local = {
            name.removeprefix("local/"): rows for name, rows in tensors.items() if name.startswith("local/")
        }
        self._start, self.gradients = tensors.get("start"), tensors.get("gradients")

    def _with_steps_made(self, device: Device) -> Device:
        """Make the steps of the journal, which the lost models contained, at once.

        They were shares of different models: together they may be more than a single model can promise.
        """
        if device.steps:
            steps, zeros = steps_in_order(device), np.zeros_like(device.model)
            device.model = self._trainer.mixed(device.model, zeros, 0.0, steps)
            device.steps = []
        return device

    def _note_start(self, model: Floats | None) -> None:
        if self._settings.record.gradients and model is not None:
            self._start, self.gradients = model, np.zeros(len(model))

    def checkpoint(self) -> None:
        """Keep the whole state, and begin the journal anew."""
        self.checkpoints_waiting += 1
        kept = durable(self.device)
        facts = {
            "broadcasts": self._status.broadcasts,
            "unresolved": self._status.unresolved,
            "unresolved_norm": self._status.unresolved_norm,
            "lost": self._status.lost,
            "pending": len(kept.steps),
            "neighbours": {str(number): record.facts() for number, record in self.neighbours.items()},
        }
        tensors = {f"local/{name}": np.asarray(rows) for name, rows in self._trainer.local.items()}
        if self._start is not None and self.gradients is not None:
            tensors |= {"start": self._start, "gradients": self.gradients}
        self._outbox.write(STATE, self._store.checkpoint, kept, facts, tensors)
        self._outbox.do(STATE, self._note_checkpoint)

    def _note_checkpoint(self) -> None:
        self.checkpoints_waiting -= 1
        self._recorder.flush()

    # Events and effects

    def react(self, event: Event) -> None:
        """Let the core change the device, and carry out what it wants done."""
        before = len(self.device.steps)
        effects = react(self.device, event, self._combine)
        fresh = [] if isinstance(event, Stepped) else self.device.steps[before:]
        lane = event.neighbour if isinstance(event, Received | GiveUp) else STATE
        for effect in effects:
            self._carry_out(effect, lane, fresh)

    def _combine(self, terms: Sequence[tuple[float, Floats]]) -> Floats:
        return combined(terms, "float16" if self.device.rounds else None)

    def _carry_out(self, effect: Effect, lane: int, fresh: list[Step]) -> None:
        """Do one thing. `lane` is the neighbour that may rely on what is kept, `fresh` the steps committed just now."""
        match effect:
            case Send(neighbour, message):
                if isinstance(message, Offer):
                    self._recorder.offered(message.token)
                self._outbox.do(neighbour, self._transport.send, neighbour, message)
            case Keep(what):
                if what in JOURNALLED:
                    self._outbox.write(lane, self._store.keep, durable(self.device), list(fresh))
                    fresh.clear()
                if what == "unresolved":
                    self.checkpoint()  # its norm is a fact, which the journal does not have
            case Ended(neighbour, exchange, outcome):
                self._note_end(neighbour, exchange, outcome)
            case Fired():
                self._note_broadcast()
            case Apply():
                self.on_apply()
            case Copied():
                self._note_start(self.device.model)
                self.checkpoint()
                self._outbox.do(STATE, self.on_copied)

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

    def _note_broadcast(self) -> None:
        status = self._status
        status.broadcasts += 1
        if self._settings.bandwidth == "measured":
            drift, threshold, bandwidth = status.drift, status.threshold, status.bandwidth
            self._log("broadcast", k=self.device.k, drift=drift, threshold=threshold, bandwidth=bandwidth)

    def _note_end(self, neighbour: int, exchange: Exchange, outcome: str) -> None:
        self._count(self.record_of(neighbour), outcome)
        if outcome != "committed":
            self._outbox.do(neighbour, self._transport.withdraw, neighbour, exchange.sent)
        norm = math.nan
        if outcome == "unresolved":
            assert exchange.received is not None
            step = exchange.share * np.subtract(exchange.received, exchange.sent, dtype=np.float64)
            norm = float(np.linalg.norm(step))
            self._status.unresolved += 1
            self._status.unresolved_norm += norm
            self._log("unresolved", level="warning", neighbour=neighbour, norm=norm)
        self._recorder.exchange(neighbour, exchange, outcome, norm)

    def may_settle(self, neighbour: int) -> bool:
        """Whether something between the two is not over, and a connection is there to end it."""
        link = self.device.links.get(neighbour)
        under_way = link is not None and link.exchange is not None
        decided = any(decision.neighbour == neighbour for decision in self.device.unacknowledged.values())
        return self.record_of(neighbour).status.connected and (under_way or decided)
