# ruff: noqa: T201 - a tool for the command line
"""Break one law at a time in a copy of the tree, and see whether a quick test notices: `make mutants`.

python tests/mutants/run.py               all of mutants.py
python tests/mutants/run.py fsync coins   those whose names contain one of these words
python tests/mutants/run.py --stale       only look whether the texts to be replaced are still there

Each mutant is *killed* (a test failed), *lived* (all passed), *stale* (the text to replace is not there exactly once)
or *broken* (the tests could not be run). Exit code 0 only if all were killed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "docs", "examples", "pyproject.toml", "README.md")
SECONDS = 600


def place(mutant: Mutant, tree: Path) -> Path | None:
    """The one file in which `old` occurs, once; None if there is no such file."""
    files = [path for path in (tree / "src" / "efhc").glob(mutant.where) if path.suffix == ".py"]
    found = [path for path in files for _ in range(path.read_text().count(mutant.old))]
    return found[0] if len(found) == 1 else None


@contextmanager
def mutated(path: Path, mutant: Mutant) -> Iterator[None]:
    before = path.read_text()
    path.write_text(before.replace(mutant.old, mutant.new))
    try:
        yield
    finally:
        path.write_text(before)


def run_tests(tests: str, tree: Path, cache: Path) -> str:
    """Passed, failed, or why they could not be run."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",  # a mutant may be as long as the original, and written in the same second
        "NUMBA_CACHE_DIR": str(cache),
        "HYPOTHESIS_PROFILE": "quick",
    }
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        *shlex.split(tests),
    ]
    try:
        done = subprocess.run(
            words, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "failed"  # a law whose breach keeps a run from ending is noticed
    outcome = {0: "passed", 1: "failed"}.get(done.returncode)
    return outcome or f"broken: {done.stdout[-400:]}{done.stderr[-400:]}"


def judge(mutant: Mutant, tree: Path, caches: Path) -> str:
    """killed, lived, stale or broken."""
    path = place(mutant, tree)
    if path is None:
        return "stale"
    # Compiled loops call one another, and numba looks at one file only: with a changed one, nothing cached is used.
    is_compiled = "numba" in path.read_text()
    cache = Path(tempfile.mkdtemp(dir=caches)) if is_compiled else caches / "cache"
    with mutated(path, mutant):
        outcome = run_tests(mutant.tests, tree, cache)
    return {"failed": "killed", "passed": "lived"}.get(outcome, outcome)


def copied(target: Path) -> Path:
    """A copy of the tree, with the data that lie beside it."""
    tree = target / "tree"
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tree / name)
    if (ROOT.parent / "shared").is_dir():
        (target / "shared").symlink_to(ROOT.parent / "shared")
    return tree


def run(mutants: Iterable[Mutant], target: Path) -> Counter[str]:
    """Judge all of them, and print each verdict as it comes."""
    tree, verdicts = copied(target), Counter[str]()
    passing: dict[str, str] = {}
    for mutant in mutants:
        if mutant.tests not in passing:
            passing[mutant.tests] = run_tests(mutant.tests, tree, target / "cache")
        sound = passing[mutant.tests] == "passed"
        verdict = judge(mutant, tree, target) if sound else f"broken: {mutant.tests} fails without any mutant"
        verdicts[verdict.partition(":")[0]] += 1
        print(f"{verdict:8} {mutant.name} ({mutant.where})", flush=True)
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="parts of the names of mutants")
    parser.add_argument("--stale", action="store_true", help="only list those that are stale")
    asked = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not asked.words or any(word in mutant.name for word in asked.words)]
    if asked.stale:
        stale = [mutant for mutant in chosen if place(mutant, ROOT) is None]
        for mutant in stale:
            print(f"stale    {mutant.name} ({mutant.where}): {mutant.old}")
        return bool(stale)
    with tempfile.TemporaryDirectory(prefix="efhc-mutants-") as target:
        verdicts = run(chosen, Path(target))
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))
    return set(verdicts) != {"killed"}


if __name__ == "__main__":
    sys.exit(main())
