"""docs/node.md: its commands run as they stand there, and what it names exists."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from efhc.cli.node import CAPTION, answers_table
from efhc.experiments.nodes.assemble import CannotRun
from efhc.experiments.nodes.status_query import query_all
from efhc.runtime.node_settings import NodeSettings
from efhc.runtime.status import NeighbourStatus, NodeStatus, as_prometheus

PAGE = (Path(__file__).parents[2] / "docs" / "node.md").read_text()


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


def command_lines(text: str) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("efhc ")]


def file_of(text: str, name: str) -> str:
    (found,) = re.findall(rf"```toml\n# {re.escape(name)}\n(.*?)```", text, re.DOTALL)
    return str(found)


def test_metrics_and_pages_exist():
    text = as_prometheus(NodeStatus(0, 0, "", "", 0, neighbours=[NeighbourStatus(1)]))
    known = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    named = set(re.findall(r"\befhc_\w+", PAGE))
    assert named <= known
    assert named


def test_the_files_of_two_raspberry_pis(tmp_path: Path, command: Callable[..., Any]):
    text = file_of(PAGE, "hall.toml").replace("devices = 3", "devices = 2")
    (tmp_path / "hall.toml").write_text(text)
    for line in command_lines(section("Two Raspberry Pis")):
        done = command(*shlex.split(line)[1:])
        assert done.returncode == 0, done.stderr
    copied = re.findall(r"scp (?:-p )?(.*) pi-", section("Two Raspberry Pis"))
    for device in "01":
        for name in " ".join(copied).replace("$i", device).split():
            if name == "wheel/efhc-*.whl":
                continue
            assert (tmp_path / name).is_file(), name


def test_the_unit_and_the_pis_have_the_same_folder_and_user():
    unit, steps = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)[0], section("Two Raspberry Pis")
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    folder, user = settings["WorkingDirectory"], settings["User"]
    assert settings["ReadWritePaths"] == folder
    assert settings["ExecStart"].startswith(f"{folder}/.venv/bin/efhc node ")
    assert f"sudo mv ~/efhc {folder}\nsudo chown -R {user}: {folder}\n" in steps
    assert f"sudo -u {user} python3 -m venv {folder}/.venv\n" in steps
    assert f"sudo -u {user} {settings['Environment']} .venv/bin/efhc node " in steps
    stop_seconds = NodeSettings.model_fields["stop_seconds"].default
    assert int(settings["TimeoutStopSec"]) > 2 * stop_seconds
    assert int(settings["RestartPreventExitStatus"]) != CannotRun.exit_code


def test_the_columns_of_the_table_are_explained():
    shown = [str(column.header) for column in answers_table([]).columns]
    explained = re.findall(r"^\| (\w+) \|", section("Operation").split("| column | meaning |")[1], re.MULTILINE)
    assert ["device", *explained][: len(shown)] == shown
    assert f"\n{CAPTION}\n" in section("First run: two terminals")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def states(folder: Path) -> dict[int, dict[str, Any]]:
    if not list(folder.glob("*/status.sock")):
        return {}
    return {answer.status["device"]: answer.status for answer in query_all([str(folder)]) if answer.status}


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.slow
def test_the_first_run(tmp_path: Path, command: Callable[..., Any]):
    """The three devices of the page, on ports that are free here: they meet, learn together, and stop in order."""
    text = section("First run: two terminals")
    (tmp_path / "hall.toml").write_text(file_of(PAGE, "hall.toml"))
    ports = {f"127.0.0.1:{port}": f"127.0.0.1:{free_port()}" for port in (7700, 7701)}
    running: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        for line in command_lines(text):
            words = [re.sub(r"127\.0\.0\.1:\d+", lambda found: ports[found[0]], word) for word in shlex.split(line)[1:]]
            if words[0] == "node" and words[1] != "init":
                started = subprocess.Popen(
                    [sys.executable, "-m", "efhc", *words], cwd=tmp_path, stderr=subprocess.DEVNULL
                )
                stack.callback(started.wait, 30)
                stack.callback(started.kill)
                running.append(started)
                continue
            if words[0] == "status":
                until(lambda: len(states(tmp_path)) == 2)
                until(lambda: all(one["links_up"] for one in states(tmp_path).values()))
            done = command(*words)
            assert done.returncode == 0, done.stderr
        assert len(running) == 3
        until(lambda: len(states(tmp_path)) == 3)
        until(lambda: all(one["links_up"] == 2 for one in states(tmp_path).values()))
        exchanged = lambda one: sum(link["exchanges"]["committed"] for link in one["neighbours"])  # noqa: E731
        until(lambda: all(exchanged(one) > 5 for one in states(tmp_path).values()))
        for one in running:
            one.terminate()
        assert [one.wait(90) for one in running] == [0, 0, 0]
    accuracies = [said_by(code, tmp_path) for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)]
    assert len(accuracies) == 2
    assert len(set(accuracies)) == 1
    assert accuracies[0] > 0.5  # on all ten digits, of which the device has samples of four


def said_by(code: str, folder: Path) -> float:
    """The accuracy that an example prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return round(float(done.stdout.removeprefix("accuracy: ")), 6)
