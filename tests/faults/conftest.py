"""Faults on a real network. Run by `make faults` only: EFHC_FAULTS is "all" for all counts, "tenth" or "few"."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path

import pytest
from counts import CHOSEN, SHARES, Counts

if CHOSEN is None:  # they take minutes, and the machine for themselves
    collect_ignore_glob = ["test_*.py"]
elif CHOSEN not in SHARES:
    raise pytest.UsageError(f"EFHC_FAULTS: cannot use {CHOSEN!r}. Use {', '.join(SHARES)}")
elif os.geteuid() != 0:
    raise pytest.UsageError("faults need network namespaces, which need root")


@pytest.fixture
def counted(record_property: Callable[[str, object], None]) -> Iterator[Callable[[str], Counts]]:
    made: list[Counts] = []

    def make(fault: str) -> Counts:
        made.append(Counts(fault))
        return made[-1]

    yield make
    for counts in made:
        record_property("fault", list(astuple(counts)))  # plain data, which other processes can send


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose name is short enough for the sockets in it."""
    made = Path(tempfile.mkdtemp(prefix="efhc-"))
    yield made
    shutil.rmtree(made)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    rows = [Counts(*of) for report in reports for name, of in getattr(report, "user_properties", []) if name == "fault"]
    if rows:
        terminalreporter.section("faults")
        terminalreporter.write_line(f"{'fault':44} {'tried':>6} {'survived':>9} {'lost':>5} {'found in':>9}")
        for row in {row.fault: row for row in rows}.values():
            found = f"{row.slowest:.1f} s" if row.slowest else ""
            terminalreporter.write_line(
                f"{row.fault:44} {row.tried:6} {row.survived:9} {row.lost:5} {found:>9}  {row.note}".rstrip()
            )
