"""README.md is short, the examples are valid, and links between documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from blocks import PAGES, ROOT

import efhc

DOCUMENTS = sorted({*PAGES, *ROOT.glob("*.md")})


def test_readme_is_a_screen_and_a_half():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 80


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
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def anchors(document: Path) -> set[str]:
    """The headings of a document as links name them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_headings_lead_somewhere():
    for document in DOCUMENTS:
        for target, heading in re.findall(r"\]\(([\w./-]*)#([^)]+)\)", document.read_text()):
            where = document.parent / target if target else document
            assert heading in anchors(where), f"{document.name}: {target}#{heading}"


def test_the_pictures_of_the_concepts_are_those_that_the_script_draws():
    folder = ROOT / "docs" / "concepts"
    shown = set(re.findall(r"\]\(concepts/(\w+)\.svg\)", (ROOT / "docs" / "concepts.md").read_text()))
    drawn = set(re.findall(r'^ +write\(\w+\(result\), "(\w+)"\)$', (folder / "pictures.py").read_text(), re.MULTILINE))
    assert shown == drawn == {picture.stem for picture in folder.glob("*.svg")}
