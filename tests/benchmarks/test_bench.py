"""What the bench compares does the same thing; what it reports is what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from efhc.base.errors import EfhcError, InputError
from efhc.base.extras import Extra
from efhc.benchmarks import against, bench, e2e, machine_limits, network_backends, scaling
from efhc.benchmarks.evaluation_share import share
from efhc.benchmarks.measure import by_turns, peak_memory
from efhc.benchmarks.names import WORKLOAD_NAMES, check_names
from efhc.benchmarks.plain import OneModel, PlainLoop
from efhc.benchmarks.workloads import OURS, PLAIN, WORKLOADS, Workload
from efhc.drivers.lockstep import Lockstep
from efhc.drivers.observers import drive
from efhc.learning.models import MLP

pytestmark = pytest.mark.usefixtures("fashion_files")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "iterations"), [("svm-b16", 40), pytest.param("lenet-b16", 3, marks=pytest.mark.slow)]
)
def test_the_plain_loop_ends_where_we_do(name: str, iterations: int):
    experiment, scenario = WORKLOADS[name].scenario()
    trigger = experiment.strategies["EF-HC"]
    loop = PlainLoop(experiment.model, scenario, trigger)
    for k in range(iterations):
        loop.iterate(k)
    driver, state = Lockstep(scenario, trigger), scenario.initial_state()
    state = drive(driver, state, iterations)
    assert np.abs(loop.models() - state.models).max() < 2e-5
    ours = scenario.learner.backend.accuracies(state.models, state.local)
    assert np.allclose(loop.accuracies(), ours, atol=5e-4)


def test_one_model_learns_from_the_samples_of_all():
    _, scenario = WORKLOADS["lenet-b16"].scenario()
    model = OneModel(WORKLOADS["lenet-b16"].fields["model"], scenario)
    before = [parameter.detach().clone() for parameter in model._module.parameters()]
    model.iterate(0)
    assert any((a != b).any() for a, b in zip(before, model._module.parameters(), strict=True))


def test_sides_take_turns_and_are_timed_per_iteration():
    told = []

    def side(name: str) -> int:
        told.append(name)
        return 4

    times = by_turns({"a": lambda: side("a"), "b": lambda: side("b")}, 3)
    assert told == ["a", "b"] * 4
    assert all(len(each.wall) == 3 and each.median >= 0 for each in times.values())


def test_a_bench_reports_ratio_spread_and_machine():
    told: list[str] = []
    found = bench.bench(["svm-b1", "eval-10k"], 1, told.append)
    assert told == ["svm-b1", "eval-10k"]
    assert json.loads(json.dumps(found)) == found
    assert {"versions", "machine", "git", "rounds", "results"} <= found.keys()
    for result in found["results"].values():
        ratio = result["ratio"]
        assert ratio["least"] <= ratio["median"] <= ratio["most"]
        assert ratio["median"] == pytest.approx(result["seconds"][PLAIN] / result["seconds"][OURS])
    rows = bench.bench_table(found)
    assert [row[0] for row in rows] == ["workload", "svm-b1", "eval-10k"]
    assert len({len(row) for row in rows}) == 1


def test_memory_is_that_of_a_process_of_its_own():
    assert 100 * 2**20 < peak_memory("svm-b1", OURS) < 4 * 2**30


def test_every_workload_has_its_name_in_the_list_that_is_checked_first():
    assert tuple(WORKLOADS) == WORKLOAD_NAMES
    assert all(name == workload.name for name, workload in WORKLOADS.items())
    for alone in ("limit", "scaling"):
        check_names([alone])
        with pytest.raises(InputError):
            check_names([alone, "svm-b1"])


def test_names_are_checked_without_heavy_imports():
    code = (
        "import sys; from efhc.benchmarks.names import check_names\n"
        "try: check_names(['svm-b17'])\n"
        "except Exception as error: print(type(error).__name__)\n"
        "print(sorted({'numpy', 'numba', 'torch', 'polars', 'scipy', 'matplotlib'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["InputError", "[]"]


def test_without_pytorch_the_bench_says_so_before_it_measures(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Extra, "is_installed", lambda self: False)
    for chosen in ([], ["svm-b1"]):
        with pytest.raises(EfhcError, match=r"install the extra \[deep\] \(docs/install.md\)"):
            check_names(chosen)
    check_names(["limit"])


def test_a_workload_that_does_not_exist_is_one_line():
    with pytest.raises(
        InputError, match=r"^workload: got 'svm-b17', did you mean 'svm-b1'\?; allowed: svm-b1, .*; or `limit`"
    ):
        bench.bench(["svm-b17"], 1, print)


@pytest.mark.slow
def test_the_limit_stands_beside_ours(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine_limits, "SIZE", 128)
    monkeypatch.setattr(machine_limits, "COPIED", 2**16)
    monkeypatch.setattr(machine_limits, "COPIED_IN_A_ROUND", 2**16)
    monkeypatch.setattr(machine_limits, "WORKLOADS", dict.fromkeys(machine_limits.BESIDE, WORKLOADS["svm-b1"]))
    found = bench.bench_limit(1, print)
    assert all(value > 0 for value in [*found["flops"].values(), *found["bandwidth"].values()])
    assert [row["workload"] for row in found["workloads"]] == list(machine_limits.BESIDE)
    assert len({len(row) for row in bench.limit_table(found)}) == 1


def test_the_limit_counts_what_cannot_be_done_without():
    ten, images = 10 * 7850, 784
    assert machine_limits.counted(WORKLOADS["svm-b16"]) == (
        4.0 * 160 * 7840,  # scores and gradients of 160 samples
        3 * 4 * ten,  # W, w_hat, W(k+1)
        160 * images,  # bytes
    )
    assert machine_limits.counted(WORKLOADS["eval-10k"]) == (2.0 * 10 * 10000 * 7840, 4 * ten, 10000 * images)
    macs = [6 * 28 * 28 * 25, 16 * 10 * 10 * 150, 120 * 400, 120 * 84, 84 * 10]
    forward = machine_limits.counted(WORKLOADS["eval-10k-lenet"]).flop
    assert forward == 2 * sum(macs) * 10 * 10000
    # Gradients by weights and by inputs cost as much again, but nobody needs those by the images.
    assert machine_limits.counted(WORKLOADS["lenet-b16"]).flop == 2 * (3 * sum(macs) - macs[0]) * 160


@pytest.mark.slow
def test_a_copy_within_a_cache_is_faster_than_one_from_memory():
    assert machine_limits.copy_speed(2**16, 1, 5) > machine_limits.copy_speed(2**28, 1, 3)


@pytest.mark.slow
def test_two_checkouts_are_measured_by_turns(tmp_path: Path):
    other = tmp_path / "before"
    other.mkdir()
    (other / "src").symlink_to(against.OURSELVES / "src")
    found = bench.bench_against(other, ["svm-b1"], 2, print)
    assert found["against"] == "before"
    assert 0.2 < found["results"]["svm-b1"]["ratio"]["processor"] < 5
    head, row = bench.against_table(found)
    assert head[:3] == ["workload", "before", "efhc"]
    assert len(head) == len(row)


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"^--against: got .*; allowed: a checkout of efhc"):
        bench.bench_against(tmp_path, ["svm-b1"], 1, print)
    with pytest.raises(InputError, match=r"^--against"):
        bench.bench_e2e(tmp_path, 1, print)


def test_a_checkout_whose_workload_fails_is_one_line(tmp_path: Path):
    broken = tmp_path / "src" / "efhc" / "benchmarks"
    broken.mkdir(parents=True)
    for folder in (broken, broken.parent):
        (folder / "__init__.py").touch()
    (broken / "workloads.py").write_text("WORKLOADS = {}")
    with pytest.raises(EfhcError, match="svm-b1 failed in"):
        against.compare(tmp_path, ["svm-b1"], 1, print)


def test_whole_commands_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "src").symlink_to(against.OURSELVES / "src")
    monkeypatch.setattr(e2e, "COMMANDS", {"import efhc": e2e.COMMANDS["import efhc"]})
    alone, beside = bench.bench_e2e(None, 1, print), bench.bench_e2e(tmp_path, 2, print)
    assert json.loads(json.dumps(alone)) == alone
    for found in (alone, beside):
        rows = bench.e2e_table(found)
        assert [row[0] for row in rows] == ["command", "import efhc"]
        assert len(rows[0]) == len(rows[1])
    assert "ratio" not in alone["results"]["import efhc"]
    assert 0.1 < beside["results"]["import efhc"]["ratio"]["median"] < 10


def test_a_command_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(e2e, "COMMANDS", {"wrong": e2e.Command(("-m", "efhc", "nonsense"), is_first=True)})
    with pytest.raises(EfhcError, match=r"^bench: `python -m efhc nonsense` ended with exit code 2"):
        bench.bench_e2e(None, 1, print)


def test_scaling_is_numbers_and_a_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name, sizes in {"DEVICES": (40, 80), "LINKS": (50, 100), "FEATURES": (20, 40), "BATCHES": (1, 2)}.items():
        monkeypatch.setattr(scaling, name, sizes)
    monkeypatch.setattr(scaling, "_iterations", lambda fields, dataset=None: lambda: 1)
    found = bench.bench_scaling(1, tmp_path / "scaling.png", print)
    assert [len(points) for points in found["results"].values()] == [2, 2, 2, 2]
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert len(bench.scaling_table(found)) == 9


def test_every_workload_can_be_drawn():
    for workload in WORKLOADS.values():
        assert isinstance(workload, Workload)
        if workload.name != "svm-m10000":
            assert workload.scenario()[0].devices >= 4


@pytest.mark.slow
def test_the_command_prints_json_or_a_table():
    efhc = str(Path(sys.executable).with_name("efhc"))
    done = subprocess.run(
        [efhc, "bench", "svm-b1", "--json", "--rounds", "1"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["results"].keys() == {"svm-b1"}
    done = subprocess.run([efhc, "bench", "svm-b1", "--rounds", "1"], capture_output=True, text=True, check=True)
    assert "svm-b1" in done.stdout


def test_the_share_of_evaluation_is_a_share():
    assert 0 < share(1, 3, {}) < 1


@pytest.mark.slow
def test_compiled_networks_are_measured_against_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(network_backends, "ROUNDS", 1)
    assert all(ratio > 0 for ratio in network_backends.ratios(MLP(hidden=(4,)), (3, 3), (2, 9)))
