from __future__ import annotations

import ast
import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import efhc
from efhc.experiments.new_project import TEMPLATE

SCRIPT = """
import efhc

result: efhc.Result = efhc.simulate(
    devices=5,
    network=efhc.RandomLinks(up_probability=0.5, topology=efhc.Ring()),
    strategies={"EF-HC": efhc.EventTriggered(r=100.0), "ZT": efhc.ZeroThreshold()},
    data=efhc.Digits(),
)
print(result.metrics.columns, result.models["ZT", 0].shape)
"""


def test_every_public_name_is_there_and_known_to_type_checkers():
    tree = ast.parse(Path(efhc.__file__).with_suffix(".pyi").read_text())
    known = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    for name in efhc.__all__:
        assert getattr(efhc, name).__module__.startswith("efhc.")
        assert name in known | {"simulate"}
    assert set(efhc.__all__) <= set(dir(efhc))
    assert {"Geometric", "EventTriggered", "IID", "SVM", "simulate", "Strategy"} <= set(efhc.__all__)
    assert not hasattr(efhc, "Nonsense")


# numba imports scipy.linalg, and polars much of the standard library: those cannot be helped.
NOT_OF_A_RUN = "scipy.sparse scipy.spatial scipy.optimize scipy.stats networkx matplotlib jinja2 PIL"


@pytest.mark.parametrize(
    ("code", "unused"),
    [
        ("import efhc", "numpy pydantic torch"),
        ("import efhc; efhc.ResNet18(); efhc.Experiment()", "torch"),
        ("import efhc; efhc.simulate(iterations=2, seeds=[0]).summary()", NOT_OF_A_RUN),
    ],
)
def test_what_is_not_used_is_not_imported(code: str, unused: str):
    code += f"; import sys; print([name for name in {unused.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


OTHER_WAYS = """
import efhc
import networkx
import numpy as np
from torch import nn


class Own:
    def thresholds(self, k: int, gamma: float, bandwidths: efhc.Bandwidths, coins: object) -> object:
        return gamma


def network() -> nn.Module:
    return nn.Linear(64, 10)


data = efhc.Digits().load()
efhc.simulate(devices=5, seeds=range(3), network=networkx.cycle_graph(5), strategies={"own": Own(), "zt": "zt"})
efhc.simulate(data=data, model=network, network="ring", step_size=lambda k: 0.1 / (k + 1))
efhc.simulate(efhc.Experiment(), bandwidths=np.ones(10), partition={"kind": "labels"}, driver="event-driven")
efhc.simulate(bandwidths=[1.0, 2.0], batch_size="full", model=efhc.MLP(), out="runs/here")
"""
WRONG = [
    "devices_=5",
    'devices="five"',
    'seeds="zero"',
    'batch_size="half"',
    'precision="float16"',
    "network=3",
    "model=0.5",
    "bandwidths={1.0, 2.0}",
    'strategies={"mine": 3}',
    "strategies=efhc.ZeroThreshold()",
    "driver=efhc.Ring()",
    "data=efhc.Ring()",
    "network=efhc.RandomLinks(up_probability_=0.5)",
]


@pytest.mark.slow
def test_a_users_script_type_checks_strictly(tmp_path):
    """Whatever the settings take is accepted, and every wrong name or type is an error on its line."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "other_ways.py").write_text(OTHER_WAYS)
    (tmp_path / "wrong.py").write_text("\n".join(["import efhc", *(f"efhc.simulate({one})" for one in WRONG)]))
    for name in ("strategy.py", "test_strategy.py"):  # what `efhc new` makes
        shutil.copy(TEMPLATE / name, tmp_path)
    command = [sys.executable, "-m", "mypy", "--strict", *sorted(path.name for path in tmp_path.iterdir())]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line and "networkx" not in line]
    assert not [line for line in errors if not line.startswith("wrong.py")]
    assert {int(line.split(":")[1]) for line in errors} == set(range(2, 2 + len(WRONG))), done.stdout


def test_the_settings_are_parameters_of_simulate_for_help_and_notebooks():
    parameters = inspect.signature(efhc.simulate).parameters
    assert "fields" not in parameters
    for name, field in efhc.Experiment.model_fields.items():
        assert parameters[name].default == field.get_default(call_default_factory=True)
    assert parameters["network"].annotation == "Network | str | Mapping[str, Any]"
    assert parameters["seeds"].annotation == "int | Sequence[int]"
