"""Node processes of this machine: one per device, each with a folder for its node file, its state and its log."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from efhc.base.errors import EfhcError
from efhc.experiments.nodes.status_query import Answer, query_each
from efhc.runtime.pages import SOCKET_NAME

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS"), "1"
)
"""At most one core per device: many devices share this machine."""
LAST_SECONDS = 15.0
"""Seconds after `stop_seconds` after which a node that does not stop is killed."""

Command = Callable[..., Sequence[str]]
"""Turns a device and the words of its command into a command that runs where the device belongs, such as a network
namespace."""


class NodeFailed(EfhcError):
    """Raised when a node has ended with an error. The text is the line of the node."""


class NodeProcesses:
    """The processes of all devices. They end with the context at the latest."""

    def __init__(self, folders: Sequence[Path], command: Command = lambda device, *words: words) -> None:
        """Folder i holds `node.toml` and `state` of device i."""
        self._folders, self._command = folders, command
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        environment = os.environ | ONE_THREAD
        try:
            for device, folder in enumerate(self._folders):
                words = [*_until_parent_ends(), sys.executable, "-P", "-m", "efhc", "node", str(folder / "node.toml")]
                with (folder / "log.jsonl").open("ab") as log:
                    # A session of its own: Ctrl-C reaches this process alone, which then stops the nodes in order.
                    process = subprocess.Popen(
                        self._command(device, *words),
                        stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
                    )  # fmt: skip
                self._processes.append(process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for device in self.running:
            self._processes[device].kill()
        for process in self._processes:
            process.wait()

    def statuses(self) -> list[Answer]:
        """Return the status of all nodes."""
        return query_each(folder / "state" / SOCKET_NAME for folder in self._folders)

    @property
    def running(self) -> list[int]:
        """The devices whose processes have not ended."""
        return [device for device, process in enumerate(self._processes) if process.poll() is None]

    def check(self) -> None:
        """Raise `NodeFailed` if a node has ended with an error."""
        if all(process.poll() in (None, 0) for process in self._processes):
            return
        time.sleep(0.5)  # the others end too, and their lines name the cause
        codes = {device: process.poll() for device, process in enumerate(self._processes)}
        lines = {device: self._last_line(device, code) for device, code in codes.items() if code}
        # The line of the node that failed explains more than the lines of its neighbours.
        device = min(lines, key=lambda device: lines[device].startswith("device "))
        raise NodeFailed(f"device {device}: {lines[device]}; its log is {self._folders[device] / 'log.jsonl'}")

    def _last_line(self, device: int, code: int) -> str:
        """Return the last line of a node's log that is not JSON: the one for people."""
        if code < 0:
            return f"it was ended by {signal.Signals(-code).name}"
        with suppress(OSError):
            for line in reversed((self._folders[device] / "log.jsonl").read_text(errors="replace").splitlines()):
                if line.strip() and not line.startswith("{"):
                    return line.removeprefix("efhc: ").strip()
        return f"it ended with exit code {code}"

    def stop(self, seconds: float) -> None:
        """Ask all nodes to stop, and wait for them. A node that does not stop in time is killed.

        Raises `NodeFailed` if one ended with an error or had to be killed.
        """
        for device in self.running:
            self._processes[device].send_signal(signal.SIGTERM)
        end = time.monotonic() + seconds + LAST_SECONDS
        while self.running and time.monotonic() < end:
            time.sleep(0.05)
        if late := self.running:
            for device in late:
                self._processes[device].kill()
            raise NodeFailed(f"device {late[0]} did not stop within {seconds + LAST_SECONDS:g} s and was killed")
        self.check()


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that are free now."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(server.getsockname()[1]) for server in servers]


def _until_parent_ends() -> list[str]:
    """Return what makes a command stop when this process is killed, where the system can do that."""
    program = shutil.which("setpriv")
    return [] if program is None else [program, "--pdeathsig", "TERM", "--"]
