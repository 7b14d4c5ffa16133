"""What a node in lockstep knows of the others: its links, who takes part, which messages a neighbour needs. No I/O.

An iteration in which two devices are linked cannot end at one end before the other has begun it. So the other end can
need the messages about the last two such iterations, and nothing older; and it can be ahead by one such iteration at
most. An end sends at most one message of a type about an iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from efhc.base.errors import InputError
from efhc.core.graph import Graph
from efhc.network.topologies import GraphsOverTime
from efhc.runtime.node_messages import IterationHeader, Presence
from efhc.runtime.status import NeighbourStatus

KEPT_ITERATIONS = 2
"""Number of iterations of which messages are kept in either direction."""
NEVER, EARLIER = 0, -1
"""In place of the number of a connection, which counts from 1: sent over none, or before this node's start."""
LOOK_AHEAD = 2000
"""Number of iterations that are always examined. Later ones are examined until their links connect all devices."""


@dataclass(frozen=True)
class LinksAhead:
    """The links of one device in G(0), ..., G(K-1)."""

    device: int
    reachable: frozenset[int]
    """The devices that messages of this one can reach, over the links of all iterations. It is one of them itself."""
    linked: dict[int, range]
    """By neighbour, the iterations from the first to the last in which the two are linked. If not all iterations were
    looked at, the range goes on to the end of the run."""

    @classmethod
    def of(cls, network: GraphsOverTime, devices: int, device: int, iterations: int) -> LinksAhead:
        linked: dict[int, range] = {}
        links: set[tuple[int, int]] = set()
        graph, whole, is_connected, looked_at = None, Graph.of(devices, []), devices == 1, iterations
        for k in range(iterations):
            before, graph = graph, network.graph(k)
            if graph is before:
                continue
            if k >= LOOK_AHEAD and is_connected:
                looked_at = k
                break
            if before is not None:
                linked |= {ended: range(linked[ended].start, k) for ended in neighbours_in(before, device)}
            for neighbour in neighbours_in(graph, device):
                linked[neighbour] = range(linked[neighbour].start if neighbour in linked else k, iterations)
            if not is_connected and not links.issuperset(found := set(map(tuple, graph.links.tolist()))):
                links |= found
                whole = Graph.of(devices, links)
                is_connected = whole.is_connected
        if looked_at < iterations:
            linked = {neighbour: range(when.start, iterations) for neighbour, when in linked.items()}
        reachable = np.flatnonzero(whole.parts == whole.parts[device])
        return cls(device, frozenset(reachable.tolist()), linked)

    def check_table(self, table: Collection[int], k: int = 0) -> None:
        """Raise `InputError` unless all neighbours of iteration k and of later ones are in a table of neighbours."""
        for neighbour, when in sorted(self.linked.items()):
            if neighbour not in table and k < when.stop:
                is_ahead = k <= when.start
                raise self._missing(neighbour, f"iteration {when.start}" if is_ahead else "iterations yet to be made")

    def check_iteration(self, table: Collection[int], k: int, neighbours: Collection[int]) -> None:
        """Raise `InputError` unless these neighbours of iteration k, which may not have been looked at, are there."""
        for neighbour in neighbours:
            if neighbour not in table:
                raise self._missing(neighbour, f"iteration {k}")

    def _missing(self, neighbour: int, when: str) -> InputError:
        given = f"a list without device {neighbour}, to which the experiment links device {self.device} in {when}"
        return InputError("neighbours", given, "all devices to which this one is linked in any iteration")


def neighbours_in(graph: Graph, device: int) -> list[int]:
    """Return the neighbours of a device, ascending."""
    rows = graph.rows
    own: list[int] = rows.neighbours[rows.starts[device] : rows.starts[device + 1]].tolist()
    return own


class LockstepMembership:
    """Who takes part in a run, and from which iteration all continue. Nothing here sends anything.

    Each node announces its checkpoints (`Presence`) and passes on each announcement that is new to it. So each node
    learns of every other, and all find the same iteration: the latest one of which each has a checkpoint.

    A device that was restarted may have other checkpoints than before, while others still pass on the announcement of
    its earlier session. Sessions have no order. So the announcement that a connected device makes itself counts; of
    other devices, the session that was learned of last.
    """

    def __init__(self, own: Presence, everyone: Collection[int]) -> None:
        """`everyone` are the devices that messages can reach, including this one."""
        self._everyone = frozenset(everyone)
        self._own = own.device
        self.known = {own.device: own}
        """The last announcement of each device, including this one."""
        self._connected: dict[int, int] = {}
        """The session of each connected device."""
        self._seen: set[tuple[int, int]] = set()
        """The devices and sessions of which an announcement has come."""

    def connect(self, device: int, session: int) -> None:
        """Note that a device is connected. Announcements of another session are out of date."""
        self._connected[device] = session

    def disconnect(self, device: int) -> None:
        """Note that a device is not connected any more. It may be restarted, and others may learn of it first."""
        self._connected.pop(device, None)

    def update(self, presence: Presence) -> bool:
        """Take note of an announcement. Returns whether it is new and must be passed on."""
        device, session, checkpoints = presence
        if device == self._own or device not in self._everyone:
            return False  # an announcement of this node, perhaps before a restart, or of a device outside this run
        is_other = session != self.session_of(device)
        if device in self._connected:
            is_out_of_date = session != self._connected[device]
        else:
            is_out_of_date = is_other and (device, session) in self._seen
        is_known = not is_other and self.known[device].checkpoints[-1] >= checkpoints[-1]
        if is_out_of_date or is_known:
            return False
        self._seen.add((device, session))
        self.known[device] = presence
        return True

    def announce(self, checkpoints: Iterable[int]) -> Presence:
        """Return the announcement of this node, which now has these checkpoints."""
        own = self.own._replace(checkpoints=tuple(sorted(checkpoints)))
        self.known[self._own] = own
        return own

    @property
    def own(self) -> Presence:
        return self.known[self._own]

    @property
    def missing(self) -> list[int]:
        """The devices without an announcement of their present session."""
        there = self._connected
        present = {device for device, known in self.known.items() if there.get(device) in (None, known.session)}
        return sorted(self._everyone - present)

    @property
    def common(self) -> int:
        """The latest iteration of which every known device has a checkpoint."""
        return max(set[int].intersection(*(set(presence.checkpoints) for presence in self.known.values())))

    def session_of(self, device: int) -> int | None:
        return self.known[device].session if device in self.known else None

    def has_made(self, device: int, iterations: int) -> bool:
        """Return whether a device is known to have made this number of iterations."""
        return device in self.known and self.known[device].checkpoints[-1] >= iterations

    def unfinished(self, iterations: int) -> list[int]:
        """Return the devices that are not known to have made this number of iterations."""
        return sorted(device for device in self._everyone if not self.has_made(device, iterations))


@dataclass
class _Kept:
    message: Any
    connection: int = NEVER
    """The connection over which it was last sent."""


@dataclass
class LockstepNeighbour:
    """One neighbour: the messages to it that it may still need, and its messages about iterations to come."""

    status: NeighbourStatus
    dropped: int = -1
    """The last iteration of which messages to the neighbour may no longer be kept."""
    received: dict[int, dict[type, Any]] = field(default_factory=dict)
    """Its messages about iterations that are not over here, by iteration and type."""
    needs: int = 0
    """The iteration that the neighbour is in: it needs the messages about this one and about later ones."""
    refused: int = -1
    """The iteration of the last message that was refused."""
    _kept: dict[int, dict[type, _Kept]] = field(default_factory=dict)
    _connections: int = 0

    @property
    def is_lost(self) -> bool:
        """Whether the neighbour needs messages that are no longer kept: it has lost its state."""
        return self.needs <= self.dropped

    def connect(self, k: int) -> None:
        """Note a new connection to the neighbour in iteration k."""
        self._connections += 1
        self.needs = k

    def keep(self, message: Any) -> None:
        """Keep a message for the neighbour, instead of those about the last but one iteration."""
        kept = self._kept.setdefault(message.k, {})
        known = kept.setdefault(type(message), _Kept(message))
        if known.connection == EARLIER and next(iter(kept.values())) is known:
            # Made again after a restart: the first message shows the other end where this one is.
            known.connection = NEVER
        while len(self._kept) > KEPT_ITERATIONS:
            self.dropped = min(self._kept)
            del self._kept[self.dropped]

    def due(self) -> list[Any]:
        """Return the messages to send now: those that the neighbour needs and was not sent over this connection."""
        due: list[Any] = []
        if not self.status.connected:
            return due
        for k, messages in sorted(self._kept.items()):
            for kept in messages.values():
                if kept.connection == NEVER or (kept.connection != self._connections and k >= self.needs):
                    kept.connection = self._connections
                    due.append(kept.message)
        return due

    @property
    def kept(self) -> list[Any]:
        """The messages that the neighbour may still need. A checkpoint holds them."""
        return [kept.message for messages in self._kept.values() for kept in messages.values()]

    def begin(self, k: int, sent: Iterable[Any] | None) -> None:
        """Begin with iteration k. `sent` are the messages of a checkpoint; None if the neighbour begins there, too."""
        self.forget_before(k)
        self.dropped = k - 1
        if sent is not None:
            self._kept = {}
            for message in sent:
                self._kept.setdefault(message.k, {})[type(message)] = _Kept(message, EARLIER)
            self.dropped = min(self._kept) - 1 if self._kept else -1

    def take(self, message: Any, k: int) -> str | None:
        """Take a message while this node is in iteration k. Returns why it is refused, or None."""
        if message.k < k:
            return None  # sent again, and not needed
        if message.k not in self.received and len(self.received) == KEPT_ITERATIONS:
            return f"it sends a message about iteration {message.k}, which is too far ahead of iteration {k}"
        received = self.received.setdefault(message.k, {})
        if isinstance(message, IterationHeader) and received.get(IterationHeader, message) != message:
            return f"it sends two different headers of iteration {message.k}"
        received.setdefault(type(message), message)
        return None

    def forget_before(self, k: int) -> None:
        self.received = {at: messages for at, messages in self.received.items() if at >= k}
