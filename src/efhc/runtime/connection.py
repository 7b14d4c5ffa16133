"""One connection between two nodes: flow control, keep-alive, and how it ends.

Small messages are given to the network at once. Models go in chunks, one model at a time, and only as many bytes as
the other end's credit allows (`bandwidth.SendWindow`): so a small message waits for the little that is on its way, and
never for a model. An end that has sent nothing for a second sends PING. Any byte that arrives is a sign of life, also
one of a frame that is not whole, and one that waits for what was lost before it; without one for four seconds the
connection is dead.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from efhc.core.half_step_messages import Introduction
from efhc.core.protocol import Body, Model, ModelReply
from efhc.runtime.bandwidth import (
    Bucket,
    RateMeter,
    SendWindow,
    acknowledged_bytes,
    data_segments,
    shortest_round_trip,
    unacknowledged_bytes,
)
from efhc.runtime.decoder import Decoder, ModelProgress
from efhc.runtime.node_messages import Goodbye, Hello, Message
from efhc.runtime.security import reason_of
from efhc.runtime.status import NeighbourStatus
from efhc.runtime.wire import (
    LONGEST_FRAME,
    LONGEST_SMALL_FRAME,
    Cancel,
    Got,
    Outgoing,
    Ping,
    WireError,
    encode,
)

if TYPE_CHECKING:
    from efhc.runtime.sockets import SocketTransport

PING_SECONDS = 1.0
"""Seconds after the last sent byte after which PING is sent."""
DEAD_SECONDS = 4.0
"""Seconds without any byte received after which a connection is dead."""
TICK_SECONDS = 0.25
GOT_BYTES, GOT_SECONDS = 4000, 0.05
"""An acknowledgement is sent after this number of bytes of models, or after this number of seconds if fewer came: on a
slow uplink, acknowledgements take bandwidth from models."""
MOST_MESSAGES = 5000
"""Small messages per second that a neighbour may send: twice those of a node at 500 iterations a second in lockstep."""
LINGER_SECONDS = 1.0
"""Seconds for which a connection that was ended stays open, so that the other end can read the reason."""
LONGEST_BACKLOG = 8 * 1024 * 1024
"""Bytes of small messages and chunks that may wait because the other end does not read."""


class Connection(asyncio.Protocol):
    """One connection, from the moment its asyncio transport exists."""

    def __init__(self, owner: SocketTransport, name: str, *, dialled: bool) -> None:
        """`name` is the other end in words, for logs."""
        self.owner, self.name, self.dialled = owner, name, dialled
        self.neighbour: int | None = None
        """The device at the other end. The owner sets it once it is known."""
        self.session: int | None = None
        """The session of the other end. The owner sets it when it opens the connection."""
        self.was_open = False
        """Whether both ends have sent HELLO and agreed."""
        self.opened_at = 0.0
        self.ended: str | None = None
        """Why the connection is over, once it is."""
        self.status, self.meter = NeighbourStatus(-1), RateMeter()
        """Where bytes are counted, and the rate of models is measured. The owner replaces both by the neighbour's."""
        self.window = SendWindow()
        self._carried = 0
        self._uplink, self._bucket = owner.uplink, owner.bucket
        self._decoder = Decoder(owner.models, limit=LONGEST_SMALL_FRAME)
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        """None until TLS is done."""
        self._waiting: deque[Outgoing] = deque()
        """The models to send, and what follows an introduction."""
        self._transfers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._refill: asyncio.TimerHandle | None = None
        self._got_timer: asyncio.TimerHandle | None = None
        self._sent_messages = self._acknowledged_messages = 0
        self._last_sent = self._last_received = self._last_tick = 0.0
        self._segments: int | None = None
        self._allowed_messages = Bucket(MOST_MESSAGES, depth=MOST_MESSAGES)
        """Small messages that may come: no node has reason to send them faster."""
        self._pinged_at: float | None = None
        self._got_bytes = 0
        """Bytes of models that were acknowledged here."""
        self.closed: asyncio.Future[None] = self._loop.create_future()
        """Done when the transport is gone."""
        self.decided: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection is open or over."""

    # Called by the transport

    def extra_info(self, name: str) -> Any:
        """Return what asyncio knows of the transport, such as its socket; None before there is a transport."""
        return None if self.transport is None else self.transport.get_extra_info(name)

    def greet(self, hello: Hello) -> None:
        self._send_small(hello)

    def open(self) -> None:
        """Open the connection: both ends agree, and models may come."""
        self.was_open = True
        self.opened_at = self._loop.time()
        self._decoder.limit = LONGEST_FRAME
        self._settle(self.decided)
        self._ping()  # its answer shows how long the way is as long as nothing queues

    def send(self, message: Message) -> None:
        """Send a small message at once, or queue a model."""
        if self.ended is not None:
            return
        outgoing = Outgoing(message, self.owner.models)
        kinds = {type(each.message) for each in self._waiting}
        if not outgoing.size and Introduction not in kinds:  # what follows an introduction means nothing before it
            self._send_small(message)
        elif not isinstance(message, ModelReply) or ModelReply not in kinds:  # else it has requested one too early
            self._waiting.append(outgoing)
            self._pump()

    def withdraw(self, model: Model) -> None:
        """Stop sending this very array as the model of an exchange."""
        for outgoing in list(self._waiting):
            if isinstance(outgoing.message, Body) and outgoing.message.model is model:
                self._waiting.remove(outgoing)
                if outgoing.transfer and self.ended is None:
                    self._send_small(Cancel(outgoing.transfer))
        if not self._waiting and not self.window.on_way:
            self.meter.drop()  # nothing will end what it measures
        self._pump()

    def newly_carried(self) -> int:
        """Return the bytes that have arrived at the other end since the last call, as far as that is known."""
        before, carried = self._carried, acknowledged_bytes(self.extra_info("socket")) or 0
        self._carried = max(before, carried)
        return self._carried - before

    @property
    def queued(self) -> tuple[int, float]:
        """The bytes that were sent and are not known to have arrived, and the seconds of a round trip without a queue.

        The bytes wait here for credit, in asyncio or in the kernel, or are on their way.
        """
        if self.ended is not None or self.transport is None:
            return 0, 0.0
        connection = self.extra_info("socket")
        in_kernel = unacknowledged_bytes(connection)
        waiting = sum(each.size - each.offset for each in self._waiting)
        size = waiting + self.transport.get_write_buffer_size()
        size += self.window.on_way if in_kernel is None else in_kernel
        return size, shortest_round_trip(connection)

    @property
    def is_drained(self) -> bool:
        """Whether the other end has acknowledged everything. If not, a PING asks for it."""
        if self.ended is not None:
            return True
        if self._waiting or self.window.on_way:
            return False
        if self._acknowledged_messages == self._sent_messages:
            return True
        if self._pinged_at is None:
            self._ping()
        return False

    def close(self, reason: str, *, final: bool = False) -> None:
        """End the connection and send the other end the reason. `owner.lost` is not called."""
        if self.ended is None:
            self._send_small(Goodbye(reason, final))
            self._end(reason)
            self._hang_up()

    def abort(self, reason: str) -> None:
        """End the connection without GOODBYE. `owner.lost` is not called."""
        self._end(reason)
        self._reset()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.ended is not None:
            self.transport.abort()
            return
        now = self._loop.time()
        self._last_sent = self._last_received = self._last_tick = now
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        self.owner.made(self)

    def data_received(self, data: bytes) -> None:
        if self.ended is not None:  # GOODBYE was sent or received: later bytes do not matter
            return
        self._last_received = self._loop.time()
        self.status.bytes_received += len(data)
        is_pinged = False
        try:
            for message in self._decoder.feed(data):
                if isinstance(message, ModelProgress):
                    self.status.model_bytes_received += message.model_bytes
                    self.owner.note_progress(self)
                    continue
                self._allowed_messages.take(1, self._last_received)
                if self._allowed_messages.wait(self._last_received):
                    raise WireError(f"more than {MOST_MESSAGES} messages within a second")
                is_pinged = isinstance(message, Ping) or is_pinged
                self._take(message)
                if self.ended is not None:
                    return
        except WireError as error:
            self._fail(f"refused: {error}")
            return
        if self._decoder.is_within_chunk:  # which may take long on a link that has become slow
            self.owner.note_progress(self)
        news = self._decoder.model_bytes - self._got_bytes
        if is_pinged or news >= GOT_BYTES:
            self._send_got()
        elif news and self._got_timer is None:
            self._got_timer = self._loop.call_later(GOT_SECONDS, self._send_got)
        if self._waiting:
            self._pump()

    def connection_lost(self, error: Exception | None) -> None:
        if self.ended is None:
            self._end(reason_of(error) if error is not None else "the other end closed the connection")
            self.owner.lost(self, cast(str, self.ended), False)
        self._settle(self.closed)

    # Receiving

    def _send_got(self) -> None:
        if self._got_timer is not None:
            self._got_timer.cancel()
            self._got_timer = None
        self._got_bytes = self._decoder.model_bytes
        self._write(encode(Got(self._got_bytes, self._decoder.messages, int(self._last_received * 1e6))))

    def _take(self, message: Any) -> None:
        if isinstance(message, Got):
            self._acknowledged(message)
        elif isinstance(message, Hello):
            self.owner.greeted(self, message)
        elif isinstance(message, Goodbye):
            self._end(message.reason)
            self._hang_up()
            self.owner.lost(self, message.reason, message.final)
        elif not isinstance(message, Ping):
            if not self.was_open:  # the owner has not answered this HELLO
                raise WireError("a message before both ends agreed")
            self.owner.received(self, message)

    def _acknowledged(self, got: Got) -> None:
        now = self._loop.time()
        try:
            new = self.window.acknowledge(got.model_bytes, got.clock / 1e6, now)
        except ValueError as error:
            raise WireError(f"GOT says what cannot be: {error}") from None
        if not self._acknowledged_messages <= got.messages <= self._sent_messages:
            raise WireError(f"GOT says what cannot be: {got.messages} messages of {self._sent_messages}")
        self._acknowledged_messages = got.messages
        if self._pinged_at is not None:
            if not new:
                self.window.delay.add(got.clock / 1e6 - self._pinged_at, now)
            self._pinged_at = None
        if new:
            self.meter.acknowledged(new, now)
            if not self.window.on_way and not self._waiting:
                self.meter.end(now)
            self.status.rate = self.meter.rate
            self._uplink.acknowledged(new, now)
            self._pump()
            self.owner.note_progress(self)

    # Sending

    def _write(self, data: bytes) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        self._last_sent = self._loop.time()
        self.status.bytes_sent += len(data)
        if self._bucket is not None:
            self._bucket.take(len(data), self._last_sent)
        self.transport.write(data)

    def _send_small(self, message: Any) -> None:
        self._sent_messages += 1
        self._write(encode(message))
        if self.transport is not None and self.transport.get_write_buffer_size() > LONGEST_BACKLOG:
            self._loop.call_soon(self._fail, "the other end does not read what it is sent")

    def _ping(self) -> None:
        if self._pinged_at is None:  # else the answer to the earlier one would be taken for a quick one
            self._pinged_at = self._loop.time()
        self._write(encode(Ping()))

    def _pump(self) -> None:
        """Send parts of models as far as credit and the node's limit allow."""
        while self._waiting and self.ended is None and self._refill is None:
            now = self._loop.time()
            outgoing = self._waiting[0]
            if not outgoing.size:
                self._waiting.popleft()
                self._send_small(outgoing.message)
                continue
            self.window.refresh(now)
            rest = outgoing.size - outgoing.offset
            size = min(self.window.chunk, rest, max(self.window.room, self.window.chunk // 2))
            if self._bucket is not None:
                size = min(size, self._bucket.chunk)
                if seconds := self._bucket.wait(now):
                    self._refill = self._loop.call_later(seconds, self._refilled)
                    return
            size = max(outgoing.unit, size - size % outgoing.unit)
            if size > self.window.room and self.window.on_way:
                return
            if not self._uplink.allows(self.window, size, now):
                self._uplink.wait(self._pump)
                return
            if not outgoing.transfer:
                self._transfers += 1
                self._send_small(outgoing.announcement(self._transfers))
                self.meter.begin(now)
            self.window.send(size, now)
            self.status.model_bytes_sent += size
            self._write(outgoing.chunk(size))
            if outgoing.offset == outgoing.size:
                self._waiting.popleft()

    def _refilled(self) -> None:
        self._refill = None
        self._pump()

    # Keep-alive and the end

    def _tick(self) -> None:
        now = self._loop.time()
        before, self._segments = self._segments, data_segments(self.extra_info("socket"))
        if self._segments != before:  # packets have arrived since the last look, even if they cannot be read yet
            self._last_received = max(self._last_received, self._last_tick)
        if now - self._last_tick > DEAD_SECONDS / 2:
            # This process was held up: what has arrived meanwhile is read before anybody is called dead.
            self._last_received = max(self._last_received, now - DEAD_SECONDS / 2)
        self._last_tick = now
        if now - self._last_received > DEAD_SECONDS:
            self._end(f"not a byte for {DEAD_SECONDS:g} s")
            self._reset()
            self.owner.lost(self, cast(str, self.ended), False)
            return
        if self.was_open and now - self._last_sent >= PING_SECONDS:
            self._ping()
        self._pump()  # one that held up this connection may have stalled
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)

    def _reset(self) -> None:
        """End the transport so that the other end notices it even if nothing from there gets through.

        Without this option the kernel would first try for minutes to send what it still holds.
        """
        if self.transport is not None:
            if (connection := self.extra_info("socket")) is not None:
                with suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()

    def _fail(self, reason: str) -> None:
        """End the connection because of an error of the other end, and notify both."""
        if self.ended is None:
            self.close(reason)
            self.owner.lost(self, reason, False)

    def _end(self, reason: str) -> None:
        if self.ended is None:
            self.ended = reason
            self._waiting.clear()
            self.meter.drop()
            self.window.forget()
            self._loop.call_soon(self._uplink.wake)
            for timer in filter(None, (self._timer, self._refill, self._got_timer)):
                timer.cancel()
            self._settle(self.decided)

    def _hang_up(self) -> None:
        """Close the transport so that the other end can still read what was sent, but not for long."""
        transport = self.transport
        if transport is None:
            return
        if transport.can_write_eof():
            with suppress(OSError):  # the other end has gone already
                transport.write_eof()  # it is closed when the other end closes, too
        else:
            transport.close()
        self._loop.call_later(LINGER_SECONDS, transport.abort)

    @staticmethod
    def _settle(future: asyncio.Future[None]) -> None:
        if not future.done():
            future.set_result(None)
