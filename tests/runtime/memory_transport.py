"""A network in memory, for tests: several transports in one event loop, through the same bytes as on sockets.

Each message is encoded and decoded as `runtime.wire` says. Delay, loss and cuts can be set at any time; what is lost is
drawn from a seed, so that a test does the same each time.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from efhc.core.protocol import Body, Model
from efhc.runtime.decoder import Decoder, ModelProgress
from efhc.runtime.node import Mode
from efhc.runtime.node_messages import Message
from efhc.runtime.node_settings import Neighbour
from efhc.runtime.sockets import mismatch
from efhc.runtime.wire import ModelFormat, encode_whole


class MemoryNetwork:
    """What joins the transports of one test."""

    def __init__(self, models: ModelFormat, *, delay: float = 0.0, loss: float = 0.0, seed: int = 0) -> None:
        self.models = models
        self.delay = delay
        """Seconds that a message takes."""
        self.loss = loss
        """Probability that a message gets lost. A model counts as one message."""
        self.random = random.Random(seed)
        self.transports: dict[int, MemoryTransport] = {}
        self.cuts: set[frozenset[int]] = set()
        """Pairs between which nothing goes."""

    def transport(self, device: int) -> MemoryTransport:
        """Return the transport of a device."""
        return MemoryTransport(self, device)

    def cut(self, one: int, other: int) -> None:
        """End the connection of two devices; what is on its way is lost."""
        self.cuts.add(frozenset((one, other)))
        for device, neighbour in ((one, other), (other, one)):
            if device in self.transports:
                self.transports[device].lose(neighbour, "cut")

    def heal(self, one: int, other: int) -> None:
        """Let two devices connect again."""
        self.cuts.discard(frozenset((one, other)))
        self.connect(one, other)

    def connect(self, one: int, other: int) -> None:
        """Connect two devices, if each has the other in its table and nothing is cut."""
        if frozenset((one, other)) in self.cuts or not {one, other} <= set(self.transports):
            return
        first, second = self.transports[one], self.transports[other]
        if other not in first.table or one not in second.table or other in first.connections:
            return
        hellos = first.listener.hello_for(other), second.listener.hello_for(one)
        if difference := mismatch(*hellos):
            first.listener.refused(f"device {other}", difference)
            second.listener.refused(f"device {one}", difference)
            return
        first.open(other)
        second.open(one)
        first.listener.connected(other, hellos[1])
        if one in second.connections:
            second.listener.connected(one, hellos[0])


class MemoryTransport:
    """The network of one device, in memory. It has the methods of `SocketTransport`."""

    def __init__(self, network: MemoryNetwork, device: int) -> None:
        self.network, self.device = network, device
        self.listener: Mode
        self.table: set[int] = set()
        self.connections: dict[int, Decoder] = {}
        """By neighbour: who puts together what comes from it."""
        self._sent: dict[int, list[tuple[Decoder, Any]]] = defaultdict(list)
        """By neighbour: what is on its way to it, and on which connection."""
        self._transfers = 0

    async def start(self, listener: Mode, neighbours: Sequence[Neighbour]) -> None:
        self.listener = listener
        self.network.transports[self.device] = self
        self.allow(neighbours)

    def allow(self, neighbours: Sequence[Neighbour]) -> None:
        self.table = {neighbour.device for neighbour in neighbours}
        for device in sorted(self.connections.keys() - self.table):
            self.disconnect(device, f"device {device} is no longer a neighbour of device {self.device}", final=True)
        for device in sorted(self.table):
            asyncio.get_running_loop().call_soon(self.network.connect, self.device, device)

    def open(self, neighbour: int) -> None:
        """A connection begins; `MemoryNetwork.connect` calls it at both ends and tells both."""
        self.connections[neighbour] = decoder = Decoder(self.network.models)
        decoder.greeted = True

    def lose(self, neighbour: int, reason: str) -> None:
        """The connection is gone, and what is on its way from here with it."""
        self._sent.pop(neighbour, None)
        if self.connections.pop(neighbour, None) is not None:
            self.listener.disconnected(neighbour, reason)

    def send(self, neighbour: int, message: Message) -> None:
        if neighbour not in self.connections or self.network.random.random() < self.network.loss:
            return
        there = self.network.transports[neighbour].connections[self.device]
        letter = (there, message)
        self._sent[neighbour].append(letter)
        loop = asyncio.get_running_loop()
        if self.network.delay:
            loop.call_later(self.network.delay, self._deliver, neighbour, letter)
        else:
            loop.call_soon(self._deliver, neighbour, letter)

    def withdraw(self, neighbour: int, model: Model) -> None:
        self._sent[neighbour] = [
            each for each in self._sent[neighbour] if not isinstance(each[1], Body) or each[1].model is not model
        ]

    def disconnect(self, neighbour: int, reason: str, *, final: bool = False) -> None:
        if neighbour in self.connections:
            self.lose(neighbour, reason)
            self.network.transports[neighbour].lose(self.device, reason)
            if not final:
                asyncio.get_running_loop().call_soon(self.network.connect, self.device, neighbour)

    def carried(self) -> int | None:
        return None

    def backlog(self, rate: float) -> float:
        return 0.0  # what is sent is on its way at once

    async def drain(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while any(self._sent.values()):
            if loop.time() >= until:
                return False
            await asyncio.sleep(self.network.delay)
        return True

    async def stop(self, reason: str) -> None:
        self.table = set()
        for neighbour in sorted(self.connections):
            self.disconnect(neighbour, reason, final=True)
        self.network.transports.pop(self.device, None)

    def _deliver(self, neighbour: int, letter: tuple[Decoder, Message]) -> None:
        decoder, message = letter
        waiting = self._sent.get(neighbour, [])
        if not any(each is letter for each in waiting):  # withdrawn, or its connection is gone
            return
        waiting[:] = [each for each in waiting if each is not letter]
        there = self.network.transports[neighbour]
        self._transfers += 1
        data = encode_whole(message, self._transfers, self.network.models)
        here, other = self.listener.status_of(neighbour), there.listener.status_of(self.device)
        here.bytes_sent += len(data)
        other.bytes_received += len(data)
        for arrived in decoder.feed(data):
            if isinstance(arrived, ModelProgress):
                here.model_bytes_sent += arrived.model_bytes
                other.model_bytes_received += arrived.model_bytes
                there.listener.note_progress(self.device)
                self.listener.note_progress(neighbour)
            else:
                there.listener.received(self.device, arrived)
