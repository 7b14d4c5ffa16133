"""A node on its own clock: the laws of docs/asynchrony.md with training, messages and timers.

Whatever happens becomes an event, the core of the link law says what to do about it, and an `ActingDevice` does it.
Gradients are computed in the worker thread, so messages are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from efhc.runtime.acting_device import ActingDevice
from efhc.runtime.exchange_device import ExchangeDevice
from efhc.runtime.half_steps_device import HalfStepsDevice
from efhc.runtime.measured_bandwidth import MeasuredBandwidth
from efhc.runtime.messages import Hello, Message, model_in
from efhc.runtime.mode import ModeBase, NodeParts
from efhc.runtime.outbox import Outbox
from efhc.runtime.settings import Neighbour
from efhc.runtime.state.store import Store
from efhc.runtime.status import NeighbourStatus, NodeStatus
from efhc.runtime.transport import Transport

TICK = 0.5
"""Seconds between two looks at the clock, for patience and checkpoints."""


class FreeRunning(ModeBase):
    """The mode `free-running`."""

    _acting: ActingDevice
    _loop: asyncio.AbstractEventLoop

    def __init__(self, parts: NodeParts, store: Store) -> None:
        super().__init__(parts)
        self._parts = parts
        settings, trainer = parts.settings, parts.trainer
        self._store, self._outbox = store, Outbox(self._disk)
        self._allowed: set[int] = set()
        parameter_bytes = 2 if settings.wire == "float16" else trainer.dtype.itemsize
        nominal = trainer.scenario.bandwidths.nominal
        self._bandwidth = MeasuredBandwidth(nominal, parameter_bytes, settings.limits.send)
        self._pause, self._stopping = threading.Event(), asyncio.Event()
        self._error: BaseException | None = None

    # The life of a node

    async def run(self, transport: Transport) -> None:
        """Train and answer until asked to stop, or until the last iteration if the node is not to stay."""
        self._transport, self._loop = transport, asyncio.get_running_loop()
        self._outbox.on_failure = self.stop
        stopping = asyncio.create_task(self._stopping.wait())
        beginning = asyncio.create_task(self._begin())
        try:
            await asyncio.wait({beginning, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if beginning.done():
                await beginning
                await self._work(stopping)
        finally:
            for task in (beginning, stopping):
                task.cancel()
            self._pause.set()
            self._recorder.flush()
            self._close_threads()
        if self._error is not None:
            raise self._error

    async def _begin(self) -> None:
        """Make the device, and keep it. Nobody knows of it before that, so it may be stopped at any moment."""
        await self._training.call(self._trainer.warm_up)
        kind = ExchangeDevice if self._trainer.form.half_steps is None else HalfStepsDevice
        acting = kind(self._parts, self._store, self._outbox, self._transport, self._training, self._pause)
        acting.bandwidth, acting.on_failure = self._bandwidth_now, self._note_error
        await self._training.call(acting.restore_or_begin)
        self._acting = acting
        self._log("begun", k=acting.device.k, session=acting.device.session)
        acting.checkpoint()
        await self._outbox.wait()
        self.allow(self._settings.neighbours)

    async def _work(self, stopping: asyncio.Task[bool]) -> None:
        """Train and answer until the end, and leave."""
        await self._transport.start(self, self._settings.neighbours)
        self.begun.set()
        clock = asyncio.create_task(self._watch_the_clock())
        clock.add_done_callback(self._note_error)
        training = asyncio.create_task(self._train())
        try:
            await asyncio.wait({training, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if training.done() and training.exception() is None and not self._stopping.is_set():
                await self._after_the_last(stopping)
            await self._leave(training)
        finally:
            for task in (clock, training):
                task.cancel()
            await self._transport.stop("stopped" if self._error is None else "stopped by an error")

    def _note_error(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
            self.stop()

    def stop(self) -> None:
        """Ask the node to stop: it begins nothing new, lets what is under way finish, and keeps its state."""
        self._pause.set()
        self._stopping.set()
        if hasattr(self, "_acting"):
            self._acting.has_model.set()  # there is nothing to wait for any more

    async def _after_the_last(self, stopping: asyncio.Task[bool]) -> None:
        """All iterations are made: stay to answer, or go as soon as nothing is under way or owed."""
        if self._settings.stay:
            await stopping
            return
        while not self._stopping.is_set() and not self._acting.is_done:
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
        acting, deadline = self._acting, self._loop.time() + self._settings.stop_seconds
        acting.leave()
        if not training.done():
            await asyncio.wait({training}, timeout=self._settings.stop_seconds)
        while any(map(acting.may_settle, acting.neighbours)) and self._loop.time() < deadline:
            await asyncio.sleep(TICK / 10)
        acting.abandon()
        await self._transport.drain(max(0.1, deadline - self._loop.time()))
        acting.checkpoint()
        await self._outbox.wait()
        self._log("stopped", k=acting.device.k)

    # Training

    async def _train(self) -> None:
        """Make one iteration after the other."""
        acting, device, status = self._acting, self._acting.device, self._status
        if not acting.has_model.is_set():
            status.state = "waiting"
            await acting.has_model.wait()
        if device.model is None or self._stopping.is_set():
            return
        await asyncio.sleep(self._recorder.seconds_to_start())
        while device.k < self._iterations and not self._stopping.is_set():
            status.state = "training"
            await acting.iterate()
            self._note_step(self._loop.time())
        if not self._stopping.is_set():
            status.state = "finished"
            self._log("finished", k=device.k)
            acting.finish()

    def _bandwidth_now(self) -> float | None:
        """b_i for the threshold; None if it is the experiment's."""
        given = self._settings.bandwidth
        if given is None:
            self._status.bandwidth = float(self._trainer.scenario.bandwidths.values[self._settings.device])
            return None
        if given == "measured":
            up = (neighbour for neighbour in self._allowed if self._acting.record_of(neighbour).status.up)
            rates = [self._transport.traffic(neighbour).rate for neighbour in up]
            given = self._bandwidth.update([rate for rate in rates if rate is not None])
            if warning := self._bandwidth.warning():
                self._log("bandwidth", level="warning", what=warning)
        self._status.bandwidth = given
        return given

    # What the transport tells

    def status_of(self, neighbour: int) -> NeighbourStatus:
        """What is known of a neighbour."""
        return self._acting.record_of(neighbour).status

    def hello_for(self, neighbour: int) -> Hello:
        acting, device = self._acting, self._acting.device
        return Hello(device.number, device.session, self._fingerprint, device.k, *acting.counts_for(neighbour))

    def connected(self, neighbour: int, theirs: Hello) -> None:
        record = self._acting.record_of(neighbour)
        status = record.status
        record.stop_timer()
        record.silent_since, record.last_progress = None, self._loop.time()
        was_up, same = status.up, status.session == theirs.session
        status.connected, status.up, status.session, status.iteration = True, True, theirs.session, theirs.k
        self._log("connected", neighbour=neighbour, session=theirs.session, k=theirs.k)
        self._acting.connected(neighbour, theirs, was_up=was_up, is_same=same)

    def disconnected(self, neighbour: int, reason: str) -> None:
        record = self._acting.record_of(neighbour)
        record.status.connected, record.status.last_problem = False, reason
        record.silent_since = self._loop.time()
        record.stop_timer()
        record.down_timer = self._loop.call_later(self._settings.down_after, self._went_down, neighbour)
        self._log("disconnected", neighbour=neighbour, reason=reason)

    def _went_down(self, neighbour: int) -> None:
        record = self._acting.record_of(neighbour)
        record.stop_timer()
        if record.status.up:
            record.status.up = False
            record.status.downs += 1
            self._log("link down", neighbour=neighbour)
            self._acting.link_down(neighbour)

    def received(self, neighbour: int, message: Message) -> None:
        record, model = self._acting.record_of(neighbour), model_in(message)
        record.last_progress = self._loop.time()
        problem = self._acting.problem_with(neighbour, message)
        if problem is None and model is not None:
            problem = self._problem_with(model, self._acting.device.model)
        if problem is None:
            record.status.iteration = getattr(message, "k", record.status.iteration)
            problem = self._acting.received(neighbour, message)
        if problem is not None:
            self._refuse_from(record.status, problem)

    def moved(self, neighbour: int) -> None:
        self._acting.record_of(neighbour).last_progress = self._loop.time()

    # Neighbours and timers

    def allow(self, neighbours: Sequence[Neighbour]) -> None:
        """Take a table of neighbours; those that are no longer in it are gone."""
        self._allowed = {neighbour.device for neighbour in neighbours}
        for number in self._allowed:
            self._acting.record_of(number)
        for number in self._acting.neighbours.keys() - self._allowed:
            self._went_down(number)
            self._acting.forget(number)

    async def _watch_the_clock(self) -> None:
        """Patience, giving up, checkpoints, and models to record."""
        saved, device = self._loop.time(), self._acting.device
        while True:
            await asyncio.sleep(min(TICK, self._recorder.seconds_to_next_model()))
            if device.model is not None:
                self._recorder.at_time(device.k, device.model, self._trainer.local)
            now = self._loop.time()
            for neighbour in list(self._acting.neighbours):
                self._acting.look_after(neighbour, now)
            is_full = self._store.journal_bytes > self._settings.limits.journal
            is_due = is_full or now - saved > self._settings.checkpoint_seconds
            if is_due and not self._acting.checkpoints_waiting:  # on a slow disk one may take long
                saved = now
                self._acting.checkpoint()

    def status(self) -> NodeStatus:
        """How the node is."""
        if not hasattr(self, "_acting"):  # it is being restored
            return self._status
        acting = self._acting
        in_doubt = acting.in_doubt
        self._status.in_doubt, self._status.journal_bytes = len(in_doubt), self._store.journal_bytes
        return self._with_traffic(acting.record_of(number).status for number in sorted(self._allowed | in_doubt))
