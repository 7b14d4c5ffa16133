from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import efhc

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


def test_importing_efhc_imports_nothing_heavy():
    code = "import sys, efhc; print([name for name in ('numpy', 'pydantic', 'torch') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_kinds_are_found_without_torch():
    code = "import sys, efhc; efhc.ResNet18(); efhc.Experiment(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.slow
def test_a_users_script_type_checks_strictly(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    for wrong in ("up_probability", "devices"):
        (tmp_path / f"wrong_{wrong}.py").write_text(SCRIPT.replace(wrong, f"{wrong}_"))
    command = [sys.executable, "-m", "mypy", "--strict", *sorted(path.name for path in tmp_path.iterdir())]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not [line for line in done.stdout.splitlines() if line.startswith("script.py")]
    assert "up_probability_" in done.stdout
    assert "devices_" in done.stdout


def test_the_version_stands_in_two_places_and_is_the_same():
    citation = (Path(__file__).parents[2] / "CITATION.cff").read_text()
    assert f"\nversion: {efhc.__version__}\n" in citation
