"""The runner of mutants tells killed, lived, stale and broken ones apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from run import judge, place

from mutants import MUTANTS, Mutant


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package of one law, and a test of it."""
    (tmp_path / "src" / "efhc").mkdir(parents=True)
    (tmp_path / "src" / "efhc" / "__init__.py").touch()
    (tmp_path / "src" / "efhc" / "law.py").write_text("def law(x):\n    return x + 1  # one more\n")
    (tmp_path / "test_law.py").write_text("from efhc.law import law\n\ndef test_law():\n    assert law(1) == 2\n")
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("x + 1", "x + 2", "killed"),
        ("one more", "two more", "lived"),
        ("x + 3", "x", "stale"),  # nowhere
        ("x", "y", "stale"),  # twice
        ("return", "retrun", "broken"),
    ],
)
def test_verdicts(tree: Path, tmp_path: Path, old: str, new: str, verdict: str):
    mutant = Mutant("law", "*.py", old, new, "test_law.py")
    assert judge(mutant, tree, tmp_path).partition(":")[0] == verdict
    assert (tree / "src" / "efhc" / "law.py").read_text() == "def law(x):\n    return x + 1  # one more\n"


def test_the_list_is_sound():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30
    root = Path(__file__).parents[2]
    for mutant in MUTANTS:
        assert mutant.old != mutant.new
        for word in mutant.tests.split():
            assert not word.startswith("tests/") or (root / word).exists(), word
        assert place(mutant, root) is None or mutant.old in place(mutant, root).read_text()
