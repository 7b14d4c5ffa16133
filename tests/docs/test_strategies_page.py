"""docs/strategies.md: its files and commands run as they stand there, and it has every kind."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import efhc
from efhc.core.parts import STEP_LIMITS
from efhc.experiments.config.experiment import STRATEGIES
from efhc.experiments.config.files import load_experiment
from efhc.strategies.composed import LOCAL_STEPS, MIXINGS, TRIGGERS
from efhc.strategies.parts.codecs import CODECS
from efhc.strategies.parts.link_choices import LINKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "strategies.md").read_text()
FILES = {
    name: code
    for language in ("python", "toml")
    for name, code in re.findall(rf"```{language}\n# ([\w-]+\.\w+)\n(.*?)```", PAGE, re.DOTALL)
}
EXAMPLES = {name: (ROOT / "examples" / name).read_text() for name in ("own_strategy.py", "own_steps.py")}
OWN = ("warm_up.py:WarmUp", "halves.py:Halves", "own_strategy.py:Steady", "own_strategy.py:Extra")
PARTS = {"codec": "fixed_grid.py:FixedGrid", "local": "own_steps.py:Lion", "limit": "own_steps.py:FarLess"}
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines() if line.strip()
]
FAMILIES = {
    "local": LOCAL_STEPS,
    "trigger": TRIGGERS,
    "codec": CODECS,
    "links": LINKS,
    "mixing": MIXINGS,
    "mixing.limit": STEP_LIMITS,
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The files of the page and the examples that it names."""
    for name, code in (FILES | EXAMPLES).items():
        (tmp_path / name).write_text(code)
    yield tmp_path
    for name in FILES | EXAMPLES:
        sys.modules.pop(Path(name).stem, None)


def lines_of(kind: str) -> int:
    """The number of lines of the class FILE:NAME that are not blank."""
    file, _, name = kind.partition(":")
    (code,) = re.findall(rf"^class {name}\(.*?(?=^\S|\Z)", (FILES | EXAMPLES)[file], re.DOTALL | re.MULTILINE)
    return len([line for line in code.splitlines() if line.strip()])


def test_all_configs_of_the_page_are_run_by_a_command():
    configs = {name for name in FILES if name.endswith(".toml")}
    assert configs
    assert configs <= {word for line in COMMANDS for word in shlex.split(line)}


@pytest.mark.parametrize("name", OWN)
def test_own_strategies_are_short_and_run_from_their_file(name, folder):
    assert lines_of(name) < 25
    strategies = {"mine": {"kind": f"{folder}/{name}"}}
    result = efhc.simulate(devices=5, iterations=5, seeds=0, evaluate_every=5, strategies=strategies)
    assert result.metrics["bits"].sum() > 0


@pytest.mark.parametrize("part", PARTS)
def test_an_own_part_is_one_short_class_that_runs_with_the_same_bits_in_both_drivers(part, folder):
    assert lines_of(PARTS[part]) < 25
    own = {"kind": f"{folder}/{PARTS[part]}"}
    table = {"kind": "composed", "trigger": "always", "mixing": {"kind": "half-steps"}}
    table = table | ({"mixing": {"kind": "half-steps", "limit": own}} if part == "limit" else {part: own})
    common = {"devices": 5, "iterations": 10, "seeds": 0, "step_size": efhc.Constant(value=0.003)}
    plain = efhc.simulate(**common, strategies={"mine": efhc.Composed(trigger="always", mixing="half-steps")})
    together = efhc.simulate(**common, strategies={"mine": table})
    apart = efhc.simulate(**common, strategies={"mine": table}, driver=efhc.EventDriven(links=efhc.InstantLinks()))
    assert np.array_equal(together.models["mine", 0], apart.models["mine", 0])
    assert not np.array_equal(together.models["mine", 0], plain.models["mine", 0])  # the part is used


def test_each_of_the_four_forms_has_an_example():
    for method in ("thresholds", "fires", "parts", "step"):
        assert any(f"    def {method}(self" in code for code in (FILES | EXAMPLES).values())


def test_the_example_runs_and_fires_about_as_often_as_it_is_told():
    experiment = load_experiment(ROOT / "examples" / "own-strategy.toml", ["iterations=200", "devices=5"])
    result = efhc.simulate(experiment)
    assert not result.failed
    fired = dict(result.summary().select("strategy", "firing_share").iter_rows())
    assert fired["steady"] == pytest.approx(0.1, abs=0.03)
    assert fired["EXTRA"] == 1.0


# Kinds


def sections() -> dict[str, str]:
    return {part.partition("\n")[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}


HEADINGS = {
    "entrywise": "Entrywise",
    "one-way": "One-way",
    "paced": "Paced",
    "choco": "CHOCO-SGD",
    "sparq": "SPARQ-SGD",
    "beer": "BEER",
    "d2": "D2 and NIDS",
    "dsgt": "DSGT",
    "relay": "RelaySGD",
    "matcha": "MATCHA",
    "central": "Centralised SGD",
    "periodic": "Periodic broadcasts",
}
PAPERS = ("ef-hc", "gt", "zt", "rg", "never")


def test_the_page_has_every_kind():
    kinds = set(STRATEGIES.built_in())
    assert kinds == {*HEADINGS, *PAPERS, "composed"}
    choice = sections()["Which one to choose"]
    assert kinds <= set(re.findall(r"`([\w-]+)`", choice))


@pytest.mark.parametrize("part", FAMILIES)
def test_the_table_of_parts_has_every_kind(part):
    (row,) = re.findall(rf"^\| `{part}` \| (.*?)(?:;.*)? \|", sections()["The parts"], re.MULTILINE)
    assert set(re.findall(r"`([\w-]+)`", row)) == set(FAMILIES[part].built_in())


def test_every_section_has_a_small_picture_that_is_made_by_the_script():
    pictures = set(re.findall(r"\]\(strategies/([\w-]+)\.png\)", PAGE))
    script = (ROOT / "docs" / "strategies" / "pictures.py").read_text()
    assert pictures == {path.stem for path in (ROOT / "docs" / "strategies").glob("*.png")}
    for name in pictures:
        assert f'"{name}": (' in script
        assert (ROOT / "docs" / "strategies" / f"{name}.png").stat().st_size < 40_000
    in_seconds = {"Paced"}  # what it is good for is in seconds, on the page about slow links
    for heading in {*HEADINGS.values(), "The paper's strategies", "Quasi-global momentum", "Budget"} - in_seconds:
        assert "](strategies/" in sections()[heading]
