from __future__ import annotations

import polars as pl
import pytest

import efhc
from efhc.base.errors import InputError
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.store import RunStore
from efhc.experiments.studies.sweep import RESULTS, load_sweep, run_sweep, runs_of, summary, sweep_points

BASE = {"iterations": 20, "evaluate_every": 10, "seeds": [0, 1], "strategies": {"ZT": "zt", "EF-HC": {"kind": "ef-hc"}}}


def run(points, out):
    return run_sweep(runs_of(points), out, RunStore(out / "runs"), LocalEngine(), lambda run, share: None)


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
    (tmp_path / "a.toml").write_text('iterations = 20\n[sweep]\n"network.radius" = [0.3, 0.5]\n')
    (tmp_path / "b.toml").write_text("iterations = 20\n[sweep]\nnetwork.radius = [0.3, 0.5]\n")
    assert load_sweep(tmp_path / "a.toml") == load_sweep(tmp_path / "b.toml")
    assert {p.experiment.iterations for p in load_sweep(tmp_path / "a.toml", ["iterations=30"])} == {30}


@pytest.mark.parametrize(
    ("sweep", "parts"),
    [
        ({"network.radus": [0.3]}, ["network.radus", "did you mean 'radius'", "network.radus=0.3"]),
        ({"nettwork": ["ring"]}, ["nettwork", "unknown key"]),
        ({"network.radius": [0.3, -1.0]}, ["network.radius", "-1.0"]),
        ({"network.radius": []}, ["sweep.network.radius", "empty list", "at least one value"]),
        ({"seeds": [1, 2]}, ["sweep.seeds", "every point is run with all of `seeds`"]),
        (3, ["sweep", "3", "tables"]),
        ({"devices.kind": [1]}, ["devices.kind", "is a value"]),
    ],
    ids=["typo", "unknown", "out of range", "empty", "seeds", "number", "value as table"],
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


def test_runs_that_points_share_are_made_once_and_counted_for_each(tmp_path):
    table = run(sweep_points(BASE, {"strategies.EF-HC.r": [100.0, 1000.0]}), tmp_path)
    made = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    assert len(made) == 2 * 2 + 2  # EF-HC at two values of r, ZT once, two seeds each
    means = summary(table)
    assert means.select("strategies.EF-HC.r", "strategy").rows() == [
        (r, name) for r in (100.0, 1000.0) for name in ("ZT", "EF-HC")
    ]
    assert means["seeds"].to_list() == [2, 2, 2, 2]
