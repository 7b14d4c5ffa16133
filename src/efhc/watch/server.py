"""The server of the page: a fixed list of addresses, and ids that are looked up. No request names a file."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from threading import Thread
from typing import Any, Self, TypeVar

from efhc.base.errors import EfhcError, InputError
from efhc.base.extras import importing
from efhc.report.plain_json import to_json
from efhc.watch.guards import NONCE, GuardMiddleware, Guards, choose_token
from efhc.watch.stream import Changes, as_text
from efhc.watch.watcher import Watcher

with importing("watch"):
    import h11
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]

PORT, TRIED_PORTS = 8787, 50
"""The port to listen on unless one is given, and how many after it are tried if it is in use."""
POLL_SECONDS, COMMENT_SECONDS = 0.25, 10.0
"""Time between two checks for changes, and between two comments when nothing changes."""
MOST_STREAMS = 32
REQUEST_SECONDS = 5.0
"""How long a connection may take to send a whole request."""
MOST_CONNECTIONS = 200


class Page:
    """Answers the requests of the page."""

    def __init__(self, watcher: Watcher, guards: Guards) -> None:
        self._watcher, self._guards = watcher, guards
        self.streams = 0
        """The number of streams that are open."""
        self.is_closing = False
        """Whether streams are to end."""

    def application(self) -> Any:
        """Return the application: these routes, and nothing else."""
        from efhc.report.page.document import files

        self._files = files()
        watcher = self._watcher
        save_metrics, save_config = _to_save("metrics.csv", "text/csv"), _to_save("config.toml", "application/toml")
        routes = [
            Route("/", self._page),
            Route("/static/{name}", self._static),
            Route("/api/tree", self._data(lambda _: watcher.tree, _json)),
            Route("/api/groups/{id}/curves", self._data(watcher.curves, _json)),
            Route("/api/runs/{id}", self._data(watcher.detail, _json)),
            Route("/api/runs/{id}/metrics.csv", self._data(watcher.metrics_csv, save_metrics)),
            Route("/api/runs/{id}/config.toml", self._data(watcher.config, save_config)),
            Route("/api/stream", self._stream),
        ]
        app = Starlette(routes=routes)
        app.router.redirect_slashes = False
        return GuardMiddleware(app, self._guards)

    async def _page(self, request: Request) -> Response:
        from efhc.report.page.document import live_html

        if self._guards.is_token(request.query_params.get("token", "")):
            # The page leads on by itself: a redirect of a link on another site would come without the cookie.
            # Without an icon of its own, a browser would request /favicon.ico, which is not there.
            leads_on = '<meta http-equiv="refresh" content="0; url=/"><link rel="icon" href="data:,">'
            answer = HTMLResponse(f"<!doctype html>{leads_on}<title>efhc</title>")
            answer.headers["Set-Cookie"] = self._guards.set_cookie()
            return answer
        return HTMLResponse(live_html(request.scope[NONCE]))

    async def _static(self, request: Request) -> Response:
        found = self._files.get(request.path_params["name"])
        return _missing() if found is None else Response(found[1], media_type=found[0])

    def _data(self, read: Callable[[str], T | None], show: Callable[[T], Response]) -> Endpoint:
        """Return an endpoint that answers with what `read` returns for an id; it is read in a thread of its own."""

        def answer(id_: str) -> Response:
            self._watcher.refresh()
            try:
                found = read(id_)
            except EfhcError:  # moved or deleted since it was found: scan once more
                self._watcher.scan_now()
                found = read(id_)
            return _missing() if found is None else show(found)

        async def endpoint(request: Request) -> Response:
            try:
                return await run_in_threadpool(answer, request.path_params.get("id", ""))
            except EfhcError as error:
                return PlainTextResponse(f"{error}\n".encode("utf-8", "replace"), 410)

        return endpoint

    async def _stream(self, request: Request) -> Response:
        if self.streams >= MOST_STREAMS:
            text = f"{MOST_STREAMS} pages are open already; close one\n"
            return PlainTextResponse(text, 503, {"Retry-After": "5"})
        changes = Changes(self._watcher, request.query_params.get("group"), request.query_params.get("run"))
        return _Counted(self, self._events(changes))

    async def _events(self, changes: Changes) -> AsyncIterator[str]:
        yield "retry: 1000\n\n"
        sent = time.monotonic()
        while not self.is_closing:
            async for event in iterate_in_threadpool(changes.next()):
                yield as_text(event)
                sent = time.monotonic()
            if time.monotonic() - sent > COMMENT_SECONDS:
                yield ": nothing new\n\n"
                sent = time.monotonic()
            await asyncio.sleep(POLL_SECONDS)


class _Counted(StreamingResponse):
    """A stream that counts as long as it is open, however it ends."""

    def __init__(self, page: Page, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._page.streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._page.streams -= 1


def _missing() -> Response:
    return PlainTextResponse("there is nothing here\n", 404)


def _json(data: Any) -> Response:
    return Response(to_json(data), media_type="application/json")


def _to_save(name: str, kind: str) -> Callable[[str], Response]:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return lambda text: Response(text, media_type=kind, headers=headers)


class PromptProtocol(H11Protocol):
    """Closes connections that have not sent a whole request in time or, when there are too many, the oldest of them.

    So a client that opens many and sends half a request on each does not lock others out.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        """Runs while a request is awaited, since the connection was made or the first byte of a further request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        waiting = [one for one in self.connections if isinstance(one, PromptProtocol) and one._timer is not None]
        if len(self.connections) >= MOST_CONNECTIONS - 1 and waiting:
            min(waiting, key=PromptProtocol._closes_at)._give_way()
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _give_way(self) -> None:
        """Close at once and free the place: the event loop calls `connection_lost` only later."""
        self._stop_waiting()
        self.connections.discard(self)
        self.transport.abort()

    def _closes_at(self) -> float:
        return self._timer.when() if self._timer is not None else float("inf")

    def _wait(self) -> None:
        if self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Server:
    """The server of one page, in a thread of its own. Use it as a context."""

    def __init__(
        self, watcher: Watcher, *, host: str = "127.0.0.1", port: int | None = None, token: str | None = None
    ) -> None:
        """Listen at once. Raises `InputError` if the address, the port or the token cannot be used."""
        host = host.removeprefix("[").removesuffix("]")  # of an IPv6 address, as in a URL
        self.token = choose_token(host, token)
        self._socket = _listening(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._page = Page(watcher, Guards(host, self.port, self.token))
        config = uvicorn.Config(
            self._page.application(),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            http=PromptProtocol,
            ws="none",
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=2,
            proxy_headers=False,
        )
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._server.run, args=([self._socket],), name="efhc-watch", daemon=True)

    @property
    def address(self) -> str:
        """Where a browser finds the page, with the token if there is one."""
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self.host, self.host)
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._page.is_closing = True
        self._server.should_exit = True
        self._thread.join(timeout=5)
        self._socket.close()

    def wait(self) -> None:
        """Wait until the thread ends: for ever, or until the user interrupts."""
        while self._thread.is_alive():
            self._thread.join(timeout=0.5)


def _listening(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens. A port that was not given is the first free one."""
    for one in [port] if port is not None else [*range(PORT, PORT + TRIED_PORTS), 0]:
        try:
            family, *_, address = socket.getaddrinfo(host, one, type=socket.SOCK_STREAM)[0]
            is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
            return socket.create_server(address, family=family, backlog=128, dualstack_ipv6=is_dual)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port is None:
                continue
            if error.errno == errno.EADDRINUSE:
                allowed = "a port that is free, or no --port for the next free one"
                raise InputError("--port", f"{one}, which is in use", allowed) from None
            if error.errno == errno.EACCES:
                raise InputError("--port", f"{one}, which only root may use", "a port from 1024 on") from None
            allowed = "an address of this machine, such as 127.0.0.1"
            raise InputError("--host", f"{host} ({error.strerror or error})", allowed) from None
    raise EfhcError(f"no port of {host} is free")
