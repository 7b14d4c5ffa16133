"""The link law `half-steps` on a free-running node: the device of `core.half_steps`, with a network and a disk.

A frame is in the journal before it leaves, and one that was received before it is acknowledged. A link that begins a
new life, or ends, is kept by a checkpoint. Connections lose nothing while they last, so a message is sent again only
when there is a new connection, or after a long silence. An interruption does not end a link: it ends when the neighbour
does not return within `limits.give_up`, or is taken off the table.

A device that paces itself acknowledges at its next local step. Once it sends no new frames it acknowledges at once, and
first what it has not acknowledged until then: neighbours wait for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.cost import (
    ACKNOWLEDGEMENT_BYTES,
    BITS_PER_NUMBER,
    FRAME_HEADER_BYTES,
    whole_message_bits,
)
from efhc.core.half_steps import (
    Acknowledgement,
    Effect,
    Frame,
    HalfSteps,
    Introduction,
    LinkEnd,
    Pending,
    Send,
    Start,
    TakeBack,
    Token,
    Unresolved,
    Violation,
)
from efhc.core.state import Diverged
from efhc.core.uplink import Uplink, is_due
from efhc.runtime.acting_device import ActingDevice
from efhc.runtime.bandwidth import UplinkMeter
from efhc.runtime.messages import HALF_STEPS_MESSAGES, Hello
from efhc.runtime.mode import problem_with_model
from efhc.runtime.outbox import STATE
from efhc.runtime.state.half_steps_contents import KeptFrame, replay, snapshot
from efhc.runtime.wire_arithmetic import WireArithmetic
from efhc.scenarios.decisions import largest_drift

SMOOTHING = 0.25
"""How far a measured time moves the smoothed one."""
PATIENT = 4.0
"""What is not acknowledged is sent again after so many round trips without a word, or after `limits.patience`."""


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
        self._sent_at: dict[tuple[int, int], tuple[float, int]] = {}
        """By neighbour and number of an unacknowledged frame: the second at which it was first sent, and its bytes."""
        self._last_sent: dict[int, float] = {}
        """By neighbour, the second at which the last frame was sent."""
        self._resent: set[int] = set()
        """The neighbours to which unacknowledged frames were sent more than once."""
        self._round_trips: dict[int, float] = {}
        """By neighbour, the seconds from a frame to its acknowledgement, smoothed."""
        self._step_seconds = 0.0
        """How long a local step takes, smoothed."""
        self._left_out: set[int] = set()
        """The neighbours that the device did not send to, by the log."""
        self._held_back = 0
        """Bytes of messages that wait for the disk."""
        self._meter = UplinkMeter()
        self._known: dict[int, tuple[Token, int]] = {}
        """By neighbour: the end that its connection began with, and what it had acknowledged by then."""
        self._introduced: dict[int, int] = {}
        """By neighbour, bytes of introductions that no row of the record counts yet."""
        self._said_fresh: set[int] = set()
        """The neighbours that were told, on their last connection, that this device has made no step."""
        limit = self._settings.limits.norm
        self._arithmetic = WireArithmetic(
            parts.codec, lambda model: problem_with_model(model, self.device.model, limit)
        )
        found = self._store.restore()
        if found is None:
            model = None if self._settings.join == "copy" else self._trainer.initial_model()
            self.device = HalfSteps(self._settings.device, self._session, parts.link_law, model)
            self._note_start(model)
        else:
            device = self.device = found.device
            device.session, device.law = self._session, parts.link_law
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
        began = self._loop.time()
        loss, down = await self._descend(k, device.model, lambda: device.gate)
        self._step_seconds = _smoothed(self._step_seconds, self._loop.time() - began)
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
        uplink = self._uplink(bandwidth)
        effects = device.stepped(y, alpha, decide, self._arithmetic, affords, self._law.limit, uplink)
        if device.quiet != self._left_out:
            self._left_out = set(device.quiet)
            self._log("links left out", neighbours=sorted(device.quiet))
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

    def _uplink(self, bandwidth: float | None) -> Uplink | None:
        """Return what the device knows of its uplink, if it paces itself. `bandwidth`: b_i, if not the scenario's."""
        trainer, device = self._trainer, self.device
        if trainer.parts.pacing is None:
            return None
        size, limit, now = trainer.dtype.itemsize, self._settings.limits.send, self._recorder.seconds
        rate, is_known = (
            float(trainer.scenario.bandwidths.values[device.number]) if bandwidth is None else bandwidth,
            True,
        )
        if self._settings.bandwidth == "measured":
            is_known = self._measure_uplink(now)
            rate = rate if self._meter.rate is None else self._meter.rate / size
            self._status.bandwidth = rate
        rate = rate if limit is None else min(rate, limit / size)
        backlog = self._backlog(rate * size)

        def may_follow(neighbour: int) -> bool:
            since = now - self._last_sent.get(neighbour, now)
            return is_due(device.law.window, device.awaits(neighbour), self._round_trips.get(neighbour), since)

        return Uplink(
            trainer.parts.pacing,
            rate,
            size,
            lambda neighbour: backlog,
            may_follow,
            self._step_seconds,
            trainer.form.chooses_links,
            is_known,
        )

    def _backlog(self, rate: float) -> float:
        """Return the seconds until all has left that was sent, at `rate` bytes per second."""
        return self._transport.backlog(rate) + self._held_back / rate

    def _measure_uplink(self, now: float) -> bool:
        """Measure what the uplink carries; returns whether anything is known of it."""
        carried = self._transport.carried()
        if carried is not None:
            is_busy = self._meter.rate is not None and self._backlog(self._meter.rate) > 0
            self._meter.sample(carried, is_busy, now)
        return carried is None or self._meter.rate is not None

    def finish(self) -> None:
        self._send_no_more()

    def leave(self) -> None:
        self._send_no_more()

    def _send_no_more(self) -> None:
        """Send no new frames, and acknowledge what waited for the next local step: there may be none."""
        self._carry_out(self.device.fall_silent())

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
                    self._pay(neighbour, message)
                    self._send(neighbour, message)
                case TakeBack(_, taught):
                    self._rows.take_back(0, taught)
                case Unresolved(neighbour, norm):
                    self._note_unresolved(neighbour, norm)
                    self._record_unresolved(neighbour, norm)
                case Start():
                    self._note_start(self.device.model)

    def _send(self, neighbour: int, message: Any) -> None:
        """Send a message once the disk has what it claims."""
        size, now = bytes_of(message), self._recorder.seconds
        if isinstance(message, Frame):
            key = neighbour, message.number
            first, before = self._sent_at.get(key, (now, 0))
            self._sent_at[key], self._last_sent[neighbour] = (first, before + size), now
        self._held_back += size
        self._outbox.do(neighbour, self._give_to_transport, neighbour, message, size)

    def _give_to_transport(self, neighbour: int, message: Any, size: int) -> None:
        self._held_back -= size
        self._transport.send(neighbour, message)

    def _pay(self, neighbour: int, message: Any) -> None:
        """Count what a message takes on the air. An introduction is paid on credit if need be."""
        bits = 0
        if isinstance(message, Frame):
            bits = message.bits
        elif isinstance(message, Introduction) and message.model is not None:
            bits = whole_message_bits(message.model[None])
            self._credit -= bits / max(1, self.device.degree)
            self._introduced[neighbour] = self._introduced.get(neighbour, 0) + bytes_of(message)
        bandwidth = self._status.bandwidth or float(self._trainer.scenario.bandwidths.values[self.device.number])
        self._spent += bits / max(1, self.device.degree) / BITS_PER_NUMBER / bandwidth

    # Neighbours

    def connected(self, neighbour: int, theirs: Hello, *, was_up: bool, is_same: bool) -> None:
        if was_up:
            status = self.record_of(neighbour).status
            status.interruptions, status.downs = status.interruptions + is_same, status.downs + (not is_same)
        device, is_fresh = self.device, neighbour in self._said_fresh and theirs.k == 0 and theirs.committed == 0
        if neighbour in device.links:
            end = device.links[neighbour]
            self._known[neighbour] = end.token, end.acknowledged
            self._carry_out(device.acknowledge(neighbour))
            self._resend(neighbour, all_frames=True)
        else:
            start = self._shared_start(neighbour) if is_fresh else None
            sessions = device.session, theirs.session
            device.link_up(neighbour, is_new=device.k > 0, shared_start=start, sessions=sessions)
            self._links_changed(device.announce())

    def _resend(self, neighbour: int, *, all_frames: bool = False) -> None:
        """Send again what a neighbour has not acknowledged."""
        if effects := self.device.retry(neighbour, all_frames=all_frames):
            self._resent.add(neighbour)
            self._carry_out(effects)

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
            self._send(send.neighbour, send.message)

    def received(self, neighbour: int, message: Any) -> str | None:
        if self._takes_nothing:
            return None
        end = self.device.links.get(neighbour)
        if end is None:
            return None
        if forgotten := self._forgotten_frames(neighbour, end, message):
            self._status.lost += forgotten
            self.record_of(neighbour).status.lost += forgotten
            self._log("lost", level="warning", neighbour=neighbour, frames=forgotten)
            effects = self.device.link_down(neighbour)
            self.device.link_up(neighbour, is_new=True)
            self._links_changed([*effects, *self.device.announce()])
            return None
        if isinstance(message, Introduction):
            self._links_changed(self.device.received(neighbour, message, self._arithmetic))
            return None
        pending, received = end.pending, end.inn
        frames = [message, *(end.early[number] for number in sorted(end.early))] if isinstance(message, Frame) else []
        effects = self.device.received(neighbour, message, self._arithmetic)
        if made := frames[: end.inn - received]:  # all of which the next acknowledgement claims
            for _ in made:
                self._count(self.record_of(neighbour), "committed")
            kept = [KeptFrame(False, neighbour, frame) for frame in made]
            self._outbox.write([neighbour], self._store.keep_frames, kept)
            if self.device.silent:
                self._add_pull()
        for effect in effects:
            if isinstance(effect, Violation):
                return effect.problem
        self._note_acknowledged(neighbour, pending[: len(pending) - len(end.pending)], message)
        self._carry_out(effects)
        return None

    def _note_acknowledged(self, neighbour: int, frames: Sequence[Pending], message: Any) -> None:
        """A message has acknowledged frames of this device: learn how long that took, and write their rows."""
        if not frames:
            return
        now, trip = self._recorder.seconds, self._round_trips.get(neighbour)
        last = self._sent_at.get((neighbour, frames[-1].frame.number))
        if last is not None and neighbour not in self._resent:
            self._round_trips[neighbour] = _smoothed(trip, now - last[0])
        self._resent.discard(neighbour)
        extra = ACKNOWLEDGEMENT_BYTES if isinstance(message, Acknowledgement) else 0
        for frame, *_ in frames:
            self._count(self.record_of(neighbour), "committed")
            start, size = self._sent_at.pop((neighbour, frame.number), (now, bytes_of(frame)))
            self._record(start, neighbour, frame.k, frame.weight, "committed", size + extra)
            extra = 0

    def _record_unresolved(self, neighbour: int, norm: float) -> None:
        """Write the row of the frames to a neighbour that are given up."""
        given_up = [self._sent_at.pop(key)[0] for key in list(self._sent_at) if key[0] == neighbour]
        start = min(given_up, default=self._recorder.seconds)
        self._record(start, neighbour, self.device.k, math.nan, "unresolved", 0, norm)

    def _record(
        self, start: float, neighbour: int, k: int, weight: float, outcome: str, size: int, norm: float = math.nan
    ) -> None:
        size += self._introduced.pop(neighbour, 0)
        iterations = k, self.record_of(neighbour).status.iteration or 0
        self._recorder.frame(start, neighbour, iterations, weight, outcome, size, norm)

    def look_after(self, neighbour: int, now: float) -> None:
        """Send again what is not acknowledged after a long silence; end the link of a neighbour that is not back."""
        record, limits = self.record_of(neighbour), self._settings.limits
        if record.status.connected:
            patience = max(limits.patience, PATIENT * self._round_trips.get(neighbour, 0.0))
            if self.device.awaits(neighbour) and now - record.last_progress > patience:
                record.last_progress = now
                self._log("no progress", neighbour=neighbour)
                self._resend(neighbour)
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
        return {j for j, end in links if end.pending and not self.record_of(j).status.connected}

    def _forgotten_frames(self, neighbour: int, end: LinkEnd, message: Any) -> int:
        """Return how many frames of a link one of its ends must have forgotten: its state is too old.

        With its journal, a device forgets none; with a state folder that was brought back from a backup it may. This
        end has, if the other one has got more than this one has sent, or sends more than the window allows. The other
        one has, if it begins this connection with acknowledging less than before.
        """
        if isinstance(message, Introduction) or (message.source, message.target) != (end.partner, end.token):
            return 0
        token, known = self._known.get(neighbour, (end.token, -1))
        acknowledged: int = message.acknowledged
        received = message.number - end.inn - self.device.law.window if isinstance(message, Frame) else 0
        is_regress = isinstance(message, Acknowledgement) and token == end.token  # frames are sent again as they were
        lost = known - acknowledged if is_regress else 0
        return max(0, acknowledged - end.out) + max(0, received) + max(0, lost)


def bytes_of(message: Any) -> int:
    """Return the bytes of a message on the wire, TLS included."""
    if isinstance(message, Acknowledgement):
        return ACKNOWLEDGEMENT_BYTES
    if isinstance(message, Introduction):
        return FRAME_HEADER_BYTES + (0 if message.model is None else whole_message_bits(message.model[None]) // 8)
    return FRAME_HEADER_BYTES + len(message.payload) + (0 if message.about is None else message.about.bytes)


def _smoothed(before: float | None, seconds: float) -> float:
    return before + SMOOTHING * (seconds - before) if before else seconds
