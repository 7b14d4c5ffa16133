"""The link law `exchange` on a free-running node: it carries out the effects of `core.device` and decides nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.device import Device, Exchange, Step, durable, react, restarted, steps_in_order
from efhc.core.protocol import (
    Accept,
    Apply,
    Begin,
    Copied,
    Effect,
    Ended,
    Event,
    Finish,
    Fired,
    GiveUp,
    JournalledChange,
    Keep,
    Leave,
    LinkDown,
    LinkUp,
    Message,
    NoProgress,
    Offer,
    Received,
    Send,
    Stepped,
)
from efhc.runtime.free_running import FreeRunning, NeighbourRecord
from efhc.runtime.node_messages import Hello
from efhc.runtime.state.node_store import Restored
from efhc.runtime.training import combined
from efhc.runtime.workers import STATE
from efhc.scenarios.decisions import drift_of

JOURNALLED = frozenset(get_args(JournalledChange))
"""The changes that the journal must have at once. The model itself is kept by checkpoints only."""


@dataclass
class ExchangeNeighbour(NeighbourRecord):
    """A neighbour with which this node exchanges models."""

    _last_begun: tuple[int, int] = (-1, -1)
    """Session and number of the last exchange that the neighbour began or accepted."""

    def problem_with(self, message: Message) -> str | None:
        """Return why the token of a message cannot be one of this neighbour, or None.

        A new exchange has a token of the present session, with a number above all earlier ones: a recorded message that
        is sent again is refused. Messages about older exchanges may come from an earlier session.
        """
        token = getattr(message, "token", None)
        if token is None:
            return None
        device, session, number = token
        if device != self.status.device:
            return f"it names an exchange as device {device} would"
        if isinstance(message, Offer | Accept):
            if session != self.status.session:
                return "it begins an exchange of another session"
            if session == self._last_begun[0] and number <= self._last_begun[1]:
                return f"it begins exchange {number}, after exchange {self._last_begun[1]}"
            self._last_begun = session, number
        return None

    def settle(self, theirs: Hello, in_doubt: bool) -> int:
        """Return how many committed exchanges one of the two ends has lost, by their two counts. Then both count alike.

        Undecided exchanges at the end that counts fewer explain a difference: the other end may have committed them.
        """
        difference, given_up, self.given_up = self.committed - theirs.committed, self.given_up, 0
        undecided = theirs.undecided if difference > 0 else given_up + in_doubt
        explained = min(abs(difference), undecided)
        lost = abs(difference) - explained
        if difference < 0:
            self.committed += lost + min(explained, given_up)  # one that is in doubt is counted when it is committed
        return lost


class FreeRunningExchange(FreeRunning):
    """A device that exchanges models."""

    messages, record_type = get_args(Message), ExchangeNeighbour
    device: Device
    _drift: float | None = None
    """How far the model is from the last broadcast; None until it is computed."""
    _applying: asyncio.Task[None] | None = None

    # State

    def _begin_with(self, model: Floats | None) -> None:
        self.device = Device(
            self._settings.device, self._session, model, model, waits_for_model=model is None,
            sends_rounded=self._settings.wire == "float16",
        )  # fmt: skip

    def _continue(self, found: Restored) -> None:
        device = found.device
        for step in device.steps[found.facts["pending"] :]:  # committed after the checkpoint
            self.record_of(step.neighbour).count("committed")
        if device.steps:
            # They were in the model that is lost. As shares of different models, they may together be more than a
            # single model can promise, so they are made at once.
            steps, zeros = steps_in_order(device), np.zeros_like(device.model)
            device.model = self._trainer.mixed(device.model, zeros, 0.0, steps)
            device.steps = []
        self.device = restarted(device, self._session)
        self.device.finished = self.device.finished and self.device.k >= self._iterations
        self.device.sends_rounded = self._settings.wire == "float16"

    def _durable(self) -> tuple[Device, dict[str, Any]]:
        kept = durable(self.device)
        return kept, {"pending": len(kept.steps)}

    # Iterations

    async def _iterate(self) -> None:
        """Events 1 to 4."""
        device, status, trainer = self.device, self._status, self._trainer
        if self._drift is None:
            self._drift = await self._training.call(drift_of, device.model, device.last_broadcast)
        k, broadcasts, drift = device.k, status.broadcasts, self._drift
        threshold = trainer.threshold(k, self._bandwidth_now())
        status.drift, status.threshold = drift, threshold
        self.react(Begin(drift, threshold))
        loss, down = await self._descend(k, lambda: 1.0)
        taken = steps_in_order(device)[:]
        self._follow(taken)
        new, self._drift, self.gradients = await self._training.call(self._mix, k, device.model, down, taken)
        fired = status.broadcasts > broadcasts
        self._recorder.step(k, fired, loss, drift, threshold, status.bandwidth or math.nan)
        self.react(Stepped(new, len(taken)))
        status.loss, status.iteration = loss, device.k
        self._recorder.after_iteration(device.k, device.model, trainer.local)

    def _mix(self, k: int, model: Floats, down: Floats, taken: list[Step]) -> tuple[Floats, float, Floats | None]:
        """In the worker thread: Events 3 and 4. Returns the model, in the memory of `down`, its drift, and the sum of
        all local steps.
        """
        trainer, alpha = self._trainer, self._trainer.scenario.step_size(k)
        gradients = self._add_gradients(alpha, down)
        new = trainer.mixed(model, down, alpha, taken)
        drift = drift_of(new, self.device.last_broadcast)
        if not math.isfinite(drift):
            raise trainer.diverged(k)
        return new, drift, gradients

    def _follow(self, taken: list[Step]) -> None:
        """Let the memory of local steps follow the steps of links."""
        if self._trainer.parts.local.follows_links and taken:
            kind, pull = self._trainer.dtype.type, np.zeros_like(self.device.model)
            for step in taken:
                pull += kind(step.beta) * (step.received - step.sent)
            self._trainer.rows.pulled(0, pull, pull)

    def finish(self) -> None:
        self.react(Finish())
        self._apply()  # what was committed since the last step

    def _apply(self) -> None:
        """Make the steps of committed exchanges without a gradient: the device has finished."""
        if self._applying is None or self._applying.done():
            self._applying = asyncio.create_task(self._apply_all())
            self._applying.add_done_callback(self._note_error)

    async def _apply_all(self) -> None:
        device = self.device
        while device.steps and self._outbox.failed is None:
            steps = list(steps_in_order(device))
            new = await self._training.call(self._trainer.mixed, device.model, np.zeros_like(device.model), 0.0, steps)
            self.react(Stepped(new, len(steps)))

    def _leave(self) -> None:
        self.react(Leave())

    def _abandon(self) -> None:
        for neighbour in list(self.device.links):
            self.react(NoProgress(neighbour))  # withdraws what is not in doubt

    @property
    def _is_done(self) -> bool:
        links = self.device.links.items()
        is_to_offer = any(link.pending_offer and self.record_of(j).status.connected for j, link in links)
        return not self.device.steps and not is_to_offer and super()._is_done

    # Events and effects

    def react(self, event: Event) -> None:
        before = len(self.device.steps)
        effects = react(self.device, event, self._combine)
        fresh = [] if isinstance(event, Stepped) else self.device.steps[before:]
        lane = event.neighbour if isinstance(event, Received | GiveUp) else STATE
        for effect in effects:
            self._carry_out(effect, lane, fresh)

    def _combine(self, terms: Sequence[tuple[float, Floats]]) -> Floats:
        return combined(terms, "float16" if self.device.sends_rounded else None)

    def _carry_out(self, effect: Effect, lane: int, fresh: list[Step]) -> None:
        """Carry out an effect. `lane` is the neighbour that may rely on it; `fresh` are the newly committed steps."""
        match effect:
            case Send(neighbour, message):
                if isinstance(message, Offer):
                    self._recorder.offered(message.token)
                self._outbox.do(neighbour, self._transport.send, neighbour, message)
            case Keep(change):
                if change in JOURNALLED:
                    self._outbox.write([lane], self._store.keep, durable(self.device), list(fresh))
                    fresh.clear()
                if change == "unresolved":
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
                self._outbox.do(STATE, self._has_model.set)

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
            self.record_of(neighbour).count(outcome)
        self._recorder.exchange(neighbour, exchange, outcome, norm)

    # Neighbours

    def _link_connected(self, neighbour: int, theirs: Hello, *, was_up: bool, is_same: bool) -> None:
        if was_up and is_same:
            self.react(NoProgress(neighbour))  # messages under way are lost
            return
        if was_up:
            self.react(LinkDown(neighbour))
        if lost := self.record_of(neighbour).settle(theirs, neighbour in self._in_doubt):
            self._note_lost(neighbour, exchanges=lost)
            self.checkpoint()  # otherwise the same would be counted again after a kill
        self.react(LinkUp(neighbour))

    def _link_down(self, neighbour: int) -> None:
        self.react(LinkDown(neighbour))

    def _take(self, neighbour: int, message: Any) -> str | None:
        problem: str | None = self.record_of(neighbour).problem_with(message)
        if problem is None:
            self.react(Received(neighbour, message))
        return problem

    def _check_timeouts(self, neighbour: int, now: float) -> None:
        record, limits = self.record_of(neighbour), self._settings.limits
        if self._waits_for(neighbour) and now - record.last_progress > limits.patience:
            record.last_progress = now
            self._log("no progress", neighbour=neighbour)
            self.react(NoProgress(neighbour))
        is_away = neighbour in self._in_doubt and not record.status.connected
        if is_away and record.is_silent_for(limits.give_up, now):
            self.react(GiveUp(neighbour))

    def _waits_for(self, neighbour: int) -> bool:
        """Whether an answer on a link with a connection is missing."""
        device, link = self.device, self.device.links.get(neighbour)
        if link is None or not link.up or not self.record_of(neighbour).status.connected:
            return False
        is_to_offer = device.finished and link.pending_offer > 0
        return self._may_settle(neighbour) or is_to_offer or device.model_requested_from == neighbour

    def _may_settle(self, neighbour: int) -> bool:
        link = self.device.links.get(neighbour)
        under_way = link is not None and link.exchange is not None
        decided = any(decision.neighbour == neighbour for decision in self.device.unacknowledged.values())
        return self.record_of(neighbour).status.connected and (under_way or decided)

    def _counts_for(self, neighbour: int) -> tuple[int, int]:
        record = self.record_of(neighbour)
        return record.committed, record.given_up + (neighbour in self._in_doubt)

    @property
    def _in_doubt(self) -> set[int]:
        return {number for number, link in self.device.links.items() if link.in_doubt}
