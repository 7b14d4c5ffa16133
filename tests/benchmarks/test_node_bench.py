"""The bench of a node: both sides move the same bytes, and each row says what was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from efhc.base.errors import EfhcError, InputError
from efhc.base.extras import Extra
from efhc.benchmarks import bench, node
from efhc.benchmarks.names import check_names
from efhc.benchmarks.node import Figure, Link
from efhc.benchmarks.node_processes import Process, star, wait_until
from efhc.benchmarks.swapping import OURS, PLAIN, swap
from efhc.runtime.certificates import issue, make_authority
from efhc.runtime.settings import NodeSettings


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_authority(folder)
    issue(folder, range(4))
    return folder


def silent(text: str) -> None:
    pass


@pytest.mark.slow
@pytest.mark.parametrize("side", [OURS, PLAIN])
def test_two_processes_swap_models_over_tls(side: str, certificates: Path):
    swapped = swap(side, 1.0, 3, certificates, timeout=60)
    assert 0 < swapped.seconds < 60
    assert 0 < swapped.cpu_seconds < 60


@pytest.mark.slow
def test_a_swap_that_cannot_be_is_one_line(certificates: Path, tmp_path: Path):
    make_authority(tmp_path)
    with pytest.raises(EfhcError, match=r"^a process that swaps models failed: .*device-0"):
        swap(OURS, 1.0, 1, tmp_path, timeout=60)


def test_goodput_without_root_says_that_it_was_not_measured(monkeypatch: pytest.MonkeyPatch, certificates: Path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    figure = node.goodput(Link(1.0, 128), certificates, silent)
    assert (figure.value, figure.besides, figure.reached) == ("not measured", "needs root", None)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_goodput_is_the_share_of_the_rate(certificates: Path):
    figure = node.goodput(Link(2.0, 8000), certificates, silent)
    assert 0.3 < float(figure.value.rstrip("%")) / 100 < 1  # headers and checksums are not goodput
    assert "2.0 s without any overhead" in figure.besides


def test_ratios_are_those_of_medians_and_of_rounds():
    assert node._ratio([2.0, 4.0, 6.0], [1.0, 1.0, 3.0]) == (4.0, (2.0, 4.0))


def test_neighbours_of_a_star_know_its_centre_only(tmp_path: Path, certificates: Path):
    files = star(tmp_path / "e.toml", certificates, 3, {"pace": 1.0}, {"pace": 2.0})
    centre, *others = map(NodeSettings.model_validate, files)
    assert [neighbour.device for neighbour in centre.neighbours] == [1, 2, 3]
    assert [neighbour.address for neighbour in centre.neighbours] == [other.listen for other in others]
    assert all(other.neighbours[0].device == 0 and other.pace == 2.0 for other in others)
    assert (centre.pace, centre.listen) == (1.0, None)


def test_memory_is_the_peak_of_a_while(tmp_path: Path):
    # First a block that is freed before the measurement begins, then a smaller one within it.
    code = (
        "import time\nblock = b'x' * 300_000_000; del block\nprint('ready', flush=True)\ntime.sleep(1)\n"
        "block = b'x' * 100_000_000; del block\ntime.sleep(60)"
    )
    with Process(["-c", code], tmp_path / "output.txt") as process:
        wait_until(lambda: "ready" in process.printed(), "it is not ready")
        assert 100e6 < process.peak_memory(2.0) < 200e6
        assert process.cpu_seconds() > 0


def test_a_process_that_ended_is_told_with_its_last_line(tmp_path: Path):
    ended = Process(["-c", "import sys; sys.exit('no disk')"], tmp_path / "output.txt")
    with ended, pytest.raises(EfhcError, match=r"^a process of the bench ended: no disk$"):
        wait_until(lambda: ended.printed() == "something else", "it has not ended")


@pytest.mark.slow
@pytest.mark.usefixtures("fashion_files")
def test_steps_beside_neighbours_are_those_of_real_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, certificates: Path
):
    monkeypatch.setattr(node, "NEIGHBOURS", 2)
    monkeypatch.setattr(node, "STEP_SECONDS", 1.0)
    figure = node.steps(tmp_path / "steps", certificates, 1, silent)
    assert 0.1 < float(figure.value.rstrip("%")) / 100 < 10
    assert "steps per second" in figure.besides


@pytest.mark.slow
def test_memory_is_counted_in_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, certificates: Path):
    monkeypatch.setattr(node, "IN_FLIGHT", 2)
    monkeypatch.setattr(node, "MEMORY_SECONDS", 4.0)
    lone, linked = node.memory(tmp_path / "memory", certificates, 1, silent)
    assert lone.reached
    assert linked.reached
    assert float(linked.value.split()[0]) > float(lone.value.split()[0]) + 1  # models in flight take memory
    assert linked.goal == "at most 7"


def test_the_table_says_what_was_reached(monkeypatch: pytest.MonkeyPatch):
    figures = [
        Figure("memory", "2.0 models", "", "at most 3", "", True),
        Figure("goodput", "80%", "", "at least 85%", "9 s", False),
        Figure("more goodput", "not measured", "", "at least 85%", "needs root", None),
    ]
    monkeypatch.setattr(node, "measure_node", lambda rounds, tell: figures)
    found = bench.bench_node(3, silent)
    assert found["rounds"] == 3
    assert json.loads(json.dumps(found)) == found
    head, *rows = bench.node_table(found)
    assert [row[head.index("")] for row in rows] == ["reached", "missed", ""]
    assert {len(row) for row in rows} == {len(head)}


def test_a_node_is_asked_for_alone_and_needs_its_extra(monkeypatch: pytest.MonkeyPatch):
    check_names(["node"])
    with pytest.raises(InputError, match="`node`, alone"):
        check_names(["node", "svm-b1"])
    monkeypatch.setattr(Extra, "is_installed", lambda self: False)
    with pytest.raises(
        EfhcError, match=r"^efhc bench node needs cryptography: install the extra \[node\] \(docs/install.md\)"
    ):
        check_names(["node"])


def test_the_command_line_does_not_import_the_bench():
    code = "import sys, efhc.cli; print('efhc.benchmarks.node' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
