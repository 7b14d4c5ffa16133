"""The bench of devices on their own clocks: both sides do the same work, and its table can be read."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from efhc.base.errors import InputError
from efhc.benchmarks import bench, clocks
from efhc.benchmarks.clocks import CLOCK_WORKLOADS, DELAYS, LOCKSTEP, NO_DELAY, OWN_CLOCKS, ClockWorkload, clock_sides
from efhc.benchmarks.names import check_names
from efhc.cli import checking
from efhc.drivers.event_driven import simulator

pytestmark = pytest.mark.usefixtures("fashion_files")

SMALL = {
    "small": ClockWorkload("ZT, no delay", 5, "ZT", NO_DELAY, "4x"),
    "delayed": ClockWorkload("EF-HC, delays", 4, "EF-HC", DELAYS, ""),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "STEPS", 20)
    monkeypatch.setattr(clocks, "CLOCK_WORKLOADS", SMALL)
    monkeypatch.setattr(simulator, "NUMBERS_AT_ONCE", 1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("workload", SMALL.values(), ids=SMALL)
def test_both_sides_make_the_same_number_of_steps(workload: ClockWorkload):
    sides = clock_sides(workload)
    for _ in range(3):  # each goes on from where it was
        assert sides[LOCKSTEP]() == sides[OWN_CLOCKS]() == 20


@pytest.mark.usefixtures("small")
def test_the_clocks_are_numbers_and_a_row_per_workload():
    told: list[str] = []
    found = bench.bench_clocks(2, told.append)
    assert told == list(SMALL)
    assert json.loads(json.dumps(found)) == found
    for result in found["results"].values():
        ratio = result["ratio"]
        assert ratio["least"] <= ratio["median"] <= ratio["most"]
        assert ratio["median"] == pytest.approx(result["seconds"][OWN_CLOCKS] / result["seconds"][LOCKSTEP])
    rows = bench.clocks_table(found)
    assert [row[0] for row in rows] == ["workload", *SMALL]
    assert len({len(row) for row in rows}) == 1
    assert bench.clocks_legend(found) == ["small: ZT, no delay", "delayed: EF-HC, delays"]


def test_the_command_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    results = {
        name: {
            "about": one.about,
            "devices": one.devices,
            "goal": one.goal,
            "seconds": {LOCKSTEP: 123e-6, OWN_CLOCKS: 456e-6},
            "ratio": {"median": 3.7, "least": 3.5, "most": 12.9},
        }
        for name, one in CLOCK_WORKLOADS.items()
    }
    monkeypatch.setattr(bench, "bench_clocks", lambda rounds, tell: {"results": results})
    monkeypatch.setattr(checking, "console", Console(width=80))
    checking.bench(["clocks"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for name, one in CLOCK_WORKLOADS.items():
        (row,) = (line for line in lines if line.startswith(f"\u2502 {name} "))
        assert [cell.strip() for cell in row.split("\u2502")[2:-1]] == [
            f"{one.devices:,}", "123 us", "456 us", "3.7x", "3.5-12.9", one.goal
        ]  # fmt: skip
        assert f"{name}: {one.about}" in lines


def test_the_clocks_are_asked_for_alone():
    check_names(["clocks"])
    with pytest.raises(InputError, match=r"allowed: svm-b1, .*`clocks` or `node`, alone"):
        check_names(["clocks", "svm-b1"])
