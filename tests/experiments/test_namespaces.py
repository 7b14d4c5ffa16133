"""Namespaces with real sockets in them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from faulty_network import FaultyNetwork

from efhc.base.errors import EfhcError
from efhc.experiments.nodes.namespaces import port_of, remove_leftovers

if os.geteuid() != 0:
    pytest.skip("network namespaces need root", allow_module_level=True)

ECHO = """
import socket, sys
listening = socket.create_server((sys.argv[1], 7700))
listening.settimeout(30)
print("listening", flush=True)
connection = listening.accept()[0]
connection.settimeout(30)
while data := connection.recv(1 << 16):
    print(len(data), flush=True)
"""

SEND = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 7700), timeout=60)
connection.sendall(bytes(int(sys.argv[2])))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
"""

PING = """
import socket, sys
there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
there.settimeout(0.3)
there.connect((sys.argv[1], 7701))
answers = 0
try:
    for _ in range(3):
        there.send(b"ping")
    for _ in range(3):
        answers += there.recv(9) == b"ping"
except OSError:
    pass
print(answers)
"""

PONG = """
import socket, sys
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.bind((sys.argv[1], 7701))
here.settimeout(60)
print("bound", flush=True)
while True:
    here.sendto(*here.recvfrom(9))
"""


def run(network: FaultyNetwork, device: int, program: str, *arguments: str) -> str:
    command = network.command(device, sys.executable, "-c", program, *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@contextmanager
def running(network: FaultyNetwork, device: int, program: str) -> Iterator[subprocess.Popen[str]]:
    """A program on a device, once it has said its first line."""
    command = network.command(device, sys.executable, "-c", program, network.address(device))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def answers(network: FaultyNetwork, device: int, other: int) -> int:
    """How many of three packets to another device are answered."""
    return int(run(network, device, PING, network.address(other)))


def names() -> set[str]:
    return {path.name for path in Path("/run/netns").glob(f"efhc-{os.getpid()}-*")}


def test_devices_reach_one_another_and_nobody_else():
    before = names()
    interfaces = set(socket.if_nameindex())
    with FaultyNetwork([0, 1, 300]) as network, running(network, 300, PONG), running(network, 1, PONG):
        assert answers(network, 0, 300) == answers(network, 300, 1) == 3
        assert len(names() - before) == 4
        assert set(socket.if_nameindex()) == interfaces, "nothing is added to the machine's own network"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outside, suppress(OSError):
            outside.settimeout(0.3)
            outside.sendto(b"ping", (network.address(1), 7701))
            assert not outside.recv(9)
    assert names() == before


def test_each_cut_is_a_cut_and_heals():
    with FaultyNetwork([0, 1, 2]) as network, running(network, 1, PONG), running(network, 2, PONG):
        carrier = network.command(1, "cat", "/sys/class/net/eth0/carrier")
        for fault, seen in (("carrier", "0"), ("silent", "1")):
            assert answers(network, 0, 1) == 3
            network.cut(1, fault)
            assert answers(network, 0, 1) == answers(network, 1, 2) == 0
            assert answers(network, 0, 2) == 3, "others are not concerned"
            assert subprocess.run(carrier, capture_output=True, text=True, check=True).stdout.strip() == seen
            network.heal(1)
            assert answers(network, 0, 1) == 3
        network.cut_link(0, 1)
        assert answers(network, 0, 1) == 0
        assert answers(network, 0, 2) == answers(network, 2, 1) == 3
        network.heal_link(1, 0)
        assert answers(network, 0, 1) == 3
        network.heal_link(0, 1)  # harmless
        network.cut_link(1, 0, one_way=True)
        assert answers(network, 0, 1) == 0, "the question arrives, the answer does not"
        assert answers(network, 1, 2) == 3
        network.heal_link(1, 0)
        assert answers(network, 0, 1) == 3


def test_a_rate_is_that_of_the_uplink_and_may_change():
    def limits() -> list[str]:
        """The rates of what device 0 sends and receives, as the kernel shows them."""
        places = (network.name(0), "eth0"), (network.bridge_name, port_of(0))
        shown = [
            subprocess.check_output(["tc", "-n", name, "qdisc", "show", "dev", at], text=True) for name, at in places
        ]
        return [(re.findall(r"tbf .* rate (\S+)", text) or ["none"])[0] for text in shown]

    with FaultyNetwork([0, 1], rates={0: 8e6}) as network:
        assert limits() == ["8Mbit", "none"]
        with running(network, 1, ECHO):
            run(network, 0, SEND, network.address(1), "1000000")  # it arrives
        network.limit(0, 16e6)
        assert limits() == ["16Mbit", "none"]
        network.limit(0, None, down=8e6)
        assert limits() == ["none", "8Mbit"]


def test_signals_reach_what_runs_on_a_device():
    with FaultyNetwork([0]) as network, running(network, 0, PONG) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


def test_what_a_killed_process_left_is_removed():
    program = (
        "import sys, time; sys.path[:0] = sys.argv[1:]; from efhc.experiments.nodes.namespaces import Namespaces\n"
    )
    program += "with Namespaces([0, 1]): print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        left = [*Path("/run/netns").glob(f"efhc-{process.pid}-*")]
        assert len(left) == 3
        remove_leftovers()
        assert all(path.exists() for path in left), "it still runs"
        process.kill()
    remove_leftovers()
    assert not any(path.exists() for path in left)


def test_a_failure_within_leaves_nothing():
    before = names()
    with pytest.raises(EfhcError, match=r"`tc .*` failed \("), FaultyNetwork([0], rates={0: -1.0}):
        pass
    assert names() == before


@pytest.mark.parametrize(
    ("patched", "replacement", "said"),
    [("os.geteuid", lambda: 1000, "need root"), ("shutil.which", lambda *given, **options: None, "iproute2")],
)
def test_without_root_or_iproute2_it_is_said(monkeypatch: pytest.MonkeyPatch, patched: str, replacement, said: str):
    monkeypatch.setattr(patched, replacement)
    with pytest.raises(EfhcError, match=said), FaultyNetwork([0]):
        pass
