"""The transport over TCP and TLS 1.3: who may connect, and which of two connections stays.

A node dials each neighbour whose address it knows, until the two are connected. The end that dialled sends HELLO
first; the other one checks it, and answers with HELLO or with GOODBYE and the reason. There is one connection per
neighbour. If both dialled at the same time, the connection from the lower number stays; otherwise a new one replaces
the old one, whose end may not have been noticed yet.

Until the other end has proved who it is, it is a stranger: it has five seconds, there are at most `strangers` of them,
and if one more comes, the oldest one from the address that has most of them goes.
"""

from __future__ import annotations

import asyncio
import errno
import random
import socket
import ssl
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from efhc.base.errors import EfhcError, printable
from efhc.core.protocol import Model
from efhc.runtime.bandwidth import CAN_COUNT, Bucket, NodeUplink, RateMeter
from efhc.runtime.connection import Connection
from efhc.runtime.node_messages import Hello, Message
from efhc.runtime.node_settings import Address, Neighbour
from efhc.runtime.security import STRANGER_SECONDS, Security, device_of, name_of, reason_of
from efhc.runtime.wire import ModelFormat

if TYPE_CHECKING:
    from efhc.runtime.node import Mode

SHORTEST_WAIT, LONGEST_WAIT = 0.5, 15.0
"""Seconds between two attempts to connect; the wait doubles from one to the next."""
HIGHER_WAITS = 0.25
"""Seconds by which the higher number dials later, so that the two seldom dial at the same time."""
STEADY_SECONDS = 5.0
"""Seconds that a connection must last so that the next attempt to connect comes soon again."""
STOP_SECONDS = 2.0
DRAIN_SECONDS = 0.05
"""Seconds between two looks of `drain`."""


class CannotListen(EfhcError):
    """Raised when a node cannot listen: its port is in use, or its address does not exist yet."""


class _Link:
    """A neighbour, and the connection to it if there is one."""

    def __init__(self, neighbour: Neighbour) -> None:
        self.neighbour = neighbour
        self.connection: Connection | None = None
        self.meter = RateMeter()
        self.dial: asyncio.Task[None] | None = None
        self.dialling: Connection | None = None
        """The connection that is being made from here, once the other end's socket has answered."""
        self.free = asyncio.Event()
        """Set while there is no connection."""
        self.free.set()
        self.last_refusal = ""
        self.final = False
        """Whether the other end asked not to connect again soon."""

    def stop_dialling(self) -> None:
        if self.dial is not None:
            self.dial.cancel()
            self.dial = None


class SocketTransport:
    """The network of one node, over sockets. Without `security` there is no TLS: for loopback only."""

    def __init__(
        self,
        device: int,
        listen: Address | None,
        security: Security | None,
        models: ModelFormat,
        *,
        send_limit: float | None = None,
        strangers: int = 32,
    ) -> None:
        self.device, self.models = device, models
        self.address: Address | None = None
        """Where the node listens, with the port that it got, once started."""
        self._listen, self._security = listen, security
        self.uplink = NodeUplink()
        self.bucket = Bucket(send_limit) if send_limit is not None else None
        self._carried = 0
        self._most_strangers = strangers
        self._strangers: dict[asyncio.Task[None], str] = {}
        """The host of each connection whose other end is unknown, by its task, in the order of arrival."""
        self._links: dict[int, _Link] = {}
        self._accepting: list[asyncio.Task[None]] = []
        self._ending: set[Connection] = set()
        self._stopped = False

    # Called by the node

    async def start(self, listener: Mode, neighbours: Sequence[Neighbour]) -> None:
        """Listen and dial from now on. Raises `CannotListen` if the address cannot be listened on."""
        self._listener = listener
        if self._listen is not None:
            sockets = await self._bind(self._listen)
            self.address = Address(self._listen.host, sockets[0].getsockname()[1])
            self._accepting = [asyncio.create_task(self._accept(each)) for each in sockets]
        self.allow(neighbours)

    def allow(self, neighbours: Sequence[Neighbour]) -> None:
        """Replace the table of neighbours, and end the connections to devices that are no longer in it."""
        table = {neighbour.device: neighbour for neighbour in neighbours}
        for device in self._links.keys() - table.keys():
            self.disconnect(device, f"device {device} is no longer a neighbour of device {self.device}", final=True)
            self._links.pop(device).stop_dialling()
        for device, neighbour in table.items():
            link = self._links.setdefault(device, _Link(neighbour))
            if link.neighbour != neighbour or link.dial is None:
                link.stop_dialling()
                link.neighbour = neighbour
                if neighbour.address is not None:
                    link.dial = asyncio.create_task(self._keep_dialling(link, Address.of(neighbour.address)))

    def send(self, neighbour: int, message: Message) -> None:
        """Send a message, or drop it if there is no connection. A model in it must not be changed any more."""
        if (connection := self._connection(neighbour)) is not None:
            connection.send(message)

    def withdraw(self, neighbour: int, model: Model) -> None:
        """Stop sending this very array as the `Body` of an exchange, whether it is under way or waits."""
        if (connection := self._connection(neighbour)) is not None:
            connection.withdraw(model)

    def disconnect(self, neighbour: int, reason: str, *, final: bool = False) -> None:
        """End the connection to a neighbour and send it the reason. If `final`, it should not connect again soon."""
        if (connection := self._connection(neighbour)) is not None:
            self._close(connection, reason, final=final)
            self._gone(connection, reason)

    def carried(self) -> int | None:
        """Return the bytes that are known to have arrived at neighbours, on all links; None if that cannot be known."""
        if not CAN_COUNT:
            return None
        self._carried += sum(connection.newly_carried() for connection in self._connections)
        return self._carried

    def backlog(self, rate: float) -> float:
        """Return the seconds after which everything sent has left the node, at `rate` bytes per second for all links.

        Bytes on their way do not count, nor do the acknowledgements of connections.
        """
        queued = [connection.queued for connection in self._connections]
        total = sum(size for size, _ in queued)
        way = sum(size * seconds for size, seconds in queued) / total if total else 0.0
        limit = 0.0 if self.bucket is None else self.bucket.wait(asyncio.get_running_loop().time())
        return max(0.0, total / rate - way, limit)

    async def drain(self, seconds: float) -> bool:
        """Wait for at most `seconds` until all messages are acknowledged; returns whether they are."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while False in [connection.is_drained for connection in self._connections]:  # which asks each of them
            if loop.time() >= until:
                return False
            await asyncio.sleep(DRAIN_SECONDS)
        return True

    async def stop(self, reason: str) -> None:
        """Send all neighbours the reason, and end all connections."""
        self._stopped = True
        dialling = [link.dial for link in self._links.values() if link.dial is not None]
        tasks = [*dialling, *self._accepting, *self._strangers]
        for task in tasks:
            task.cancel()
        for device in self._links:
            self.disconnect(device, reason, final=True)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._ending:
            await asyncio.wait([connection.closed for connection in self._ending], timeout=STOP_SECONDS)
        for connection in list(self._ending):
            connection.abort(reason)
        await asyncio.sleep(0)  # lets transports close their sockets

    # Connections that come in

    async def _bind(self, address: Address) -> list[socket.socket]:
        sockets: list[socket.socket] = []
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, *_, where in dict.fromkeys(found):
                sockets.append(socket.create_server(where, family=family, backlog=128))
                sockets[-1].setblocking(False)
        except OSError as error:
            for each in sockets:
                each.close()
            in_use = "the port is in use. Stop the process that uses it (another node?), or choose another port"
            other, *_ = reason_of(error).partition(" (while")  # to which `create_server` has added the address
            reason = in_use if error.errno == errno.EADDRINUSE else other
            raise CannotListen(f"listen: cannot listen on {address}: {reason}") from error
        return sockets

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    accepted, where = await loop.sock_accept(listening)
                except OSError as error:  # too many open files, or the other end has gone again
                    self._listener.refused("a stranger", reason_of(error))
                    await asyncio.sleep(SHORTEST_WAIT)
                    continue
                self._make_room()
                task = asyncio.create_task(self._welcome(accepted, str(Address(*where[:2]))))
                self._strangers[task] = where[0]
                task.add_done_callback(lambda task: self._strangers.pop(task, None))
                await asyncio.sleep(0)  # the task begins: were it cancelled before, the socket would stay open
        finally:
            listening.close()

    def _make_room(self) -> None:
        """If there are too many strangers, end the oldest one of the address that has most of them."""
        if len(self._strangers) >= self._most_strangers:
            (crowd, _), *_ = Counter(self._strangers.values()).most_common(1)
            oldest = next(task for task, host in self._strangers.items() if host == crowd)
            del self._strangers[oldest]
            oldest.cancel("too many connections that have not said who they are")

    async def _welcome(self, accepted: socket.socket, who: str) -> None:
        """Wait for TLS and HELLO of a stranger, within its time."""
        connection = Connection(self, who, dialled=False)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(STRANGER_SECONDS):
                try:
                    # asyncio sets it only on sockets that name their protocol. Without it, each answer waits 40 ms.
                    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    options = {} if self._security is None else _tls(self._security.server_context())
                except BaseException:
                    accepted.close()
                    raise
                await loop.connect_accepted_socket(lambda: connection, accepted, **options)
                await connection.decided
        except (OSError, ValueError, asyncio.CancelledError) as error:
            # HELLO may have come in the very moment in which the time was up.
            if connection.ended is None and not connection.was_open:
                connection.abort(reason_of(error))
                self._listener.refused(connection.name, reason_of(error))
            if isinstance(error, asyncio.CancelledError) and self._stopped:
                raise

    # Connections that go out

    async def _keep_dialling(self, link: _Link, address: Address) -> None:
        loop = asyncio.get_running_loop()
        wait = SHORTEST_WAIT
        if self.device > link.neighbour.device:
            await asyncio.sleep(HIGHER_WAITS)
        while True:
            if link.connection is None:
                await self._dial(link, address)
            if link.connection is not None:
                since = loop.time()
                await link.free.wait()
                if loop.time() - since > STEADY_SECONDS:
                    wait = SHORTEST_WAIT
            # Not all neighbours of a node that has come back dial in the same moment.
            await asyncio.sleep((LONGEST_WAIT if link.final else wait) * random.uniform(0.75, 1.25))
            wait = min(2 * wait, LONGEST_WAIT)

    async def _dial(self, link: _Link, address: Address) -> None:
        """Try once to open a connection, and note why if that fails."""
        loop = asyncio.get_running_loop()
        device = link.neighbour.device
        connection = Connection(self, f"device {device} at {address}", dialled=True)
        connection.neighbour = device
        try:
            async with asyncio.timeout(STRANGER_SECONDS):
                options: dict[str, Any] = {}
                if self._security is not None:
                    options = _tls(self._security.client_context()) | {"server_hostname": name_of(device)}
                await loop.create_connection(lambda: connection, address.host, address.port, **options)
                if link.connection is not None:  # the neighbour was faster
                    connection.abort("both ends dialled")
                    return
                link.dialling = connection
                connection.greet(self._listener.hello_for(device))
                await connection.decided
        except (OSError, ValueError) as error:
            if connection.ended is None and not connection.was_open:
                connection.abort(reason_of(error))
                reason = f"{address}: {reason_of(error)}"
                if link.last_refusal != reason:
                    link.last_refusal = reason
                    self._listener.unreachable(device, reason)
        except asyncio.CancelledError:
            if not connection.was_open:
                connection.abort("no longer wanted")
            raise
        finally:
            link.dialling = None

    # Called by connections

    def made(self, connection: Connection) -> None:
        """Find out whose certificate a new connection has. Without TLS, HELLO has to say who it is."""
        if self._security is None or connection.dialled:
            return
        try:
            device = device_of(connection.extra_info("peercert"))
        except ValueError as error:
            self._refuse(connection, str(error))
            return
        connection.name = f"device {device} at {connection.name}"
        if device in self._links:
            connection.neighbour = device
        else:
            self._refuse(connection, f"device {device} is no neighbour of device {self.device}")

    def greeted(self, connection: Connection, hello: Hello) -> None:
        """Open or refuse a connection whose other end has sent HELLO."""
        if connection.neighbour is None and self._security is None:
            connection.neighbour = hello.device
        device = connection.neighbour
        link = self._link_of(connection)
        if link is None or device is None:
            self._refuse(connection, f"device {device} is no neighbour of device {self.device}")
            return
        if hello.device != device:
            expected = f"its certificate is device {device}'s" if self._security else f"device {device} was dialled"
            self._refuse(connection, f"the other end says that it is device {hello.device}; {expected}")
            return
        ours = self._listener.hello_for(device)
        if difference := mismatch(ours, hello):
            self._refuse(connection, difference, final=True)
        elif not self._wins(link, connection, hello):
            self._close(connection, "both ends dialled, and the other connection stays")
        else:
            if not connection.dialled:
                connection.greet(ours)
            self._open(link, connection, hello)

    def received(self, connection: Connection, message: Message) -> None:
        """Pass on a message of an open connection."""
        assert connection.neighbour is not None
        self._listener.received(connection.neighbour, message)

    def note_progress(self, connection: Connection) -> None:
        """Pass on that a part of a model has arrived or was acknowledged."""
        assert connection.neighbour is not None
        self._listener.note_progress(connection.neighbour)

    def lost(self, connection: Connection, reason: str, final: bool) -> None:
        """Handle a connection that has ended. It is not called for one that this transport closed itself."""
        self._ending_until_closed(connection)
        link = self._link_of(connection)
        if link is None:
            self._listener.refused(connection.name, reason)
        elif link.connection is connection:
            link.final = final
            self._gone(connection, reason)
        elif not connection.was_open and link.connection is None:
            self._note_refusal(connection, reason, final)

    # Which connection counts

    def _wins(self, link: _Link, connection: Connection, hello: Hello) -> bool:
        """Whether a connection may take the place of another one to the same neighbour."""
        lower_dialled = connection.dialled == (self.device < link.neighbour.device)
        old = link.connection
        if old is None:
            return lower_dialled or link.dialling is None or connection is link.dialling
        age = asyncio.get_running_loop().time() - old.opened_at
        # The other end dials only if it has no connection. So unless the two were made at the same time, it has lost
        # the old one; and after a restart it has, too.
        at_the_same_time = age < STRANGER_SECONDS and hello.session == old.session and connection.dialled != old.dialled
        return lower_dialled or not at_the_same_time

    def _open(self, link: _Link, connection: Connection, hello: Hello) -> None:
        device = link.neighbour.device
        if link.connection is not None:
            self._close(link.connection, "a new connection has taken its place")
            self._gone(link.connection, "replaced by a new connection")
        if link.dialling is not None and link.dialling is not connection:
            self._close(link.dialling, "both ends dialled, and the other connection stays")
        connection.status, connection.meter = self._listener.status_of(device), link.meter
        connection.session = hello.session
        connection.open()
        link.connection, link.last_refusal, link.final = connection, "", False
        link.free.clear()
        self._listener.connected(device, hello)

    def _gone(self, connection: Connection, reason: str) -> None:
        device = connection.neighbour
        assert device is not None
        link = self._links[device]
        link.connection = None
        link.free.set()
        self._listener.disconnected(device, reason)

    def _refuse(self, connection: Connection, reason: str, *, final: bool = False) -> None:
        self._close(connection, reason, final=final)
        self._note_refusal(connection, printable(reason), final)

    def _note_refusal(self, connection: Connection, reason: str, final: bool) -> None:
        """Report why there is no connection. Between neighbours, the same reason is logged once."""
        if (link := self._link_of(connection)) is None:
            self._listener.refused(connection.name, reason)
        else:
            again, link.last_refusal, link.final = link.last_refusal == reason, reason, final
            self._listener.refused(connection.name, reason, link.neighbour.device, again=again)

    def _close(self, connection: Connection, reason: str, *, final: bool = False) -> None:
        connection.close(reason, final=final)
        self._ending_until_closed(connection)

    def _ending_until_closed(self, connection: Connection) -> None:
        self._ending.add(connection)
        connection.closed.add_done_callback(lambda _: self._ending.discard(connection))

    def _link_of(self, connection: Connection) -> _Link | None:
        return None if connection.neighbour is None else self._links.get(connection.neighbour)

    def _connection(self, neighbour: int) -> Connection | None:
        link = self._links.get(neighbour)
        return link.connection if link is not None else None

    @property
    def _connections(self) -> list[Connection]:
        return [link.connection for link in self._links.values() if link.connection is not None]


def mismatch(ours: Hello, theirs: Hello) -> str:
    """Return the difference of two fingerprints as one line that both ends can read; empty if they agree."""
    for name in sorted({*ours.fingerprint, *theirs.fingerprint}):
        ends = {hello.device: hello.fingerprint.get(name, "nothing") for hello in (ours, theirs)}
        if len(set(ends.values())) > 1:
            given = ", ".join(f"device {device} has {value[:200]}" for device, value in sorted(ends.items()))
            hint = "; a linear model has (features + 1) x classes: are these the same?" if name == "parameters" else ""
            return f"{name} differs: {given}; all nodes must agree on it{hint}"
    return ""


def _tls(context: ssl.SSLContext) -> dict[str, Any]:
    """Return the options of asyncio for TLS."""
    return {"ssl": context, "ssl_handshake_timeout": STRANGER_SECONDS, "ssl_shutdown_timeout": STOP_SECONDS}
