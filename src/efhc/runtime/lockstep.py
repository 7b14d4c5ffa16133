"""A node that waits for its neighbours in each iteration: together the nodes make what `efhc run` makes, bit for bit.

For each k, the neighbours of G(k) tell one another whether they fired, send models on the links that are used, and each
computes its own row of W(k+1) = P(k) W(k) - alpha(k) G(k). A broken link is waited for. What a neighbour may still need
is sent again; a neighbour that needs more than that has lost its state, and the run ends for all.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.errors import EfhcError, InputError
from efhc.core.device_state import Step
from efhc.core.graph import Graph
from efhc.core.state import Diverged, Local
from efhc.runtime.lockstep_neighbours import NOT_BEGUN, Iteration, LockstepNeighbours
from efhc.runtime.logs import Log
from efhc.runtime.messages import IterationHeader, Presence
from efhc.runtime.recording import Recorder
from efhc.runtime.roll_call import RollCall
from efhc.runtime.settings import NodeSettings
from efhc.runtime.state.iterations import IterationState, IterationStore
from efhc.runtime.status import NodeStatus
from efhc.runtime.training import Trainer
from efhc.runtime.transport import Transport

LOOK_AHEAD = 2000
"""Iterations whose neighbours are looked up in the table at the start, so that a missing one is known early."""
LAST_WORDS = 2.0
"""Seconds for telling the neighbours that the run has ended."""


class Stepped(NamedTuple):
    """What one iteration made."""

    model: Floats
    last_broadcast: Floats
    drift: float
    loss: float
    local: Local


class Lockstep(LockstepNeighbours):
    """The mode `lockstep`."""

    def __init__(
        self,
        settings: NodeSettings,
        trainer: Trainer,
        iterations: int,
        store: IterationStore,
        session: int,
        fingerprint: dict[str, str],
        status: NodeStatus,
        recorder: Recorder,
        log: Log,
    ) -> None:
        super().__init__(settings, trainer, iterations, session, fingerprint, status, recorder, log)
        self._store = store
        self._stop_at: float | None = None
        """When a node that is to stop ceases to wait for its neighbours, by the loop's clock."""
        self._failed: BaseException | None = None
        self._saving: asyncio.Task[None] | None = None
        self._last_broadcast: Floats
        self._drift = math.nan
        self._checkpoints: list[int] = []
        self._loop: asyncio.AbstractEventLoop

    # The life of a node

    async def run(self, transport: Transport) -> None:
        """Make all iterations with the neighbours, or as many as there are until the node is asked to stop.

        Raises `EfhcError` if the run cannot go on, here or at another node.
        """
        self._transport, self._loop = transport, asyncio.get_running_loop()
        await self._call_the_roll()
        await transport.start(self, self._settings.neighbours)
        reason = "stopped"
        try:
            await self._begin()
            if await self._make_iterations():
                reason = "all iterations are made"
                await self._stay_for_others()
            else:
                await self._leave()
        except Exception as error:
            reason = str(error)
            self._end(f"device {self._device} has failed: {error}")
            with suppress(Exception):
                await transport.drain(LAST_WORDS)
            raise
        finally:
            self._recorder.flush()
            sent, received = self._model_bytes()
            self._log(
                "ended", reason=reason, k=self._status.iteration, model_bytes_sent=sent, model_bytes_received=received
            )
            await transport.stop(reason)
            self._close_threads()

    def stop(self) -> None:
        """Ask the node to stop: it ends the iteration if its neighbours do their part soon, and keeps its state."""
        if self._stop_at is None:
            self._stop_at = asyncio.get_running_loop().time() + self._settings.stop_seconds
            self._status.state = "stopping"
        self._news.set()

    async def _until(self, condition: Callable[[], bool], at_most: float = math.inf, *, patient: bool = False) -> bool:
        """Wait until the condition is true. Returns False after `at_most` seconds, or if the node is to stop before.

        A `patient` wait goes on for `stop_seconds` when the node is to stop.
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
            if self._loop.time() >= limit or (self._stop_at is not None and not patient):
                return False
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if limit == math.inf else limit):
                    await self._news.wait()

    # From which iteration

    async def _call_the_roll(self) -> None:
        """Find out what this node has, and whom it has to hear of."""
        self._status.state, self._status.iterations = "waiting", self._iterations
        self.allow(self._settings.neighbours)
        everyone = await self._training.call(self._everyone)
        self._checkpoints = await self._disk.call(self._store.available)
        for note in self._store.notes:
            self._log("checkpoint left out", level="warning", what=note)
        own = Presence(self._device, self._session, tuple(sorted({0, *self._checkpoints})))
        self._roll_call = RollCall(own, everyone)

    def _everyone(self) -> set[int]:
        """In the worker thread: the devices that messages of this one can reach, over the links of all iterations."""
        scenario, devices = self._trainer.scenario, len(self._trainer.scenario.bandwidths.values)
        links: set[tuple[int, int]] = set()
        graph, whole = None, Graph.of(devices, [])
        for k in range(self._iterations):
            before, graph = graph, scenario.network.graph(k)
            if graph is before:
                continue
            if k < LOOK_AHEAD:
                self._check_table(k, _neighbours_in(graph, self._device))
            elif whole.is_connected:
                break
            if not whole.is_connected and not links.issuperset(found := set(map(tuple, graph.links.tolist()))):
                links |= found
                whole = Graph.of(devices, links)
        reached, edge = {self._device}, [self._device]
        while edge:
            edge = [there for here in edge for there in _neighbours_in(whole, here) if there not in reached]
            reached.update(edge)
        return reached

    def _check_table(self, k: int, neighbours: Sequence[int]) -> None:
        """Raise `InputError` unless all neighbours of an iteration are in the table."""
        for neighbour in neighbours:
            if neighbour not in self._pairs:
                given = f"no device {neighbour}, to which the experiment links device {self._device} in iteration {k}"
                raise InputError("neighbours", given, "all devices to which this one is linked in any iteration")

    async def _begin(self) -> None:
        """Wait for all, and go on from the latest checkpoint that all have; or alone, if the others have begun."""
        has_made_all = self._roll_call.has_made(self._device, self._iterations)
        if has_made_all and (await self._state_after(self._iterations)).sent == {}:
            self._under_way = True  # and over for everybody
        calling = asyncio.create_task(self._say_who_is_missing())
        limit = self._settings.limits.give_up if has_made_all else math.inf
        try:
            found = await self._until(lambda: self._under_way or not self._roll_call.missing, limit)
        finally:
            calling.cancel()
        if not found:
            return  # asked to stop, or there is nothing left to do and nobody who needs this node
        self._began_alone = self._under_way
        k = self._roll_call.own.checkpoints[-1] if self._under_way else self._roll_call.common
        self._sessions_at_start = {number: self._roll_call.session_of(number) for number in self._pairs}
        state = await self._state_after(k)
        self._trainer.local = state.local
        await self._take(state.model, state.last_broadcast)
        for number, pair in self._pairs.items():
            pair.forget_before(k)
            pair.dropped = k - 1
            if self._began_alone and state.sent is not None:
                pair.restore(state.sent.get(number, ()))
            if pair.status.connected and pair.needs <= pair.dropped:
                raise EfhcError(
                    f"device {number} needs what device {self._device} sent in iteration {pair.needs} and no longer "
                    "has; start all nodes again, and they go on from their last common checkpoint"
                )
        self._k = self._status.iteration = k
        self._log("begun", k=k, alone=self._began_alone)
        for number, pair in self._pairs.items():
            if self._began_alone and pair.status.connected:
                self._say_that_it_has_begun(number)
        self._recorder.after_iteration(k, self._model, self._trainer.local)

    async def _state_after(self, k: int) -> IterationState:
        """Return the state of a checkpoint, or the one that the run begins with."""
        if k in self._checkpoints:
            try:
                return await self._disk.call(self._store.load, k)
            except ValueError as error:
                raise EfhcError(
                    f"the checkpoint of iteration {k} in {self._store.folder} is damaged ({error})"
                ) from None
        model = await self._training.call(self._trainer.initial_model)
        return IterationState(0, model, model, self._trainer.local, {})

    async def _say_who_is_missing(self) -> None:
        """Tell once a minute for whom the node waits."""
        while True:
            await asyncio.sleep(60.0)
            self._log("waiting", devices=self._roll_call.missing)

    async def _take(self, model: Floats, last_broadcast: Floats, drift: float | None = None) -> None:
        """The device now has this model."""
        if drift is None:
            drift = await self._training.call(self._trainer.drift, model, last_broadcast)
        self._model, self._last_broadcast, self._drift = model, last_broadcast, drift

    # Iterations

    async def _make_iterations(self) -> bool:
        """Make one iteration after the other. Returns whether all are made; else the node is to stop."""
        if self._k == NOT_BEGUN:
            return False
        began, first = self._loop.time(), self._k
        while self._k < self._iterations:
            if self._stop_at is not None or not await self._make_iteration():
                return False
            self._status.steps_per_second = (self._k - first) / max(self._loop.time() - began, 1e-9)
            if self._k % self._settings.checkpoint_every == 0 and self._k < self._iterations:
                await self._save()
        return True

    async def _make_iteration(self) -> bool:
        """Make one iteration. Returns False if the node is to stop, and neighbours have not done their part."""
        k, model, began = self._k, self._model, self._loop.time()
        self._status.state = "training"
        iteration = await self._training.call(self._look, k, self._drift)
        self._status.drift, self._status.threshold = self._drift, iteration.threshold
        self._check_table(k, list(iteration.neighbours))
        self._iteration = iteration
        header = IterationHeader(k, iteration.fired, len(iteration.neighbours))
        for number in iteration.neighbours:
            self._pairs[number].say(header)
            self._exchange(number)

        working = asyncio.ensure_future(self._training.call(self._trainer.gradient, k, model))
        working.add_done_callback(lambda _: self._news.set())
        if not await self._until(working.done, patient=True):
            working.cancel()
            return False
        gradient, loss, local = await working
        if not self._has_heard_all(iteration):
            self._status.state = "waiting" if self._stop_at is None else "stopping"
            await self._until(lambda: self._has_heard_all(iteration) or self._waits_in_vain(iteration), patient=True)
        if not self._has_heard_all(iteration):
            return False
        await self._until(lambda: False, began + self._settings.pace - self._loop.time())
        for number in iteration.neighbours:
            self._check_degree(number, self._pairs[number].headers[k], iteration)

        stepped = await self._training.call(self._step, iteration, model, gradient, loss, local)
        bandwidth = float(self._trainer.scenario.bandwidths.values[self._device])
        self._recorder.step(k, iteration.fired, loss, self._drift, iteration.threshold, bandwidth)
        self._trainer.local, self._iteration, self._k = local, None, k + 1
        await self._take(stepped.model, stepped.last_broadcast, stepped.drift)
        self._recorder.after_iteration(k + 1, stepped.model, local)
        for pair in self._pairs.values():
            pair.forget_before(k + 1)
        status = self._status
        status.iteration, status.loss, status.bandwidth = k + 1, loss, bandwidth
        status.steps += 1
        status.broadcasts += iteration.fired
        return True

    def _look(self, k: int, drift: float) -> Iteration:
        """In the worker thread: Events 1 and 2, and who is linked to this device."""
        before, now = self._trainer.scenario.graphs(k)
        own = _neighbours_in(now, self._device)
        new_links = now.links[now.new_since(before)]
        of_device = new_links[(new_links == self._device).any(axis=1)]
        new = frozenset(of_device.ravel().tolist()) - {self._device}
        threshold = self._trainer.threshold(k)
        neighbours = {number: int(now.degrees[number]) for number in own}
        return Iteration(k, neighbours, new, threshold, bool(drift >= threshold))

    def _step(self, iteration: Iteration, model: Floats, gradient: Floats, loss: float, local: Local) -> Stepped:
        """In the worker thread: Events 3 and 4."""
        steps = []
        for number, degree in iteration.neighbours.items():  # ascending
            if self._is_used(number, iteration):
                beta = 1.0 / (1.0 + max(len(iteration.neighbours), degree))
                steps.append(Step(number, beta, model, self._pairs[number].models[iteration.k]))
        new = self._trainer.mixed(model, gradient, self._trainer.step_size(iteration.k), steps)
        last_broadcast = model if iteration.fired else self._last_broadcast
        drift = self._trainer.drift(new, last_broadcast)
        if not math.isfinite(drift):
            raise Diverged(iteration.k, "model", np.arange(self._device + 1) != self._device)
        return Stepped(new, last_broadcast, drift, loss, local)

    def _waits_in_vain(self, iteration: Iteration) -> bool:
        """Whether the node is to stop, and a neighbour that it waits for is gone."""
        if self._stop_at is None:
            return False
        return not all(self._pairs[number].status.connected for number in iteration.neighbours)

    # Checkpoints, and the end

    async def _save(self, *, with_sent: bool = False) -> None:
        """Write a checkpoint of this iteration while training goes on. Only one is written at a time."""
        if self._saving is not None:
            await self._saving
        self._recorder.flush()
        sent = None
        if self._roll_call.all_have_made(self._iterations):
            sent = {}  # nobody needs anything any more
        elif with_sent:
            sent = {number: pair.sent_before() for number, pair in self._pairs.items()}
        state = IterationState(self._k, self._model, self._last_broadcast, self._trainer.local, sent)
        self._saving = asyncio.create_task(self._write(state))
        self._saving.add_done_callback(self._written)

    async def _write(self, state: IterationState) -> None:
        await self._disk.call(self._store.save, state)
        kept = {*self._roll_call.own.checkpoints, state.k}
        self._roll_call.say(kept)
        common = self._roll_call.common
        self._tell_all(self._roll_call.say({0, *(k for k in kept if k >= common)}))
        await self._disk.call(self._store.remove_before, common)

    def _written(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._failed = task.exception()
            self._news.set()

    async def _leave(self) -> None:
        """Keep the present iteration, so that this node can go on from there while the others wait for it."""
        self._status.state = "stopping"
        if self._k != NOT_BEGUN:
            await self._save(with_sent=True)
            assert self._saving is not None
            await self._saving
        await self._transport.drain(max(0.1, (self._stop_at or 0.0) - self._loop.time()))

    async def _stay_for_others(self) -> None:
        """Wait until the neighbours have made all iterations, too: until then they may need what was sent to them."""
        await self._save(with_sent=True)
        assert self._saving is not None
        await self._saving
        self._status.state = "finished"
        if not await self._until(self._nobody_needs_this_node, self._settings.limits.give_up) and self._stop_at is None:
            self._log("left", level="warning", what="neighbours have not said that they have made all iterations")
        await self._transport.drain(self._settings.stop_seconds)
        if self._roll_call.all_have_made(self._iterations):
            await self._save()  # so that a node that is started again knows that all is over
            await self._saving

    def _nobody_needs_this_node(self) -> bool:
        linked = (number for number, pair in self._pairs.items() if pair.has_said)
        return all(self._roll_call.has_made(number, self._iterations) for number in linked)


def _neighbours_in(graph: Graph, device: int) -> list[int]:
    """Return the neighbours of a device, ascending."""
    rows = graph.rows
    own: list[int] = rows.neighbours[rows.starts[device] : rows.starts[device + 1]].tolist()
    return own
