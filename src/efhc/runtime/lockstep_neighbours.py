"""What a node in lockstep hears of its neighbours and says to them: headers, models, who is there, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from efhc.base.arrays import Floats
from efhc.base.errors import EfhcError
from efhc.runtime.messages import Hello, IterationHeader, IterationModel, Message, Presence, RunEnded
from efhc.runtime.mode import ModeBase
from efhc.runtime.pairs import Pair
from efhc.runtime.roll_call import RollCall
from efhc.runtime.settings import Neighbour
from efhc.runtime.status import NeighbourStatus, NodeStatus

NOT_BEGUN = -1
"""The iteration that a node is in, before it knows from which one all go on."""
NO_ITERATION = (1 << 63) - 1
"""What it then tells its neighbours: it needs nothing yet."""


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


class LockstepNeighbours(ModeBase):
    """The neighbours of a node in lockstep, as the transport tells of them."""

    def __init__(self, *given: Any) -> None:
        """Take what `ModeBase` takes."""
        super().__init__(*given)
        self._device = self._settings.device
        self._status.session = self._session
        self._pairs: dict[int, Pair] = {}
        self._roll_call: RollCall
        self._news = asyncio.Event()
        """Set whenever something has happened that a wait may be for."""
        self._ended: str | None = None
        """Why the run ended for all."""
        self._k = NOT_BEGUN
        self._model: Floats
        """w_i(k)"""
        self._iteration: Iteration | None = None
        """The iteration that the neighbours are being told of."""
        self._under_way = False
        """Whether a neighbour has said that the others have begun without this node's present session."""
        self._began_alone = False
        self._sessions_at_start: dict[int, int | None] = {}

    # One iteration

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

    # The end

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
            self._refuse_model(self._pair(neighbour).status, problem)
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
        own = self._model if self._k != NOT_BEGUN else None
        if problem := self._problem_with(message.model, own):
            if pair.refused == message.k:  # it would be sent again and again
                self._end(f"device {neighbour} cannot be understood in iteration {message.k}: {problem}")
            pair.refused = message.k
            return problem
        return pair.hear_model(message, self._k)

    def moved(self, neighbour: int) -> None:
        pass

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
        if not hasattr(self, "_transport"):
            return self._status
        return self._with_traffic(self._pairs[number].status for number in sorted(self._pairs))
