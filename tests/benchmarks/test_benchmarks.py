"""What the benchmarks compare does the same work, and what they print is what they measured."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import backends, checkouts, clocks, evaluation, limit, networks, node, scaling
from benchmarks.measure import Ratio, by_turns, timed
from benchmarks.plain import OneModel, PlainLoop
from benchmarks.swapping import OURS, PLAIN, swap
from benchmarks.workloads import WORKLOADS
from efhc.base.errors import EfhcError, InputError
from efhc.drivers.event_driven import simulator
from efhc.drivers.lockstep import PaperLockstep
from efhc.drivers.observers import drive
from efhc.learning.models import MLP
from efhc.runtime.certificates import issue, make_authority
from efhc.runtime.node_settings import NodeSettings

pytestmark = pytest.mark.usefixtures("fashion_files")


def test_sides_take_turns_and_are_timed_per_iteration():
    called = []
    found = by_turns({name: lambda name=name: called.append(name) or 4.0 for name in "ab"}, 3)
    assert called == ["a", "b"] * 4  # the first round warms up
    assert found == {"a": [4.0] * 3, "b": [4.0] * 3}
    work = timed(lambda: sum(range(300_000)) and 1000)
    assert 0 < work() < timed(lambda: sum(range(300_000)) and 1)()
    assert Ratio.of([2.0, 4.0, 6.0], [1.0, 1.0, 3.0]) == (4.0, 2.0, 4.0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "iterations"), [("svm-b16", 20), ("lenet-b16", 2)])
def test_the_plain_loop_ends_where_we_do(name: str, iterations: int):
    experiment, scenario = WORKLOADS[name].scenario()
    strategy = experiment.strategies["EF-HC"]
    loop = PlainLoop(experiment.model, scenario, strategy)
    for k in range(iterations):
        loop.iterate(k)
    state = drive(PaperLockstep(scenario, strategy), scenario.initial_state(), iterations)
    assert np.abs(loop.models() - state.models).max() < 2e-5
    ours = scenario.learner.backend.accuracies(state.models, state.local)
    assert np.allclose(loop.accuracies(), ours, atol=5e-4)


def test_one_model_learns_from_the_samples_of_all():
    _, scenario = WORKLOADS["lenet-b16"].scenario()
    model = OneModel(WORKLOADS["lenet-b16"].fields["model"], scenario)
    before = [parameter.detach().clone() for parameter in model._module.parameters()]
    model.iterate(0)
    assert any((a != b).any() for a, b in zip(before, model._module.parameters(), strict=True))


def test_the_command_prints_a_table_or_json(capsys: pytest.CaptureFixture[str]):
    command.main(["svm-b1", "eval-10k", "--rounds", "1"])
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.split(" | ")[:3] == ["| workload", "plain loop", "efhc"]
    assert [row.split(" | ")[0] for row in rows] == ["| svm-b1", "| eval-10k"]
    command.main(["svm-b1", "--rounds", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {"versions", "machine", "git", "rounds", "rows"} <= found.keys()


@pytest.mark.parametrize("words", [["svm-b17"], ["svm-b1", "limit"], ["limit", "svm-b1"], ["limit", "--against", "."]])
def test_wrong_names_are_refused(words: list[str]):
    with pytest.raises(SystemExit):
        command.main(words)


def test_every_workload_can_be_drawn():
    for name, workload in WORKLOADS.items():
        assert name == workload.name
        if name != "svm-m10000":
            assert workload.scenario()[0].devices >= 4


def test_the_limit_counts_what_cannot_be_done_without():
    ten, images = 10 * 7850, 784
    assert limit.counted(WORKLOADS["svm-b16"]) == (
        4.0 * 160 * 7840,  # scores and gradients of 160 samples
        3 * 4 * ten,  # W, w_hat, W(k+1)
        160 * images,  # bytes
    )
    assert limit.counted(WORKLOADS["eval-10k"]) == (2.0 * 10 * 10000 * 7840, 4 * ten, 10000 * images)
    macs = [6 * 28 * 28 * 25, 16 * 10 * 10 * 150, 120 * 400, 120 * 84, 84 * 10]
    assert limit.counted(WORKLOADS["eval-10k-lenet"]).flop == 2 * sum(macs) * 10 * 10000
    # Gradients by weights and by inputs cost as much again, but nobody needs those by the images.
    assert limit.counted(WORKLOADS["lenet-b16"]).flop == 2 * (3 * sum(macs) - macs[0]) * 160


@pytest.mark.slow
def test_the_limit_stands_beside_ours(monkeypatch: pytest.MonkeyPatch):
    for name, size in {"SIZE": 128, "COPIED": 2**16, "COPIED_IN_A_ROUND": 2**16}.items():
        monkeypatch.setattr(limit, name, size)
    monkeypatch.setattr(limit, "BESIDE", ("svm-b1",))
    (row,) = limit.measure(1)
    assert row["workload"] == "svm-b1"


@pytest.mark.slow
def test_two_checkouts_are_measured_by_turns(tmp_path: Path):
    other = tmp_path / "before"
    other.mkdir()
    for name in ("src", "benchmarks"):
        (other / name).symlink_to(checkouts.OURSELVES / name)
    (row,) = checkouts.against(other, ["svm-b1"], 1)
    assert list(row) == ["workload", "before", "efhc", "ratio", "least-most"]
    assert 0.2 < float(row["ratio"].rstrip("x")) < 5


def test_a_checkout_that_is_none_or_fails_is_one_line(tmp_path: Path):
    with pytest.raises(InputError, match=r"--against"):
        next(checkouts.against(tmp_path, ["svm-b1"], 1))
    (tmp_path / "src" / "efhc").mkdir(parents=True)
    with pytest.raises(EfhcError, match=f"svm-b1 failed in {tmp_path}"):
        next(checkouts.against(tmp_path, ["svm-b1"], 1))


def test_whole_commands_are_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkouts, "COMMANDS", {"python": ("-c", "")})
    (alone,), (beside,) = checkouts.commands(None, 1), checkouts.commands(checkouts.OURSELVES, 2)
    assert list(alone) == ["command", "efhc"]
    assert 0.1 < float(beside["ratio"].rstrip("x")) < 10
    monkeypatch.setattr(checkouts, "COMMANDS", {checkouts.FIRST: ("-m", "efhc", "nonsense")})
    with pytest.raises(EfhcError, match="`python -m efhc nonsense` ended with exit code 2"):
        next(checkouts.commands(None, 1))


def test_scaling_is_numbers_and_a_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name, sizes in {"DEVICES": (40, 80), "LINKS": (50, 100), "FEATURES": (20, 40), "BATCHES": (1, 2)}.items():
        monkeypatch.setattr(scaling, name, sizes)
    monkeypatch.setattr(scaling, "_iterations", lambda fields, dataset=None: lambda: 1)
    monkeypatch.setattr(scaling, "FIGURE", tmp_path / "scaling.png")
    assert len(list(scaling.measure(1))) == 8
    assert scaling.FIGURE.read_bytes().startswith(b"\x89PNG")


def test_the_share_of_evaluation_is_a_share():
    assert 0 < evaluation.share(1, 3, {}) < 1


@pytest.mark.slow
def test_backends_are_measured_against_plain_torch():
    taken, found = backends.times(backends.CASES["mlp with tanh"], 1)
    assert taken in backends.NAMES
    assert found.keys() == {"plain torch", "stacked", "loop"}
    assert all(seconds > 0 for each in found.values() for seconds in each)


@pytest.mark.slow
def test_compiled_networks_are_measured_against_torch():
    assert all(ratio > 0 for ratio in networks.ratios(MLP(hidden=(4,)), (3, 3), (2, 9), 1))


@pytest.mark.parametrize(("strategy", "driver", "devices"), [("ZT", clocks.NO_DELAY, 5), ("EF-HC", clocks.DELAYS, 4)])
def test_lockstep_and_own_clocks_make_as_many_steps(monkeypatch: pytest.MonkeyPatch, strategy, driver, devices):
    monkeypatch.setattr(clocks, "STEPS", 20)
    monkeypatch.setattr(simulator, "NUMBERS_AT_ONCE", 1)
    workload = clocks.ClockWorkload("", devices, strategy, driver, "")
    sides = clocks.clock_sides(workload)
    for _ in range(3):  # each goes on from where it was
        assert sides[clocks.LOCKSTEP]() == sides[clocks.OWN_CLOCKS]() == 20
    monkeypatch.setattr(clocks, "CLOCK_WORKLOADS", {"small": workload})
    (row,) = clocks.measure(1)
    assert {"lockstep", "own clocks", "ratio"} <= row.keys()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_authority(folder)
    issue(folder, range(4))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("side", [OURS, PLAIN])
def test_two_processes_swap_models_over_tls(side: str, certificates: Path):
    swapped = swap(side, 1.0, 3, certificates, timeout=60)
    assert min(swapped) > 0


@pytest.mark.slow
def test_a_swap_that_cannot_be_is_one_line(tmp_path: Path):
    make_authority(tmp_path)
    with pytest.raises(EfhcError, match=r"^a process that swaps models failed: .*device-0"):
        swap(OURS, 1.0, 1, tmp_path, timeout=60)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_goodput_is_the_share_of_the_rate(certificates: Path):
    row = node.goodput(2.0, 8000, certificates)
    assert 0.3 < float(row["found"].rstrip("%")) / 100 < 1  # headers and checksums are not goodput


def test_neighbours_of_a_star_know_its_centre_only(tmp_path: Path, certificates: Path):
    files = node.star(tmp_path / "e.toml", certificates, 3, {"pace": 1.0}, {"pace": 2.0})
    centre, *others = map(NodeSettings.model_validate, files)
    assert [neighbour.device for neighbour in centre.neighbours] == [1, 2, 3]
    assert [neighbour.address for neighbour in centre.neighbours] == [other.listen for other in others]
    assert all(other.neighbours[0].device == 0 and other.pace == 2.0 for other in others)


def test_a_process_that_ended_is_reported_with_its_last_line(tmp_path: Path):
    ended = node.Process(["-c", "import sys; sys.exit('no disk')"], tmp_path / "output.txt")
    with ended, pytest.raises(EfhcError, match=r"^a process of the bench ended: no disk$"):
        node.wait_until(lambda: ended.printed() == "something else", "it has not ended")


@pytest.mark.slow
def test_steps_and_memory_are_those_of_real_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, certificates: Path):
    for name, value in {"NEIGHBOURS": 1, "STEP_SECONDS": 1.0, "IN_FLIGHT": 2, "MEMORY_SECONDS": 2.0}.items():
        monkeypatch.setattr(node, name, value)
    row = node.steps(tmp_path / "steps", certificates, 1)
    assert 0.1 < float(row["found"].rstrip("%")) / 100 < 10
    lone, linked = (float(row["found"].split()[0]) for row in node.memory(tmp_path / "memory", certificates, 1))
    assert lone <= 3
    assert lone + 1 < linked <= 7  # models in flight take memory
