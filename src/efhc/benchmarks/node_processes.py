"""Real nodes for the bench: node files, processes, what they say of themselves and what the system says of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomli_w

from efhc.base.errors import EfhcError
from efhc.experiments.nodes.processes import ONE_THREAD, free_ports
from efhc.experiments.nodes.status_query import ask
from efhc.runtime.pages import SOCKET_NAME
from efhc.runtime.security import authority_files, device_files

FREED_IS_FREE = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""glibc then returns every model to the system when it is freed, instead of keeping those below 32 MiB for later."""
PATIENCE = 180.0
"""Seconds within which a process must be where it is waited for."""


class Process:
    """A process of the bench, with one thread for arithmetic; leaving the context kills it."""

    def __init__(self, command: Sequence[str], output: Path, cores: Sequence[int] = ()) -> None:
        """`output` gets what the process prints. If `cores` are given, it keeps to them, on Linux."""
        self._command, self._output, self._cores = command, output, cores

    def __enter__(self) -> Self:
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, *self._command],
                env=os.environ | ONE_THREAD | FREED_IS_FREE,
                stdout=output,
                stderr=output,
            )
        if self._cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self._process.pid, self._cores)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()  # a bench keeps nothing of it
        self._process.wait()

    def printed(self) -> str:
        """Return what the process has printed so far. Raises `EfhcError` if it has ended."""
        text = self._output.read_text(errors="replace")
        if self._process.poll() is not None:
            raise EfhcError(f"a process of the bench ended: {''.join(text.strip().splitlines()[-1:]) or 'no word'}")
        return text

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used, all threads."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_memory(self, seconds: float) -> int:
        """Return the most bytes that the process holds in memory within the next `seconds`."""
        folder = Path(f"/proc/{self._process.pid}")
        (folder / "clear_refs").write_text("5")  # Linux: the peak counts from now on
        time.sleep(seconds)
        self.printed()  # it must still be there
        (kibibytes,) = re.findall(r"VmHWM:\s+(\d+) kB", (folder / "status").read_text())
        return 1024 * int(kibibytes)


class NodeProcess(Process):
    """A running `efhc node`."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], cores: Sequence[int] = ()) -> None:
        """`folder` gets the node file and the state."""
        folder.mkdir(parents=True)
        self.file, self._state = folder / "node.toml", folder / "state"
        self.file.write_text(tomli_w.dumps({**settings, "state": str(self._state)}))
        super().__init__(["-m", "efhc", "node", str(self.file)], folder / "output.txt", cores)

    def status(self) -> dict[str, Any]:
        """Return what the node says of itself. Raises `EfhcError` if it does not answer."""
        self.printed()
        answer = ask(self._state / SOCKET_NAME)
        if answer.status is None:
            raise EfhcError(f"the node of the bench in {answer.place}: {answer.problem}")
        return answer.status

    def wait_until(self, is_there: Callable[[dict[str, Any]], bool], what: str) -> None:
        """Wait until `is_there` holds for the status. Raises `EfhcError` if it never does."""

        def holds() -> bool:
            self.printed()
            status = ask(self._state / SOCKET_NAME).status  # None: it has only just been started
            return status is not None and is_there(status)

        wait_until(holds, f"the node of the bench is not {what}")


def wait_until(holds: Callable[[], bool], otherwise: str) -> None:
    """Wait until something holds. Raises `EfhcError` if it does not within `PATIENCE` seconds."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise EfhcError(f"{otherwise} after {PATIENCE:g} s")
        time.sleep(0.1)


def star(
    experiment: Path, certificates: Path, neighbours: int, centre: Mapping[str, Any], others: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return node files: that of device 0, and those of its `neighbours` neighbours, which know nobody else.

    `centre` and `others` are further settings of device 0 and of its neighbours.
    """
    addresses = {device: f"127.0.0.1:{port}" for device, port in enumerate(free_ports(neighbours), 1)}
    listed = [{"device": device, "address": address} for device, address in addresses.items()]
    files = [_node(experiment, certificates, 0, listed) | dict(centre)]
    for device, address in addresses.items():
        files.append(_node(experiment, certificates, device, [{"device": 0}]) | {"listen": address} | dict(others))
    return files


def _node(experiment: Path, certificates: Path, device: int, neighbours: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    files = device_files(certificates, device)
    authority = authority_files(certificates).certificate
    tls = {"authority": authority, "certificate": files.certificate, "key": files.key}
    return {
        "experiment": str(experiment),
        "device": device,
        "neighbours": list(neighbours),
        "tls": {name: str(path) for name, path in tls.items()},
    }
