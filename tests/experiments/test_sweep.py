from __future__ import annotations

import polars as pl
import pytest

import efhc
from efhc.base.errors import EfhcError, InputError
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.store import RunStore
from efhc.experiments.studies.sweep import (
    FIGURES,
    RESULTS,
    RESULTS_CSV,
    SUMMARY,
    failed_runs,
    load_sweep,
    run_sweep,
    runs_of,
    summary,
    summary_rows,
    sweep_points,
    varying_settings,
)
from efhc.report.claims.intervals import interval

BASE = {"iterations": 20, "evaluate_every": 10, "seeds": [0, 1], "strategies": {"ZT": "zt", "EF-HC": {"kind": "ef-hc"}}}


def run(points, out, store=RunStore):
    return run_sweep(runs_of(points), out, store(out / "runs"), LocalEngine(), lambda run, share: None)


def test_a_grid_is_all_combinations_in_order():
    points = sweep_points(BASE, {"network": {"radius": [0.3, 0.5]}, "batch_size": [1, 2]})
    assert [dict(point.settings) for point in points] == [
        {"network.radius": radius, "batch_size": size} for radius in (0.3, 0.5) for size in (1, 2)
    ]
    assert [(p.experiment.network.radius, p.experiment.batch_size) for p in points] == [
        (0.3, 1),
        (0.3, 2),
        (0.5, 1),
        (0.5, 2),
    ]


def test_a_list_is_one_grid_after_the_other_each_point_once():
    sweep = [{"network": ["ring", "star"]}, {"network": "ring"}, {"network": "complete", "devices": [4, 5]}]
    points = sweep_points(BASE, sweep)
    assert [(p.experiment.network.kind, p.experiment.devices) for p in points] == [
        ("ring", 10),
        ("star", 10),
        ("complete", 4),
        ("complete", 5),
    ]


def test_keys_may_be_quoted_or_nested(tmp_path):
    (tmp_path / "a.toml").write_text('name = "same"\niterations = 20\n[sweep]\n"network.radius" = [0.3, 0.5]\n')
    (tmp_path / "b.toml").write_text('name = "same"\niterations = 20\n[sweep]\nnetwork.radius = [0.3, 0.5]\n')
    assert load_sweep(tmp_path / "a.toml") == load_sweep(tmp_path / "b.toml")
    assert {p.experiment.iterations for p in load_sweep(tmp_path / "a.toml", ["iterations=30"])} == {30}


@pytest.mark.parametrize(
    ("sweep", "parts"),
    [
        ({"network.radus": [0.3]}, ["network.radus", "did you mean 'radius'", "network.radus=0.3"]),
        ({"nettwork": ["ring"]}, ["nettwork", "no such key"]),
        ({"network.radius": [0.3, -1.0]}, ["network.radius", "-1.0"]),
        ({"network.radius": []}, ["sweep.network.radius", "empty list", "at least one value"]),
        ({"seeds": [1, 2]}, ["sweep.seeds", "every point runs with all of `seeds`"]),
        (3, ["sweep", "3", "tables"]),
        ([], ["sweep", "an empty list", "at least one table"]),
        ({}, ["sweep", "an empty table", "at least one setting"]),
        ({"devices.kind": [1]}, ["devices.kind", "has no settings of its own"]),
    ],
    ids=["typo", "unknown", "out of range", "empty", "seeds", "number", "no tables", "no settings", "value as table"],
)
def test_what_cannot_be_swept_is_one_line(sweep, parts):
    with pytest.raises(InputError) as error:
        sweep_points({**BASE, "devices": 10}, sweep)
    for part in parts:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_without_a_sweep_says_what_to_write(tmp_path):
    (tmp_path / "a.toml").write_text("iterations = 20\n")
    with pytest.raises(InputError, match=r"sweep.*network.radius"):
        load_sweep(tmp_path / "a.toml")


def test_the_table_is_tidy_and_holds_every_run(tmp_path):
    table = run(sweep_points(BASE, {"network.radius": [0.4, 0.6], "batch_size": [1, "full"]}), tmp_path)
    assert table.columns[:5] == ["network.radius", "batch_size", "run", "strategy", "seed"]
    assert table.schema["network.radius"] == pl.Float64
    assert table["batch_size"].unique().sort().to_list() == ['"full"', "1"]  # mixed: as JSON
    assert len(table) == 2 * 2 * 2 * 2 * 3  # radii, batch sizes, strategies, seeds, evaluations
    assert pl.read_parquet(tmp_path / RESULTS).equals(table)
    assert pl.read_csv(tmp_path / RESULTS_CSV, infer_schema_length=None)["accuracy"].equals(table["accuracy"])
    assert pl.read_csv(tmp_path / SUMMARY).columns == summary(table).columns
    png, pdf = ((tmp_path / name).read_bytes() for name in FIGURES)
    assert (png[:4], pdf[:4]) == (b"\x89PNG", b"%PDF")
    assert table["failed"].null_count() == len(table)
    one = table.filter((pl.col("network.radius") == 0.6) & (pl.col("batch_size") == "1"), strategy="ZT", seed=1)
    alone = efhc.simulate(
        iterations=20,
        evaluate_every=10,
        seeds=(1,),
        batch_size=1,
        network=efhc.Geometric(radius=0.6),
        strategies={"ZT": efhc.ZeroThreshold()},
    )
    assert one["accuracy"].to_list() == alone.metrics["accuracy"].drop_nulls().to_list()


def test_settings_that_a_point_leaves_alone_are_null(tmp_path):
    table = run(sweep_points(BASE, [{"network": ["ring"]}, {"devices": [4]}]), tmp_path)
    assert table.select("network", "devices").unique().sort("devices").rows() == [("ring", None), (None, 4)]


def test_runs_that_points_share_are_made_and_shown_once(tmp_path):
    table = run(sweep_points(BASE, {"strategies.EF-HC.r": [100.0, 1000.0], "batch_size": [1, 2]}), tmp_path)
    made = [path for path in (tmp_path / "runs").glob("[!.]*") if path.is_dir()]
    assert len(made) == 2 * (2 * 2 + 2)  # two seeds; EF-HC at two values of r, ZT once, each with two batch sizes
    means = summary(table)
    assert means.select("strategies.EF-HC.r", "batch_size", "strategy").rows() == [
        (None, 1, "ZT"),
        (100.0, 1, "EF-HC"),
        (None, 2, "ZT"),
        (100.0, 2, "EF-HC"),
        (1000.0, 1, "EF-HC"),
        (1000.0, 2, "EF-HC"),
    ]
    assert set(means["seeds"]) == {2}
    header, rows = summary_rows(table)
    assert header[:3] == ["r", "batch_size", "strategy"]
    assert [row[:3] for row in rows[:2]] == [["any", "1", "ZT"], ["100", "1", "EF-HC"]]


def ended(points: dict[float, dict[str, list[float]]], **more: object) -> pl.DataFrame:
    """A table of runs with these final accuracies, by radius and strategy."""
    return pl.DataFrame(
        [
            {
                "network.radius": radius,
                "batch_size": 1,
                "run": f"{radius} {strategy} {seed}",
                "strategy": strategy,
                "seed": seed,
                "iteration": 9,
                "accuracy": accuracy,
                "transmission_time_total": 31860.4,
                "broadcasts_total": 10000,
                "failed": None,
            }
            | more
            for radius, strategies in points.items()
            for strategy, accuracies in strategies.items()
            for seed, accuracy in enumerate(accuracies)
        ],
        schema_overrides={"failed": pl.String},
    )


def test_a_summary_has_means_and_intervals_over_seeds():
    (row,) = summary(ended({0.3: {"ZT": [0.5, 0.6, 0.8]}})).rows(named=True)
    _, low, high = interval(pl.Series([0.5, 0.6, 0.8]).to_numpy())
    assert (row["accuracy"], row["worst_seed_accuracy"], row["seeds"]) == (pytest.approx(1.9 / 3), 0.5, 3)
    assert (row["low"], row["high"]) == (low, high)
    (alone,) = summary(ended({0.3: {"ZT": [0.5]}})).rows(named=True)
    assert (alone["low"], alone["high"]) == (None, None)


def test_a_summary_fits_a_narrow_terminal():
    header, rows = summary_rows(ended({0.3: {"ZT": [0.5, 0.6]}, 0.5: {"ZT": [0.7, 0.7]}}))
    assert header == [
        "radius",
        "strategy",
        "accuracy",
        "min to max",
        "time",
        "broadcasts",
    ]  # batch_size is the same everywhere
    assert rows[1] == ["0.5", "ZT", "0.700", "0.700-0.700", "31,860", "10,000"]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    assert sum(widths) + 3 * len(widths) + 1 <= 80


def test_an_interval_is_called_so_from_five_seeds_on():
    few, many = [0.5, 0.6, 0.7, 0.8], [0.5, 0.6, 0.7, 0.8, 0.9]
    assert summary_rows(ended({0.3: {"ZT": few}}))[0][2] == "min to max"
    assert summary(ended({0.3: {"ZT": few}})).select("low", "high").row(0) == (0.5, 0.8)
    assert summary_rows(ended({0.3: {"ZT": many}}))[0][2] == "95 %"
    assert "below 5 seeds min to max" in summary_rows(ended({0.3: {"ZT": many}, 0.5: {"ZT": few}}))[0][3]


def test_many_settings_share_a_column():
    table = ended({0.3: {"ZT": [0.5]}, 0.5: {"ZT": [0.7]}})
    copies = {name: pl.col("network.radius") for name in ("a.b", "c", "d")}
    wide = table.select(pl.exclude("batch_size")).select(pl.first(), pl.lit(1).alias("e"), pl.exclude("network.radius"))
    wide = wide.select(pl.first(), *(value.alias(name) for name, value in copies.items()), pl.exclude("network.radius"))
    header, rows = summary_rows(wide)
    assert header[:2] == ["settings", "strategy"]
    assert [row[0] for row in rows] == ["radius=0.3, b=0.3, c=0.3, d=0.3", "radius=0.5, b=0.5, c=0.5, d=0.5"]
    assert len(varying_settings(wide)) == 4


def test_settings_with_the_same_ending_are_told_apart():
    table = ended({0.3: {"ZT": [0.5]}, 0.5: {"ZT": [0.7]}}).rename({"batch_size": "data.radius"})
    table = table.with_columns(pl.col("network.radius").alias("data.radius"))
    assert summary_rows(table)[0][:2] == ["network.radius", "data.radius"]


def test_a_point_that_diverges_is_a_row_and_stops_no_other(tmp_path):
    def swept(*steps: float, out: str) -> pl.DataFrame:
        base = {**BASE, "model": {"kind": "least-squares"}}
        return run(sweep_points(base, {"step_size.initial": list(steps)}), tmp_path / out)

    table, whole = swept(1e30, 0.01, out="both"), swept(0.01, out="whole")
    failed = table.filter(pl.col("failed").is_not_null())
    assert failed.select("step_size.initial", "strategy", "seed").rows() == [
        (1e30, strategy, seed) for seed in (0, 1) for strategy in ("ZT", "EF-HC")
    ]
    assert failed["accuracy"].null_count() == 4
    assert table.columns == whole.columns
    assert table.filter(pl.col("failed").is_null()).equals(whole)
    header, rows = summary_rows(table)
    assert header[-1] == "failed"
    assert [row[-1] for row in rows] == ["2", "2", "", ""]
    assert rows[0][2:6] == ["failed", "", "", ""]
    assert failed_runs(table)[0].startswith("step_size.initial=1e+30: ZT, seed 0: ")
    assert summary(table)["seeds"].to_list() == [0, 0, 2, 2]
    assert (tmp_path / "both" / SUMMARY).exists()


def test_if_all_runs_fail_the_sweep_fails(tmp_path, failing_store):
    with pytest.raises(EfhcError, match="no longer finite"):
        run(sweep_points(BASE, {"network.radius": [0.4]}), tmp_path, failing_store())


OWN_RING = """
from efhc import Ring


class TwoSteps(Ring):
    \"\"\"A ring of one's own.\"\"\"
"""


def test_kinds_of_ones_own_are_swept_like_others(tmp_path):
    (tmp_path / "own.py").write_text(OWN_RING)
    (tmp_path / "a.toml").write_text(
        'iterations = 10\nseeds = [0]\n[strategies]\nZT = "zt"\n[sweep]\nnetwork = ["ring", "own.py:TwoSteps"]\n'
    )
    table = run(load_sweep(tmp_path / "a.toml"), tmp_path / "out")
    assert set(table["network"]) == {"ring", "own.py:TwoSteps"}
    own, ring = (table.filter(network=kind)["accuracy"] for kind in ("own.py:TwoSteps", "ring"))
    assert own.to_list() == ring.to_list()
    assert [row[0] for row in summary_rows(table)[1]] == ["ring", "own.py:TwoSteps"]


class Names:
    """A tracker that keeps the names of runs, by key."""

    kind = "names"

    def __init__(self):
        self.names = {}

    def open(self, run):
        self.names[run.key] = run.name
        return self

    def add(self, points):
        pass

    def close(self, state, problem):
        pass


def tracked_names(strategies, sweep, out):
    tracker = Names()
    tables = {name: {"kind": kind, "r": 5.0} for name, kind in strategies.items()}
    run(sweep_points(BASE | {"iterations": 2, "seeds": [0], "strategies": tables, "log": tracker}, sweep), out)
    assert len(set(tracker.names.values())) == len(tracker.names)
    return {name.replace(f"-{key[:6]}", "-KEY") for key, name in tracker.names.items()}


def test_trackers_tell_settings_with_one_last_part_apart(tmp_path):
    sweep = [{"strategies.EF-HC.r": 100.0}, {"strategies.GT.r": 100.0}]
    names = tracked_names({"EF-HC": "ef-hc", "GT": "gt"}, sweep, tmp_path)
    assert names == {f"{key}.r=100.0/{name}.seed0" for key in ("EF-HC", "GT") for name in ("EF-HC", "GT")}


def test_trackers_tell_settings_apart_that_are_too_long_for_a_name(tmp_path):
    long, longer = "A" * 60, "B" * 60
    sweep = {f"strategies.{long}.r": 50.0, f"strategies.{longer}.r": [100.0, 200.0]}
    names = tracked_names({long: "ef-hc", longer: "ef-hc"}, sweep, tmp_path)
    folder = f"{long}.r=50.0,{'B' * 32}"
    assert names == {f"{folder}/{long}.seed0", f"{folder}/{longer}.seed0-KEY"}
