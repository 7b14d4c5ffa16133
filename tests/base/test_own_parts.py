"""Code of the user's own in every family: from a table and back, from Python, to another process, read once."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import efhc
from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import InputContent, read_bytes, using_inputs
from efhc.core.randomness import Randomness
from efhc.experiments.config.files import (
    build_experiment,
    load_experiment,
    read_inputs,
    to_tables,
    to_toml,
    with_overrides,
)

CODE = """
from dataclasses import dataclass

import numpy as np
from pydantic import Field

import efhc
from efhc.base.policy import Policy
from efhc.core.graph import Graph
from efhc.core.triggers import Bandwidths


class Every(Policy):
    every: int = Field(default=10, ge=1)

    def thresholds(self, k, gamma, bandwidths, coins):
        return np.full(len(bandwidths.values), 0.0 if k % self.every == 0 else np.inf)


class Around(Policy):
    inner: Every = Every()

    def thresholds(self, k, gamma, bandwidths, coins):
        return self.inner.thresholds(k, gamma, bandwidths, coins)

Renamed = Around

class Plain:
    def __init__(self, arms=2):
        self.arms = arms

    def graph(self, devices, randomness):
        return Graph.of(devices, [(0, i) for i in range(1, self.arms + 1)])

    def over_time(self, devices, randomness):
        return self

@dataclass(frozen=True)
class Deal:
    share: float = 0.5

    def split(self, data, devices, randomness):
        return [np.array([i]) for i in range(devices)]

class Equal:
    def draw(self, devices, randomness):
        return Bandwidths(np.ones(devices), 1.0)

class Source:
    def load(self, precision="float32"):
        return efhc.Digits().load(precision)

class Start:
    def models(self, model, data, devices, randomness):
        return np.zeros((devices, model.parameters(data)))

def alpha(k, initial=0.5):
    return initial / (1 + k)

def make_star(arms):
    return Plain(arms)

def half_as_often(every):
    return Every(every=2 * every)

star = Plain(3)
always = Every(every=1)
number = 3

def net(width=4):
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))
"""

EVERY_FAMILY = {
    "devices": 4,
    "strategies": {"mine": {"kind": "own.py:Every", "every": 3}, "ZT": "zt"},
    "network": {"kind": "random-links", "topology": {"kind": "own.py:Plain", "arms": 3}},
    "partition": {"kind": "own.py:Deal", "share": 0.25},
    "bandwidths": "own.py:Equal",
    "data": {"kind": "own.py:Source"},
    "initial_models": "own.py:Start",
    "step_size": {"kind": "own.py:alpha", "initial": 0.2},
    "threshold_decay": "own.py:alpha",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(CODE)
    return tmp_path


def build(fields: dict, folder: Path) -> efhc.Experiment:
    return build_experiment(fields, folder)


def problem(fields: dict, folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        build(fields, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_family_takes_code_by_name_and_writes_the_same_table(folder):
    experiment = build(EVERY_FAMILY, folder)
    assert experiment.strategies["mine"].every == 3
    assert experiment.network.topology.arms == 3
    assert experiment.partition.share == 0.25
    assert experiment.step_size(1) == 0.1
    assert experiment.threshold_decay(1) == 0.25
    own = str(folder / "own.py")
    tables = to_tables(experiment)
    assert tables["strategies"]["mine"] == {"kind": f"{own}:Every", "every": 3}
    assert tables["network"]["topology"] == {"kind": f"{own}:Plain", "arms": 3}
    assert tables["partition"] == {"kind": f"{own}:Deal", "share": 0.25}
    assert tables["bandwidths"] == {"kind": f"{own}:Equal"}
    assert tables["step_size"] == {"kind": f"{own}:alpha", "initial": 0.2}
    assert tables["threshold_decay"] == {"kind": f"{own}:alpha"}
    again = build_experiment(tomllib.loads(to_toml(experiment)))
    assert to_tables(again) == tables
    assert {name: read.path for name, read in read_inputs(experiment).items()} == {
        f"{name}.kind": folder / "own.py"
        for name in (
            "data",
            "partition",
            "initial_models",
            "network.topology",
            "bandwidths",
            "step_size",
            "threshold_decay",
            "strategies.mine",
        )
    }


@pytest.mark.parametrize("name", ["star", "make_star"])
def test_an_object_or_a_function_that_makes_one(folder, name):
    table = {"kind": f"own.py:{name}", **({"arms": 3} if name == "make_star" else {})}
    network = build({"network": table}, folder).network
    assert network.arms == 3
    assert to_tables(build({"network": table}, folder))["network"] == table | {"kind": f"{folder}/own.py:{name}"}


@pytest.mark.parametrize(
    ("name", "parameters", "fields"),
    [
        ("half_as_often", {"every": 2}, {"every": 4}),
        ("always", {}, {"every": 1}),
        ("Around", {"inner": {"every": 5}}, {"inner": {"every": 5}}),
    ],
)
def test_a_policy_is_written_as_it_was_named_and_comes_back(folder, name, parameters, fields):
    table = {"kind": f"{folder}/own.py:{name}", **parameters}
    experiment = build({"strategies": {"mine": table}}, folder)
    for again in experiment, build(to_tables(experiment), folder), pickle.loads(pickle.dumps(experiment)):
        assert again.strategies["mine"].model_dump() == fields
        assert to_tables(again)["strategies"]["mine"] == table


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"strategies": {"a": {"kind": "own.py:Every", "every": 0}}}, ["strategies.a.every", "0", "greater than"]),
        ({"strategies": {"a": {"kind": "own.py:Every", "evry": 1}}}, ["strategies.a.evry", "did you mean 'every'?"]),
        ({"network": {"kind": "own.py:Plain", "arm": 1}}, ["network.arm", "did you mean 'arms'?", "Use arms"]),
        ({"network": "own.py:make_star"}, ["network.kind", "arms"]),
        ({"network": "own.py:Deal"}, ["network.kind", "Deal", "over_time"]),
        ({"network": "own.py:number"}, ["network.kind", "a int", "over_time"]),
        ({"network": {"kind": "own.py:star", "arms": 1}}, ["network.arms", "which is an object"]),
        ({"network": "own.py:Plian"}, ["network.kind", "which does not exist (did you mean 'Plain'?)"]),
        ({"network": "absent.py:Plain"}, ["network.kind", "does not exist"]),
        ({"network": "no.such.package:Plain"}, ["network.kind", "ModuleNotFoundError"]),
        ({"network": ":"}, ["network.kind", "package.module:name or file.py:name"]),
        ({"step_size": {"kind": "own.py:alpha", "inital": 1}}, ["step_size.inital", "did you mean 'initial'?"]),
        ({"network": {"kind": "rotating", "topology": "own.py:Deal"}}, ["network.topology.kind", "graph"]),
    ],
    ids=str,
)
def test_what_is_wrong_with_code_is_one_line_that_names_the_setting(folder, fields, parts):
    text = problem(fields, folder)
    for part in parts:
        assert part in text


def test_a_torch_module_is_a_model_by_name(folder):
    experiment = build({"model": {"kind": "own.py:net", "width": 5, "loss": "multi-margin"}}, folder)
    assert experiment.model == efhc.Module(module=f"{folder}/own.py:net", loss="multi-margin", arguments={"width": 5})
    assert [(name, read.path) for name, read in read_inputs(experiment).items()] == [
        ("model.module", folder / "own.py")
    ]
    assert build({"model": "own.py:net"}, folder).model == efhc.Module(module=f"{folder}/own.py:net")


def test_an_override_counts_from_the_current_folder(folder, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "e.toml").write_text('partition = "iid"\n')
    monkeypatch.chdir(folder)
    overrides = [
        "network=own.py:Plain",
        "network.arms=1",
        "strategies.mine.kind=own.py:Every",
        "strategies.mine.every=2",
    ]
    experiment = load_experiment(elsewhere / "e.toml", overrides)
    assert experiment.network.arms == 1
    assert experiment.strategies["mine"].every == 2


def test_objects_of_an_importable_class_are_named_and_others_are_not(folder, monkeypatch):
    (folder / "importable.py").write_text(CODE)
    monkeypatch.syspath_prepend(folder)
    import importable

    path = folder / "importable.py"
    experiment = build_experiment(
        {
            "strategies": {"mine": importable.Every(every=4)},
            "partition": importable.Deal(0.75),
            "bandwidths": importable.Equal(),
            "step_size": importable.alpha,
            "model": importable.net,
        }
    )
    tables = to_tables(experiment)
    assert tables["strategies"]["mine"] == {"kind": f"{path}:Every", "every": 4}
    assert tables["partition"] == {"kind": f"{path}:Deal", "share": 0.75}
    assert tables["bandwidths"] == {"kind": f"{path}:Equal"}
    assert tables["step_size"] == {"kind": f"{path}:alpha"}
    assert tables["model"]["module"] == f"{path}:net"
    assert to_tables(build_experiment(tables)) == tables
    with pytest.raises(EfhcError, match=r"network: a Plain made in Python .* name it file.py:Name") as caught:
        to_tables(build_experiment({"network": importable.Plain(3)}))  # its state cannot be told from its parameters
    assert "\n" not in str(caught.value)


def test_what_cannot_be_named_is_described_and_then_refuses_to_run():
    experiment = build_experiment({"step_size": lambda k: 0.1, "model": lambda: None})
    tables = to_tables(experiment, unnamed="describe")
    assert tables["step_size"]["kind"] == tables["model"]["kind"] == "not-kept"
    again = build_experiment(tomllib.loads(to_toml(experiment, unnamed="describe")))
    assert to_tables(again) == tables
    with pytest.raises(EfhcError, match=r"step_size: .*lambda.* made in Python") as caught:
        again.step_size(0)
    assert "\n" not in str(caught.value)
    assert "not-kept" not in problem({"step_size": "no-such-kind"}, Path())


OTHER_PROCESS = """
import pickle, sys
experiment = pickle.load(sys.stdin.buffer)
from efhc.core.randomness import Randomness
print(experiment.strategies["around"].inner.every, experiment.strategies["renamed"].inner.every)
print(experiment.strategies["mine"].every, experiment.network.topology.arms, experiment.partition.share)
print(experiment.step_size(1), experiment.threshold_decay(1), experiment.bandwidths.draw(3, None).nominal)
from efhc.experiments.config.files import to_tables
print(to_tables(experiment)["network"]["topology"]["kind"])
"""


def test_an_experiment_goes_to_a_process_that_has_no_such_file(folder):
    around = {name: {"kind": f"own.py:{name.title()}", "inner": {"every": 8}} for name in ("around", "renamed")}
    experiment = build(EVERY_FAMILY | {"strategies": EVERY_FAMILY["strategies"] | around}, folder)
    content = pickle.dumps(experiment)
    (folder / "own.py").unlink()
    done = subprocess.run([sys.executable, "-c", OTHER_PROCESS], input=content, capture_output=True, check=False)
    lines = done.stdout.decode().splitlines()
    assert lines == ["8 8", "3 3 0.25", "0.1 0.25 1.0", f"{folder}/own.py:Plain"], done.stderr.decode()


def test_code_is_read_once_and_hashed_as_it_was_read(folder):
    before = build({"step_size": "own.py:alpha"}, folder)
    hashed = read_inputs(before)["step_size.kind"].sha256
    (folder / "own.py").write_text(CODE.replace("initial=0.5", "initial=0.75"))
    stat = (folder / "own.py").stat()
    os.utime(folder / "own.py", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = build({"step_size": "own.py:alpha"}, folder)
    assert before.step_size(0) == 0.5
    assert after.step_size(0) == 0.75
    assert read_inputs(before)["step_size.kind"].sha256 == hashed != read_inputs(after)["step_size.kind"].sha256


def test_a_run_uses_the_content_that_was_hashed(tmp_path):
    (tmp_path / "links.txt").write_text("0 1\n1 2\n")
    np.save(tmp_path / "start.npy", np.zeros(650))
    (tmp_path / "net.py").write_text("def net():\n    from torch import nn\n    return nn.Linear(3, 2)\n")
    experiment = build_experiment(
        {
            "network": {"kind": "edge-list", "path": "links.txt"},
            "initial_models": {"kind": "npy", "path": "start.npy"},
            "model": {"module": "net.py:net"},
        },
        tmp_path,
    )
    contents = read_inputs(experiment)
    for path in tmp_path.iterdir():
        path.unlink()
    with using_inputs(contents):
        assert len(experiment.network.graph(3, Randomness(0)).links) == 2
        assert experiment.model.build(None).in_features == 3
    with pytest.raises(InputError, match="does not exist"):
        experiment.network.graph(3, Randomness(0))


def test_of_two_contents_of_one_path_the_inner_one_counts(tmp_path):
    path = tmp_path / "f.txt"
    path.write_text("disk")
    outer, inner = ({"a": InputContent(path, text, "sum")} for text in (b"outer", b"inner"))
    with using_inputs(outer):
        with using_inputs(inner):
            assert read_bytes(path) == b"inner"
        assert read_bytes(path) == b"outer"
    assert read_bytes(path) == b"disk"


def test_a_bare_kind_can_be_changed_by_overrides():
    tables = with_overrides({"partition": "iid"}, ["partition.kind=dirichlet", "partition.concentration=2.0"])
    assert build_experiment(tables).partition == efhc.Dirichlet(concentration=2.0)
    assert with_overrides({"network": "geometric"}, ["network.radius=0.5"])["network"]["kind"] == "geometric"


def test_an_experiment_can_be_read_and_written_without_running_code(folder):
    (folder / "own.py").write_text("raise SystemExit")
    fields = EVERY_FAMILY | {"model": "own.py:net"}
    experiment = build_experiment(fields, folder, run_code=False)
    assert to_tables(experiment)["strategies"]["mine"] == {"kind": f"{folder}/own.py:Every", "every": 3}
    assert read_inputs(experiment)["network.topology.kind"].path == folder / "own.py"
    with pytest.raises(EfhcError, match=r"own.py:Every was not run"):
        experiment.strategies["mine"].thresholds(0, 1.0, None, None)
    assert "SystemExit" in problem(fields, folder)


SCRIPT = """
import pickle, numpy as np, efhc
from efhc.experiments.config.files import build_experiment, to_tables

def alpha(k):
    return 0.25

class Every:
    def thresholds(self, k, gamma, bandwidths, coins):
        return 0.0

if __name__ == "__main__":
    e = build_experiment({"step_size": alpha, "strategies": {"a": Every()}})
    assert pickle.loads(pickle.dumps(e)).step_size is alpha
    print(to_tables(e)["step_size"]["kind"], to_tables(e)["strategies"]["a"]["kind"])
    again = build_experiment(to_tables(e))
    print(again.step_size(0), type(again.strategies["a"]).__name__)
"""


def test_what_a_script_defines_is_named_by_the_script_and_pickled_as_ever(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    path = tmp_path / "script.py"
    assert done.stdout.splitlines() == [f"{path}:alpha {path}:Every", "0.25 Every"], done.stderr


def test_code_that_needs_a_missing_extra_says_which(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    (tmp_path / "net.py").write_text("import torch\n")
    (tmp_path / "other.py").write_text("import no_such_package\n")
    for file, advice in (("net.py", "the extra [deep]"), ("other.py", "A reference is")):
        with pytest.raises(InputError) as caught:
            build_experiment({"strategies": {"mine": {"kind": f"{file}:Mine"}}}, tmp_path)
        assert advice in str(caught.value)
