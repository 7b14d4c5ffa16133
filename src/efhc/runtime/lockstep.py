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
from efhc.runtime.messages import Hello, IterationHeader, IterationModel, Message, Presence, RunEnded
from efhc.runtime.pairs import Pair
from efhc.runtime.recording import Recorder
from efhc.runtime.roll_call import RollCall
from efhc.runtime.settings import Neighbour, NodeSettings
from efhc.runtime.state.iterations import IterationState, IterationStore
from efhc.runtime.status import NeighbourStatus, NodeStatus
from efhc.runtime.training import Trainer
from efhc.runtime.transport import Transport
from efhc.runtime.worker import Worker

NOT_BEGUN = -1
"""The iteration that a node is in, before it knows from which one all go on."""
NO_ITERATION = (1 << 63) - 1
"""What it then tells its neighbours: it needs nothing yet."""
LOOK_AHEAD = 2000
"""Iterations whose neighbours are looked up in the table at the start, so that a missing one is known early."""
LAST_WORDS = 2.0
"""Seconds for telling the neighbours that the run has ended."""


class Iteration(NamedTuple):
    """One iteration at this device, before anything was heard of it."""

    k: int
    neighbours: dict[int, int]
    """The neighbours in G(k), ascending, and the number of neighbours that each of them has."""
    new: frozenset[int]
    """Those to which the link is new (Event 1)."""
    threshold: float
    fired: bool
    """Event 2."""


class Stepped(NamedTuple):
    """What one iteration made."""

    model: Floats
    last_broadcast: Floats
    drift: float
    loss: float
    local: Local


class Lockstep:
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
        log: Callable[..., None],
    ) -> None:
        self._settings, self._trainer, self._iterations, self._store = settings, trainer, iterations, store
        self._device, self._session, self._fingerprint = settings.device, session, fingerprint
        status.session = session
        self._status, self._recorder, self._log = status, recorder, log
        self._training, self._disk = Worker("efhc-training"), Worker("efhc-disk")
        self._pairs: dict[int, Pair] = {}
        self._news = asyncio.Event()
        """Set whenever something has happened that a wait may be for."""
        self._stop_at: float | None = None
        """When a node that is to stop ceases to wait for its neighbours, by the loop's clock."""
        self._ended: str | None = None
        """Why the run ended for all."""
        self._failed: BaseException | None = None
        self._saving: asyncio.Task[None] | None = None
        self._k = NOT_BEGUN
        self._iteration: Iteration | None = None
        """The iteration that the neighbours are being told of."""
        self._under_way = False
        """Whether a neighbour has said that the others have begun without this node's present session."""
        self._began_alone = False
        self._sessions_at_start: dict[int, int | None] = {}
        self._norm = 0.0
        self._model: Floats
        self._last_broadcast: Floats
        self._drift = math.nan
        self._checkpoints: list[int] = []
        self._roll_call: RollCall
        self._transport: Transport
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
            self._training.close(self._settings.stop_seconds)
            self._disk.close(self._settings.stop_seconds)

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
        calling = asyncio.create_task(self._say_who_is_missing())
        try:
            found = await self._until(lambda: self._under_way or not self._roll_call.missing)
        finally:
            calling.cancel()
        if not found:
            return  # asked to stop
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
        self._norm = _norm(model)

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
        await self._until(working.done, patient=True)
        if working.done() and working.exception() is None and not self._has_heard_all(iteration):
            self._status.state = "waiting" if self._stop_at is None else "stopping"
            await self._until(lambda: self._has_heard_all(iteration) or self._waits_in_vain(iteration), patient=True)
        if not working.done() or not self._has_heard_all(iteration):
            working.cancel()
            return False
        gradient, loss, local = await working
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

    def _is_used(self, number: int, iteration: Iteration) -> bool:
        """Whether models are exchanged with a neighbour that has told whether it fired."""
        header = self._pairs[number].headers.get(iteration.k)
        return number in iteration.new or iteration.fired or (header is not None and header.fired)

    def _has_heard_all(self, iteration: Iteration) -> bool:
        """Whether all that this iteration needs of the neighbours is here."""
        for number in iteration.neighbours:
            pair = self._pairs[number]
            if iteration.k not in pair.headers:
                return False
            if self._is_used(number, iteration) and iteration.k not in pair.models:
                return False
        return True

    def _waits_in_vain(self, iteration: Iteration) -> bool:
        """Whether the node is to stop, and a neighbour that it waits for is gone."""
        if self._stop_at is None:
            return False
        return not all(self._pairs[number].status.connected for number in iteration.neighbours)

    def _check_degree(self, number: int, header: IterationHeader, iteration: Iteration) -> None:
        """Raise `EfhcError` unless a neighbour sees the same links in this iteration."""
        if (known := iteration.neighbours.get(number)) != header.degree:
            raise EfhcError(
                f"device {number} has {header.degree} neighbours in iteration {header.k} by its own count, and "
                f"{known or 'none'} by that of device {self._device}; give all nodes the same network"
            )

    def _exchange(self, number: int) -> None:
        """Send a neighbour what it needs and does not have yet."""
        pair, iteration = self._pairs[number], self._iteration
        if iteration is not None and number in iteration.neighbours and self._is_used(number, iteration):
            pair.say_model(iteration.k, self._model)
        for message in pair.due():
            self._transport.send(number, message)

    # Checkpoints, and the end

    async def _save(self, *, with_sent: bool = False) -> None:
        """Write a checkpoint of this iteration while training goes on. Only one is written at a time."""
        if self._saving is not None:
            await self._saving
        self._recorder.flush()
        sent = {number: pair.sent_before() for number, pair in self._pairs.items()} if with_sent else None
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

    def _nobody_needs_this_node(self) -> bool:
        linked = (number for number, pair in self._pairs.items() if pair.has_said)
        return all(self._roll_call.has_made(number, self._iterations) for number in linked)

    def _end(self, reason: str) -> None:
        """The run cannot go on: tell all neighbours."""
        if self._ended is None:
            self._ended = reason
            self._tell_all(RunEnded(reason))
        self._news.set()

    def _end_because_lost(self, number: int, k: int) -> None:
        self._end(
            f"device {number} has lost its state: it is in iteration {k}, and device {self._device} in iteration "
            f"{self._k}; start all nodes again, and they go on from their last common checkpoint"
        )

    # What the transport tells

    def hello_for(self, neighbour: int) -> Hello:
        k = self._k if self._k != NOT_BEGUN else NO_ITERATION
        return Hello(self._device, self._session, self._fingerprint, k)

    def connected(self, neighbour: int, theirs: Hello) -> None:
        pair = self._pair(neighbour)
        status = pair.status
        status.interruptions += status.session == theirs.session
        status.connected, status.up, status.session = True, True, theirs.session
        status.iteration = None if theirs.k == NO_ITERATION else theirs.k
        self._log("connected", neighbour=neighbour, session=theirs.session, k=status.iteration)
        can_go_on = pair.connect(theirs.k)
        for presence in self._roll_call.known:
            self._transport.send(neighbour, presence)
        if self._ended is not None:
            self._transport.send(neighbour, RunEnded(self._ended))
        if self._k != NOT_BEGUN:
            if not can_go_on:
                self._end_because_lost(neighbour, theirs.k)
            if self._began_alone or self._sessions_at_start.get(neighbour) != theirs.session:
                self._say_that_it_has_begun(neighbour)
        self._exchange(neighbour)
        self._news.set()

    def disconnected(self, neighbour: int, reason: str) -> None:
        status = self._pair(neighbour).status
        status.connected = status.up = False
        status.last_problem = reason
        self._log("disconnected", neighbour=neighbour, reason=reason)
        self._news.set()

    def received(self, neighbour: int, message: Message) -> None:
        match message:
            case IterationHeader():
                problem = self._hear(neighbour, message)
            case IterationModel():
                problem = self._hear_model(neighbour, message)
            case Presence():
                problem = self._hear_presence(neighbour, message)
            case RunEnded(reason):
                self._end(reason)
                problem = None
            case _:
                problem = f"it sends {type(message).__name__}, which is no message of lockstep"
        if problem is not None:
            self._log("refused", level="warning", neighbour=neighbour, reason=problem)
            self._pair(neighbour).status.last_problem = problem
            self._status.refused += 1
            self._transport.disconnect(neighbour, problem)
            return
        self._exchange(neighbour)
        self._news.set()

    def _hear(self, neighbour: int, header: IterationHeader) -> str | None:
        pair, iteration = self._pair(neighbour), self._iteration
        pair.status.iteration = header.k
        if pair.is_behind(header.k):
            self._end_because_lost(neighbour, header.k)
        if iteration is not None and header.k == iteration.k:
            try:
                self._check_degree(neighbour, header, iteration)
            except EfhcError as error:
                self._end(str(error))
        return pair.hear(header, self._k)

    def _hear_presence(self, neighbour: int, presence: Presence) -> str | None:
        if not presence.checkpoints:
            if presence.device != neighbour:
                return "it says of another device that it has begun"
            self._under_way = True
        elif self._roll_call.hear(presence):
            for number in self._pairs:
                if number != neighbour:
                    self._transport.send(number, presence)
        return None

    def _hear_model(self, neighbour: int, message: IterationModel) -> str | None:
        pair = self._pair(neighbour)
        if problem := self._problem_with(message.model):
            if pair.refused == message.k:  # it would be sent again and again
                self._end(f"device {neighbour} cannot be understood in iteration {message.k}: {problem}")
            pair.refused = message.k
            return problem
        return pair.hear_model(message, self._k)

    def _problem_with(self, model: Floats) -> str | None:
        """Return why a received model is not taken, if it is not."""
        norm = _norm(model)
        if not math.isfinite(norm):
            return "its model is not finite"
        allowed = self._settings.limits.norm * max(1.0, self._norm)
        if self._k != NOT_BEGUN and norm > allowed:
            return f"the norm of its model is {norm:.3g}, above the limit of {allowed:.3g}"
        return None

    def moved(self, neighbour: int) -> None:
        pass

    def refused(self, who: str, reason: str) -> None:
        self._status.refused += 1
        self._log("refused", level="warning", who=who, reason=reason)

    def _tell_all(self, message: Message) -> None:
        for number, pair in self._pairs.items():
            if pair.status.connected:
                self._transport.send(number, message)

    def _say_that_it_has_begun(self, number: int) -> None:
        """Tell a neighbour that started later: nobody goes back to a checkpoint for it."""
        self._transport.send(number, Presence(self._device, self._session, ()))

    # Neighbours

    def allow(self, neighbours: Sequence[Neighbour]) -> None:
        """Take a table of neighbours. What was said to those that are no longer in it is kept: they may come back."""
        for neighbour in neighbours:
            self._pair(neighbour.device)

    def _pair(self, neighbour: int) -> Pair:
        if neighbour not in self._pairs:
            self._pairs[neighbour] = Pair(NeighbourStatus(neighbour), dropped=self._k - 1)
        return self._pairs[neighbour]

    def _model_bytes(self) -> tuple[int, int]:
        """Return the bytes of models that this node has sent and received since its start."""
        traffics = [self._transport.traffic(number) for number in self._pairs]
        sent = sum(traffic.model_bytes_sent for traffic in traffics)
        return sent, sum(traffic.model_bytes_received for traffic in traffics)

    def status(self) -> NodeStatus:
        """Return how the node is."""
        status = self._status
        status.neighbours = [self._pairs[number].status for number in sorted(self._pairs)]
        status.links_up = sum(neighbour.up for neighbour in status.neighbours)
        for neighbour in status.neighbours if hasattr(self, "_transport") else []:
            traffic = self._transport.traffic(neighbour.device)
            for name in ("bytes_sent", "bytes_received", "model_bytes_sent", "model_bytes_received", "rate"):
                setattr(neighbour, name, getattr(traffic, name))
        return status


def _neighbours_in(graph: Graph, device: int) -> list[int]:
    """Return the neighbours of a device, ascending."""
    rows = graph.rows
    own: list[int] = rows.neighbours[rows.starts[device] : rows.starts[device + 1]].tolist()
    return own


def _norm(model: Floats) -> float:
    """||w||, summed in double precision without a copy."""
    return math.sqrt(np.einsum("i,i->", model, model, dtype=np.float64))
