"""Our iterations, and whole commands, against those of another checkout of efhc: each round is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from benchmarks.measure import Ratio, Row, Side, by_turns, milliseconds, timed
from efhc.base.errors import EfhcError, InputError

OURSELVES = Path(__file__).resolve().parents[1]

COMMANDS: dict[str, tuple[str, ...]] = {
    "import numpy": ("-c", "import numpy"),
    "import efhc": ("-c", "import efhc"),
    "efhc --help": ("-m", "efhc", "--help"),
    "efhc demo, first": ("-m", "efhc", "demo"),
    "efhc demo, later": ("-m", "efhc", "demo"),
    "efhc run fashion-mnist": ("-m", "efhc", "run", "examples/fashion-mnist.toml"),
}
FIRST = "efhc demo, first"
"""The command that finds no compiled loops and no list of fonts, as after an installation."""


def against(checkout: Path, names: Sequence[str], rounds: int) -> Iterator[Row]:
    """Compare the iterations of each workload with those of another checkout."""
    sources = _sources(checkout)
    for name in names:
        found = by_turns({side: _workload(name, source) for side, source in sources.items()}, rounds, warm_up=False)
        yield {"workload": name, **_row(found, checkout)}


def commands(checkout: Path | None, rounds: int) -> Iterator[Row]:
    """Measure whole commands, beside those of another checkout if one is given."""
    sources = _sources(checkout)
    with TemporaryDirectory(prefix="efhc-bench-") as folder:
        for name, arguments in COMMANDS.items():
            sides = {side: _command(arguments, source, Path(folder), name == FIRST) for side, source in sources.items()}
            yield {"command": name, **_row(by_turns(sides, rounds, warm_up=name != FIRST), checkout)}


def _row(found: Mapping[str, Sequence[float]], checkout: Path | None) -> Row:
    ours = {"efhc": milliseconds(found["ours"])}
    if checkout is None:
        return ours
    return {checkout.name: milliseconds(found["theirs"]), **ours, **Ratio.of(found["theirs"], found["ours"]).row()}


def _sources(checkout: Path | None) -> dict[str, Path]:
    if checkout is None:
        return {"ours": OURSELVES}
    if not (checkout / "src" / "efhc").is_dir():
        allowed = "a checkout of efhc, for example made by `git worktree add DIR COMMIT`"
        raise InputError("--against", str(checkout), allowed)
    return {"theirs": checkout.resolve(), "ours": OURSELVES}


def _environment(source: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{source / 'src'}{os.pathsep}{source}"}


def _workload(name: str, source: Path) -> Side:
    def side() -> float:
        command = [sys.executable, "-P", str(OURSELVES / "benchmarks" / "one_round.py"), name]
        done = subprocess.run(command, env=_environment(source), check=False, capture_output=True, text=True)
        if done.returncode:
            raise EfhcError(f"bench: {name} failed in {source}: {''.join(done.stderr.splitlines()[-1:])}")
        return float(done.stdout)

    return side


def _command(arguments: Sequence[str], source: Path, folder: Path, is_first: bool) -> Side:
    kept = mkdtemp(dir=folder)

    def run() -> int:
        with TemporaryDirectory(dir=folder) as work:
            caches = f"{work if is_first else kept}/caches"
            variables = dict.fromkeys(("XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "MPLCONFIGDIR"), caches)
            (Path(work) / "examples").symlink_to(source / "examples")
            done = subprocess.run(
                [sys.executable, *arguments],
                cwd=work,
                env=_environment(source) | variables,
                check=False,
                capture_output=True,
            )
        if done.returncode:
            raise EfhcError(f"bench: `python {' '.join(arguments)}` ended with exit code {done.returncode}")
        return 1

    return timed(run)
