"""A node that waits for its neighbours in each iteration: together the nodes make what `efhc run` makes, bit for bit.

For each k, the neighbours of G(k) tell one another whether they fired, send what the link law says, and wait until all
of it is there (`lockstep_device`, `lockstep_half_steps`). A broken link is waited for. What a neighbour may still need
is sent again; a neighbour that needs more than that has lost its state, and the run ends for all.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from efhc.base.errors import EfhcError
from efhc.core.half_steps import Introduction
from efhc.runtime.links_ahead import LinksAhead
from efhc.runtime.lockstep_device import Heard, Iteration, LockstepDevice, LockstepExchange, Made
from efhc.runtime.lockstep_half_steps import LockstepHalfSteps
from efhc.runtime.lockstep_neighbours import NOT_BEGUN, LockstepNeighbours
from efhc.runtime.messages import Hello, IterationModel, Message, Presence
from efhc.runtime.mode import ModeBase, NodeParts
from efhc.runtime.roll_call import RollCall
from efhc.runtime.settings import Neighbour
from efhc.runtime.state.iterations import IterationState, IterationStore
from efhc.runtime.status import NeighbourStatus, NodeStatus
from efhc.runtime.transport import Transport

LAST_WORDS = 2.0
"""Seconds for telling the neighbours that the run has ended."""
SAY_AGAIN = 60.0
"""Seconds after which the log says again for whom the node waits."""


class Lockstep(ModeBase):
    """The mode `lockstep`."""

    _neighbours: LockstepNeighbours
    _links: LinksAhead
    _loop: asyncio.AbstractEventLoop

    def __init__(self, parts: NodeParts, store: IterationStore) -> None:
        super().__init__(parts)
        self._number, self._store = parts.settings.device, store
        self._device: LockstepDevice
        if parts.trainer.form.half_steps is None:
            self._device = LockstepExchange(parts.trainer)
        else:
            self._device = LockstepHalfSteps(parts.trainer, parts.settings.limits.norm)
        self._status.session = parts.session
        self._table: set[int] = set()
        """The devices in the table of neighbours."""
        self._news = asyncio.Event()
        """Set whenever something has happened that a wait may be for."""
        self._stop_at: float | None = None
        """When a node that is to stop ceases to wait for its neighbours, by the loop's clock."""
        self._failed: BaseException | None = None
        self._saving: asyncio.Task[None] | None = None
        self._checkpoints: list[int] = []

    # The life of a node

    async def run(self, transport: Transport) -> None:
        """Make all iterations with the neighbours, or as many as there are until the node is asked to stop.

        Raises `EfhcError` if the run cannot go on, here or at another node.
        """
        self._transport, self._loop = transport, asyncio.get_running_loop()
        reason = "stopped"
        try:
            await self._call_the_roll()
            await transport.start(self, self._settings.neighbours)
            self.begun.set()
            reason = await self._work()
        except Exception as error:
            reason = str(error)
            raise
        finally:
            links = self.status().neighbours
            sent, received = (
                sum(link.model_bytes_sent for link in links),
                sum(link.model_bytes_received for link in links),
            )
            self._log(
                "ended", reason=reason, k=self._status.iteration, model_bytes_sent=sent, model_bytes_received=received
            )
            await transport.stop(reason)
            self._close_threads()
            self._recorder.flush()

    async def _work(self) -> str:
        """Make iterations. Returns why the node ends; tells all neighbours if that is an error."""
        try:
            await self._begin()
            if await self._make_iterations():
                await self._stay_for_others()
                return "all iterations are made"
            await self._leave()
        except Exception as error:
            self._neighbours.end(f"device {self._number} has failed: {error}")
            with suppress(Exception):
                await self._transport.drain(LAST_WORDS)
            raise
        return "stopped" if self._stop_at is not None else "all iterations are made, and no neighbour has come back"

    def stop(self) -> None:
        """Ask the node to stop: it ends the iteration if its neighbours do their part soon, and keeps its state."""
        if self._stop_at is None:
            self._stop_at = asyncio.get_running_loop().time() + self._settings.stop_seconds
            self._status.state = "stopping"
        self._news.set()

    def allow(self, neighbours: Sequence[Neighbour]) -> None:
        """Take a table of neighbours. What was said to those that are no longer in it is kept: they may come back.

        Raises `InputError`, and keeps the table of before, if a neighbour is missing that the run still needs.
        """
        table = {neighbour.device for neighbour in neighbours}
        if hasattr(self, "_neighbours"):
            self._links.check_table(table, max(0, self._neighbours.k))
            for number in table:
                self._neighbours.pair(number)
        self._table = table

    async def _until(self, condition: Callable[[], bool], at_most: float = math.inf, *, patient: bool = False) -> bool:
        """Wait until the condition is true. Returns False after `at_most` seconds, or if the node is to stop before.

        A `patient` wait goes on for `stop_seconds` when the node is to stop.
        """
        end = self._loop.time() + at_most
        while True:
            if self._neighbours.ended is not None:
                raise EfhcError(self._neighbours.ended)
            if self._failed is not None:
                raise self._failed
            if condition():
                return True
            limit = end if self._stop_at is None else min(end, self._stop_at)
            if self._loop.time() >= limit or (self._stop_at is not None and not patient):
                return False
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if limit == math.inf else limit):
                    await self._news.wait()

    @contextmanager
    def _saying_for_whom(self, waits_for: Callable[[], list[int]], at_most: float) -> Iterator[None]:
        """Tell at once, and then once a minute, for whom the node waits in the body."""

        async def say() -> None:
            while devices := waits_for():
                self._log("waiting", devices=devices, at_most_seconds=None if at_most == math.inf else at_most)
                await asyncio.sleep(SAY_AGAIN)

        saying = asyncio.create_task(say())
        try:
            yield
        finally:
            saying.cancel()

    # What the transport tells

    def status_of(self, neighbour: int) -> NeighbourStatus:
        """What is known of a neighbour."""
        return self._neighbours.pair(neighbour).status

    def hello_for(self, neighbour: int) -> Hello:
        return self._neighbours.hello()

    def connected(self, neighbour: int, theirs: Hello) -> None:
        self._neighbours.connected(neighbour, theirs)

    def disconnected(self, neighbour: int, reason: str) -> None:
        self._neighbours.disconnected(neighbour, reason)

    def received(self, neighbour: int, message: Message) -> None:
        problem = None
        if isinstance(message, IterationModel | Introduction):
            own = self._device.model if self._neighbours.k != NOT_BEGUN else None
            problem = "it has no model" if message.model is None else self._problem_with(message.model, own)
            if problem is not None:
                self._neighbours.refuse(neighbour, message.k, problem)
        if problem is None:
            problem = self._neighbours.hear(neighbour, message)
        if problem is not None:
            self._refuse_from(self._neighbours.pair(neighbour).status, problem)

    def moved(self, neighbour: int) -> None:
        pass

    # From which iteration

    async def _call_the_roll(self) -> None:
        """Find out what this node has, and whom it has to hear of."""
        self._status.state, self._status.iterations = "waiting", self._iterations
        scenario = self._trainer.scenario
        devices = len(scenario.bandwidths.values)
        self._links = await self._training.call(
            LinksAhead.of, scenario.network, devices, self._number, self._iterations
        )
        self._checkpoints = await self._disk.call(self._store.available)
        for note in self._store.notes:
            self._log("checkpoint left out", level="warning", what=note)
        own = Presence(self._number, self._session, tuple(sorted({0, *self._checkpoints})))
        self._neighbours = LockstepNeighbours(
            roll_call=RollCall(own, self._links.reachable),
            fingerprint=self._fingerprint,
            transport=self._transport,
            log=self._log,
            news=self._news,
            messages=self._device.messages,
        )
        self.allow(self._settings.neighbours)

    async def _begin(self) -> None:
        """Wait for all, and go on from the latest checkpoint that all have; or alone, if the others have begun."""
        neighbours, roll_call = self._neighbours, self._neighbours.roll_call
        has_made_all = roll_call.has_made(self._number, self._iterations)
        last = await self._state_after(self._iterations) if has_made_all else None
        if last is not None and last.sent == {}:
            neighbours.is_under_way = True  # and over for everybody
        limit = self._settings.limits.give_up if has_made_all else math.inf
        with self._saying_for_whom(lambda: roll_call.missing, limit):
            found = await self._until(lambda: neighbours.is_under_way or not roll_call.missing, limit)
        if not found:
            return  # asked to stop, or there is nothing left to do and nobody who needs this node
        alone = neighbours.is_under_way
        k = roll_call.own.checkpoints[-1] if alone else roll_call.common
        state = await self._state_after(k)
        try:
            await self._training.call(self._device.begin, state)
        except (KeyError, ValueError) as error:
            raise self._damaged(k, error) from None
        neighbours.begin(k, {} if state is None else state.sent, alone=alone)
        self._status.iteration = k
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
        neighbours = self._neighbours
        if neighbours.k == NOT_BEGUN:
            return False
        while neighbours.k < self._iterations:
            if self._stop_at is not None or not await self._make_iteration():
                return False
            if neighbours.k % self._settings.checkpoint_every == 0 and neighbours.k < self._iterations:
                await self._save()
        return True

    async def _make_iteration(self) -> bool:
        """Make one iteration. Returns False if the node is to stop, and neighbours have not done their part."""
        neighbours, device, began = self._neighbours, self._device, self._loop.time()
        k = neighbours.k
        iteration = await self._training.call(device.look, k)
        self._links.check_iteration(self._table, k, iteration.neighbours)
        neighbours.tell_of(iteration)

        working = asyncio.ensure_future(self._training.call(device.descend, iteration))
        working.add_done_callback(lambda _: self._news.set())
        if not await self._until(working.done, patient=True):
            working.cancel()
            return False
        await working
        if not iteration.is_decided:
            if (heard := await self._all_heard(iteration)) is None:
                return False
            await self._training.call(device.send, iteration, heard)
            neighbours.tell_of(iteration)
        if (heard := await self._all_heard(iteration)) is None:
            return False
        await self._until(lambda: False, began + self._settings.pace - self._loop.time())

        made = await self._training.call(device.finish, iteration, heard)
        neighbours.finish_iteration()
        self._note(k, made)
        return True

    async def _all_heard(self, iteration: Iteration) -> dict[int, Heard] | None:
        """Wait for the neighbours. Returns what they have said; None if the node is to stop before that is all."""
        neighbours = self._neighbours
        await self._until(lambda: not neighbours.waits_for(iteration) or self._waits_in_vain(iteration), patient=True)
        if neighbours.waits_for(iteration):
            return None
        return {number: neighbours.heard(number, iteration.k) for number in iteration.neighbours}

    def _note(self, k: int, made: Made) -> None:
        """Record iteration k, which is made."""
        recorder, status = self._recorder, self._status
        bandwidth = float(self._trainer.scenario.bandwidths.values[self._number])
        recorder.step(k, made.fired, made.loss, made.drift, made.threshold, bandwidth)
        for number, bits in made.bits.items():
            recorder.frame(recorder.seconds, number, (k, k), math.nan, "committed", -(-bits // 8))
        recorder.after_iteration(k + 1, self._device.model, self._trainer.local)
        status.iteration, status.loss, status.bandwidth = k + 1, made.loss, bandwidth
        status.drift, status.threshold = made.drift, made.threshold
        status.broadcasts += made.fired
        self._note_step(self._loop.time())

    def _waits_in_vain(self, iteration: Iteration) -> bool:
        """Whether the node is to stop, and a neighbour that it waits for is gone."""
        if self._stop_at is None:
            return False
        return not all(self._neighbours.pairs[number].status.connected for number in iteration.neighbours)

    # Checkpoints, and the end

    async def _save(self, *, with_sent: bool = False) -> None:
        """Write a checkpoint of this iteration while training goes on. Only one is written at a time."""
        if self._saving is not None:
            await self._saving
        self._recorder.flush()
        sent = None
        if not self._neighbours.roll_call.who_has_not_made(self._iterations):
            sent = {}  # nobody needs anything any more
        elif with_sent:
            sent = {number: pair.sent_before() for number, pair in self._neighbours.pairs.items()}
        state = replace(self._device.state(self._neighbours.k), sent=sent)
        self._saving = asyncio.create_task(self._write(state))
        self._saving.add_done_callback(self._written)

    async def _write(self, state: IterationState) -> None:
        await self._disk.call(self._store.save, state)
        roll_call = self._neighbours.roll_call
        kept = {*roll_call.own.checkpoints, state.k}
        roll_call.say(kept)
        common = roll_call.common
        self._neighbours.tell_all(roll_call.say({0, *(k for k in kept if k >= common)}))
        await self._disk.call(self._store.remove_before, common)

    def _written(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._failed = task.exception()
            self._news.set()

    async def _leave(self) -> None:
        """Keep the present iteration, so that this node can go on from there while the others wait for it."""
        self._status.state = "stopping"
        if self._neighbours.k != NOT_BEGUN:
            await self._save(with_sent=True)
            assert self._saving is not None
            await self._saving
        await self._transport.drain(max(0.1, (self._stop_at or 0.0) - self._loop.time()))

    async def _stay_for_others(self) -> None:
        """Wait until the neighbours have made all iterations, too: until then they may need what was sent to them."""
        await self._save(with_sent=True)
        assert self._saving is not None
        await self._saving
        if self._stop_at is None:
            self._status.state = "finished"
        limit = self._settings.limits.give_up
        with self._saying_for_whom(self._who_needs_this_node, limit):
            found = await self._until(lambda: not self._who_needs_this_node(), limit)
        if not found and self._stop_at is None:
            self._log("left", level="warning", what="neighbours have not said that they have made all iterations")
        await self._transport.drain(self._settings.stop_seconds)
        if not self._neighbours.roll_call.who_has_not_made(self._iterations):
            await self._save()  # so that a node that is started again knows that all is over
            await self._saving

    def _who_needs_this_node(self) -> list[int]:
        """Return the neighbours that were told something, and are not known to have made all iterations."""
        told = {number for number, pair in self._neighbours.pairs.items() if pair.has_said}
        return [number for number in self._neighbours.roll_call.who_has_not_made(self._iterations) if number in told]

    def status(self) -> NodeStatus:
        """Return how the node is."""
        if not hasattr(self, "_neighbours"):  # it reads its checkpoints
            return self._status
        self._status.waits_for = self._waits_for()
        pairs = self._neighbours.pairs
        return self._with_traffic(pairs[number].status for number in sorted(pairs))

    def _waits_for(self) -> list[int]:
        """Return the devices that this node needs, or that need it, before it can go on or end."""
        neighbours = self._neighbours
        if neighbours.k == NOT_BEGUN:
            return neighbours.roll_call.missing
        return self._who_needs_this_node() if neighbours.k == self._iterations else neighbours.waits_now_for
