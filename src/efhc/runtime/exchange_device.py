"""The link law `exchange` on a free-running node: the device of `core.device`, and how its effects are carried out.

Nothing here decides anything about an exchange.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.device import react, restarted
from efhc.core.device_state import Device, Exchange, Step, durable, steps_in_order
from efhc.core.protocol import (
    Apply,
    Begin,
    Copied,
    Effect,
    Ended,
    Event,
    Finish,
    Fired,
    GiveUp,
    Keep,
    Leave,
    LinkDown,
    LinkUp,
    NoProgress,
    Offer,
    Received,
    Send,
    Stepped,
)
from efhc.core.state import Diverged, Local
from efhc.runtime.acting_device import ActingDevice
from efhc.runtime.messages import EXCHANGE_MESSAGES, Hello, Message
from efhc.runtime.outbox import STATE
from efhc.runtime.training import combined

JOURNALLED = {"ready", "commit", "withdrawn", "unresolved"}
"""What a neighbour may rely on. The model itself is kept by checkpoints only."""


class Iterated(NamedTuple):
    """What one iteration of the worker thread made."""

    model: Floats
    made: int
    """The number of steps that it contains."""
    loss: float
    drift: float
    local: Local
    gradients: Floats | None
    """The sum of all local steps that the model contains, if it is recorded."""


class ExchangeDevice(ActingDevice):
    """A device that exchanges models."""

    messages = EXCHANGE_MESSAGES
    device: Device
    _drift: float | None = None
    """How far the model is from the last broadcast; None until it is computed."""
    _applying: asyncio.Task[None] | None = None

    # State

    def restore_or_begin(self) -> None:
        found = self._store.restore()
        if found is None:
            copies = self._settings.join == "copy"
            model = None if copies else self._trainer.initial_model()
            self.device = Device(self._settings.device, self._session, model, model, copies=copies)
            self._note_start(model)
        else:
            self.device = found.device
            self._take(found)
            for step in found.device.steps[found.facts["pending"] :]:  # committed after the checkpoint
                self._count(self.record_of(step.neighbour), "committed")
            self.device = restarted(self._with_steps_made(found.device), self._session)
            self.device.finished = self.device.finished and self.device.k >= self._iterations
        self.device.rounds = self._settings.wire == "float16"
        self._note_begun()
        if self.device.copies:
            self.has_model.clear()

    def _with_steps_made(self, device: Device) -> Device:
        """Make the steps of the journal, which the lost models contained, at once.

        They were shares of different models: together they may be more than a single model can promise.
        """
        if device.steps:
            steps, zeros = steps_in_order(device), np.zeros_like(device.model)
            device.model = self._trainer.mixed(device.model, zeros, 0.0, steps)
            device.steps = []
        return device

    def _durable(self) -> tuple[Device, dict[str, Any]]:
        kept = durable(self.device)
        return kept, {"pending": len(kept.steps)}

    # Iterations

    async def iterate(self) -> None:
        """Events 1 to 4."""
        device, status, trainer = self.device, self._status, self._trainer
        if self._drift is None:
            self._drift = await self._training.call(trainer.drift, device.model, device.last_broadcast)
        k, broadcasts, drift = device.k, status.broadcasts, self._drift
        threshold = trainer.threshold(k, self.bandwidth())
        status.drift, status.threshold = drift, threshold
        self.react(Begin(drift, threshold))
        if trainer.is_plain:
            iterated = await self._training.call(self._iterate, k, device.model, self._loop.time())
        else:
            loss, down = await self._descend(k, device.model, lambda: 1.0)
            taken = sorted(device.steps, key=lambda step: step.neighbour)
            self._follow(taken)
            iterated = await self._training.call(self._mix, k, device.model, down, loss, trainer.local, taken)
        fired = status.broadcasts > broadcasts
        self._recorder.step(k, fired, iterated.loss, drift, threshold, status.bandwidth or math.nan)
        trainer.local, self.gradients = iterated.local, iterated.gradients
        self.react(Stepped(iterated.model, iterated.made))
        status.loss, status.iteration, self._drift = iterated.loss, device.k, iterated.drift
        self._recorder.after_iteration(device.k, device.model, iterated.local)

    def _iterate(self, k: int, model: Floats, began: float) -> Iterated:
        """In the worker thread: the gradient, and the steps of all exchanges that are committed when it is there."""
        gradient, loss, local = self._gradient(k, model, began + self._settings.pace)
        taken = list(self.device.steps)  # in one go: the event loop may append more meanwhile
        return self._mix(k, model, gradient, loss, local, sorted(taken, key=lambda step: step.neighbour))

    def _mix(self, k: int, model: Floats, down: Floats, loss: float, local: Local, taken: Sequence[Step]) -> Iterated:
        """In the worker thread: Events 3 and 4. The new model is in the memory of `down`."""
        trainer, device, alpha = self._trainer, self.device, self._trainer.step_size(k)
        gradients = self.gradients
        if gradients is not None:
            gradients = gradients + np.float64(trainer.dtype.type(alpha)) * down
        new = trainer.mixed(model, down, alpha, taken)
        drift = trainer.drift(new, device.last_broadcast)
        if not math.isfinite(drift):
            raise Diverged(k, "model", np.arange(device.number + 1) != device.number)
        return Iterated(new, len(taken), loss, drift, local, gradients)

    def _follow(self, taken: Sequence[Step]) -> None:
        """Let what the local step remembers follow what links add to the model."""
        if self._rows.local.follows_links and taken:
            kind, pull = self._trainer.dtype.type, np.zeros_like(self.device.model)
            for step in taken:
                pull += kind(step.beta) * (step.received - step.sent)
            self._rows.pulled(0, pull, pull)

    def finish(self) -> None:
        self.react(Finish())
        self._apply()  # what was committed since the last step

    def _apply(self) -> None:
        """Make the steps of committed exchanges without a gradient: the device has finished."""
        if self._applying is None or self._applying.done():
            self._applying = asyncio.create_task(self._apply_all())
            self._applying.add_done_callback(self.on_failure)

    async def _apply_all(self) -> None:
        device = self.device
        while device.steps and self._outbox.failed is None:
            steps = list(steps_in_order(device))
            new = await self._training.call(self._trainer.mixed, device.model, np.zeros_like(device.model), 0.0, steps)
            self.react(Stepped(new, len(steps)))

    def leave(self) -> None:
        self.react(Leave())

    def abandon(self) -> None:
        for neighbour in list(self.device.links):
            self.react(NoProgress(neighbour))  # withdraws what is not in doubt

    @property
    def is_done(self) -> bool:
        owed = any(link.owes and self.record_of(j).status.connected for j, link in self.device.links.items())
        return not self.device.steps and not owed and not any(map(self.may_settle, self.neighbours))

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
                    self._outbox.write([lane], self._store.keep, durable(self.device), list(fresh))
                    fresh.clear()
                if what == "unresolved":
                    self.checkpoint()  # its norm is a fact, which the journal does not have
            case Ended(neighbour, exchange, outcome):
                self._note_end(neighbour, exchange, outcome)
            case Fired():
                self._note_broadcast()
            case Apply():
                self._apply()
            case Copied():
                self._note_start(self.device.model)
                self.checkpoint()
                self._outbox.do(STATE, self.has_model.set)

    def _note_end(self, neighbour: int, exchange: Exchange, outcome: str) -> None:
        norm = math.nan
        if outcome != "committed":
            self._outbox.do(neighbour, self._transport.withdraw, neighbour, exchange.sent)
        if outcome == "unresolved":
            assert exchange.received is not None
            step = exchange.share * np.subtract(exchange.received, exchange.sent, dtype=np.float64)
            norm = float(np.linalg.norm(step))
            self._note_unresolved(neighbour, norm)
        else:
            self._count(self.record_of(neighbour), outcome)
        self._recorder.exchange(neighbour, exchange, outcome, norm)

    # Neighbours

    def connected(self, neighbour: int, theirs: Hello, *, was_up: bool, is_same: bool) -> None:
        record, status = self.record_of(neighbour), self.record_of(neighbour).status
        if was_up and is_same:
            status.interruptions += 1
            self.react(NoProgress(neighbour))  # what was under way is lost
            return
        if was_up:
            self.react(LinkDown(neighbour))
            status.downs += 1
        if lost := record.settle(theirs, neighbour in self.in_doubt):
            status.lost += lost
            self._status.lost += lost
            self._log("lost", level="warning", neighbour=neighbour, exchanges=lost)
            self.checkpoint()  # else the same would be counted again after a kill
        self.react(LinkUp(neighbour))

    def link_down(self, neighbour: int) -> None:
        self.react(LinkDown(neighbour))

    def forget(self, neighbour: int) -> None:
        """What is in doubt may still be decided, should the neighbour come back."""

    def problem_with(self, neighbour: int, message: Message) -> str | None:
        return super().problem_with(neighbour, message) or self.record_of(neighbour).problem_with(message)

    def received(self, neighbour: int, message: Any) -> str | None:
        self.react(Received(neighbour, message))
        return None

    def look_after(self, neighbour: int, now: float) -> None:
        """Lose patience with a neighbour from which nothing comes; give up on one that does not return."""
        record, limits = self.record_of(neighbour), self._settings.limits
        if self._waits_for(neighbour) and now - record.last_progress > limits.patience:
            record.last_progress = now
            self._log("no progress", neighbour=neighbour)
            self.react(NoProgress(neighbour))
        if neighbour in self.in_doubt and not record.status.connected:
            if record.silent_since is None:  # in doubt since before this start
                record.silent_since = now
            if now - record.silent_since > limits.give_up:
                self.react(GiveUp(neighbour))

    def _waits_for(self, neighbour: int) -> bool:
        """Whether something is under way, unknown or owed on a link with a connection."""
        device, link = self.device, self.device.links.get(neighbour)
        if link is None or not link.up or not self.record_of(neighbour).status.connected:
            return False
        owes = device.finished and link.owes > 0
        return self.may_settle(neighbour) or owes or device.asked == neighbour

    def may_settle(self, neighbour: int) -> bool:
        link = self.device.links.get(neighbour)
        under_way = link is not None and link.exchange is not None
        decided = any(decision.neighbour == neighbour for decision in self.device.unacknowledged.values())
        return self.record_of(neighbour).status.connected and (under_way or decided)

    def counts_for(self, neighbour: int) -> tuple[int, int]:
        record = self.record_of(neighbour)
        return record.committed, record.given_up + (neighbour in self.in_doubt)

    @property
    def in_doubt(self) -> set[int]:
        return {number for number, link in self.device.links.items() if link.in_doubt}
