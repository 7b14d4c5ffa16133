"""`efhc new`: the project runs as it was made."""

from __future__ import annotations

import subprocess
import sys

import nbformat
import pytest

import efhc
from efhc.experiments import new_project


@pytest.mark.slow
def test_a_new_project_runs_as_it_was_made(command, executed, tmp_path):
    made = command("new", "work/my-project")
    assert made.returncode == 0
    folder = tmp_path / "work" / "my-project"
    files = {"README.md", "my-project.ipynb", "my-project.toml", "strategy.py", "test_strategy.py"}
    assert {path.name for path in folder.iterdir()} == files
    assert all(f"work/my-project/{name}" in made.stdout for name in files)
    assert not [path for path in folder.iterdir() if new_project.PLACEHOLDER in path.read_text()]

    ran = command("run", "my-project.toml", cwd=folder)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "mine" in ran.stdout
    assert "figures/comparison.png" in ran.stdout

    words = [sys.executable, "-m", "pytest", "-q"]
    tested = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout
    assert "3 passed" in tested.stdout

    notebook = executed(nbformat.read(folder / "my-project.ipynb", as_version=4), folder=folder)
    shown = [cell.outputs[-1].data for cell in notebook.cells if cell.cell_type == "code"]
    accuracy = efhc.Result.load(folder / "runs" / "my-project").summary()["accuracy"][0]
    assert f"{accuracy:.3f}" in shown[1]["text/html"]


def test_a_bad_name_or_a_folder_that_exists_is_one_line_and_nothing_is_made(refused, tmp_path):
    for name in ("my project", "1st", ".", "..", "x" * 41, "naïve", "sub/$(rm)"):
        assert "NAME: cannot use" in refused("new", name)
    assert not list(tmp_path.iterdir())
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("mine")
    for name in ("taken", "file"):
        assert "exists already" in refused("new", name)
    refused("new", "file/inside")
    assert not list((tmp_path / "taken").iterdir())
    assert (tmp_path / "file").read_text() == "mine"
