"""A node that waits for its neighbours in each iteration: together the nodes make what `efhc run` makes, bit for bit.

For each k, the neighbours of G(k) send one another whether they fired and the messages of the link law, and wait for
all of them to arrive (`lockstep_devices`). A node waits for a broken link. It sends again the messages that a neighbour
may still need. A neighbour that needs older ones has lost its state, and the run ends for all.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from efhc.base.errors import EfhcError
from efhc.core.half_step_messages import Introduction
from efhc.runtime.lockstep_devices import IterationResult, LockstepDevice, LockstepExchange, LockstepHalfSteps, Messages
from efhc.runtime.lockstep_neighbours import LinksAhead, LockstepMembership, LockstepNeighbour
from efhc.runtime.node import Mode, NodeParts
from efhc.runtime.node_messages import Hello, IterationHeader, IterationModel, Message, Presence, RunEnded
from efhc.runtime.node_settings import Neighbour
from efhc.runtime.sockets import SocketTransport
from efhc.runtime.state.iterations import IterationState, IterationStore
from efhc.runtime.status import NeighbourStatus, NodeStatus

NOT_BEGUN = -1
"""The iteration of a node before it knows from which one all continue."""
NO_ITERATION = (1 << 63) - 1
"""The iteration in its HELLO until then: it needs nothing yet."""
LAST_MESSAGES = 2.0
"""Seconds for sending the neighbours the reason why the run has ended."""
LOG_AGAIN = 60.0
"""Seconds between two lines of the log about the devices that the node waits for."""


class LockstepMode(Mode):
    """The mode `lockstep`."""

    neighbours: dict[int, LockstepNeighbour]
    members: LockstepMembership
    """Set once the node has found its checkpoints."""
    _links: LinksAhead

    def __init__(self, parts: NodeParts, store: IterationStore) -> None:
        super().__init__(parts)
        self._number, self._store = parts.settings.device, store
        trainer, norm_limit = self._trainer, self._settings.limits.norm
        is_exchange = trainer.form.half_steps is None
        self._device: LockstepDevice = (
            LockstepExchange(trainer) if is_exchange else LockstepHalfSteps(trainer, norm_limit)
        )
        self._changed = asyncio.Event()
        """Set at every change that the node may wait for."""
        self.k = NOT_BEGUN
        """The iteration that the node is in."""
        self._is_started = False
        """Whether the device has begun the present iteration, so that its messages can be sent."""
        self._ended: str | None = None
        """Why the run ended for all."""
        self._is_under_way = False
        """Whether a neighbour has announced that the others have begun without this node's present session."""
        self._began_alone = False
        self._sessions_at_start: dict[int, int | None] = {}
        self._table: set[int] = set()
        """The devices in the table of neighbours."""
        self._stop_at: float | None = None
        """When a node that is to stop no longer waits for its neighbours, by the loop's clock."""
        self._failed: BaseException | None = None
        self._saving: asyncio.Task[None] | None = None
        self._checkpoints: list[int] = []

    # From start to end

    async def run(self, transport: SocketTransport) -> None:
        """Make all iterations with the neighbours, or as many as there are until the node is asked to stop.

        Raises `EfhcError` if the run cannot go on, here or at another node.
        """
        self._transport, self._loop = transport, asyncio.get_running_loop()
        reason = "stopped"
        try:
            await self._find_members()
            await transport.start(self, self._settings.neighbours)
            self.begun.set()
            reason = await self._work()
        except Exception as error:
            reason = str(error)
            raise
        finally:
            links = self.status().neighbours
            names = ("model_bytes_sent", "model_bytes_received")
            totals = {name: sum(getattr(link, name) for link in links) for name in names}
            self._log("ended", reason=reason, k=self._status.iteration, **totals)
            await transport.stop(reason)
            self._close_threads()
            self._recorder.flush()

    async def _work(self) -> str:
        """Make iterations. Returns why the node ends, and sends all neighbours an error if that is the reason."""
        try:
            await self._begin()
            if await self._make_iterations():
                await self._stay_for_others()
                return "all iterations are made"
            await self._leave()
        except Exception as error:
            self._end_run(f"device {self._number} has failed: {error}")
            with suppress(Exception):
                await self._transport.drain(LAST_MESSAGES)
            raise
        return "stopped" if self._stop_at is not None else "all iterations are made, and no neighbour has come back"

    def stop(self) -> None:
        """Request an end: the node ends the iteration if its neighbours do their part soon, and keeps its state."""
        if self._stop_at is None:
            self._stop_at = asyncio.get_running_loop().time() + self._settings.stop_seconds
            self._status.state = "stopping"
        self._changed.set()

    def allow(self, neighbours: Sequence[Neighbour]) -> None:
        """Replace the table of neighbours. Messages to devices that are no longer in it are kept: they may come back.

        Raises `InputError`, and keeps the table of before, if a neighbour is missing that the run still needs.
        """
        table = {neighbour.device for neighbour in neighbours}
        self._links.check_table(table, max(0, self.k))
        for number in table:
            self.record_of(number)
        self._table = table

    async def _until(
        self, condition: Callable[[], bool], at_most: float = math.inf, *, may_finish: bool = False
    ) -> bool:
        """Wait until the condition is true. Returns False after `at_most` seconds, or if the node is to stop before.

        With `may_finish` it goes on for `stop_seconds` when the node is to stop.
        """
        end = self._loop.time() + at_most
        while True:
            if self._ended is not None:
                raise EfhcError(self._ended)
            if self._failed is not None:
                raise self._failed
            if condition():
                return True
            limit = end if self._stop_at is None else min(end, self._stop_at)
            if self._loop.time() >= limit or (self._stop_at is not None and not may_finish):
                return False
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if limit == math.inf else limit):
                    await self._changed.wait()

    @contextmanager
    def _logging_waits(self, waits_for: Callable[[], list[int]], at_most: float) -> Iterator[None]:
        """Log at once, and then once a minute, which devices the node waits for in the body."""

        async def log_waits() -> None:
            while devices := waits_for():
                self._log("waiting", devices=devices, at_most_seconds=None if at_most == math.inf else at_most)
                await asyncio.sleep(LOG_AGAIN)

        logging = asyncio.create_task(log_waits())
        try:
            yield
        finally:
            logging.cancel()

    # From which iteration

    async def _find_members(self) -> None:
        """Find the checkpoints of this node, and the devices that take part."""
        self._status.state = "waiting"
        scenario = self._trainer.scenario
        devices = len(scenario.bandwidths.values)
        self._links = await self._training.call(
            LinksAhead.of, scenario.network, devices, self._number, self._iterations
        )
        self._checkpoints = await self._disk.call(self._store.available)
        for note in self._store.notes:
            self._log("checkpoint left out", level="warning", what=note)
        own = Presence(self._number, self._session, tuple(sorted({0, *self._checkpoints})))
        self.members = LockstepMembership(own, self._links.reachable)
        self.allow(self._settings.neighbours)

    async def _begin(self) -> None:
        """Wait for all, and go on from the latest checkpoint that all have; or alone, if the others have begun."""
        members = self.members
        has_made_all = members.has_made(self._number, self._iterations)
        last = await self._state_after(self._iterations) if has_made_all else None
        if last is not None and last.sent == {}:
            self._is_under_way = True  # and the run is over
        limit = self._settings.limits.give_up if has_made_all else math.inf
        with self._logging_waits(lambda: members.missing, limit):
            if not await self._until(lambda: self._is_under_way or not members.missing, limit):
                return  # the node is to stop, or it has made all iterations and no device needs it
        alone = self._is_under_way
        k = members.own.checkpoints[-1] if alone else members.common
        state = await self._state_after(k)
        try:
            await self._training.call(self._device.begin, state)
        except (KeyError, ValueError) as error:
            raise self._damaged(k, error) from None
        self._began_alone = alone
        self._sessions_at_start = {number: members.session_of(number) for number in self.neighbours}
        sent = {} if state is None else state.sent
        for number, record in self.neighbours.items():
            record.begin(k, sent.get(number, ()) if alone and sent is not None else None)
            if record.status.connected and record.is_lost:
                raise EfhcError(
                    f"device {number} needs what device {self._number} sent in iteration {record.needs} and no longer "
                    "has; start all nodes again, and they go on from their last common checkpoint"
                )
        self.k = self._status.iteration = k
        for number, record in self.neighbours.items():
            if alone and record.status.connected:
                self._announce_start(number)
        if self._stop_at is None:
            self._status.state = "training"
        self._log("begun", k=k, alone=alone)
        self._recorder.after_iteration(k, self._device.model, self._trainer.local)

    async def _state_after(self, k: int) -> IterationState | None:
        """Return the state of a checkpoint; None for the one that the run begins with."""
        if k not in self._checkpoints:
            return None
        try:
            return await self._disk.call(self._store.load, k)
        except ValueError as error:
            raise self._damaged(k, error) from None

    def _damaged(self, k: int, error: Exception) -> EfhcError:
        return EfhcError(f"the checkpoint of iteration {k} in {self._store.folder} is damaged ({error})")

    # Iterations

    async def _make_iterations(self) -> bool:
        """Make one iteration after the other. Returns whether all are made; else the node is to stop."""
        if self.k == NOT_BEGUN:
            return False
        while self.k < self._iterations:
            if self._stop_at is not None or not await self._make_iteration():
                return False
            if self.k % self._settings.checkpoint_every == 0 and self.k < self._iterations:
                await self._save()
        return True

    async def _make_iteration(self) -> bool:
        """Make one iteration. Returns False if the node is to stop, and neighbours have not done their part."""
        k, device, began = self.k, self._device, self._loop.time()
        await self._training.call(device.start, k)
        self._links.check_iteration(self._table, k, device.neighbours)
        self._is_started = True
        self._send_messages()

        working = asyncio.ensure_future(self._training.call(device.descend))
        working.add_done_callback(lambda _: self._changed.set())
        if not await self._until(working.done, may_finish=True):
            working.cancel()
            return False
        await working
        if not device.is_decided:
            if (received := await self._wait_for_messages()) is None:
                return False
            await self._training.call(device.decide, received)
            self._send_messages()
        if (received := await self._wait_for_messages()) is None:
            return False
        await self._until(lambda: False, began + self._settings.pace - self._loop.time())

        made = await self._training.call(device.finish, received)
        self.k, self._is_started = k + 1, False
        for record in self.neighbours.values():
            record.forget_before(self.k)
        self._note(k, made)
        return True

    async def _wait_for_messages(self) -> dict[int, Messages] | None:
        """Wait for the messages of all neighbours and return them; None if the node is to stop before."""
        neighbours = self._device.neighbours

        def is_hopeless() -> bool:
            """Whether the node is to stop, and a neighbour that it waits for is gone."""
            gone = not all(self.neighbours[number].status.connected for number in neighbours)
            return self._stop_at is not None and gone

        await self._until(lambda: not self._missing or is_hopeless(), may_finish=True)
        return None if self._missing else {number: self._messages_of(number) for number in neighbours}

    def _note(self, k: int, made: IterationResult) -> None:
        recorder, status = self._recorder, self._status
        bandwidth = float(self._trainer.scenario.bandwidths.values[self._number])
        recorder.step(k, made.fired, made.loss, made.drift, made.threshold, bandwidth)
        for number, bits in made.bits.items():
            recorder.add_exchange(recorder.seconds, number, (k, k), math.nan, "committed", -(-bits // 8))
        recorder.after_iteration(k + 1, self._device.model, self._trainer.local)
        status.iteration, status.loss, status.bandwidth = k + 1, made.loss, bandwidth
        status.drift, status.threshold = made.drift, made.threshold
        status.broadcasts += made.fired
        self._note_step()

    # Checkpoints, and the end

    async def _save(self, *, with_sent: bool = False) -> asyncio.Task[None]:
        """Write a checkpoint of this iteration while training goes on. Only one is written at a time."""
        if self._saving is not None:
            await self._saving
        self._recorder.flush()
        sent = None
        if not self.members.unfinished(self._iterations):
            sent = {}  # no device needs them any more
        elif with_sent:
            sent = {number: record.kept for number, record in self.neighbours.items()}
        state = replace(self._device.state(self.k), sent=sent)
        self._saving = asyncio.create_task(self._write(state))
        self._saving.add_done_callback(self._written)
        return self._saving

    async def _write(self, state: IterationState) -> None:
        await self._disk.call(self._store.save, state)
        members = self.members
        kept = {*members.own.checkpoints, state.k}
        members.announce(kept)
        common = members.common
        self._send_to_all(members.announce({0, *(k for k in kept if k >= common)}))
        await self._disk.call(self._store.remove_before, common)

    def _written(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._failed = task.exception()
            self._changed.set()

    async def _leave(self) -> None:
        """Keep the present iteration, so that this node can go on from there while the others wait for it."""
        self._status.state = "stopping"
        if self.k != NOT_BEGUN:
            await (await self._save(with_sent=True))
        await self._transport.drain(max(0.1, (self._stop_at or 0.0) - self._loop.time()))

    async def _stay_for_others(self) -> None:
        """Wait until the neighbours have made all iterations, too: until then they may need what was sent to them."""
        await (await self._save(with_sent=True))
        if self._stop_at is None:
            self._status.state = "finished"
        limit = self._settings.limits.give_up
        with self._logging_waits(self._needed_by, limit):
            found = await self._until(lambda: not self._needed_by(), limit)
        if not found and self._stop_at is None:
            self._log("left", level="warning", what="neighbours are not known to have made all iterations")
        await self._transport.drain(self._settings.stop_seconds)
        if not self.members.unfinished(self._iterations):
            await (await self._save())  # so that a node that is started again knows that all is over

    def _needed_by(self) -> list[int]:
        """Return the neighbours that may need messages of this node: they are not known to have made all iterations."""
        sent = {number for number, record in self.neighbours.items() if record.kept}
        return [number for number in self.members.unfinished(self._iterations) if number in sent]

    def status(self) -> NodeStatus:
        if not hasattr(self, "members"):  # it reads its checkpoints
            return self._status
        if self.k == NOT_BEGUN:
            self._status.waits_for = self.members.missing
        else:
            self._status.waits_for = self._needed_by() if self.k == self._iterations else self._missing
        return self._status_with(self.neighbours[number].status for number in sorted(self.neighbours))

    # Messages of iterations

    def _send_messages(self) -> None:
        """Send the messages of the iteration as far as they are known, and check those that have come already."""
        for number in self._device.neighbours:
            if (header := self._messages_of(number).get(IterationHeader)) is not None:
                self._check_degree(number, header)
            self._send_due(number)

    def _messages_of(self, number: int) -> Messages:
        record: LockstepNeighbour = self.record_of(number)
        return record.received.get(self.k, {})

    @property
    def _missing(self) -> list[int]:
        """The neighbours whose messages the present iteration lacks."""
        if not self._is_started:
            return []
        device = self._device
        return [number for number in device.neighbours if device.is_missing(number, self._messages_of(number))]

    def _check_degree(self, number: int, header: IterationHeader) -> None:
        """End the run unless a neighbour sees the same links in this iteration."""
        if (known := self._device.neighbours.get(number)) != header.degree:
            self._end_run(
                f"device {number} has {header.degree} neighbours in iteration {header.k} by its own count, and "
                f"{known or 'none'} by that of device {self._number}; give all nodes the same network"
            )

    def _send_due(self, number: int) -> None:
        """Send a neighbour the messages that it needs and does not have yet."""
        record = self.neighbours[number]
        if self._is_started and number in self._device.neighbours:
            for message in self._device.messages_to(number, self._messages_of(number)):
                record.keep(message)
        for message in record.due():
            self._transport.send(number, message)

    # The end

    def _end_run(self, reason: str) -> None:
        """End the run for all devices: send the reason to all neighbours."""
        if self._ended is None:
            self._ended = reason
            self._send_to_all(RunEnded(reason))
        self._changed.set()

    def _end_because_lost(self, number: int, k: int) -> None:
        self._end_run(
            f"device {number} has lost its state: it is in iteration {k}, and device {self._number} in iteration "
            f"{self.k}; start all nodes again, and they go on from their last common checkpoint"
        )

    # Called by the transport

    def hello_for(self, neighbour: int) -> Hello:
        k = self.k if self.k != NOT_BEGUN else NO_ITERATION
        return Hello(self._number, self._session, self._fingerprint, k)

    def connected(self, neighbour: int, theirs: Hello) -> None:
        record = self.record_of(neighbour)
        status = record.status
        status.interruptions += status.session == theirs.session
        status.connected, status.up, status.session = True, True, theirs.session
        status.iteration = None if theirs.k == NO_ITERATION else theirs.k
        self._log("connected", neighbour=neighbour, session=theirs.session, k=status.iteration)
        self.members.connect(neighbour, theirs.session)
        record.connect(theirs.k)
        for presence in self.members.known.values():
            self._transport.send(neighbour, presence)
        if self._ended is not None:
            self._transport.send(neighbour, RunEnded(self._ended))
        if self.k != NOT_BEGUN:
            if record.is_lost:
                self._end_because_lost(neighbour, theirs.k)
            if self._began_alone or self._sessions_at_start.get(neighbour) != theirs.session:
                self._announce_start(neighbour)
        self._send_due(neighbour)
        self._changed.set()

    def disconnected(self, neighbour: int, reason: str) -> None:
        status = self.record_of(neighbour).status
        status.connected = status.up = False
        status.last_problem = reason
        self.members.disconnect(neighbour)
        self._log("disconnected", neighbour=neighbour, reason=reason)
        self._changed.set()

    def received(self, neighbour: int, message: Message) -> None:
        if (problem := self._take(neighbour, message)) is not None:
            self._refuse_message(neighbour, problem)
            return
        self._send_due(neighbour)
        self._changed.set()

    def _take(self, neighbour: int, message: Message) -> str | None:
        """Take a message. Returns why it is refused, or None."""
        match message:
            case Presence(device, _, checkpoints):
                if not checkpoints and device != neighbour:
                    return "it announces for another device that this one has begun"
                if not checkpoints:
                    self._is_under_way = True
                elif self.members.update(message):
                    for number in self.neighbours.keys() - {neighbour}:
                        self._transport.send(number, message)
                return None
            case RunEnded(reason):
                self._end_run(reason)
                return None
            case _ if isinstance(message, self._device.messages):
                return self._take_iteration_message(neighbour, message)
        return f"it sends {type(message).__name__}, which is no message of this mode and link law"

    def _take_iteration_message(self, neighbour: int, message: Any) -> str | None:
        """Take a message of an iteration. Returns why it is refused, or None."""
        record: LockstepNeighbour = self.record_of(neighbour)
        problem = None
        if isinstance(message, IterationModel | Introduction):
            own = self._device.model if self.k != NOT_BEGUN else None
            problem = "it has no model" if message.model is None else self._problem_with(message.model, own)
        if problem is not None:
            if record.refused == message.k:  # it was sent once more over a new connection, and is refused again
                self._end_run(f"device {neighbour} cannot be understood in iteration {message.k}: {problem}")
            record.refused = message.k
            return problem
        record.status.iteration = message.k
        if message.k < record.needs:  # it had not begun when it connected, and this message shows where it began
            record.needs = message.k
            if record.is_lost:
                self._end_because_lost(neighbour, message.k)
        if self._is_started and message.k == self.k and isinstance(message, IterationHeader):
            self._check_degree(neighbour, message)
        return record.take(message, self.k)

    def _send_to_all(self, message: Message) -> None:
        for number, record in self.neighbours.items():
            if record.status.connected:
                self._transport.send(number, message)

    def _announce_start(self, number: int) -> None:
        """Announce to a neighbour that started later that no node goes back to a checkpoint for it."""
        self._transport.send(number, Presence(self._number, self._session, ()))

    def _new_record(self, status: NeighbourStatus) -> LockstepNeighbour:
        return LockstepNeighbour(status, dropped=self.k - 1)
