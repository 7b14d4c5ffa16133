"""Two processes that swap models, each sending while it receives: by the node's transport, or by plain asyncio and TLS.

`swap` starts both processes; each of them is this module, run with a task on its command line. What is timed begins
when the connection is up and ends when all models have come and the other end has them all, too.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from efhc.base.errors import EfhcError
from efhc.experiments.nodes.processes import free_ports
from efhc.runtime.logs import Log
from efhc.runtime.node_messages import Hello, IterationModel, Message
from efhc.runtime.node_settings import Address, Neighbour, Tls
from efhc.runtime.security import Security, authority_files, device_files, name_of
from efhc.runtime.sockets import SocketTransport
from efhc.runtime.status import NeighbourStatus
from efhc.runtime.wire import ModelFormat

OURS, PLAIN = "efhc", "plain TLS"
CHUNK = 1 << 18
"""Bytes that the plain side reads and writes at a time: what a node sends at a time at most."""
ITEM = np.dtype(np.float32).itemsize


class Task(NamedTuple):
    """What one of the two processes does."""

    side: str
    device: int
    """Device 0 listens, device 1 connects to it."""
    address: str
    """Where device 0 listens."""
    certificates: str
    """The folder with the certificates of both."""
    parameters: int
    models: int


class Swapped(NamedTuple):
    """What one end, or both together, needed."""

    seconds: float
    cpu_seconds: float
    """Of the whole process, all threads."""


def swap(
    side: str,
    megabytes: float,
    models: int,
    certificates: Path,
    host: str = "127.0.0.1",
    inside: Sequence[Sequence[str]] = ((), ()),
    timeout: float = 600.0,
) -> Swapped:
    """Let two processes swap `models` models of so many megabytes; returns the longer time, and the sum of CPU times.

    `certificates` is a folder with those of devices 0 and 1. Process i is started by the command `inside[i]`, which may
    take it into a network namespace, in which device 0 listens on `host`. Raises `EfhcError` if a process fails.
    """
    (port,) = free_ports(1)
    address = str(Address(host, port))
    parameters = round(1e6 * megabytes / ITEM)
    processes = [
        subprocess.Popen(
            [*inside[device], sys.executable, "-m", "benchmarks.swapping",
             json.dumps(Task(side, device, address, str(certificates), parameters, models))],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for device in (0, 1)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=timeout) for process in processes]
    except subprocess.TimeoutExpired:
        raise EfhcError(f"two processes did not swap their models within {timeout:g} s") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            raise EfhcError(f"a process that swaps models failed: {errors.strip().splitlines()[-1:]}")
    ends = [Swapped(*json.loads(output)) for output, _ in outputs]
    return Swapped(max(end.seconds for end in ends), sum(end.cpu_seconds for end in ends))


async def perform(task: Task) -> Swapped:
    """Do what one of the two processes does."""
    folder, listens = Path(task.certificates), task.device == 0
    files = device_files(folder, task.device)
    tls = Tls(authority=authority_files(folder).certificate, certificate=files.certificate, key=files.key)
    security = Security(tls, task.device, Log(task.device))
    model = np.random.default_rng(task.device).standard_normal(task.parameters, dtype=np.float32)
    if task.side == PLAIN:
        return await _swap_plainly(task, security, model)
    address = Address.of(task.address)
    models = ModelFormat(task.parameters, str(model.dtype))
    transport = SocketTransport(task.device, address if listens else None, security, models)
    neighbour = Neighbour(device=1 - task.device, address=None if listens else task.address)
    swapper = _Swapper(transport, model, task)
    await transport.start(swapper, [neighbour])  # type: ignore[arg-type] # it has the methods that are called
    await swapper.done.wait()
    if not await transport.drain(60.0):
        raise EfhcError("the other end did not acknowledge everything")
    swapped = swapper.clock.read()
    await transport.stop("done")
    return swapped


class _Clock:
    """What has passed since it was made."""

    def __init__(self) -> None:
        self._seconds, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> Swapped:
        return Swapped(time.perf_counter() - self._seconds, time.process_time() - self._cpu)


class _Swapper:
    """A listener that sends its models when the connection is up, and counts those that come."""

    def __init__(self, transport: SocketTransport, model: np.ndarray, task: Task) -> None:
        self._transport, self._model, self._task = transport, model, task
        self._received = 0
        self._status = NeighbourStatus(1 - task.device)
        self.clock = _Clock()
        self.done = asyncio.Event()

    def status_of(self, neighbour: int) -> NeighbourStatus:
        return self._status

    def hello_for(self, neighbour: int) -> Hello:
        return Hello(self._task.device, 1, {"what": "bench"}, 0)

    def connected(self, neighbour: int, theirs: Hello) -> None:
        self.clock = _Clock()
        for k in range(self._task.models):
            self._transport.send(neighbour, IterationModel(k, self._model))

    def received(self, neighbour: int, message: Message) -> None:
        self._received += isinstance(message, IterationModel)
        if self._received == self._task.models:
            self.done.set()

    def disconnected(self, neighbour: int, reason: str) -> None:
        """What the other end says when it is done."""

    def note_progress(self, neighbour: int) -> None:
        """Nobody here is impatient."""

    def refused(self, who: str, reason: str, neighbour: int | None = None, *, again: bool = False) -> None:
        """Whatever is refused makes the swap late, and its timeout tells."""

    def unreachable(self, neighbour: int, reason: str) -> None:
        """The other process has not begun to listen yet."""


async def _swap_plainly(task: Task, security: Security, model: np.ndarray) -> Swapped:
    """Swap as somebody would who has streams of asyncio and nothing else: no frames, no checksums, no credit."""
    address = Address.of(task.address)
    if task.device == 0:
        streams: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Future()
        accepted: Callable[..., Any] = lambda *pair: streams.set_result(pair)  # noqa: E731
        server = await asyncio.start_server(accepted, *address, ssl=security.server_context(), limit=CHUNK)
        async with server:
            return await _swap_on(*await streams, model, task.models)
    name = name_of(0)
    for _ in range(100):  # until the other process listens
        try:
            pair = await asyncio.open_connection(
                *address, ssl=security.client_context(), server_hostname=name, limit=CHUNK
            )
        except ConnectionRefusedError:
            await asyncio.sleep(0.1)
        else:
            return await _swap_on(*pair, model, task.models)
    raise EfhcError("the other process does not listen")


async def _swap_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, model: np.ndarray, models: int
) -> Swapped:
    clock = _Clock()

    async def send() -> None:
        content = memoryview(model.data).cast("B")
        for _ in range(models):
            for start in range(0, len(content), CHUNK):
                writer.write(content[start : start + CHUNK])
                await writer.drain()

    async def receive() -> None:
        for _ in range(models):
            content = memoryview(np.empty_like(model).data).cast("B")
            place = 0
            while place < len(content):
                part = await reader.read(min(CHUNK, len(content) - place))
                content[place : place + len(part)] = part
                place += len(part)
        writer.write(b".")  # I have all of yours

    await asyncio.gather(send(), receive())
    await reader.readexactly(1)
    swapped = clock.read()
    writer.close()
    return swapped


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(perform(Task(*json.loads(sys.argv[1]))))))
