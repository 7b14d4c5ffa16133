"""One node as a process: signals, the pages that tell how it is, and the mode that does the work."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from efhc.base.errors import EfhcError
from efhc.runtime.logs import Log
from efhc.runtime.mode import Mode
from efhc.runtime.node_settings import Metrics, Neighbour
from efhc.runtime.pages import SOCKET_NAME, Pages
from efhc.runtime.security import Security
from efhc.runtime.sockets import SocketTransport
from efhc.runtime.status import NodeStatus


async def run_until_stopped(
    mode: Mode,
    transport: SocketTransport,
    state: Path,
    metrics: Metrics,
    read_neighbours: Callable[[], Sequence[Neighbour]],
    log: Log,
    security: Security | None = None,
) -> None:
    """Run a node until it is done, or until SIGTERM or SIGINT. A second signal ends it at once, as kill -9 would.

    SIGHUP reads the neighbours anew, and the certificate.
    """
    loop, began = asyncio.get_running_loop(), time.monotonic()

    def stop(number: int) -> None:
        log("stopping", signal=signal.Signals(number).name)
        mode.stop()
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(one, os._exit, 128 + one)

    def note_bug(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What nobody caught: sockets fail in many ways, but anything else is a bug, and the state may be wrong."""
        error = context.get("exception")
        if error is None or isinstance(error, OSError):
            log("network", level="debug", what=str(error or context.get("message")))
            return
        log("failed" if isinstance(error, EfhcError) else "bug", level="error", what=repr(error))
        uncaught.append(error)
        mode.stop()

    def read_anew() -> None:
        if security is not None:
            security.refresh()
        try:
            neighbours = read_neighbours()
            mode.allow(neighbours)
        except EfhcError as error:  # the table of before stays
            log("neighbours not read", level="error", reason=str(error))
            return
        transport.allow(neighbours)
        log("neighbours", devices=[neighbour.device for neighbour in neighbours])

    def status() -> NodeStatus:
        now = mode.status()
        now.uptime = time.monotonic() - began
        now.certificate_expires = security.expires if security is not None else None
        return now

    async def read_anew_when_asked() -> None:
        await mode.begun.wait()  # what comes before is not forgotten
        while True:
            await asked.wait()
            asked.clear()
            read_anew()

    asked = asyncio.Event()
    uncaught: list[BaseException] = []
    loop.set_exception_handler(note_bug)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGHUP, asked.set)
    reading = asyncio.create_task(read_anew_when_asked())
    async with Pages(status, state / SOCKET_NAME, metrics.port) as pages:
        log("starting", pid=os.getpid(), state=str(state), metrics_port=pages.port)
        await mode.run(transport)
    reading.cancel()
    log.close()
    if uncaught:
        raise uncaught[0]
