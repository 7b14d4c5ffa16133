"""A node on its own clock: it drives `core.device` with training, messages, a disk and timers.

Whatever happens becomes an event, `react` says what to do about it, and this file does it. Gradients are computed in
the worker thread, so messages are answered meanwhile. Nothing here decides anything about an exchange.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.device import react, restarted
from efhc.core.device_state import Device, Exchange, Step, durable, is_idle, steps_in_order
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
from efhc.runtime.logs import Log
from efhc.runtime.measured_bandwidth import MeasuredBandwidth
from efhc.runtime.messages import LOCKSTEP_MESSAGES, Hello, Message, model_in
from efhc.runtime.neighbours import NeighbourRecord
from efhc.runtime.outbox import Outbox
from efhc.runtime.recording import Recorder
from efhc.runtime.settings import Neighbour, NodeSettings
from efhc.runtime.state.store import Restored, Store
from efhc.runtime.status import NeighbourStatus, NodeStatus
from efhc.runtime.training import Trainer, combined
from efhc.runtime.transport import Transport
from efhc.runtime.worker import Worker

TICK = 0.5
"""Seconds between two looks at the clock, for patience and checkpoints."""
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
    """The sum of all gradient steps that the model contains, if it is recorded."""


class FreeRunning:
    """The mode `free-running`: the law of docs/asynchrony.md."""

    def __init__(
        self,
        settings: NodeSettings,
        trainer: Trainer,
        iterations: int,
        store: Store,
        session: int,
        fingerprint: dict[str, str],
        status: NodeStatus,
        recorder: Recorder,
        log: Log,
    ) -> None:
        """`session` is the number of this start, if the state folder does not know an earlier one."""
        self._settings, self._trainer, self._iterations, self._store = settings, trainer, iterations, store
        self._fingerprint, self._status, self._recorder, self._log = fingerprint, status, recorder, log
        self._first_session = session
        self._training, self._disk = Worker("efhc-training"), Worker("efhc-disk")
        self._outbox = Outbox(self._disk)
        self._neighbours: dict[int, NeighbourRecord] = {}
        """All that this node ever had to do with: if one comes back, the two ends compare what they counted."""
        self._allowed: set[int] = set()
        self._bandwidth = MeasuredBandwidth(
            trainer.scenario.bandwidths.nominal, 2 if settings.wire == "float16" else trainer.dtype.itemsize
        )
        self._pause, self._stopping, self._copied = threading.Event(), asyncio.Event(), asyncio.Event()
        self._error: BaseException | None = None
        self._applying: asyncio.Task[None] | None = None
        self._start: Floats | None = None
        self._gradients: Floats | None = None
        self._device: Device
        self._transport: Transport
        self._loop: asyncio.AbstractEventLoop

    # The life of a node

    async def run(self, transport: Transport) -> None:
        """Train and answer until asked to stop, or until the last iteration if the node is not to stay."""
        self._transport, self._loop = transport, asyncio.get_running_loop()
        self._outbox.on_failure = self.stop
        await self._training.call(self._trainer.warm_up)
        self._device = await self._restored_or_new()
        self._checkpoint()
        await self._outbox.wait()
        self.allow(self._settings.neighbours)
        await transport.start(self, self._settings.neighbours)
        clock = asyncio.create_task(self._watch_the_clock())
        clock.add_done_callback(self._note_error)
        training = asyncio.create_task(self._train())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({training, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if training.done() and training.exception() is None and not self._stopping.is_set():
                await self._after_the_last(stopping)
            await self._leave(training)
        finally:
            for task in (clock, training, stopping):
                task.cancel()
            self._pause.set()
            self._recorder.flush()
            await transport.stop(str(self._error or "stopped"))
            self._training.close(self._settings.stop_seconds)
            self._disk.close(self._settings.stop_seconds)
        if self._error is not None:
            raise self._error

    def _note_error(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
            self.stop()

    def stop(self) -> None:
        """Ask the node to stop: it begins nothing new, lets what is under way finish, and keeps its state."""
        self._pause.set()
        self._stopping.set()
        self._copied.set()  # there is nothing to wait for any more

    async def _restored_or_new(self) -> Device:
        found = await self._disk.call(self._store.restore)
        settings = self._settings
        if found is None:
            model = None if settings.join == "copy" else await self._training.call(self._trainer.initial_model)
            device = Device(settings.device, self._first_session, model, model, copies=settings.join == "copy")
            self._note_start(model)
        else:
            self._take(found)
            device = restarted(await self._with_steps_made(found.device), found.device.session + 1)
            device.finished = device.finished and device.k >= self._iterations
        device.rounds = settings.wire == "float16"
        self._status.session, self._status.iteration = device.session, device.k
        return device

    async def _with_steps_made(self, device: Device) -> Device:
        """Make the steps of the journal, which the lost models contained, at once.

        They were shares of different models: together they may be more than a single model can promise.
        """
        if device.steps:
            zeros = np.zeros_like(device.model)
            steps = list(steps_in_order(device))
            device.model = await self._training.call(self._trainer.mixed, device.model, zeros, 0.0, steps)
            device.steps = []
        return device

    def _note_start(self, model: Floats | None) -> None:
        if self._settings.record.gradients and model is not None:
            self._start, self._gradients = model, np.zeros(len(model))

    def _take(self, found: Restored) -> None:
        """Go on from the facts and tensors of the last checkpoint."""
        for note in found.notes:
            self._log("state mended", what=note)
        facts, tensors, status = found.facts, found.tensors, self._status
        for name in ("broadcasts", "unresolved", "unresolved_norm", "lost"):
            setattr(status, name, facts[name])
        for number, of_neighbour in facts["neighbours"].items():
            self._record_of(int(number)).take(of_neighbour)
        for step in found.device.steps[facts["pending"] :]:  # committed after the checkpoint
            record = self._record_of(step.neighbour)
            record.committed += 1
            record.status.exchanges["committed"] += 1
        self._trainer.local = {
            name.removeprefix("local/"): rows for name, rows in tensors.items() if name.startswith("local/")
        }
        self._start, self._gradients = tensors.get("start"), tensors.get("gradients")

    async def _after_the_last(self, stopping: asyncio.Task[bool]) -> None:
        """All iterations are made: stay to answer, or go as soon as nothing is under way or owed."""
        if self._settings.stay:
            await stopping
            return
        while not self._stopping.is_set():
            links = self._device.links.values()
            if is_idle(self._device) and not self._device.steps and not any(link.owes for link in links):
                return
            await asyncio.wait({stopping}, timeout=TICK / 5)

    async def _leave(self, training: asyncio.Task[None]) -> None:
        """Begin nothing new, give what is under way some seconds to finish, and keep the state."""
        self._status.state = "stopping"
        self._pause.set()
        if training.done() and not training.cancelled() and training.exception() is not None:
            self._error = training.exception()
        if self._outbox.failed is not None:
            self._error = self._outbox.failed
            return  # what could not be kept must not be relied on: nothing is said or written any more
        deadline = self._loop.time() + self._settings.stop_seconds
        self._react(Leave())
        if not training.done():
            await asyncio.wait({training}, timeout=self._settings.stop_seconds)
        while any(map(self._may_settle, self._neighbours)) and self._loop.time() < deadline:
            await asyncio.sleep(TICK / 10)
        for neighbour in list(self._device.links):
            self._react(NoProgress(neighbour))  # withdraws what is not in doubt
        await self._transport.drain(max(0.1, deadline - self._loop.time()))
        self._checkpoint()
        await self._outbox.wait()

    # Training

    async def _train(self) -> None:
        """Events 1 to 4, iteration after iteration."""
        if self._device.copies:
            self._status.state = "waiting"
            await self._copied.wait()
        if self._device.copies:
            return
        device = self._device
        drift = await self._training.call(self._trainer.drift, device.model, device.last_broadcast)
        await asyncio.sleep(self._recorder.seconds_to_start())
        began, first = self._loop.time(), device.k
        while device.k < self._iterations and not self._stopping.is_set():
            self._status.state = "training"
            k, broadcasts = device.k, self._status.broadcasts
            bandwidth = self._bandwidth_now()
            threshold = self._trainer.threshold(k, bandwidth)
            self._status.drift, self._status.threshold = drift, threshold
            self._react(Begin(drift, threshold))
            iterated = await self._training.call(self._iterate, k, device.model, self._loop.time())
            fired = self._status.broadcasts > broadcasts
            self._recorder.step(k, fired, iterated.loss, drift, threshold, self._status.bandwidth or math.nan)
            self._trainer.local, self._gradients = iterated.local, iterated.gradients
            self._status.loss, drift = iterated.loss, iterated.drift
            self._status.steps += 1
            self._status.steps_per_second = (device.k + 1 - first) / max(self._loop.time() - began, 1e-9)
            self._react(Stepped(iterated.model, iterated.made))
            self._status.iteration = device.k
            self._recorder.after_iteration(device.k, device.model, iterated.local)
        if not self._stopping.is_set():
            self._status.state = "finished"
            self._react(Finish())
            self._apply()  # what was committed since the last step

    def _iterate(self, k: int, model: Floats, began: float) -> Iterated:
        """In the worker thread: the gradient, and the steps of all exchanges that are committed when it is there."""
        trainer = self._trainer
        gradient, loss, local = trainer.gradient(k, model)
        left = began + self._settings.pace - self._loop.time()
        if left > 0:
            self._pause.wait(left)
        alpha = trainer.step_size(k)
        gradients = None
        if self._gradients is not None:
            gradients = self._gradients + np.float64(trainer.dtype.type(alpha)) * gradient
        taken = list(self._device.steps)  # in one go: the event loop may append more meanwhile
        new = trainer.mixed(model, gradient, alpha, sorted(taken, key=lambda step: step.neighbour))
        drift = trainer.drift(new, self._device.last_broadcast)
        if not math.isfinite(drift):
            raise Diverged(k, "model", np.arange(self._device.number + 1) != self._device.number)
        return Iterated(new, len(taken), loss, drift, local, gradients)

    def _bandwidth_now(self) -> float | None:
        """b_i for the threshold; None if it is the experiment's."""
        given = self._settings.bandwidth
        if given is None:
            self._status.bandwidth = float(self._trainer.scenario.bandwidths.values[self._device.number])
            return None
        if given == "measured":
            rates = [self._transport.traffic(neighbour).rate for neighbour in self._neighbours]
            given = self._bandwidth.update([rate for rate in rates if rate is not None])
            if warning := self._bandwidth.warning():
                self._log("bandwidth", level="warning", what=warning)
        self._status.bandwidth = given
        return given

    def _apply(self) -> None:
        """Make the steps of committed exchanges without a gradient: the device has finished."""
        if self._applying is None or self._applying.done():
            self._applying = asyncio.create_task(self._apply_all())
            self._applying.add_done_callback(self._note_error)

    async def _apply_all(self) -> None:
        while self._device.steps and self._outbox.failed is None:
            steps = list(steps_in_order(self._device))
            model = self._device.model
            new = await self._training.call(self._trainer.mixed, model, np.zeros_like(model), 0.0, steps)
            self._react(Stepped(new, len(steps)))

    # Events and effects

    def _react(self, event: Event) -> None:
        """Let the core change the device, and carry out what it wants done."""
        before = len(self._device.steps)
        effects = react(self._device, event, self._combine)
        fresh = [] if isinstance(event, Stepped) else self._device.steps[before:]
        for effect in effects:
            self._carry_out(effect, fresh)

    def _combine(self, terms: Sequence[tuple[float, Floats]]) -> Floats:
        return combined(terms, "float16" if self._device.rounds else None)

    def _carry_out(self, effect: Effect, fresh: list[Step]) -> None:
        match effect:
            case Send(neighbour, message):
                if isinstance(message, Offer):
                    self._recorder.offered(message.token)
                self._outbox.do(self._transport.send, neighbour, message)
            case Keep(what):
                if what in JOURNALLED:
                    self._outbox.write(self._store.keep, durable(self._device), list(fresh))
                    fresh.clear()
                if what == "unresolved":
                    self._checkpoint()  # its norm is a fact, which the journal does not have
            case Ended(neighbour, exchange, outcome):
                self._note_end(neighbour, exchange, outcome)
            case Fired():
                self._status.broadcasts += 1
                if self._settings.bandwidth == "measured":
                    drift, threshold = self._status.drift, self._status.threshold
                    b = self._status.bandwidth
                    self._log("broadcast", k=self._device.k, drift=drift, threshold=threshold, bandwidth=b)
            case Apply():
                self._apply()
            case Copied():
                self._note_start(self._device.model)
                self._checkpoint()
                self._outbox.do(self._copied.set)

    def _note_end(self, neighbour: int, exchange: Exchange, outcome: str) -> None:
        record = self._record_of(neighbour)
        record.status.exchanges[outcome] += 1
        record.committed += outcome == "committed"
        if outcome != "committed":
            self._outbox.do(self._transport.withdraw, neighbour, exchange.sent)
        norm = math.nan
        if outcome == "unresolved":
            assert exchange.received is not None
            norm = exchange.share * float(
                np.linalg.norm(np.subtract(exchange.received, exchange.sent, dtype=np.float64))
            )
            self._status.unresolved += 1
            self._status.unresolved_norm += norm
            self._log("unresolved", level="warning", neighbour=neighbour, norm=norm)
        self._recorder.exchange(neighbour, exchange, outcome, norm)

    def _checkpoint(self) -> None:
        """Keep the whole state, and begin the journal anew."""
        kept = durable(self._device)
        facts = {
            "broadcasts": self._status.broadcasts,
            "unresolved": self._status.unresolved,
            "unresolved_norm": self._status.unresolved_norm,
            "lost": self._status.lost,
            "pending": len(kept.steps),
            "neighbours": {str(number): record.facts() for number, record in self._neighbours.items()},
        }
        tensors = {f"local/{name}": np.asarray(rows) for name, rows in self._trainer.local.items()}
        if self._start is not None and self._gradients is not None:
            tensors |= {"start": self._start, "gradients": self._gradients}
        self._outbox.write(self._store.checkpoint, kept, facts, tensors)
        self._outbox.do(self._recorder.flush)

    # What the transport tells

    def hello_for(self, neighbour: int) -> Hello:
        link = self._device.links.get(neighbour)
        in_doubt = link is not None and link.in_doubt
        committed = self._record_of(neighbour).committed
        device = self._device
        return Hello(device.number, device.session, self._fingerprint, device.k, committed, in_doubt)

    def connected(self, neighbour: int, theirs: Hello) -> None:
        record, link = self._record_of(neighbour), self._device.links.get(neighbour)
        status = record.status
        record.stop_timer()
        record.silent_since, record.last_progress = None, self._loop.time()
        was_up, same = status.up, status.session == theirs.session
        status.connected, status.up, status.session, status.iteration = True, True, theirs.session, theirs.k
        self._log("connected", neighbour=neighbour, session=theirs.session, k=theirs.k)
        if was_up and same:
            status.interruptions += 1
            self._react(NoProgress(neighbour))  # what was under way is lost
            return
        if was_up:
            self._react(LinkDown(neighbour))
            status.downs += 1
        if lost := record.settle(theirs, link is not None and link.in_doubt):
            status.lost += lost
            self._status.lost += lost
            self._log("lost", level="warning", neighbour=neighbour, exchanges=lost)
        self._react(LinkUp(neighbour))

    def disconnected(self, neighbour: int, reason: str) -> None:
        record = self._record_of(neighbour)
        record.status.connected, record.status.last_problem = False, reason
        record.silent_since = self._loop.time()
        record.stop_timer()
        record.down_timer = self._loop.call_later(self._settings.down_after, self._went_down, neighbour)
        self._log("disconnected", neighbour=neighbour, reason=reason)

    def _went_down(self, neighbour: int) -> None:
        record = self._record_of(neighbour)
        record.stop_timer()
        if record.status.up:
            record.status.up = False
            record.status.downs += 1
            self._log("link down", neighbour=neighbour)
            self._react(LinkDown(neighbour))

    def received(self, neighbour: int, message: Message) -> None:
        record = self._record_of(neighbour)
        record.last_progress = self._loop.time()
        model = model_in(message)
        if model is not None and (problem := self._problem_with(model)):
            self._log("model refused", level="warning", neighbour=neighbour, reason=problem)
            record.status.last_problem = problem
            self._status.refused += 1
            self._transport.disconnect(neighbour, problem)
            return
        if isinstance(message, LOCKSTEP_MESSAGES):
            self._transport.disconnect(neighbour, "it sent a message of the mode lockstep")
            return
        if (k := getattr(message, "k", None)) is not None:
            record.status.iteration = k
        self._react(Received(neighbour, message))

    def _problem_with(self, model: Floats) -> str | None:
        """Why a received model is not taken, if it is not."""
        norm = float(np.linalg.norm(model.astype(np.float64, copy=False) if model.dtype == np.float16 else model))
        if not math.isfinite(norm) and not np.isfinite(model).all():
            return "its model is not finite"
        own = self._device.model
        allowed = self._settings.limits.norm * max(1.0, 0.0 if own is None else float(np.linalg.norm(own)))
        if own is not None and not norm <= allowed:
            return f"the norm of its model is {norm:.3g}, above the limit of {allowed:.3g}"
        return None

    def moved(self, neighbour: int) -> None:
        self._record_of(neighbour).last_progress = self._loop.time()

    def refused(self, who: str, reason: str) -> None:
        self._status.refused += 1
        self._log("refused", level="warning", who=who, reason=reason)

    # Neighbours and timers

    def allow(self, neighbours: Sequence[Neighbour]) -> None:
        """Take a table of neighbours; those that are no longer in it are gone."""
        self._allowed = {neighbour.device for neighbour in neighbours}
        for number in self._allowed:
            self._record_of(number)
        for number in self._neighbours.keys() - self._allowed:
            self._went_down(number)

    def _record_of(self, neighbour: int) -> NeighbourRecord:
        if neighbour not in self._neighbours:
            self._neighbours[neighbour] = NeighbourRecord(NeighbourStatus(neighbour))
        return self._neighbours[neighbour]

    async def _watch_the_clock(self) -> None:
        """Patience, giving up, checkpoints, and models to record."""
        saved = self._loop.time()
        while True:
            await asyncio.sleep(min(TICK, self._recorder.seconds_to_next_model()))
            now, limits = self._loop.time(), self._settings.limits
            if self._device.model is not None:
                self._recorder.at_time(self._device.k, self._device.model, self._trainer.local)
            for neighbour, record in list(self._neighbours.items()):
                if (
                    self._waits_for(neighbour)
                    and now - record.last_progress > limits.patience
                    and not record.silent_since
                ):
                    record.last_progress = now
                    self._log("no progress", neighbour=neighbour)
                    self._react(NoProgress(neighbour))
                link = self._device.links.get(neighbour)
                if link is not None and link.in_doubt:
                    if record.silent_since is None and not record.status.connected:
                        record.silent_since = now  # in doubt since before this start
                    if record.silent_since is not None and now - record.silent_since > limits.give_up:
                        self._react(GiveUp(neighbour))
            if now - saved > self._settings.checkpoint_seconds or self._store.journal_bytes > limits.journal:
                saved = now
                self._checkpoint()

    def _waits_for(self, neighbour: int) -> bool:
        """Whether something is under way or unknown on a link that is up."""
        device, link = self._device, self._device.links.get(neighbour)
        if link is None or not link.up:
            return False
        owes = device.finished and link.owes > 0
        return self._may_settle(neighbour) or owes or device.asked == neighbour

    def _may_settle(self, neighbour: int) -> bool:
        """Whether something between the two is not over, and a connection is there to end it."""
        link = self._device.links.get(neighbour)
        under_way = link is not None and link.exchange is not None
        decided = any(decision.neighbour == neighbour for decision in self._device.unacknowledged.values())
        return self._neighbours[neighbour].status.connected and (under_way or decided)

    def status(self) -> NodeStatus:
        """How the node is."""
        status = self._status
        if not hasattr(self, "_device"):  # it is being restored
            return status
        status.links_up = sum(record.status.up for record in self._neighbours.values())
        status.in_doubt = sum(link.in_doubt for link in self._device.links.values())
        status.journal_bytes = self._store.journal_bytes
        shown = self._allowed | {number for number, link in self._device.links.items() if link.in_doubt}
        status.neighbours = [self._neighbours[number].status for number in sorted(shown)]
        for neighbour in status.neighbours:
            traffic = self._transport.traffic(neighbour.device)
            for name in ("bytes_sent", "bytes_received", "model_bytes_sent", "model_bytes_received", "rate"):
                setattr(neighbour, name, getattr(traffic, name))
        return status
