"""efhc certs, efhc node and efhc status as a user types them: real files, real processes, real signals."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from efhc.base.extras import EXTRAS, Extra
from efhc.cli.node import CAPTION
from efhc.experiments.nodes import status_query
from efhc.experiments.nodes.assemble import CannotRun
from efhc.experiments.nodes.node_files import read_node
from efhc.experiments.nodes.status_query import Answer, query_status
from efhc.runtime.status import NeighbourStatus, NodeStatus

EFHC = [sys.executable, "-m", "efhc"]
HALL = """\
name = "hall"
devices = 3
iterations = 100000
seeds = 0
network = "complete"

[strategies.EF-HC]
kind = "ef-hc"
r = 500.0
"""


@pytest.fixture
def hall(tmp_path: Path) -> Path:
    (tmp_path / "hall.toml").write_text(HALL)
    return tmp_path


# Certificates


def test_certificates_from_nothing(hall: Path, command: Callable[..., Any]):
    done = command("certs", "init")
    assert done.returncode == 0
    assert "certs/authority.pem: copy it to every device" in done.stdout
    done = command("certs", "issue", "--device", "0-2", "--device", "5,7", "--days", "30")
    assert done.returncode == 0
    assert [line.partition(",")[0] for line in done.stdout.splitlines()] == [
        f"certs/device-{device}.pem" for device in (0, 1, 2, 5, 7)
    ]
    done = command("certs", "show", "certs/device-5.pem", "certs/authority.pem")
    assert done.returncode == 0
    assert "name         device-5.efhc" in done.stdout
    assert "29 days left" in done.stdout
    assert "authority    CN=efhc authority " in done.stdout


def test_certificates_that_cannot_be_made(hall: Path, refused: Callable[..., str]):
    assert "make an authority with `efhc certs init --out certs`" in refused("certs", "issue", "--device", "3")
    assert "hall.toml" in refused("certs", "show", "hall.toml")
    for text in ("x", "-1", "1-", "3-1", "0-99999999", "٣", ""):
        assert "--device" in refused("certs", "issue", "--device", text)


def test_without_cryptography_certs_says_what_to_install(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(EXTRAS, "node", Extra("no_such_package", "cryptography", "certificates of nodes"))
    assert "install the extra [node]" in refused("certs", "init")


# Node files


def test_init_writes_a_file_and_says_what_to_do(hall: Path, command: Callable[..., Any], refused: Callable[..., str]):
    done = command("node", "init", "hall.toml", "--device", "2", "--neighbour", "0=127.0.0.1:1")
    assert done.returncode == 0
    assert "CHANGE" in done.stdout
    assert done.stdout.splitlines()[-1] == "  efhc node device-2.toml"
    assert "exists already" in refused("node", "init", "hall.toml", "--device", "2")
    done = command(
        "node", "init", "hall.toml", "--device", "1", "--neighbour", "0", "--neighbour", "2", "--out", "n.toml"
    )
    assert "CHANGE" not in done.stdout


def test_bad_node_files_are_one_line(hall: Path, refused: Callable[..., str], command: Callable[..., Any]):
    assert "nowhere.toml" in refused("node", "nowhere.toml")
    assert "`efhc node init hall.toml --device N`" in refused("node", "hall.toml")
    assert command("node", "init", "hall.toml", "--device", "0", "--listen", "127.0.0.1:7700").returncode == 0
    assert "tls.authority" in refused("node", "device-0.toml")
    assert "--insecure" in refused("node", "--insecure", "device-0.toml")
    assert "did you mean 'pace'" in refused("node", "device-0.toml", "pcae=3")
    assert "change it in the experiment's file" in refused("node", "device-0.toml", "iterations=5")


def test_of_several_strategies_and_seeds_init_says_which_it_takes(
    hall: Path, command: Callable[..., Any], refused: Callable[..., str]
):
    text = HALL.replace("seeds = 0", "seeds = [4, 5]") + '[strategies.ZT]\nkind = "zt"\n'
    (hall / "hall.toml").write_text(text)
    init = "node", "init", "hall.toml", "--device"
    assert "strategy EF-HC (of EF-HC, ZT), seed 4 (of 4, 5)" in command(*init, "0").stdout
    assert command(*init, "1", "strategy=ZT", "seed=5").returncode == 0
    written = read_node(hall / "device-1.toml")
    assert (written.strategy, written.seed) == ("ZT", 5)
    assert "EF-HC, ZT" in refused(*init, "2", "strategy=GT")
    assert "4, 5" in refused(*init, "2", "seed=6")


# The table of efhc status


def test_the_table_fits_into_80_columns(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    links = [NeighbourStatus(j, up=j < 9, connected=j < 9, bytes_sent=10**9) for j in range(10)]
    for link in links:
        link.exchanges["committed"] = 12_345
    links[9].last_problem = "the other end closed the connection"
    status = NodeStatus(
        123, 1, "free-running", "0", 1, "training", iteration=12_345, iterations=100_000, loss=0.000123456,
        drift=0.0123, threshold=0.03, broadcasts=98_765, certificate_expires=time.time() + 86400.0, neighbours=links,
    )  # fmt: skip
    answers = [Answer("state-123", dataclasses.asdict(status)), Answer("state-5", None, "does not answer")]
    monkeypatch.setattr(status_query, "query_all", lambda places: answers)
    done = command("status", columns=80)
    assert done.returncode == 1
    row = next(line for line in done.stdout.splitlines() if "training" in line)
    assert re.split(" +", row.strip()) == [
        "123", "training", "12345/100000", "0.000123", "41%", "98765", "123450", "9/10", "0", "10000.0",
    ]  # fmt: skip
    assert CAPTION in (line.strip() for line in done.stdout.splitlines())
    assert len(max(done.stdout.splitlines()[:4], key=len)) <= 80
    assert "device 123: no connection to 9; the other end closed the connection" in done.stdout
    assert "device 123: its certificate expires in 1.0 days; `efhc certs issue` renews it" in done.stdout
    assert done.stdout.splitlines()[-1] == "state-5: does not answer"


def test_a_folder_without_nodes_is_no_error_of_the_user(hall: Path, command: Callable[..., Any]):
    done = command("status")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "efhc: no node is running in this folder; give its state folder, node file or address\n"
    done = command("status", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (1, [])


# Running nodes


def free_ports(number: int) -> list[int]:
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    try:
        return [one.getsockname()[1] for one in listening]
    finally:
        for one in listening:
            one.close()


@contextmanager
def node(folder: Path, file: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    with (folder / f"{file}.log").open("a") as log:
        running = subprocess.Popen([*EFHC, "node", file, *words], cwd=folder, stderr=log, text=True)
        try:
            yield running
        finally:
            running.kill()
            running.wait(30)


def until(happened: Callable[[], Any], seconds: float = 180.0) -> Any:
    """What `happened` returned, once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def status_of(folder: Path, device: int) -> dict[str, Any]:
    return query_status(folder / f"state-{device}" / "status.sock").status or {}


@pytest.fixture
def two(hall: Path, command: Callable[..., Any]) -> Path:
    """Node files and certificates of devices 0 and 1, which know one another, and of device 2, which dials."""
    ports = free_ports(2)
    command("certs", "init")
    command("certs", "issue", "--device", "0-2")
    for device, other in ((0, 1), (1, 0)):
        options = ["--listen", f"127.0.0.1:{ports[device]}", "--neighbour", f"{other}=127.0.0.1:{ports[other]}"]
        assert command("node", "init", "hall.toml", "--device", device, *options, "--neighbour", 2).returncode == 0
    options = [f"--neighbour={device}=127.0.0.1:{ports[device]}" for device in (0, 1)]
    assert command("node", "init", "hall.toml", "--device", 2, "--listen", "none", *options).returncode == 0
    return hall


@pytest.mark.slow
def test_a_renewed_certificate_and_a_new_table_are_taken_up_without_a_restart(two: Path, command: Callable[..., Any]):
    with node(two, "device-0.toml", "pace=0.01") as first:
        until(lambda: status_of(two, 0).get("steps"))
        command("certs", "issue", "--device", "0", "--days", "20")
        first.send_signal(signal.SIGHUP)
        until(lambda: abs(status_of(two, 0)["certificate_expires"] - time.time() - 20 * 86400) < 3600)
        file = two / "device-0.toml"
        file.write_text(file.read_text().replace("[[neighbours]]\ndevice = 2\n", ""))
        first.send_signal(signal.SIGHUP)
        until(lambda: [one["device"] for one in status_of(two, 0)["neighbours"]] == [1])
        file.write_text("neighbours = [")
        first.send_signal(signal.SIGHUP)
        until(lambda: "neighbours not read" in (two / "device-0.toml.log").read_text())
        assert status_of(two, 0)["state"] == "training"


@pytest.mark.slow
def test_a_port_in_use_is_one_line(two: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = [*EFHC, "node", "device-0.toml", f"listen={address}"]
        done = subprocess.run(words, cwd=two, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == CannotRun.exit_code
    assert done.stderr.splitlines()[-1].startswith("efhc: ")
    assert address in done.stderr.splitlines()[-1]


def test_a_stopped_launch_says_how_to_go_on_with_the_same_options(
    hall: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    def stopped(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("efhc.experiments.nodes.launch.launch", stopped)
    for options in ("", " --strategy EF-HC --seed 0 --mode free-running --seconds 2.5 --netns"):
        done = command("launch", "hall.toml", "devices=4", "--out", "my out", *options.split())
        assert done.returncode == 130
        assert done.stderr.endswith(f" launch hall.toml devices=4 --out 'my out'{options} --resume\n")
