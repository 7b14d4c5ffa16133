"""Numbers and pictures of a result that has not finished say how far it has come, and no more."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from stopped_runs import interrupt_at

import efhc
from efhc.base.errors import EfhcError
from efhc.drivers.observers import Observer
from efhc.experiments.runs.study import in_order

FIELDS = {
    "iterations": 100,
    "evaluate_every": 5,
    "seeds": (0, 1),
    "devices": 5,
    "strategies": {"EF-HC": efhc.EventTriggered(r=50.0), "ZT": efhc.ZeroThreshold()},
}


class Stop(Observer):
    """Interrupts EF-HC with seed 1 after 70 iterations."""

    def __init__(self, strategy: str, seed: int, scenario: object) -> None:
        self._concerns = (strategy, seed) == ("EF-HC", 1)

    def after(self, steps, state) -> None:
        if self._concerns and state.k >= 70:
            raise KeyboardInterrupt


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """An experiment that was killed before the first checkpoint of its third run: its live file is all there is."""
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(**FIELDS, out=out, jobs=1, observers=Stop)
    pieces = list(out.glob("runs/*/pieces/*.parquet"))
    assert pieces
    for piece in pieces:
        piece.unlink()
    return out


@pytest.fixture(scope="module")
def whole() -> efhc.Result:
    return efhc.simulate(**FIELDS)


def test_seeds_of_unequal_length_are_drawn_as_far_as_all_have_come(stopped: Path, whole: efhc.Result):
    result = efhc.Result.load(stopped, unfinished=True)
    figure = result.plot()
    assert figure.get_suptitle().endswith("unfinished")
    rows = result.metrics.filter(strategy="EF-HC")
    assert rows.group_by("seed").len()["len"].n_unique() == 2
    reached = rows.filter(seed=1)["iteration"].max()
    assert 60 <= reached < 80
    times, accuracies, _, errors = (axes.lines[0] for axes in figure.axes)
    for line in (times, accuracies, errors):
        assert line.get_xdata()[-1] == reached
    # Of one seed only evaluated iterations have rows: its curves are read off between them.
    last = whole.metrics.filter(pl.col("iteration").is_between(reached - 4, reached), strategy="EF-HC")
    assert times.get_ydata()[-1] == pytest.approx(last["transmission_time"].mean(), rel=0.05)
    assert last["consensus_error"].min() <= errors.get_ydata()[-1] <= last["consensus_error"].max()


def test_the_summary_counts_what_is_there(stopped: Path, whole: efhc.Result):
    result = efhc.Result.load(stopped, unfinished=True)
    efhc_row, zt_row = result.summary().rows(named=True)
    seed0 = whole.metrics.filter(strategy="EF-HC", seed=0)
    assert efhc_row["firing_share"] == pytest.approx(seed0["fired"].mean() / FIELDS["devices"])
    reached = result.metrics.filter(strategy="EF-HC", seed=1)["iteration"].max() + 1
    assert (efhc_row["seeds"], efhc_row["iterations"]) == (2, (100 + reached) / 2)
    assert (zt_row["seeds"], zt_row["iterations"], zt_row["firing_share"]) == (1, 100, 1.0)
    assert "unfinished: 2 of 4 runs are done" in repr(result)
    (table,) = result.words().tables
    assert table.title == "experiment: so far, means over 1 to 2 seeds"
    assert table.columns[-2:] == ("seeds", "iterations")
    page = result._repr_html_()
    assert "<img" in page
    assert "Not all runs have finished" in page
    assert ", unfinished=True)</code>" in page
    assert "seeds" not in whole.summary().columns


def test_it_is_not_saved(stopped: Path, tmp_path: Path):
    result = efhc.Result.load(stopped, unfinished=True)
    with pytest.raises(EfhcError, match=r"not finished[^\n]*--resume[^\n]*$"):
        result.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_budgets_are_those_of_runs_that_are_done(stopped: Path, whole: efhc.Result):
    result = efhc.Result.load(stopped, unfinished=True)
    assert result.at_budget().rows() == whole.at_budget().filter(seed=0).rows()
    assert len(result.frontier().axes) == 1


@pytest.mark.parametrize(
    ("driver", "states"),
    [
        ("lockstep", {"waiting"}),
        (efhc.EventDriven(target=0.5), {"waiting", "stopped"}),
    ],  # it keeps what it began
)
def test_before_the_first_row_there_is_nothing_to_show(tmp_path: Path, driver, states: set[str]):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(**{**FIELDS, "driver": driver}, out=out, jobs=1, progress=interrupt_at(0))
    for live in out.glob("runs/*/live.jsonl"):
        live.unlink()
    result = efhc.Result.load(out, unfinished=True)
    assert set(result.states.values()) == states
    assert len(result.summary()) == 0
    assert "no run has a row yet" in result._repr_html_()


def test_names_with_numbers_are_in_the_order_of_the_numbers() -> None:
    names = ["b, half=200.0", "b, half=50.0", "a"]
    assert sorted(names, key=in_order) == ["a", "b, half=50.0", "b, half=200.0"]
