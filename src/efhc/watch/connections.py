"""Limits on connections: a client that opens many and sends half a request on each must not lock others out."""

from __future__ import annotations

import asyncio
from typing import Any

from efhc.base.extras import importing

with importing("watch"):
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 5.0
"""How long a connection may take to send a whole request."""
MOST_CONNECTIONS = 200


class PromptProtocol(H11Protocol):
    """Closes connections that have not sent a whole request in time or, when there are too many, the oldest of them."""

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
