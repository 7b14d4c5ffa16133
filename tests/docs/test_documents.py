"""What README, docs and examples promise is run as it stands there."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

import efhc
from efhc.cli import app

ROOT = Path(__file__).parents[2]


def python_blocks(document: str) -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return [block for block in blocks if "import efhc" in block]


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/data.md",
        "docs/strategies.md",
        pytest.param("docs/extending.md", marks=pytest.mark.slow),
        pytest.param("docs/asynchrony.md", marks=pytest.mark.slow),
    ],
)
def test_python_examples_work_as_pasted(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    blocks = python_blocks(document)
    assert blocks
    for number, block in enumerate(blocks):
        if file := re.match(r"# (\w+\.py)\n", block):
            (tmp_path / file[1]).write_text(block)
        exec(compile(block, f"{document}, example {number}", "exec"), {"__name__": "__main__"})
    for name in set(sys.modules) - before:  # another document may have another file of this name
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


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


def anchors(document: Path) -> set[str]:
    """The headings of a document as links name them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_headings_lead_somewhere():
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target, heading in re.findall(r"\]\(([\w./-]*)#([^)]+)\)", document.read_text()):
            where = document.parent / target if target else document
            assert heading in anchors(where), f"{document.name}: {target}#{heading}"


COMMAND_LINES = [
    (document, line)
    for document in ("README.md", "docs/commands.md", "docs/asynchrony.md", "docs/strategies.md")
    for line in re.findall(r"^efhc .*$", (ROOT / document).read_text(), re.MULTILINE)
]


@pytest.mark.parametrize(("document", "line"), COMMAND_LINES)
def test_command_lines_name_commands_options_and_files_that_exist(document, line):
    """Each is parsed as a shell and the command line parse it.

    The files it names are ours, those of the document (`# own.toml`), or placeholders in capitals.
    """
    words = shlex.split(line, comments=True)[1:]
    context = None
    command = get_command(app)
    while isinstance(command, TyperGroup):
        name = next(word for word in words if not word.startswith("-"))
        if name not in command.commands:
            command = command.commands[command.default]  # efhc theory RUN_DIR, efhc node NODE.toml
            break
        command, words = command.commands[name], words[words.index(name) + 1 :]
    context = command.make_context("efhc", list(words), resilient_parsing=False)
    assert context.params is not None
    for word in words:
        if word.endswith(".toml") and not word.startswith(("runs/", "FILE", "NODE")):
            assert (ROOT / word).is_file() or f"```toml\n# {word}\n" in (ROOT / document).read_text(), word
