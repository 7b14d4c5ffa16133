"""The link law `half-steps` on a free-running node: the device of `core.half_steps`, with a network and a disk.

A frame is in the journal before it leaves, and one that was received before it is acknowledged. A link that begins a
new life, or ends, is kept by a checkpoint. Connections lose nothing while they last, so a message is sent again only
when there is a new connection, or after a long silence. An interruption does not end a link: it ends when the neighbour
does not return within `limits.give_up`, or is taken off the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.cost import ACKNOWLEDGEMENT_BYTES, BITS_PER_NUMBER, FRAME_HEADER_BYTES, whole_message_bits
from efhc.core.half_steps import (
    Effect,
    Frame,
    HalfSteps,
    Introduction,
    LinkEnd,
    Send,
    Start,
    TakeBack,
    Unresolved,
    Violation,
)
from efhc.core.state import Diverged
from efhc.runtime.acting_device import ActingDevice
from efhc.runtime.messages import HALF_STEPS_MESSAGES, Hello
from efhc.runtime.mode import problem_with_model
from efhc.runtime.outbox import STATE
from efhc.runtime.state.half_steps_contents import KeptFrame, replay, snapshot
from efhc.runtime.wire_arithmetic import WireArithmetic
from efhc.scenarios.decisions import largest_drift


class HalfStepsDevice(ActingDevice):
    """A device that sends frames."""

    messages = HALF_STEPS_MESSAGES
    device: HalfSteps
    _credit = 0.0
    """Bits that the device may send, if it has a budget."""
    _spent = 0.0
    """The transmission time that the device has spent."""
    _takes_nothing = False
    """Whether the node is about to end: what comes is not acknowledged, so that it comes again."""

    # State

    def restore_or_begin(self) -> None:
        parts, law = self._trainer.parts, self._trainer.form.half_steps
        assert law is not None
        self._law = law
        self._sent_at: dict[int, float] = {}
        """By neighbour, the second at which the frame that is not acknowledged was first sent."""
        self._introduced: dict[int, int] = {}
        """By neighbour, bytes of introductions that no row of the record counts yet."""
        self._said_fresh: set[int] = set()
        """The neighbours that were told, on their last connection, that this device has made no step."""
        limit = self._settings.limits.norm
        self._arithmetic = WireArithmetic(
            parts.codec, lambda model: problem_with_model(model, self.device.model, limit)
        )
        theta, keeps_taught = parts.local.correction, law.take_back and parts.local.correction > 0
        found = self._store.restore()
        if found is None:
            model = None if self._settings.join == "copy" else self._trainer.initial_model()
            self.device = HalfSteps(self._settings.device, self._session, law.rate, theta, keeps_taught, model)
            self._note_start(model)
        else:
            device = self.device = found.device
            device.session, device.rate, device.theta = self._session, law.rate, theta
            device.keeps_taught = keeps_taught
            self._take(found)
            self._credit, self._spent = found.facts["credit"], found.facts["spent"]
            for frame in replay(device, found.frames, WireArithmetic(parts.codec)):
                if not frame.is_sent:
                    self._count(self.record_of(frame.neighbour), "committed")
            self._add_pull()
            if not self._settings.journal:  # neighbours may have frames that this device has forgotten
                for neighbour in list(device.links):
                    self._carry_out(device.link_down(neighbour))
            device.silent = device.silent and device.k >= self._iterations
        self._note_begun()

    def _durable(self) -> tuple[HalfSteps, dict[str, Any]]:
        self._add_pull()
        return snapshot(self.device), {"credit": self._credit, "spent": self._spent}

    # Iterations

    async def iterate(self) -> None:
        device, status, trainer = self.device, self._status, self._trainer
        self._add_pull()
        k, alpha, budget = device.k, trainer.step_size(device.k), trainer.parts.budget
        loss, down = await self._descend(k, device.model, lambda: device.gate)
        self._add_pull()
        if self.gradients is not None:
            self.gradients = self.gradients + np.float64(trainer.dtype.type(alpha)) * down
        y = device.model - down.dtype.type(alpha) * down
        if not np.isfinite(y).all():
            raise Diverged(k, "model", np.arange(device.number + 1) != device.number)
        bandwidth = self.bandwidth()
        status.threshold, status.drift = trainer.threshold(k, bandwidth), largest_drift(y, device.links.values())
        decide = trainer.decisions.decide(device.number, k, y, (loss, self._spent, device.degree), bandwidth)
        affords = None if budget is None else self._affords
        if budget is not None and device.links:
            self._credit += budget.share * BITS_PER_NUMBER * trainer.parameters
        effects = device.stepped(y, alpha, decide, self._arithmetic, affords, self._law.limit)
        new = [
            KeptFrame(True, one.neighbour, one.message)
            for one in effects
            if isinstance(one, Send) and isinstance(one.message, Frame)
        ]
        if new:
            self._note_broadcast()
            self._outbox.write([frame.neighbour for frame in new], self._store.keep_frames, new)
        self._recorder.step(k, bool(new), loss, status.drift, status.threshold, status.bandwidth or math.nan)
        self._carry_out(effects)
        self._add_pull()
        status.loss, status.iteration = loss, device.k
        self._recorder.after_iteration(device.k, device.model, trainer.local)

    def _affords(self, bits: float) -> bool:
        is_enough = bits <= self._credit
        self._credit -= bits if is_enough else 0.0
        return is_enough

    def _add_pull(self) -> None:
        """x += f, and h and momentum follow."""
        found = self.device.take_pull()
        if found is not None:
            self.device.model = self._rows.pulled(0, self.device.model, *found)

    def finish(self) -> None:
        self.device.silent = True

    def leave(self) -> None:
        self.device.silent = True

    def abandon(self) -> None:
        """Take nothing more: neighbours send again after the next start, and so does this device."""
        self._takes_nothing = True

    @property
    def is_done(self) -> bool:
        return not any(map(self.may_settle, self.neighbours))

    # Effects

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        """Do what the core wants done. What a message claims was given to the disk before, in its neighbour's lane."""
        for effect in effects:
            match effect:
                case Send(neighbour, message):
                    if isinstance(message, Frame):
                        self._sent_at.setdefault(neighbour, self._recorder.seconds)
                    self._pay(neighbour, message)
                    self._outbox.do(neighbour, self._transport.send, neighbour, message)
                case TakeBack(_, taught):
                    self._rows.take_back(0, taught)
                case Unresolved(neighbour, norm):
                    self._note_unresolved(neighbour, norm)
                    self._record(neighbour, None, "unresolved", norm)
                case Start():
                    self._note_start(self.device.model)

    def _pay(self, neighbour: int, message: Any) -> None:
        """Count what a message takes on the air. An introduction is paid on credit if need be."""
        bits = 0
        if isinstance(message, Frame):
            bits = message.bits
        elif isinstance(message, Introduction) and message.model is not None:
            bits = whole_message_bits(message.model[None])
            self._credit -= bits / max(1, self.device.degree)
            self._introduced[neighbour] = self._introduced.get(neighbour, 0) + bits // 8 + FRAME_HEADER_BYTES
        bandwidth = self._status.bandwidth or float(self._trainer.scenario.bandwidths.values[self.device.number])
        self._spent += bits / max(1, self.device.degree) / BITS_PER_NUMBER / bandwidth

    # Neighbours

    def connected(self, neighbour: int, theirs: Hello, *, was_up: bool, is_same: bool) -> None:
        if was_up:
            status = self.record_of(neighbour).status
            status.interruptions, status.downs = status.interruptions + is_same, status.downs + (not is_same)
        device, is_fresh = self.device, neighbour in self._said_fresh and theirs.k == 0 and theirs.committed == 0
        if neighbour in device.links:
            self._carry_out(device.retry(neighbour) or device.acknowledge(neighbour))
        else:
            start = self._shared_start(neighbour) if is_fresh else None
            sessions = device.session, theirs.session
            device.link_up(neighbour, is_new=device.k > 0, shared_start=start, sessions=sessions)
            self._links_changed(device.announce())

    def _shared_start(self, neighbour: int) -> Floats | None:
        """Return the model that this device and a neighbour start from, if it is the same."""
        own, theirs = (self._trainer.scenario.initial_model(number) for number in (self.device.number, neighbour))
        return own if np.array_equal(own, theirs) else None

    def counts_for(self, neighbour: int) -> tuple[int, int]:
        """Return whether there is a link already, and 0. Two ends that have made no step share their start."""
        has_link, device = neighbour in self.device.links, self.device
        if device.k == 0 and device.model is not None and not has_link:
            self._said_fresh.add(neighbour)
        else:
            self._said_fresh.discard(neighbour)
        return int(has_link), 0

    def link_down(self, neighbour: int) -> None:
        """Nothing is under way; whether the link ends is decided by `look_after`, or by the table of neighbours."""

    def forget(self, neighbour: int) -> None:
        if neighbour in self.device.links:
            effects = self.device.link_down(neighbour)
            self._links_changed([*effects, *self.device.announce()])

    def _links_changed(self, effects: list[Effect]) -> None:
        """Carry out what follows from a link that has come or gone; a checkpoint keeps it before anything is said."""
        said = [effect for effect in effects if isinstance(effect, Send)]
        self._carry_out([effect for effect in effects if not isinstance(effect, Send)])
        for send in said:
            self._pay(send.neighbour, send.message)
        self.checkpoint([send.neighbour for send in said])
        if any(isinstance(effect, Start) for effect in effects):
            self._outbox.do(STATE, self.has_model.set)
        for send in said:
            self._outbox.do(send.neighbour, self._transport.send, send.neighbour, send.message)

    def received(self, neighbour: int, message: Any) -> str | None:
        if self._takes_nothing:
            return None
        end = self.device.links.get(neighbour)
        if end is not None and (forgotten := forgotten_frames(end, message)):
            self._status.lost += forgotten
            self.record_of(neighbour).status.lost += forgotten
            self._log("lost", level="warning", neighbour=neighbour, frames=forgotten)
            effects = self.device.link_down(neighbour)
            self.device.link_up(neighbour, is_new=True)
            self._links_changed([*effects, *self.device.announce()])
            return None
        pending, received = (end.pending, end.inn) if end is not None else (None, 0)
        effects = self.device.received(neighbour, message, self._arithmetic)
        for effect in effects:
            if isinstance(effect, Violation):
                return effect.problem
        if isinstance(message, Introduction):
            self._links_changed(effects)
            return None
        if end is not None and pending is not None and end.pending is None:
            self._count(self.record_of(neighbour), "committed")
            self._record(neighbour, pending, "committed")
        if end is not None and isinstance(message, Frame) and end.inn > received:
            self._count(self.record_of(neighbour), "committed")
            self._outbox.write([neighbour], self._store.keep_frames, [KeptFrame(False, neighbour, message)])
            if self.device.silent:
                self._add_pull()
        self._carry_out(effects)
        return None

    def _record(self, neighbour: int, frame: Frame | None, outcome: str, norm: float = math.nan) -> None:
        """Write the row of a frame of this device; without one, of a frame that is given up."""
        start = self._sent_at.pop(neighbour, self._recorder.seconds)
        k, weight = (self.device.k, math.nan) if frame is None else (frame.k, frame.weight)
        size = 0 if frame is None else len(frame.payload) + FRAME_HEADER_BYTES + ACKNOWLEDGEMENT_BYTES
        size += self._introduced.pop(neighbour, 0)
        self._recorder.frame(
            start, neighbour, (k, self.record_of(neighbour).status.iteration or 0), weight, outcome, size, norm
        )

    def look_after(self, neighbour: int, now: float) -> None:
        """Send again what is not acknowledged after a long silence; end the link of a neighbour that is not back."""
        record, limits = self.record_of(neighbour), self._settings.limits
        if record.status.connected:
            if self.device.awaits(neighbour) and now - record.last_progress > limits.patience:
                record.last_progress = now
                self._log("no progress", neighbour=neighbour)
                self._carry_out(self.device.retry(neighbour))
        elif neighbour in self.device.links:
            if record.silent_since is None:  # away since before this start
                record.silent_since = now
            if now - record.silent_since > limits.give_up:
                self.forget(neighbour)

    def may_settle(self, neighbour: int) -> bool:
        device = self.device
        return self.record_of(neighbour).status.connected and device.model is not None and device.awaits(neighbour)

    @property
    def in_doubt(self) -> set[int]:
        """The neighbours that are away and have not acknowledged a frame."""
        links = self.device.links.items()
        return {j for j, end in links if end.pending is not None and not self.record_of(j).status.connected}


def forgotten_frames(end: LinkEnd, message: Any) -> int:
    """Return how many frames of a link this end must have forgotten, by what the other end says: its state is too old.

    With its journal, a device forgets none; with a state folder that was brought back from a backup it may.
    """
    if isinstance(message, Introduction) or (message.source, message.target) != (end.partner, end.token):
        return 0
    received: int = message.number - end.inn - 1 if isinstance(message, Frame) else 0
    acknowledged: int = message.acknowledged
    return max(0, acknowledged - end.out) + max(0, received)
