"""A network of our own on one machine: a namespace per device, joined by a bridge, with rates.

Each device has one interface, `eth0`, whose other end is a port of a bridge in a namespace of its own; nothing is added
to the machine's own network. A rate is a token bucket (`tbf`) at the sending end, so a device shares its uplink among
all its neighbours. Needs root and iproute2. Namespaces of a killed process are removed by the next one.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from efhc.base.errors import EfhcError

PREFIX = "efhc"
_NAME = re.compile(rf"{PREFIX}-(?P<process>[0-9]+)-[0-9a-f]{{4}}-(?P<which>[0-9]+|bridge)")
_MTU = 1500
_FRAME = _MTU + 14


class Namespaces:
    """Devices with a network of their own, for as long as the context lasts.

    Raises `EfhcError` without root or without iproute2.
    """

    def __init__(self, devices: Iterable[int], rates: Mapping[int, float] | None = None) -> None:
        """`rates` gives the uplink of a device in bits per second. Default: as fast as the machine is."""
        self.devices = sorted(devices)
        self._rates = dict(rates or {})
        self._name = f"{PREFIX}-{os.getpid()}-{secrets.token_hex(2)}"
        self.bridge_name = f"{self._name}-bridge"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        require_namespaces()
        remove_leftovers()
        with ExitStack() as stack:
            self._add_namespace(self.bridge_name, stack)
            run(f"ip -n {self.bridge_name} link add bridge type bridge stp_state 0 mcast_snooping 0")
            run(f"ip -n {self.bridge_name} link set bridge up")
            for device in self.devices:
                self._add_device(device, stack)
            for device, rate in self._rates.items():
                self.limit(device, rate)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _add_namespace(self, name: str, stack: ExitStack) -> None:
        run(f"ip netns add {name}")
        stack.callback(_remove, name)
        run(f"ip -n {name} link set lo up")

    def _add_device(self, device: int, stack: ExitStack) -> None:
        name, bridge_name, port = self.name(device), self.bridge_name, port_of(device)
        # The hardware address is locally administered, and the same in each run.
        hardware = f"02:ef:00:00:{device >> 8:02x}:{device & 255:02x}"
        self._add_namespace(name, stack)
        run(f"ip -n {bridge_name} link add {port} type veth peer name eth0 address {hardware} netns {name}")
        # No IPv6: its announcements would take their share of a slow link.
        run(f"ip -n {bridge_name} link set {port} addrgenmode none master bridge up")
        run(f"ip -n {name} link set eth0 addrgenmode none up")
        # A packet of several segments that is larger than a new limit's burst would block the queue for good.
        run(f"ip -n {bridge_name} link set {port} gso_max_segs 1")
        run(f"ip -n {name} link set eth0 gso_max_segs 1")
        run(f"ip -n {name} address add {self.address(device)}/16 dev eth0")
        # The bridge knows where each address is, and drops what goes to no device.
        run(f"ip -n {bridge_name} link set {port} type bridge_slave flood off")
        run(f"bridge -n {bridge_name} fdb replace {hardware} dev {port} master static")

    def name(self, device: int) -> str:
        """The name of a device's namespace."""
        return f"{self._name}-{device}"

    def address(self, device: int) -> str:
        """The IPv4 address of a device, which means something within these namespaces only."""
        high, low = divmod(device + 1, 256)
        return f"10.214.{high}.{low}"

    def command(self, device: int, *arguments: str) -> list[str]:
        """A command that runs `arguments` on a device. It keeps its process id, so signals reach it."""
        return [_program("ip"), "netns", "exec", self.name(device), *arguments]

    def limit(self, device: int, rate: float | None, *, down: float | None = None) -> None:
        """Limit what a device sends to `rate` bits per second, and what it receives to `down`. None: no limit.

        The queue of the link holds a quarter of a second, but at least ten packets. Limits may change at any time.
        """
        ends = (self.name(device), "eth0", rate), (self.bridge_name, port_of(device), down)
        for namespace, interface, bits_per_second in ends:
            if bits_per_second is None:
                with suppress(EfhcError):  # there was no limit
                    run(f"tc -n {namespace} qdisc delete dev {interface} root")
                continue
            bytes_per_second = bits_per_second / 8
            burst, queue = max(2 * _FRAME, bytes_per_second / 100), max(10 * _FRAME, bytes_per_second / 4)
            limits = f"rate {bits_per_second:.0f}bit burst {burst:.0f}b limit {queue:.0f}b"
            run(f"tc -n {namespace} qdisc replace dev {interface} root tbf {limits}")


def require_namespaces() -> None:
    """Raise `EfhcError` if this process cannot make network namespaces."""
    if os.geteuid() != 0:
        raise EfhcError("network namespaces need root: start the command as root, or leave --netns out")
    for name in ("ip", "tc", "bridge"):
        _program(name)


def remove_leftovers() -> None:
    """Remove the namespaces of processes that are no longer there."""
    known = Path("/run/netns")
    for path in known.iterdir() if known.is_dir() else ():
        name = _NAME.fullmatch(path.name)
        if name is not None and not Path("/proc", name["process"]).exists():
            _remove(path.name)


def _remove(name: str) -> None:
    with suppress(EfhcError):  # another process has removed it
        run(f"ip netns delete {name}")


def port_of(device: int) -> str:
    """Return the name of the bridge's port to a device."""
    return f"port{device}"


def run(command: str) -> None:
    """Run a command of iproute2. Raises `EfhcError` if it fails."""
    program, *words = command.split()
    done = subprocess.run([_program(program), *words], capture_output=True, text=True, check=False, timeout=30)
    if done.returncode != 0:
        raise EfhcError(f"`{command}` failed ({done.stderr.strip() or done.returncode})")


def _program(name: str) -> str:
    places = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    found = shutil.which(name, path=places)
    if found is None:
        raise EfhcError(f"network namespaces need the program `{name}` of iproute2, which is not installed")
    return found
