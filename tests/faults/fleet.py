"""Real nodes, one process each, on a network of their own: started, asked, killed and audited.

Nothing here knows how a node works: it writes node files, starts `efhc node`, asks for its status and reads the state
folders that are left.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import tomli_w
from faulty_network import FaultyNetwork

from efhc.experiments.nodes.status_query import query_status
from efhc.runtime.certificates import issue, make_authority

PORT = 7700
CLASSES = 4
POLL = 0.05

TRIANGLE = [(0, 1), (0, 2), (1, 2)]
FAST, SLOW = 5e6, 1e6
"""Bits per second."""

LAWS = ("exchange", "half-steps", "paced half-steps")
STRATEGIES: dict[str, dict[str, Any]] = {
    "exchange": {"kind": "zt"},
    "half-steps": {
        "kind": "composed",
        "trigger": "always",
        "codec": "full",
        "mixing": "half-steps",
        "local": "corrected",
    },
    "paced half-steps": {"kind": "paced", "links": "all"},
}

Status = dict[str, Any]
_LIBC = ctypes.CDLL(None)


@contextmanager
def running(
    folder: Path, rates: Mapping[int, float] | int, links: Iterable[tuple[int, int]], **options: Any
) -> Iterator[Fleet]:
    """Start nodes on a network of their own, and wait until they are connected.

    `rates` are bits per second by device, or the number of devices whose uplinks have no limit.
    """
    devices, limits = (range(rates), None) if isinstance(rates, int) else (rates, rates)
    with FaultyNetwork(devices, limits) as network, Fleet(folder, network, links, **options) as fleet:
        fleet.start_and_connect()
        yield fleet


class Gone(Exception):
    """A node does not answer."""


def _die_with_the_parent() -> None:
    """In a new process: let the kernel kill it if the tests are killed."""
    _LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Fleet:
    """The nodes of one experiment."""

    PROGRAM = (sys.executable, "-m", "efhc", "node")

    def __init__(
        self,
        folder: Path,
        network: FaultyNetwork,
        links: Iterable[tuple[int, int]],
        *,
        model_bytes: int = 400_000,
        pace: float = 0.2,
        settings: Mapping[str, Any] | None = None,
        law: str = "exchange",
    ) -> None:
        """`settings` are keys of every node file beside those that the fleet knows; `law` is the link law."""
        self.folder, self.network, self.links = folder, network, list(links)
        self.devices = network.devices
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._certificates = folder / "certificates"
        make_authority(self._certificates)
        issue(self._certificates, self.devices)
        self._write_experiment(model_bytes, STRATEGIES[law])
        for device in self.devices:
            self.write_node(device, pace=pace, **(settings or {}))

    def _write_experiment(self, model_bytes: int, strategy: Mapping[str, Any]) -> None:
        """A linear model of about so many bytes, in float64: what the sum is off by is then rounding, or a fault."""
        features = max(1, model_bytes // (8 * CLASSES) - 1)
        samples, random = 8 * CLASSES * len(self.devices), np.random.default_rng(0)
        y = np.arange(samples) % CLASSES
        x = (random.standard_normal((samples, features)) / 10 + y[:, None] / 10).astype(np.float32)
        np.savez(self.folder / "data.npz", x_train=x, y_train=y, x_test=x[:CLASSES], y_test=y[:CLASSES])
        experiment = {
            "name": "faults",
            "devices": max(2, max(self.devices) + 1),
            "iterations": 1_000_000,
            "seeds": [0],
            "batch_size": 4,
            "precision": "float64",
            "data": {"kind": "npz", "path": str(self.folder / "data.npz")},
            "partition": {"kind": "iid"},
            "model": {"kind": "softmax"},
            "network": {"kind": "complete"},
            "step_size": {"kind": "constant", "value": 0.01},
            "strategies": {"S": strategy},
        }
        (self.folder / "experiment.toml").write_text(tomli_w.dumps(experiment))

    def neighbours_of(self, device: int) -> list[int]:
        return sorted({*[b for a, b in self.links if a == device], *[a for a, b in self.links if b == device]})

    def write_node(self, device: int, **settings: Any) -> None:
        """Write the node file of a device."""
        certificates = self._certificates
        node = {
            "experiment": str(self.folder / "experiment.toml"),
            "device": device,
            "listen": f"{self.network.address(device)}:{PORT}",
            "state": str(self.state(device)),
            "neighbours": [
                {"device": other, "address": f"{self.network.address(other)}:{PORT}"}
                for other in self.neighbours_of(device)
            ],
            "tls": {
                "authority": str(certificates / "authority.pem"),
                "certificate": str(certificates / f"device-{device}.pem"),
                "key": str(certificates / f"device-{device}.key"),
            },
            "record": {"gradients": True},
            "checkpoint_seconds": 5.0,
            **settings,
        }
        self.node_file(device).write_text(tomli_w.dumps(node))

    def node_file(self, device: int) -> Path:
        return self.folder / f"node-{device}.toml"

    def state(self, device: int) -> Path:
        return self.folder / f"state-{device}"

    def log(self, device: int) -> Path:
        return self.folder / f"node-{device}.log"

    # Processes

    def start(self, *devices: int) -> None:
        for device in devices or self.devices:
            program = [*self.PROGRAM, str(self.node_file(device))]
            with self.log(device).open("ab") as log:
                self._processes[device] = subprocess.Popen(
                    self.network.command(device, *program),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=_die_with_the_parent,  # noqa: PLW1509 - the tests have no threads
                )

    def signal(self, device: int, number: signal.Signals) -> None:
        self._processes[device].send_signal(number)

    def kill(self, device: int) -> None:
        """End a process as a power cut would."""
        self.signal(device, signal.SIGKILL)
        self._processes[device].wait(10)

    def stop(self, *devices: int, seconds: float = 40.0) -> None:
        """Ask nodes to stop; each must end with 0."""
        for device in devices or list(self._processes):
            self.signal(device, signal.SIGTERM)
        deadline = time.monotonic() + seconds
        for device in devices or list(self._processes):
            code = self._processes.pop(device).wait(max(0.1, deadline - time.monotonic()))
            assert code == 0, f"device {device} ended with {code}: {self.last_lines(device)}"

    def last_lines(self, device: int, number: int = 15) -> str:
        return "\n".join(self.log(device).read_text(errors="replace").splitlines()[-number:])

    def memory(self, device: int) -> float:
        """Resident megabytes of a node."""
        text = Path("/proc", str(self._processes[device].pid), "status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")) / 1024

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(10)
        if error is not None:
            for device in self.devices:
                if self.log(device).exists():
                    sys.stderr.write(f"--- device {device}\n{self.last_lines(device)}\n")

    # Questions

    def status(self, device: int) -> Status:
        """What a node says of itself. Raises `Gone` if it does not answer."""
        answer = query_status(self.state(device) / "status.sock")
        if answer.status is None:
            raise Gone(f"device {device}: {answer.problem}")
        return answer.status

    def neighbour(self, device: int, other: int) -> dict[str, Any]:
        """What a node says of one of its neighbours."""
        for one in self.status(device)["neighbours"]:
            if one["device"] == other:
                return dict(one)
        raise Gone(f"device {device} is starting")

    def connected(self, device: int, other: int) -> bool:
        return bool(self.neighbour(device, other)["connected"])

    def committed(self, device: int, other: int) -> int:
        return int(self.neighbour(device, other)["exchanges"]["committed"])

    def all_connected(self) -> bool:
        return all(self.connected(a, b) and self.connected(b, a) for a, b in self.links)

    def start_and_connect(self, seconds: float = 300.0) -> None:
        """Start all nodes. The first ones on a machine compile what training needs."""
        self.start()
        self.wait(self.all_connected, seconds, "all links are up")

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> float:
        """Wait until a condition holds; returns the seconds that it took. A node that is gone fulfils none."""
        start = time.monotonic()
        while True:
            try:
                if condition():
                    return time.monotonic() - start
            except Gone as gone:
                missing = str(gone)
            else:
                missing = ""
            if time.monotonic() - start > seconds:
                raise AssertionError(f"not within {seconds} s: {what} {missing}")
            self.assert_nobody_ended()
            time.sleep(POLL)

    def assert_nobody_ended(self) -> None:
        for device, process in self._processes.items():
            code = process.poll()
            assert code is None or code == -signal.SIGKILL, (
                f"device {device} ended with {code}: {self.last_lines(device)}"
            )

    def wait_for_exchange(self, one: int, other: int, seconds: float = 60.0) -> None:
        """Wait until both ends have committed an exchange that they had not committed before."""
        before = self.committed(one, other), self.committed(other, one)
        both = f"devices {one} and {other} exchange models"
        self.wait(
            lambda: self.committed(one, other) > before[0] and self.committed(other, one) > before[1], seconds, both
        )
