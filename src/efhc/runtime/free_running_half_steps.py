"""The link law `half-steps` on a free-running node: the device of `core.half_steps`, with a network and a disk.

A frame is in the journal before it leaves, and a received one before it is acknowledged. A checkpoint keeps each link
that begins or ends. Connections lose nothing while they last, so a message is sent again only on a new connection, or
after a long silence. An interruption does not end a link: it ends when the neighbour does not return within
`limits.give_up`, or is taken off the table.

A device that paces itself acknowledges at its next local step. Once it sends no new frames it acknowledges at once, and
first what it has not acknowledged until then, because neighbours wait for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.cost import ACKNOWLEDGEMENT_BYTES, whole_message_bits
from efhc.core.half_step_messages import (
    Acknowledgement,
    Committed,
    Effect,
    Frame,
    Introduction,
    Message,
    Send,
    Start,
    TakeBack,
    Token,
    Unresolved,
    Violation,
    bytes_of,
)
from efhc.core.half_steps import HalfSteps, LinkEnd, Pending
from efhc.core.uplink import Uplink, is_due, smoothed
from efhc.runtime.bandwidth import UplinkMeter
from efhc.runtime.free_running import FreeRunning, NeighbourRecord
from efhc.runtime.node import NodeParts
from efhc.runtime.node_messages import Hello
from efhc.runtime.state.contents import KeptFrame, replay, snapshot
from efhc.runtime.state.node_store import NodeStore, Restored
from efhc.runtime.training import HalfStepsTraining, WireArithmetic
from efhc.runtime.workers import STATE

RETRY_ROUND_TRIPS = 4.0
"""A frame is sent again after this many round trips without any progress, or after `limits.patience` if longer."""


@dataclass
class HalfStepsNeighbour(NeighbourRecord):
    """A neighbour with which this node exchanges frames. Times are seconds of the recorder's clock."""

    sent: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By number of an unacknowledged frame: when it was first sent, and its bytes in all attempts."""
    last_sent: float | None = None
    """When the last frame was sent."""
    was_resent: bool = False
    """Whether an unacknowledged frame was sent more than once."""
    round_trip: float | None = None
    """Seconds from a frame to its acknowledgement, smoothed."""
    at_connection: tuple[Token, int] | None = None
    """The token of the link's end when the connection began, and the version that the neighbour had acknowledged."""
    introduction_bytes: int = 0
    """Bytes of introductions that no row of the record counts yet."""
    hello_was_fresh: bool = False
    """Whether the last HELLO to it was from a device that has made no step."""


class FreeRunningHalfSteps(FreeRunning):
    """A device that sends frames."""

    messages, record_type = get_args(Message), HalfStepsNeighbour
    device: HalfSteps

    def __init__(self, parts: NodeParts, store: NodeStore) -> None:
        super().__init__(parts, store)
        self._half_steps = HalfStepsTraining(self._trainer, self._settings.limits.norm)
        self._step_seconds: float | None = None
        """How long a local step takes, smoothed."""
        self._left_out: set[int] = set()
        """The neighbours that the device does not send to, as last logged."""
        self._held_back = 0
        """Bytes of messages that wait for the disk."""
        self._meter = UplinkMeter()
        self._ignores_messages = False
        """Whether the node is about to end: messages are not acknowledged, so neighbours send them again."""

    # State

    def _restore_or_begin(self) -> None:
        self._half_steps.warm_up()
        super()._restore_or_begin()

    def _begin_with(self, model: Floats | None) -> None:
        self.device = self._half_steps.begin(self._session, model)

    def _continue(self, found: Restored) -> None:
        training = self._half_steps
        device = self.device = training.restore(found.device, self._session, found.facts)
        for frame in replay(device, found.frames, WireArithmetic(self._trainer.parts.codec)):
            if not frame.is_sent:
                self.record_of(frame.neighbour).count("committed")
        training.add_pull()
        if not self._settings.journal:  # neighbours may have frames that this device has forgotten
            for neighbour in list(device.links):
                self._carry_out(device.link_down(neighbour))
        device.silent = device.silent and device.k >= self._iterations

    def _durable(self) -> tuple[HalfSteps, dict[str, Any]]:
        self._half_steps.add_pull()
        return snapshot(self.device), self._half_steps.facts

    # Iterations

    async def _iterate(self) -> None:
        device, status, trainer, training = self.device, self._status, self._trainer, self._half_steps
        training.add_pull()
        k, began = device.k, self._loop.time()
        loss, down = await self._descend(k, lambda: device.gate)
        self._step_seconds = smoothed(self._step_seconds, self._loop.time() - began)
        training.add_pull()
        self.gradients = self._add_gradients(trainer.scenario.step_size(k), down)
        bandwidth = self._bandwidth_now()
        status.threshold = trainer.threshold(k, bandwidth)
        training.add_income()
        effects = training.step(loss, down, bandwidth, self._uplink(bandwidth))
        status.drift = training.drift
        if device.redundant != self._left_out:
            self._left_out = set(device.redundant)
            self._log("links left out", neighbours=sorted(device.redundant))
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
        training.add_pull()
        status.loss, status.iteration = loss, device.k
        self._recorder.after_iteration(device.k, device.model, trainer.local)

    def _uplink(self, bandwidth: float | None) -> Uplink | None:
        """Return what the device knows of its uplink, if it paces itself. `bandwidth`: b_i, if not the scenario's."""
        trainer, device = self._trainer, self.device
        if trainer.parts.pacing is None:
            return None
        size, limit, now = trainer.dtype.itemsize, self._settings.limits.send, self._recorder.seconds
        rate, is_known = self._own_bandwidth if bandwidth is None else bandwidth, True
        if self._settings.bandwidth == "measured":
            is_known = self._measure_uplink(now)
            rate = rate if self._meter.rate is None else self._meter.rate / size
            self._status.bandwidth = rate
        rate = rate if limit is None else min(rate, limit / size)
        backlog = self._backlog(rate * size)

        def may_follow(neighbour: int) -> bool:
            record = self.record_of(neighbour)
            since = 0.0 if record.last_sent is None else now - record.last_sent
            return is_due(device.law.window, device.awaits(neighbour), record.round_trip, since)

        return Uplink(
            trainer.parts.pacing,
            rate,
            size,
            lambda neighbour: backlog,
            may_follow,
            self._step_seconds or 0.0,
            trainer.form.chooses_links,
            is_known,
        )

    @property
    def _own_bandwidth(self) -> float:
        """The scenario's b_i."""
        return float(self._trainer.scenario.bandwidths.values[self.device.number])

    def _backlog(self, rate: float) -> float:
        """Return the seconds until everything sent has left, at `rate` bytes per second."""
        return self._transport.backlog(rate) + self._held_back / rate

    def _measure_uplink(self, now: float) -> bool:
        """Measure the rate of the uplink; returns whether anything is known of it."""
        carried = self._transport.carried()
        if carried is not None:
            is_busy = self._meter.rate is not None and self._backlog(self._meter.rate) > 0
            self._meter.sample(carried, is_busy, now)
        return carried is None or self._meter.rate is not None

    def finish(self) -> None:
        """Send no new frames, and acknowledge those that waited for the next local step: there may be none."""
        self._carry_out(self.device.fall_silent())

    def _abandon(self) -> None:
        self._ignores_messages = True

    # Effects

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out effects. All that a message claims was given to the disk before, in its neighbour's lane."""
        for effect in effects:
            match effect:
                case Send(neighbour, message):
                    self._pay(neighbour, message)
                    self._send(neighbour, message)
                case TakeBack(_, link_correction):
                    self._trainer.rows.take_back(0, link_correction)
                case Unresolved(neighbour, norm):
                    self._note_unresolved(neighbour, norm)
                    self._record_unresolved(neighbour, norm)
                case Start():
                    self._note_start(self.device.model)

    def _send(self, neighbour: int, message: Any) -> None:
        """Send a message once the disk has what it claims."""
        size, now, record = bytes_of(message), self._recorder.seconds, self.record_of(neighbour)
        if isinstance(message, Frame):
            first, before = record.sent.get(message.number, (now, 0))
            record.sent[message.number], record.last_sent = (first, before + size), now
        self._held_back += size
        self._outbox.do(neighbour, self._give_to_transport, neighbour, message, size)

    def _give_to_transport(self, neighbour: int, message: Any, size: int) -> None:
        self._held_back -= size
        self._transport.send(neighbour, message)

    def _pay(self, neighbour: int, message: Any) -> None:
        """Count the bits of a message. An introduction is paid on credit if need be."""
        bits = 0
        if isinstance(message, Frame):
            bits = message.bits
        elif isinstance(message, Introduction) and message.model is not None:
            bits = whole_message_bits(message.model[None])
            self._half_steps.credit -= bits / max(1, self.device.degree)
            self.record_of(neighbour).introduction_bytes += bytes_of(message)
        self._half_steps.spend(bits, self._status.bandwidth or self._own_bandwidth)

    # Neighbours

    def _link_connected(self, neighbour: int, theirs: Hello, *, was_up: bool, is_same: bool) -> None:
        device, record = self.device, self.record_of(neighbour)
        if neighbour in device.links:
            end = device.links[neighbour]
            record.at_connection = end.token, end.acknowledged
            self._carry_out(device.acknowledge(neighbour))
            self._resend(neighbour, all_frames=True)
        else:
            is_fresh = record.hello_was_fresh and theirs.k == 0 and theirs.committed == 0
            start = self._shared_start(neighbour) if is_fresh else None
            sessions = device.session, theirs.session
            device.link_up(neighbour, is_new=device.k > 0, shared_start=start, sessions=sessions)
            self._links_changed(device.announce())

    def _resend(self, neighbour: int, *, all_frames: bool = False) -> None:
        """Send again what a neighbour has not acknowledged."""
        if effects := self.device.retry(neighbour, all_frames=all_frames):
            self.record_of(neighbour).was_resent = True
            self._carry_out(effects)

    def _shared_start(self, neighbour: int) -> Floats | None:
        """Return the model that this device and a neighbour start from, if it is the same."""
        own, theirs = (self._trainer.scenario.initial_model(number) for number in (self.device.number, neighbour))
        return own if np.array_equal(own, theirs) else None

    def _counts_for(self, neighbour: int) -> tuple[int, int]:
        """Return whether there is a link already, and 0. Two ends that have made no step share their start."""
        has_link, device = neighbour in self.device.links, self.device
        self.record_of(neighbour).hello_was_fresh = device.k == 0 and device.model is not None and not has_link
        return int(has_link), 0

    def _forget(self, neighbour: int) -> None:
        if neighbour in self.device.links:
            effects = self.device.link_down(neighbour)
            self._links_changed([*effects, *self.device.announce()])

    def _links_changed(self, effects: list[Effect]) -> None:
        """Carry out the effects of a link that has come or gone, after a checkpoint that keeps it."""
        messages = [effect for effect in effects if isinstance(effect, Send)]
        self._carry_out([effect for effect in effects if not isinstance(effect, Send)])
        for send in messages:
            self._pay(send.neighbour, send.message)
        self.checkpoint([send.neighbour for send in messages])
        if any(isinstance(effect, Start) for effect in effects):
            self._outbox.do(STATE, self._has_model.set)
        for send in messages:
            self._send(send.neighbour, send.message)

    def _take(self, neighbour: int, message: Any) -> str | None:
        end = self.device.links.get(neighbour)
        if self._ignores_messages or end is None:
            return None
        arithmetic = self._half_steps.arithmetic
        if forgotten := self._forgotten_frames(neighbour, end, message):
            self._note_lost(neighbour, frames=forgotten)
            effects = self.device.link_down(neighbour)
            self.device.link_up(neighbour, is_new=True)
            self._links_changed([*effects, *self.device.announce()])
            return None
        if isinstance(message, Introduction):
            self._links_changed(self.device.received(neighbour, message, arithmetic))
            return None
        pending = end.pending
        effects = self.device.received(neighbour, message, arithmetic)
        if made := [effect.frame for effect in effects if isinstance(effect, Committed)]:
            for _ in made:
                self.record_of(neighbour).count("committed")
            kept = [KeptFrame(False, neighbour, frame) for frame in made]
            self._outbox.write([neighbour], self._store.keep_frames, kept)
            if self.device.silent:
                self._half_steps.add_pull()
        for effect in effects:
            if isinstance(effect, Violation):
                return effect.problem
        self._note_acknowledged(neighbour, pending[: len(pending) - len(end.pending)], message)
        self._carry_out(effects)
        return None

    def _note_acknowledged(self, neighbour: int, frames: Sequence[Pending], message: Any) -> None:
        """Measure the round trip of frames that a message has acknowledged, and write their rows."""
        if not frames:
            return
        now, record = self._recorder.seconds, self.record_of(neighbour)
        last = record.sent.get(frames[-1].frame.number)
        if last is not None and not record.was_resent:
            record.round_trip = smoothed(record.round_trip, now - last[0])
        record.was_resent = False
        extra = ACKNOWLEDGEMENT_BYTES if isinstance(message, Acknowledgement) else 0
        for frame, *_ in frames:
            record.count("committed")
            start, size = record.sent.pop(frame.number, (now, bytes_of(frame)))
            self._record(start, neighbour, frame.k, frame.weight, "committed", size + extra)
            extra = 0

    def _record_unresolved(self, neighbour: int, norm: float) -> None:
        """Write the row of the frames to a neighbour that are given up."""
        sent = self.record_of(neighbour).sent
        start = min((first for first, _ in sent.values()), default=self._recorder.seconds)
        sent.clear()
        self._record(start, neighbour, self.device.k, math.nan, "unresolved", 0, norm)

    def _record(
        self, start: float, neighbour: int, k: int, weight: float, outcome: str, size: int, norm: float = math.nan
    ) -> None:
        record = self.record_of(neighbour)
        size, record.introduction_bytes = size + record.introduction_bytes, 0
        self._recorder.add_exchange(start, neighbour, (k, record.status.iteration or 0), weight, outcome, size, norm)

    def _check_timeouts(self, neighbour: int, now: float) -> None:
        record, limits = self.record_of(neighbour), self._settings.limits
        if record.status.connected:
            limit = max(limits.patience, RETRY_ROUND_TRIPS * (record.round_trip or 0.0))
            if self.device.awaits(neighbour) and now - record.last_progress > limit:
                record.last_progress = now
                self._log("no progress", neighbour=neighbour)
                self._resend(neighbour)
        elif neighbour in self.device.links and record.is_silent_for(limits.give_up, now):
            self._forget(neighbour)

    def _may_settle(self, neighbour: int) -> bool:
        device = self.device
        return self.record_of(neighbour).status.connected and device.model is not None and device.awaits(neighbour)

    @property
    def _in_doubt(self) -> set[int]:
        """The neighbours that are away and have not acknowledged a frame."""
        links = self.device.links.items()
        return {j for j, end in links if end.pending and not self.record_of(j).status.connected}

    def _forgotten_frames(self, neighbour: int, end: LinkEnd, message: Any) -> int:
        """Return how many frames of a link one of its ends must have forgotten: its state is too old.

        With its journal, a device forgets none; with a state folder that was restored from a backup it may. This end
        has, if the other one has received more than this one has sent, or sends more than the window allows. The other
        one has, if its first acknowledgement on this connection is lower than its last one before, or if it has
        restarted with an earlier token than the one that this end knows. Then the link had begun anew since the backup
        was made, and both ends would ignore each other's messages for ever.
        """
        partner, source = end.partner, message.source
        if partner is not None and source != partner and source[1] != self.record_of(neighbour).status.session:
            is_earlier = source[1] == partner[1] and source[2] < partner[2]
            if is_earlier or not (source[1] == partner[1] or isinstance(message, Introduction)):
                return 1
        if isinstance(message, Introduction) or (message.source, message.target) != (end.partner, end.token):
            return 0
        token, known = self.record_of(neighbour).at_connection or (end.token, -1)
        acknowledged: int = message.acknowledged
        received = message.number - end.last_received - self.device.law.window if isinstance(message, Frame) else 0
        is_regress = isinstance(message, Acknowledgement) and token == end.token  # frames are sent again as they were
        lost = known - acknowledged if is_regress else 0
        return max(0, acknowledged - end.last_sent) + max(0, received) + max(0, lost)
