"""What README, docs and examples promise is run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import efhc

ROOT = Path(__file__).parents[2]


def python_blocks(document: str) -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return [block for block in blocks if "import efhc" in block]


@pytest.mark.parametrize(
    "document", ["README.md", "docs/data.md", pytest.param("docs/extending.md", marks=pytest.mark.slow)]
)
def test_python_examples_work_as_pasted(document, tmp_path):
    blocks = python_blocks(document)
    assert blocks
    for block in blocks:
        if file := re.match(r"# (\w+\.py)\n", block):
            (tmp_path / file[1]).write_text(block)
        done = subprocess.run(
            [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr


def test_readme_example_is_ten_lines_and_draws():
    (block,) = python_blocks("README.md")
    assert len([line for line in block.splitlines() if line.strip()]) <= 12
    assert 'result.plot("comparison.png")' in block


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.stem)
def test_examples_are_valid(example):
    experiment = efhc.load_experiment(example)
    assert experiment.name == example.stem


def test_changing_network_example_runs():
    experiment = efhc.load_experiment(ROOT / "examples" / "changing-network.toml", ["iterations=30"])
    result = efhc.simulate(experiment)
    assert len(result.network) > 1
    met = result.metrics.filter(strategy="alone")
    assert met["fired"].sum() == 0
    assert met["links_used"].sum() > 0  # Event 1: those who meet exchange models even if nobody ever fires


def test_links_between_documents_lead_somewhere():
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_commands_in_the_readme_exist():
    text = (ROOT / "README.md").read_text()
    environment = {**os.environ, "COLUMNS": "100"}
    helped = subprocess.run(
        [sys.executable, "-m", "efhc", "--help"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    for command in set(re.findall(r"^efhc (\w+)", text, re.MULTILINE)):
        assert re.search(rf"^│ {command} ", helped, re.MULTILINE), command
