"""A node on its own clock: the laws of docs/asynchrony.md with training, messages, timeouts and a disk.

A link law is a subclass: `FreeRunningExchange` or `FreeRunningHalfSteps`. Every message and timeout becomes an event of
the law's core, and the node carries out the effects that the core returns. Gradients are computed in the worker thread,
so messages are answered meanwhile. Methods are called in the event loop, unless they say otherwise.
"""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from efhc.base.arrays import Floats
from efhc.runtime.bandwidth import MeasuredBandwidth
from efhc.runtime.node import Mode, NodeParts
from efhc.runtime.node_messages import Hello, Message, model_in
from efhc.runtime.node_settings import Neighbour
from efhc.runtime.sockets import SocketTransport
from efhc.runtime.state.node_store import NodeStore, Restored
from efhc.runtime.status import NeighbourStatus, NodeStatus
from efhc.runtime.training import Gradient
from efhc.runtime.workers import STATE, Outbox

TICK = 0.5
"""Seconds between two looks at the clock, for timeouts and checkpoints."""
FACTS = ("broadcasts", "unresolved", "unresolved_norm", "lost")
"""The fields of the status that a checkpoint keeps."""


@dataclass
class NeighbourRecord:
    """The record of one neighbour, beside the core of the link law."""

    status: NeighbourStatus
    committed: int = 0
    """Exchanges with it that this node has committed and not lost."""
    given_up: int = 0
    """Exchanges with it that were given up in doubt since the two ends last compared their counts."""
    last_progress: float = 0.0
    """When there was last progress between the two, by the loop's clock."""
    silent_since: float | None = None
    """Since when there is no connection; None while there is one."""

    def is_silent_for(self, seconds: float, now: float) -> bool:
        """Return whether there was no connection for this long. Before the first call, time does not count."""
        if self.silent_since is None:
            self.silent_since = now
        return now - self.silent_since > seconds

    def count(self, outcome: str) -> None:
        self.status.exchanges[outcome] += 1
        self.committed += outcome == "committed"
        self.given_up += outcome == "unresolved"

    def facts(self) -> dict[str, Any]:
        status = self.status
        of_status = {"exchanges": dict(status.exchanges), "lost": status.lost, "downs": status.downs}
        return {"committed": self.committed, "given_up": self.given_up} | of_status

    def restore(self, facts: Mapping[str, Any]) -> None:
        self.committed, self.given_up = facts["committed"], facts["given_up"]
        self.status.lost, self.status.downs = facts["lost"], facts["downs"]
        self.status.exchanges |= facts["exchanges"]


class FreeRunning(Mode):
    """The mode `free-running`."""

    messages: ClassVar[tuple[type, ...]]
    """The messages of this link law."""
    record_type: ClassVar[type[Any]] = NeighbourRecord
    device: Any
    """The core of the link law."""

    def __init__(self, parts: NodeParts, store: NodeStore) -> None:
        super().__init__(parts)
        self._store, self._outbox = store, Outbox(self._disk)
        self._allowed: set[int] = set()
        self.gradients: Floats | None = None
        """The sum of all local steps that the model contains, if it is recorded."""
        self._start: Floats | None = None
        self._checkpoints_waiting = 0
        """Number of checkpoints that are not on the disk yet; each holds a model."""
        parameter_bytes = 2 if self._settings.wire == "float16" else self._trainer.dtype.itemsize
        nominal = self._trainer.scenario.bandwidths.nominal
        self._measured = MeasuredBandwidth(nominal, parameter_bytes, self._settings.limits.send)
        self._pause, self._stopping, self._has_model = threading.Event(), asyncio.Event(), asyncio.Event()
        self._is_restored = False
        self._error: BaseException | None = None

    # Defined by the link law

    @abstractmethod
    def _begin_with(self, model: Floats | None) -> None:
        """Set `device` to a new one. In the worker thread, as `_continue`."""

    @abstractmethod
    def _continue(self, found: Restored) -> None:
        """Set `device` to that of the state folder, after all that its journal holds."""

    @abstractmethod
    def _durable(self) -> tuple[Any, dict[str, Any]]:
        """Return the part of the device that a checkpoint keeps, and facts of this link law."""

    @abstractmethod
    async def _iterate(self) -> None:
        """Make one iteration."""

    @abstractmethod
    def finish(self) -> None:
        """Begin nothing new: all iterations are made."""

    def _leave(self) -> None:
        """Begin nothing new: the node is to stop."""
        self.finish()

    @abstractmethod
    def _abandon(self) -> None:
        """Withdraw what is not in doubt: the node stops now."""

    @property
    def _is_done(self) -> bool:
        """Whether a device that has finished has nothing left to do with a connected neighbour."""
        return not any(map(self._may_settle, self.neighbours))

    @abstractmethod
    def _may_settle(self, neighbour: int) -> bool:
        """Whether something between the two is not over and a connection is there to end it."""

    @abstractmethod
    def _counts_for(self, neighbour: int) -> tuple[int, int]:
        """Return `committed` and `undecided` of the HELLO to a neighbour."""

    @property
    @abstractmethod
    def _in_doubt(self) -> set[int]:
        """The neighbours with which something is in doubt."""

    @abstractmethod
    def _link_connected(self, neighbour: int, theirs: Hello, *, was_up: bool, is_same: bool) -> None:
        """Handle a connection. `was_up`: the link was up; `is_same`: the neighbour was not restarted meanwhile."""

    def _link_down(self, neighbour: int) -> None:
        """Handle a neighbour that is out of reach. It may come back."""

    def _forget(self, neighbour: int) -> None:
        """Handle a neighbour that was taken off the table."""

    @abstractmethod
    def _take(self, neighbour: int, message: Any) -> str | None:
        """Handle a message. Returns why it is refused, or None."""

    @abstractmethod
    def _check_timeouts(self, neighbour: int, now: float) -> None:
        """Retry or give up if nothing comes from a neighbour. Called twice a second."""

    # From start to end

    async def run(self, transport: SocketTransport) -> None:
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
        """Make the device and keep it. No message was sent before that, so it may be stopped at any moment."""
        await self._training.call(self._restore_or_begin)
        self._status.iteration = self.device.k
        self._is_restored = True
        if not self.device.waits_for_model:
            self._has_model.set()
        self._log("begun", k=self.device.k, session=self.device.session)
        self.checkpoint()
        await self._outbox.wait()
        self.allow(self._settings.neighbours)

    def _restore_or_begin(self) -> None:
        """In the worker thread: set the device, from the state folder or a new one."""
        self._trainer.warm_up()
        found = self._store.restore()
        if found is None:
            model = None if self._settings.join == "copy" else self._trainer.initial_model()
            self._begin_with(model)
            self._note_start(model)
            return
        for note in found.notes:
            self._log("state mended", level="warning", what=note)
        for name in FACTS:
            setattr(self._status, name, found.facts[name])
        for number, facts in found.facts["neighbours"].items():
            self.record_of(int(number)).restore(facts)
        self._trainer.restore(found.tensors)
        self._start, self.gradients = found.tensors.get("start"), found.tensors.get("gradients")
        self._continue(found)

    async def _work(self, stopping: asyncio.Task[bool]) -> None:
        await self._transport.start(self, self._settings.neighbours)
        self.begun.set()
        clock, training = asyncio.create_task(self._watch_clock()), asyncio.create_task(self._train())
        for task in (clock, training):
            task.add_done_callback(self._note_error)
        try:
            await asyncio.wait({training, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not self._stopping.is_set():
                await self._after_last_iteration(stopping)
            await self._end(training)
        finally:
            for task in (clock, training):
                task.cancel()
            await self._transport.stop("stopped" if self._error is None else "stopped by an error")

    def _note_error(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
            self.stop()

    def stop(self) -> None:
        """Ask the node to stop: it begins nothing new, lets exchanges under way finish, and keeps its state."""
        self._pause.set()
        self._stopping.set()
        if self._is_restored:
            self._has_model.set()  # nothing is waited for any more

    async def _after_last_iteration(self, stopping: asyncio.Task[bool]) -> None:
        """Stay to answer, or leave as soon as nothing is under way."""
        if self._settings.stay:
            await stopping
            return
        while not self._stopping.is_set() and not self._is_done:
            await asyncio.wait({stopping}, timeout=TICK / 5)

    async def _end(self, training: asyncio.Task[None]) -> None:
        """Begin nothing new, give exchanges under way some seconds to finish, and keep the state."""
        self._status.state = "stopping"
        self._pause.set()
        if self._outbox.failed is not None:
            self._error = self._outbox.failed
            return  # neighbours must not rely on what could not be kept: nothing is sent or written any more
        deadline = self._loop.time() + self._settings.stop_seconds
        self._leave()
        if not training.done():
            await asyncio.wait({training}, timeout=self._settings.stop_seconds)
        while any(map(self._may_settle, self.neighbours)) and self._loop.time() < deadline:
            await asyncio.sleep(TICK / 10)
        self._abandon()
        await self._transport.drain(max(0.1, deadline - self._loop.time()))
        self.checkpoint()
        await self._outbox.wait()
        self._log("stopped", k=self.device.k)

    # Training

    async def _train(self) -> None:
        device, status = self.device, self._status
        if not self._has_model.is_set():
            status.state = "waiting"
            await self._has_model.wait()
        if device.model is None or self._stopping.is_set():
            return
        await asyncio.sleep(self._recorder.seconds_to_start())
        while device.k < self._iterations and not self._stopping.is_set():
            status.state = "training"
            await self._iterate()
            self._note_step()
        if not self._stopping.is_set():
            status.state = "finished"
            self._log("finished", k=device.k)
            self.finish()

    async def _descend(self, k: int, momentum: Callable[[], float]) -> tuple[float, Floats]:
        """Return the loss and the direction of the local steps of iteration k: see `Trainer.local_steps`."""
        began = self._loop.time()
        working, gradient = self._trainer.local_steps(k, self.device.model, momentum), None
        last = (k + 1) * self._trainer.parts.local.steps - 1
        while True:
            try:
                number, x = next(working) if gradient is None else working.send(gradient)
            except StopIteration as done:
                return cast(tuple[float, Floats], done.value)
            until = began + self._settings.pace if number == last else 0.0
            gradient = await self._training.call(self._gradient, number, x, until)

    def _gradient(self, number: int, model: Floats, until: float) -> Gradient:
        """In the worker thread: compute a gradient, which takes until some time of the loop's clock."""
        found = self._trainer.gradient(number, model)
        left = until - self._loop.time()
        if left > 0:
            self._pause.wait(left)
        return found

    def _add_gradients(self, alpha: float, down: Floats) -> Floats | None:
        """Return the sum of all local steps after one more, if it is recorded."""
        if self.gradients is None:
            return None
        return self.gradients + np.float64(self._trainer.dtype.type(alpha)) * down

    def _bandwidth_now(self) -> float | None:
        """Return b_i for the threshold; None if it is the experiment's."""
        given = self._settings.bandwidth
        if given is None:
            self._status.bandwidth = float(self._trainer.scenario.bandwidths.values[self._settings.device])
            return None
        if given == "measured":
            statuses = [self.record_of(neighbour).status for neighbour in self._allowed]
            given = self._measured.update([one.rate for one in statuses if one.up and one.rate is not None])
            if warning := self._measured.warning():
                self._log("bandwidth", level="warning", what=warning)
        self._status.bandwidth = given
        return given

    # State

    def _note_start(self, model: Floats | None) -> None:
        """Note the model that the device starts from, if that is recorded."""
        if self._settings.record.gradients and model is not None:
            self._start, self.gradients = model, np.zeros(len(model))

    def checkpoint(self, lanes: Iterable[int] = ()) -> None:
        """Keep the whole state, and begin a new journal. What follows in `lanes` of the outbox waits for it."""
        self._checkpoints_waiting += 1
        kept, own_facts = self._durable()
        facts = {name: getattr(self._status, name) for name in FACTS} | own_facts
        facts["neighbours"] = {str(number): record.facts() for number, record in self.neighbours.items()}
        tensors = self._trainer.tensors()
        if self._start is not None and self.gradients is not None:
            tensors |= {"start": self._start, "gradients": self.gradients}
        self._outbox.write([STATE, *lanes], self._store.checkpoint, kept, facts, tensors)
        self._outbox.do(STATE, self._note_checkpoint)

    def _note_checkpoint(self) -> None:
        self._checkpoints_waiting -= 1
        self._recorder.flush()

    # Counting

    def _new_record(self, status: NeighbourStatus) -> Any:
        return self.record_type(status)

    def _note_unresolved(self, neighbour: int, norm: float) -> None:
        self.record_of(neighbour).count("unresolved")
        self._status.unresolved += 1
        self._status.unresolved_norm += norm
        self._log("unresolved", level="warning", neighbour=neighbour, norm=norm)

    def _note_lost(self, neighbour: int, **lost: int) -> None:
        """Count exchanges or frames that one end has and the other has lost."""
        (number,) = lost.values()
        self.record_of(neighbour).status.lost += number
        self._status.lost += number
        self._log("lost", level="warning", neighbour=neighbour, **lost)

    def _note_broadcast(self) -> None:
        status = self._status
        status.broadcasts += 1
        if self._settings.bandwidth == "measured":
            drift, threshold, bandwidth = status.drift, status.threshold, status.bandwidth
            self._log("broadcast", k=self.device.k, drift=drift, threshold=threshold, bandwidth=bandwidth)

    # Called by the transport

    def hello_for(self, neighbour: int) -> Hello:
        device = self.device
        return Hello(device.number, device.session, self._fingerprint, device.k, *self._counts_for(neighbour))

    def connected(self, neighbour: int, theirs: Hello) -> None:
        record = self.record_of(neighbour)
        status = record.status
        record.silent_since, record.last_progress = None, self._loop.time()
        was_up, same = status.up, status.session == theirs.session
        status.connected, status.up, status.session, status.iteration = True, True, theirs.session, theirs.k
        status.interruptions += was_up and same
        status.downs += was_up and not same
        self._log("connected", neighbour=neighbour, session=theirs.session, k=theirs.k)
        self._link_connected(neighbour, theirs, was_up=was_up, is_same=same)

    def disconnected(self, neighbour: int, reason: str) -> None:
        record = self.record_of(neighbour)
        record.status.connected, record.status.last_problem = False, reason
        record.silent_since = self._loop.time()
        self._log("disconnected", neighbour=neighbour, reason=reason)

    def _went_down(self, neighbour: int) -> None:
        status = self.status_of(neighbour)
        if status.up:
            status.up = False
            status.downs += 1
            self._log("link down", neighbour=neighbour)
            self._link_down(neighbour)

    def received(self, neighbour: int, message: Message) -> None:
        record, model = self.record_of(neighbour), model_in(message)
        record.last_progress = self._loop.time()
        problem = None
        if not isinstance(message, self.messages):
            problem = f"it sent {type(message).__name__}, which is no message of this mode and link law"
        elif model is not None:
            problem = self._problem_with(model, self.device.model)
        if problem is None:
            record.status.iteration = getattr(message, "k", record.status.iteration)
            problem = self._take(neighbour, message)
        if problem is not None:
            self._refuse_message(neighbour, problem)

    def note_progress(self, neighbour: int) -> None:
        self.record_of(neighbour).last_progress = self._loop.time()

    # Neighbours and timers

    def allow(self, neighbours: Sequence[Neighbour]) -> None:
        """Replace the table of neighbours. The links to devices that are no longer in it end."""
        self._allowed = {neighbour.device for neighbour in neighbours}
        for number in self._allowed:
            self.record_of(number)
        for number in self.neighbours.keys() - self._allowed:
            self._went_down(number)
            self._forget(number)

    async def _watch_clock(self) -> None:
        saved, device = self._loop.time(), self.device
        while True:
            await asyncio.sleep(min(TICK, self._recorder.seconds_to_next_model()))
            if device.model is not None:
                self._recorder.at_time(device.k, device.model, self._trainer.local)
            now = self._loop.time()
            for neighbour, record in list(self.neighbours.items()):
                if not record.status.connected and record.is_silent_for(self._settings.down_after, now):
                    self._went_down(neighbour)
                self._check_timeouts(neighbour, now)
            is_full = self._store.journal_bytes > self._settings.limits.journal
            is_due = is_full or now - saved > self._settings.checkpoint_seconds
            if is_due and not self._checkpoints_waiting:  # on a slow disk one may take long
                saved = now
                self.checkpoint()

    def status(self) -> NodeStatus:
        if not self._is_restored:
            return self._status
        in_doubt = self._in_doubt
        self._status.in_doubt, self._status.journal_bytes = len(in_doubt), self._store.journal_bytes
        return self._status_with(self.record_of(number).status for number in sorted(self._allowed | in_doubt))
