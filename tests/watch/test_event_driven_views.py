"""What pages get of runs in which every device has its own clock, while they are made and when they are complete."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise, repeat
from pathlib import Path

import polars as pl
import pytest

import efhc
from efhc.watch.discovery import Discovery
from efhc.watch.readers import LiveReader, TableReader
from efhc.watch.untrusted import MOST_ROWS
from efhc.watch.watcher import Watcher

FIELDS = {"devices": 6, "iterations": 40, "evaluate_every": 5, "seeds": (0,)}


def made(folder: Path, **fields: object) -> tuple[efhc.Result, TableReader, LiveReader]:
    """A complete run, its tables, and its live file."""
    strategies = {"EF-HC": efhc.EventTriggered(r=0.05)}
    result = efhc.simulate(out=folder / "run", strategies=strategies, **{**FIELDS, **fields})
    (group,) = Discovery(folder).find()
    complete, live = TableReader(group.runs[0]), LiveReader(replace(group.runs[0], is_complete=False))
    complete.read()
    live.read()
    return result, complete, live


# With 0.1, the times at which the network changes are rounded: the tenth change comes before second 1.
@pytest.mark.parametrize("network_seconds", [1.0, 0.1, 0.7, 3.0, 50.0])
def test_the_links_drawn_are_those_in_force_at_each_second(tmp_path, network_seconds):
    compute = {"kind": "lognormal", "median": 0.7}
    driver = efhc.EventDriven(network_seconds=network_seconds, compute=compute)
    result, source, _ = made(tmp_path, network=efhc.RandomLinks(up_probability=0.5), driver=driver)
    events, network = source.rows("events").columns, source.rows("network").columns
    noted = {k: list(zip(a, b, strict=True)) for k, a, b in result.network.drop("seed").iter_rows()}
    steps = result.steps["seconds"].sort()
    assert events["k"] == list(range(len(steps) // 6))
    assert events["seconds"] == [*steps[5::6][: len(steps) // 6 - 1], steps[-1]]
    changes = list(accumulate(repeat(network_seconds, max(noted))))
    for k, second, used in zip(events["k"], events["seconds"], events["used"], strict=True):
        number = sum(change <= second for change in changes)
        in_force = noted[max(one for one in noted if one <= number)]
        place = sum(one <= k for one in network["k"]) - 1
        assert network["links"][place] == in_force
        assert set(used) <= set(in_force)
    assert any(events["used"])
    assert set(network["k"]) <= set(events["k"])
    assert all(one != other for one, other in pairwise(network["links"]))
    assert len(network["k"]) > 1 or network_seconds == 50


def test_devices_that_fired_and_links_in_use_are_drawn_at_the_moment_they_did(tmp_path):
    result, source, _ = made(tmp_path, network=efhc.Ring(), driver=efhc.EventDriven())
    events = source.rows("events").columns
    began = [-1.0, *events["seconds"][:-1]]
    committed = result.exchanges.filter(outcome="committed")
    for since, until, fired, used in zip(began, events["seconds"], events["fired"], events["used"], strict=True):
        then = result.steps.filter("fired", pl.col("seconds") > since, pl.col("seconds") <= until)
        assert fired == sorted(then["device"])
        is_last = until == events["seconds"][-1]
        ends = committed.filter(pl.col("end") > since, (pl.col("end") <= until) | is_last)
        assert used == sorted({tuple(sorted(pair)) for pair in ends.select("device", "neighbour").iter_rows()})


@pytest.mark.usefixtures("no_short_runs")
@pytest.mark.parametrize("seconds", [None, 25.0])
@pytest.mark.parametrize("churn", [None, efhc.ChurnRates(crash_every=20.0)])
def test_k_is_the_mean_number_of_steps_while_a_run_is_made_and_afterwards(tmp_path, seconds, churn):
    driver = efhc.EventDriven(
        seconds=seconds, sample_seconds=2.0, churn=churn, compute={"kind": "lognormal", "median": 0.6}
    )
    result, complete, live = made(tmp_path, network=efhc.Ring(), driver=driver)
    expected = {seconds: steps // 6 for seconds, steps in result.timeline.select("seconds", "steps").iter_rows()}
    last = max(expected.values())
    assert 10 < last != FIELDS["iterations"] or (seconds is None and churn is None)
    assert live.live.k == last
    best = dict(zip(expected.values(), result.timeline["accuracy_max"], strict=True))
    for source in (live, complete):
        curve, samples = source.rows("curve").columns, source.rows("samples").columns
        assert curve["seconds"] == pytest.approx(list(expected))
        assert curve["k"] == list(expected.values())
        assert curve["bits"] == [8.0 * sent for sent in result.timeline["bytes"]]
        assert curve["transmission_time"] == [None] * len(expected)
        assert samples["k"][-1] == last
        for k, accuracies in zip(samples["k"], samples["accuracy"], strict=True):
            known = [accuracy for accuracy in accuracies if accuracy is not None]
            assert max(known, default=None) == pytest.approx(best[k], abs=1e-4)
        events = source.rows("events").columns
        assert events["k"] == sorted(set(events["k"]))
        assert events["k"][-1] <= last
        assert events["seconds"] == sorted(events["seconds"])
        assert 0.0 < events["seconds"][-1] <= result.timeline["seconds"].max()


def many_rows(path: Path, rows: int) -> None:
    """Write a table of a few kilobytes with a lot of rows."""
    part = pl.select(
        strategy=pl.repeat("ef-hc", 1_000_000), seed=pl.repeat(0, 1_000_000), accuracy=pl.repeat(0.5, 1_000_000)
    )
    pl.concat([part.lazy()] * (rows // 1_000_000)).sink_parquet(path)
    assert path.stat().st_size < 1_000_000


def as_stated(rows: int, length: int) -> bytes:
    """How Parquet writes down that a file has this number of rows: doubled, 7 bits per byte, the lowest first."""
    return bytes(2 * rows >> 7 * place & 127 | 128 * (place < length - 1) for place in range(length))


@pytest.mark.parametrize("stated", [MOST_ROWS + 1_000_000, 5])
def test_a_table_with_more_rows_than_any_run_has_is_the_problem_of_its_folder(tmp_path, stated):
    made(tmp_path, driver=efhc.EventDriven())
    (table,), rows = (tmp_path / "run").glob("runs/*/timeline.parquet"), MOST_ROWS + 1_000_000
    many_rows(table, rows)
    assert table.read_bytes().count(as_stated(rows, 4)) == 1
    table.write_bytes(table.read_bytes().replace(as_stated(rows, 4), as_stated(stated, 4)))
    assert pl.scan_parquet(table).select(pl.len()).collect().item() == stated
    watched = Watcher.of(tmp_path, may_be_empty=True)
    (group,) = watched.tree["groups"]
    (run,) = group["runs"]
    words = "timeline.parquet has 21,000,000 rows; a page shows tables of at most 20,000,000"
    assert run["problem"].endswith(f": its files cannot be read ({words})")
    with pytest.raises(efhc.EfhcError, match=words):
        watched.detail(run["id"])


def test_a_link_that_takes_the_place_of_a_table_shows_nothing_from_elsewhere(tmp_path, monkeypatch):
    result, source, _ = made(tmp_path, driver=efhc.EventDriven())
    (table,), elsewhere, scan = (tmp_path / "run").glob("runs/*/timeline.parquet"), tmp_path / "other", pl.scan_parquet
    result.timeline.with_columns(accuracy=pl.lit(0.123)).write_parquet(elsewhere)

    def overtaken(file):
        table.unlink()
        table.symlink_to(elsewhere)
        return scan(file)

    with monkeypatch.context() as patched:
        patched.setattr(pl, "scan_parquet", overtaken)
        assert source.rows("curve").columns["accuracy"] == pytest.approx(result.timeline["accuracy"].to_list())
    with pytest.raises(OSError, match="symbolic link"):
        source.metrics()


def test_a_run_that_ends_after_some_seconds_has_the_iterations_that_were_made(tmp_path: Path) -> None:
    timed = efhc.EventDriven(seconds=20.0, sample_seconds=2.0)
    experiment = {"devices": 4, "iterations": 7, "seeds": (0,), "driver": timed}
    strategies = {"EF-HC": efhc.EventTriggered()}
    efhc.simulate(out=tmp_path / "run", strategies=strategies, **experiment)
    watched = Watcher.of(tmp_path, may_be_empty=False)
    (run,) = watched.tree["groups"][0]["runs"]
    assert run["k"] == run["iterations"] == watched.detail(run["id"])["curve"]["k"][-1] != 7
