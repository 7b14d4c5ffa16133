"""The status of a node over HTTP: /metrics for Prometheus, /healthz, /readyz, /status as JSON.

They are served on `status.sock` in the state folder, which only the node's own user may open, and on a loopback port if
the settings name one. Requests cannot slow the node down: they are limited in size, time and number.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import Self

from efhc.base.errors import EfhcError
from efhc.runtime.status import READY_STATES, NodeStatus, as_prometheus

LONGEST_REQUEST, SECONDS, AT_ONCE = 8192, 5.0, 32
"""Bytes of a request, seconds for a request and its answer, connections at once. What goes beyond is closed."""

SOCKET_NAME = "status.sock"
"""The name of the socket in a state folder."""

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Pages:
    """The servers of one node, for as long as `async with` lasts.

    A socket that a killed node left is replaced: the caller holds the lock of its folder.
    """

    def __init__(
        self, status: Callable[[], NodeStatus], socket_path: Path, port: int | None = None, seconds: float = SECONDS
    ) -> None:
        """Serve what `status` returns at each request, which may take `seconds` together with its answer."""
        self._status, self._socket, self._seconds = status, socket_path, seconds
        self._open = 0
        self._servers: list[asyncio.AbstractServer] = []
        self.port = port
        """The loopback port, if there is one."""

    async def __aenter__(self) -> Self:
        """Listen. Raises `EfhcError` if the port is in use or the socket cannot be made."""
        listening = _unix_listener(self._socket)
        self._servers.append(await asyncio.start_unix_server(self._answer, sock=listening, limit=LONGEST_REQUEST))
        try:
            if self.port is not None:
                listening = _loopback_listener(self.port)
                self.port = listening.getsockname()[1]
                self._servers.append(await asyncio.start_server(self._answer, sock=listening, limit=LONGEST_REQUEST))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        self._socket.unlink(missing_ok=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= AT_ONCE:
                async with asyncio.timeout(self._seconds):
                    writer.write(self._response(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has gone, is too slow, or sends too much
        finally:
            self._open -= 1
            writer.close()

    def _response(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        page = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        if method not in (b"GET", b"HEAD"):
            return _http(405, "only GET\n", extra="Allow: GET, HEAD\r\n")
        return _http(*self._page(page), with_body=method == b"GET")

    def _page(self, page: str) -> tuple[int, str, str]:
        if page == "/healthz":  # the loop answers, which is all that it asks
            return 200, "ok\n", "text/plain"
        if page == "/readyz":
            state = self._status().state
            return 200 if state in READY_STATES else 503, f"{state}\n", "text/plain"
        if page == "/metrics":
            return 200, as_prometheus(self._status()), METRICS_TYPE
        if page == "/status":
            return 200, _as_json(self._status()) + "\n", "application/json"
        return 404, "there are /metrics, /healthz, /readyz and /status\n", "text/plain"


def _http(code: int, text: str, kind: str = "text/plain", *, extra: str = "", with_body: bool = True) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {code} {HTTPStatus(code).phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")


def _as_json(status: NodeStatus) -> str:
    """Return JSON with null for numbers that it lacks. Numbers may be those of NumPy."""
    text = json.dumps(asdict(status), default=lambda number: number.item())
    return json.dumps(json.loads(text, parse_constant=lambda _: None))


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Within the body, a name by which sockets can be bound or reached: their names have at most 107 bytes."""
    if len(os.fsencode(path)) < 100 or not Path("/proc/self/fd").is_dir():
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _unix_listener(path: Path) -> socket.socket:
    """Return a socket that only its owner can connect to, in place of one that was left."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        with short_name(path) as name:
            listening.bind(name)
            os.chmod(name, 0o600)  # noqa: PTH101 - before it listens, so no connection is early
        listening.listen(AT_ONCE)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise EfhcError(f"{path} cannot be made ({error.strerror or error})") from error
    return listening


def _loopback_listener(port: int) -> socket.socket:
    try:
        listening = socket.create_server(("127.0.0.1", port), backlog=AT_ONCE)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise EfhcError(f"metrics.port: port {port} cannot be used ({reason}); choose another, or 0 for any") from error
    listening.setblocking(False)
    return listening
