"""Node processes of this machine: one per device, each with a folder for its node file, its state and its log."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, Self

from efhc.base.errors import EfhcError
from efhc.experiments.nodes.status_query import Answer, ask
from efhc.runtime.pages import SOCKET_NAME

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS"), "1"
)
"""Each device uses at most one core, because many devices share this machine."""
LAST_SECONDS = 15.0
"""Seconds after `stop_seconds` after which a node that does not stop is killed."""

Command = Callable[[int, Sequence[str]], Sequence[str]]
"""Turns the command of a device into one that runs it where it belongs, such as a network namespace."""


class NodeFailed(EfhcError):
    """Raised when a node has ended with an error. The text is the line of the node."""


class NodeProcesses:
    """The processes of all devices. They end with the context at the latest."""

    def __init__(self, folders: Sequence[Path], command: Command = lambda device, words: words) -> None:
        """Folder i holds `node.toml` and `state` of device i."""
        self._folders, self._command = folders, command
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[BinaryIO] = []
        self._asking = ThreadPoolExecutor(max_workers=8, thread_name_prefix="efhc-ask")

    def __enter__(self) -> Self:
        environment = os.environ | ONE_THREAD
        try:
            for device, folder in enumerate(self._folders):
                words = [*_until_parent_ends(), sys.executable, "-P", "-m", "efhc", "node", str(folder / "node.toml")]
                log = (folder / "log.jsonl").open("ab")
                self._logs.append(log)
                # A session of its own: Ctrl-C reaches this process alone, which then stops the nodes in an orderly way.
                process = subprocess.Popen(
                    self._command(device, words),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
                )  # fmt: skip
                self._processes.append(process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()
        for log in self._logs:
            log.close()
        self._asking.shutdown()

    def statuses(self) -> list[Answer]:
        """Return the status of all nodes."""
        return list(self._asking.map(ask, [folder / "state" / SOCKET_NAME for folder in self._folders]))

    @property
    def running(self) -> list[int]:
        """The devices whose processes have not ended."""
        return [device for device, process in enumerate(self._processes) if process.poll() is None]

    def check(self) -> None:
        """Raise `NodeFailed` if a node has ended with an error."""
        failed = [device for device, process in enumerate(self._processes) if process.poll() not in (None, 0)]
        if not failed:
            return
        time.sleep(0.5)  # the others end too, and their lines name the cause
        lines = {device: self._last_line(device) for device in failed}
        # The line of the node that failed explains more than the lines of its neighbours.
        own = [device for device, line in lines.items() if not line.startswith("device ")]
        device = (own or failed)[0]
        raise NodeFailed(f"device {device}: {lines[device]}; its log is {self._folders[device] / 'log.jsonl'}")

    def _last_line(self, device: int) -> str:
        """Return the last line of a node's log that is no JSON: the one for people."""
        code = self._processes[device].poll() or 0
        if code < 0:
            return f"it was ended by {signal.Signals(-code).name}"
        with suppress(OSError):
            for line in reversed((self._folders[device] / "log.jsonl").read_text(errors="replace").splitlines()):
                if line.startswith("efhc: "):
                    return line.removeprefix("efhc: ")
                if not _is_json(line) and line.strip():
                    return line.strip()
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
    """Return ports of loopback on which nobody listens now."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(server.getsockname()[1]) for server in servers]


def _until_parent_ends() -> list[str]:
    """Return what makes a command stop when this process is killed, where the system can do that."""
    program = shutil.which("setpriv")
    return [] if program is None else [program, "--pdeathsig", "TERM", "--"]


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
