"""Two neighbours in lockstep, seen from one end: what was said to the other, and what the other has said.

An iteration that both are linked in cannot end at one end before the other has begun it. So the other end can need
what was said in the last two such iterations, and nothing older; and it can be ahead by one such iteration at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from efhc.base.arrays import Floats
from efhc.runtime.messages import IterationHeader, IterationModel
from efhc.runtime.state.iterations import SentBefore
from efhc.runtime.status import NeighbourStatus

AT_ONCE = 2
"""Number of iterations in which both are linked that are kept in either direction."""

NEVER, EARLIER = 0, -1
"""In place of a connection, which has a number from 1 on: sent over none, or over one before this node's start."""


@dataclass
class _Said:
    header: IterationHeader
    model: Floats | None = None
    """w_i(k), once the link is known to be used."""
    header_over: int = NEVER
    """The connection that it was sent over last."""
    model_over: int = NEVER


@dataclass
class Pair:
    """One neighbour, and what there is between it and this node."""

    status: NeighbourStatus
    dropped: int = -1
    """The last iteration of which this end may have said something that it no longer keeps."""
    headers: dict[int, IterationHeader] = field(default_factory=dict)
    """What the other end has said of iterations that are not over here."""
    models: dict[int, Floats] = field(default_factory=dict)
    needs: int = 0
    """The iteration that the other end is in: it needs what was said of this one and of later ones."""
    refused: int = -1
    """The iteration of the last model that could not be taken."""
    _said: dict[int, _Said] = field(default_factory=dict)
    _connections: int = 0

    # To the other end

    def connect(self, k: int) -> bool:
        """There is a new connection, and the other end is in iteration k. Returns False if that is too far behind."""
        self._connections += 1
        self.needs = k
        return k > self.dropped

    def say(self, header: IterationHeader) -> None:
        """Keep what this end says of an iteration, instead of what it said in the last but one."""
        if header.k in self._said:  # made again after a restart: the header tells the other end where this one is
            self._said[header.k].header_over = NEVER
            return
        self._said[header.k] = _Said(header)
        while len(self._said) > AT_ONCE:
            oldest = min(self._said)
            self.dropped = oldest
            del self._said[oldest]

    def say_model(self, k: int, model: Floats) -> None:
        """The link is used in iteration k: the other end gets this model."""
        said = self._said[k]
        said.model = model if said.model is None else said.model

    def due(self) -> list[IterationHeader | IterationModel]:
        """Return what is to be sent now: what the other end needs and was not sent over this connection."""
        due: list[IterationHeader | IterationModel] = []
        if not self.status.connected:
            return due
        now = self._connections
        for k, said in sorted(self._said.items()):
            if said.header_over != now and (said.header_over == NEVER or k >= self.needs):
                said.header_over = now
                due.append(said.header)
            if said.model is None or said.header_over != now or said.model_over == now:
                continue
            if said.model_over == NEVER or k >= self.needs:
                said.model_over = now
                due.append(IterationModel(k, said.model))
        return due

    @property
    def has_said(self) -> bool:
        """Whether the other end may need anything of this one."""
        return bool(self._said)

    def sent_before(self) -> list[SentBefore]:
        """Return what a checkpoint has to keep for the other end."""
        return [SentBefore(said.header, said.model) for said in self._said.values()]

    def restore(self, sent: Iterable[SentBefore]) -> None:
        """Go on from what a checkpoint kept."""
        self._said = {one.header.k: _Said(one.header, one.model, EARLIER, EARLIER) for one in sent}
        self.dropped = min(self._said) - 1 if self._said else -1

    # From the other end

    def is_behind(self, k: int) -> bool:
        """The other end speaks of iteration k. Returns whether it is too far behind to be helped."""
        if k >= self.needs:
            return False
        self.needs = k  # it had not begun when it connected, and has told by this where it began
        return k <= self.dropped

    def hear(self, header: IterationHeader, k: int) -> str | None:
        """Take a header, while this node is in iteration k. Returns what is wrong with it, if anything is."""
        if header.k < k:
            return None  # sent again, and not needed
        known = self.headers.get(header.k)
        if known is not None and known != header:
            return f"it says two different things of iteration {header.k}"
        if known is None and len(self.headers) == AT_ONCE:
            return f"it speaks of iteration {header.k}, which is too far ahead of iteration {k}"
        self.headers[header.k] = header
        return None

    def hear_model(self, message: IterationModel, k: int) -> str | None:
        """Take a model, while this node is in iteration k. Returns what is wrong with it, if anything is."""
        if message.k < k or message.k in self.models:
            return None
        if message.k not in self.headers:
            return f"it sends a model of iteration {message.k}, of which it has said nothing"
        self.models[message.k] = message.model
        return None

    def forget_before(self, k: int) -> None:
        """Iterations before k are over here."""
        self.headers = {at: header for at, header in self.headers.items() if at >= k}
        self.models = {at: model for at, model in self.models.items() if at >= k}
