from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

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
    tree = ast.parse(Path(efhc.__file__).read_text())
    checked = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    for name in efhc.__all__:
        assert getattr(efhc, name).__module__.startswith("efhc.")
        assert name in checked
    assert set(efhc.__all__) <= set(dir(efhc))


def test_a_users_script_type_checks_strictly(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--strict", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    (tmp_path / "script.py").write_text(SCRIPT.replace("up_probability", "up_probabilty"))
    wrong = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "up_probabilty" in wrong.stdout


def test_the_version_stands_in_two_places_and_is_the_same():
    citation = (Path(__file__).parents[2] / "CITATION.cff").read_text()
    assert f"\nversion: {efhc.__version__}\n" in citation
