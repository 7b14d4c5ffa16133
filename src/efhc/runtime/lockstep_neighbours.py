"""What a node in lockstep hears of its neighbours and says to them: iterations, who is there, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from efhc.base.errors import EfhcError
from efhc.runtime.lockstep_device import Heard, Iteration
from efhc.runtime.logs import Log
from efhc.runtime.messages import Hello, IterationHeader, Message, Presence, RunEnded
from efhc.runtime.pairs import Pair
from efhc.runtime.roll_call import RollCall
from efhc.runtime.status import NeighbourStatus
from efhc.runtime.transport import Transport

NOT_BEGUN = -1
"""The iteration that a node is in, before it knows from which one all go on."""
NO_ITERATION = (1 << 63) - 1
"""What it then tells its neighbours: it needs nothing yet."""


class LockstepNeighbours:
    """All neighbours of a node in lockstep. It makes no iteration: it is told where the node is, and tells them."""

    def __init__(
        self,
        *,
        roll_call: RollCall,
        fingerprint: dict[str, str],
        transport: Transport,
        log: Log,
        news: asyncio.Event,
        messages: tuple[type, ...],
    ) -> None:
        """`messages` are those of which an iteration is made. `news` is set whenever something has happened that the
        node may wait for.
        """
        self.roll_call = roll_call
        self._device, self._session = roll_call.own.device, roll_call.own.session
        self._fingerprint, self._transport, self._log, self._news = fingerprint, transport, log, news
        self._messages = messages
        self.pairs: dict[int, Pair] = {}
        self.k = NOT_BEGUN
        """The iteration that the node is in."""
        self.ended: str | None = None
        """Why the run ended for all."""
        self.is_under_way = False
        """Whether a neighbour has said that the others have begun without this node's present session."""
        self._iteration: Iteration | None = None
        """The iteration that the neighbours are being told of."""
        self._began_alone = False
        self._sessions_at_start: dict[int, int | None] = {}

    # Where the node is

    def begin(self, k: int, sent: Mapping[int, Iterable[Any]] | None, *, alone: bool) -> None:
        """The node begins with iteration k, `alone` if the others have begun before.

        `sent` is what a checkpoint has kept of what was said to them. Raises `EfhcError` if a neighbour needs more.
        """
        self._began_alone = alone
        self._sessions_at_start = {number: self.roll_call.session_of(number) for number in self.pairs}
        for number, pair in self.pairs.items():
            pair.forget_before(k)
            pair.dropped = k - 1
            if alone and sent is not None:
                pair.restore(sent.get(number, ()))
            if pair.status.connected and pair.needs <= pair.dropped:
                raise EfhcError(
                    f"device {number} needs what device {self._device} sent in iteration {pair.needs} and no longer "
                    "has; start all nodes again, and they go on from their last common checkpoint"
                )
        self.k = k
        for number, pair in self.pairs.items():
            if alone and pair.status.connected:
                self._say_that_it_has_begun(number)

    def tell_of(self, iteration: Iteration) -> None:
        """The node is at this iteration: tell all whom it is linked to, and hear what they have said of it already."""
        self._iteration = iteration
        for number in iteration.neighbours:
            header = self.heard(number, iteration.k).get(IterationHeader)
            if header is not None:
                self._check_degree(number, header, iteration)
            self._exchange(number)

    def heard(self, number: int, k: int) -> Heard:
        """Return what a neighbour has said of an iteration."""
        return self.pair(number).heard.get(k, {})

    def finish_iteration(self) -> None:
        """The node has made this iteration."""
        self.k += 1
        self._iteration = None
        for pair in self.pairs.values():
            pair.forget_before(self.k)

    def waits_for(self, iteration: Iteration) -> list[int]:
        """Return the neighbours of which this iteration needs something that is not here yet."""
        return [n for n in iteration.neighbours if iteration.lacks(n, self.heard(n, iteration.k))]

    @property
    def waits_now_for(self) -> list[int]:
        """The neighbours whose part in the present iteration is missing."""
        return [] if self._iteration is None else self.waits_for(self._iteration)

    def _check_degree(self, number: int, header: IterationHeader, iteration: Iteration) -> None:
        """End the run unless a neighbour sees the same links in this iteration."""
        if (known := iteration.neighbours.get(number)) != header.degree:
            self.end(
                f"device {number} has {header.degree} neighbours in iteration {header.k} by its own count, and "
                f"{known or 'none'} by that of device {self._device}; give all nodes the same network"
            )

    def _exchange(self, number: int) -> None:
        """Send a neighbour what it needs and does not have yet."""
        pair, iteration = self.pairs[number], self._iteration
        if iteration is not None and number in iteration.neighbours:
            for message in iteration.says(number, self.heard(number, iteration.k)):
                pair.say(message)
        for message in pair.due():
            self._transport.send(number, message)

    # The end

    def end(self, reason: str) -> None:
        """The run cannot go on: tell all neighbours."""
        if self.ended is None:
            self.ended = reason
            self.tell_all(RunEnded(reason))
        self._news.set()

    def _end_because_lost(self, number: int, k: int) -> None:
        self.end(
            f"device {number} has lost its state: it is in iteration {k}, and device {self._device} in iteration "
            f"{self.k}; start all nodes again, and they go on from their last common checkpoint"
        )

    # What the transport tells

    def hello(self) -> Hello:
        """Return what to say first on a new connection."""
        k = self.k if self.k != NOT_BEGUN else NO_ITERATION
        return Hello(self._device, self._session, self._fingerprint, k)

    def connected(self, neighbour: int, theirs: Hello) -> None:
        """A connection is up."""
        pair = self.pair(neighbour)
        status = pair.status
        status.interruptions += status.session == theirs.session
        status.connected, status.up, status.session = True, True, theirs.session
        status.iteration = None if theirs.k == NO_ITERATION else theirs.k
        self._log("connected", neighbour=neighbour, session=theirs.session, k=status.iteration)
        self.roll_call.meet(neighbour, theirs.session)
        can_go_on = pair.connect(theirs.k)
        for presence in self.roll_call.known:
            self._transport.send(neighbour, presence)
        if self.ended is not None:
            self._transport.send(neighbour, RunEnded(self.ended))
        if self.k != NOT_BEGUN:
            if not can_go_on:
                self._end_because_lost(neighbour, theirs.k)
            if self._began_alone or self._sessions_at_start.get(neighbour) != theirs.session:
                self._say_that_it_has_begun(neighbour)
        self._exchange(neighbour)
        self._news.set()

    def disconnected(self, neighbour: int, reason: str) -> None:
        """The connection is gone."""
        status = self.pair(neighbour).status
        status.connected = status.up = False
        status.last_problem = reason
        self.roll_call.part_from(neighbour)
        self._log("disconnected", neighbour=neighbour, reason=reason)
        self._news.set()

    def hear(self, neighbour: int, message: Message) -> str | None:
        """Take a message. Returns why it is not taken, if it is not."""
        match message:
            case Presence():
                problem = self._hear_presence(neighbour, message)
            case RunEnded(reason):
                self.end(reason)
                problem = None
            case _ if isinstance(message, self._messages):
                problem = self._hear_part(neighbour, message)
            case _:
                problem = f"it sends {type(message).__name__}, which is no message of this mode and link law"
        if problem is None:
            self._exchange(neighbour)
            self._news.set()
        return problem

    def refuse(self, neighbour: int, k: int, problem: str) -> None:
        """A model cannot be taken. It may come again over a new connection; the second time, the run ends."""
        pair = self.pair(neighbour)
        if pair.refused == k:  # it would be sent again and again
            self.end(f"device {neighbour} cannot be understood in iteration {k}: {problem}")
        pair.refused = k

    def _hear_part(self, neighbour: int, message: Any) -> str | None:
        pair, iteration = self.pair(neighbour), self._iteration
        pair.status.iteration = message.k
        if pair.is_behind(message.k):
            self._end_because_lost(neighbour, message.k)
        if iteration is not None and message.k == iteration.k and isinstance(message, IterationHeader):
            self._check_degree(neighbour, message, iteration)
        return pair.hear(message, self.k)

    def _hear_presence(self, neighbour: int, presence: Presence) -> str | None:
        if not presence.checkpoints:
            if presence.device != neighbour:
                return "it says of another device that it has begun"
            self.is_under_way = True
        elif self.roll_call.hear(presence):
            for number in self.pairs:
                if number != neighbour:
                    self._transport.send(number, presence)
        return None

    def tell_all(self, message: Message) -> None:
        """Send a message to all neighbours that are connected."""
        for number, pair in self.pairs.items():
            if pair.status.connected:
                self._transport.send(number, message)

    def _say_that_it_has_begun(self, number: int) -> None:
        """Tell a neighbour that started later: nobody goes back to a checkpoint for it."""
        self._transport.send(number, Presence(self._device, self._session, ()))

    def pair(self, neighbour: int) -> Pair:
        """Return what there is between a neighbour and this node. It is kept for one that leaves: it may come back."""
        if neighbour not in self.pairs:
            self.pairs[neighbour] = Pair(NeighbourStatus(neighbour), dropped=self.k - 1)
        return self.pairs[neighbour]
