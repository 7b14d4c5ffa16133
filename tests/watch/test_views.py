"""What pages get of runs: the numbers are those of the tables, and what is left out is said."""

from __future__ import annotations

import io
import json
import shutil
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from live_files import begun, embedded
from live_files import evaluated as evaluated_row

import efhc
from efhc.experiments.runs.events import Evaluated
from efhc.experiments.runs.folder import RunFolder
from efhc.experiments.runs.live_file import read_live
from efhc.experiments.runs.store import StoredRun
from efhc.experiments.runs.tables import LOCKSTEP
from efhc.learning.measures import CLASSIFICATION, evaluated, measures_of
from efhc.report.plain_json import to_json
from efhc.report.views import CURVE_COLUMNS
from efhc.watch import offline
from efhc.watch.discovery import Discovery
from efhc.watch.offline import write_page
from efhc.watch.readers import TableReader
from efhc.watch.watcher import Watcher


def found(folder):
    watched = Watcher.of(folder, may_be_empty=True)
    return watched, {group["name"]: group for group in watched.tree["groups"]}


def one(group, strategy, seed):
    (run,) = (run for run in group["runs"] if (run["strategy"], run["seed"]) == (strategy, seed))
    return run


def test_a_curve_has_the_numbers_of_the_metrics(made):
    watched, groups = found(made)
    table = efhc.Result.load(made / "steps").metrics.filter(strategy="EF-HC", seed=1)
    curve = watched.curves(groups["steps"]["id"])[one(groups["steps"], "EF-HC", 1)["id"]]
    assert set(curve) >= {"k", *CURVE_COLUMNS}
    rows = evaluated(
        table.with_columns(
            bits=pl.col("bits").cum_sum(), broadcasts=pl.col("fired").cum_sum(), k=pl.col("iteration") + 1,
            transmission_time=pl.col("transmission_time_total"),
        )
    )  # fmt: skip
    assert curve["k"] == rows["k"].to_list()
    assert [(k - 1) // 10 for k in curve["k"]] == [0, 0, 1, 2, 3, 4, 5]
    for name in (*measures_of(CLASSIFICATION), "consensus_error", "train_loss", "transmission_time", "bits",
                 "broadcasts"):  # fmt: skip
        assert curve[name] == pytest.approx(rows[name].to_list(), rel=1e-6), name


def test_a_metric_of_ones_own_is_in_the_curve(made, tmp_path):
    folder = shutil.copytree(made / "steps", tmp_path / "steps")
    for table in folder.glob("runs/*/metrics.parquet"):
        pl.read_parquet(table).with_columns(gradient_norm=pl.col("iteration") / 2).write_parquet(table)
    watched, groups = found(tmp_path)
    for curve in watched.curves(groups["steps"]["id"]).values():
        assert curve["gradient_norm"] == [(k - 1) / 2 for k in curve["k"]]


def test_runs_have_the_measures_of_their_last_evaluation(made):
    watched, groups = found(made)
    result = efhc.Result.load(made / "steps")
    for run in groups["steps"]["runs"]:
        rows = result.metrics.filter(strategy=run["strategy"], seed=run["seed"])
        last = evaluated(rows).row(-1, named=True)
        assert run["latest"] == {name: last[name] for name in measures_of(CLASSIFICATION)}
    views = {one["name"]: one for one in watched.tree["measures"]}
    for name, measure in measures_of(CLASSIFICATION).items():
        assert (views[name]["label"], views[name]["better"]) == (measure.label, measure.better)
    assert views["own_loss_p90"]["family"] == views["mean_model_own_loss"]["family"] == "own_loss"


@pytest.mark.parametrize(("given", "has", "shown"), [
    ("own_accuracy", CLASSIFICATION, "own_accuracy"),
    ("own_accuracy", {"accuracy": "higher"}, "own_accuracy"),
    ("own_accuracy", {"mean_squared_error": "lower"}, "own_mean_squared_error"),
    ("loss_p90", {"mean_squared_error": "lower"}, "mean_squared_error"),
    (None, CLASSIFICATION, "accuracy"),
    (["accuracy"], CLASSIFICATION, "accuracy"),
])  # fmt: skip
def test_a_group_is_shown_by_its_measure_or_one_that_its_runs_have(tmp_path, given, has, shown):
    given = given if "own_mean" not in shown else shown
    live = begun(tmp_path)
    config = tmp_path / "config.toml"
    config.write_text(f"measure = {json.dumps(given)}\n{config.read_text()}" if given else config.read_text())
    (group,) = found(tmp_path)[1].values()
    is_usual = isinstance(given, str) and given in measures_of(CLASSIFICATION)
    assert group["measure"] == (given if is_usual else "accuracy")  # nothing is known yet
    row = dict.fromkeys(measures_of(CLASSIFICATION)) | dict.fromkeys(measures_of(has), 0.5)
    live(Evaluated(1.0, 1, {"iteration": 0, **row}))
    watched, groups = found(tmp_path)
    (group,) = groups.values()
    assert group["measure"] == shown
    assert group["runs"][0]["latest"] == dict.fromkeys(measures_of(has), 0.5)
    assert [one["name"] for one in watched.tree["measures"]] == list(measures_of(has))
    curve = watched.curves(group["id"])[group["runs"][0]["id"]]
    assert set(curve) == {"k", *CURVE_COLUMNS, *measures_of(has)}


def test_a_run_that_is_being_made_has_the_metrics_of_its_own(tmp_path):
    row = dict.fromkeys(measures_of({"mean_squared_error": "lower"}), 0.5)
    begun(tmp_path)(Evaluated(1.0, 1, {"iteration": 0, "evaluation": 0, **row}))
    table = StoredRun(RunFolder(tmp_path), LOCKSTEP).table("metrics")
    assert table["own_mean_squared_error"].to_list() == [0.5]
    assert table["accuracy"].to_list() == [None]
    assert evaluated(table)["evaluation"].to_list() == [0]


def test_runs_of_efhc_02_have_the_measures_that_it_had():
    data = Path(__file__).parents[1] / "data" / "efhc-0.2"
    watched, groups = found(data)
    (group,) = groups.values()
    assert group["measure"] == "accuracy"
    result = efhc.Result.load(data).metrics
    for run in group["runs"]:
        last = result.filter(strategy=run["strategy"], seed=run["seed"]).row(-1, named=True)
        names = "accuracy", "accuracy_min", "accuracy_max", "mean_model_accuracy"
        assert run["latest"] == {name: last[name] for name in names}
        assert watched.detail(run["id"])["curve"]["accuracy"][-1] == pytest.approx(last["accuracy"])


def test_rows_of_one_evaluation_are_one_point_of_the_curve(tmp_path):
    live = begun(tmp_path)
    watched = Watcher.of(tmp_path, may_be_empty=True)
    ((run,),) = (group["runs"] for group in watched.tree["groups"])
    page: list[float] = []
    told = None
    for iteration, first, accuracy in ((3, 3, 0.1), (8, 8, 0.2), (9, 8, 0.4), (10, 8, 0.6), (15, 15, 0.3)):
        live(evaluated_row(iteration + 1, accuracy, evaluation=first))
        reader = watched.reader(run["id"])
        reader.read()
        told = reader.rows("curve", *((told.generation, told.end) if told else ()))
        page[told.start :] = told.columns["accuracy"]
    assert page == pytest.approx([0.1, 0.4, 0.3])
    assert reader.rows("curve").columns["k"] == [4, 11, 16]
    assert not reader.rows("curve", told.generation, told.end).columns["k"]
    assert reader.metrics()["accuracy"].to_list() == [0.1, 0.2, 0.4, 0.6, 0.3]  # what is saved has all rows


def test_events_network_and_devices_are_those_of_the_tables(made):
    watched, groups = found(made)
    result = efhc.Result.load(made / "steps")
    detail = watched.detail(one(groups["steps"], "EF-HC", 0)["id"])
    events = result.events.filter(strategy="EF-HC", seed=0)
    assert detail["events"]["k"] == list(range(60))
    assert detail["events"]["fired"] == events["fired"].to_list()
    for row, used in zip(events.iter_rows(named=True), detail["events"]["used"], strict=True):
        assert used == list(zip(row["link_from"], row["link_to"], strict=True))
    assert detail["is_sample"] is False
    (network,) = result.network.filter(seed=0).iter_rows(named=True)
    assert detail["network"] == {"k": [0], "links": [list(zip(network["link_from"], network["link_to"], strict=True))]}
    assert [one["bandwidth"] for one in detail["devices"]] == result.devices.filter(seed=0)["bandwidth"].to_list()
    assert detail["config"] == (made / "steps" / "config.toml").read_text()
    assert detail["facts"]["strategy"] == "EF-HC, seed 0"
    assert detail["repeat"].startswith(f"efhc run {made}/steps/config.toml --out ")
    json.dumps(detail, allow_nan=False)


def test_what_is_too_much_is_thinned_evenly_and_said(made):
    (group, *_) = [one for one in Discovery(made).find() if one.name == "steps"]
    source = TableReader(group.runs[0], most_numbers=60, most_points=3)
    whole = TableReader(group.runs[0]).rows("curve").columns["k"]
    assert source.rows("curve").columns["k"] == [whole[0], whole[3], whole[-1]]
    events = source.rows("events").columns
    k = events["k"]
    assert 1 < len(k) < 60
    assert {b - a for a, b in pairwise(k)} == {k[1] - k[0]}
    about = source.about()
    assert about["is_sample"]
    notes = about["facts"]
    assert notes["curves"] == "3 of 7 evaluations are drawn"
    assert notes["events"] == f"{len(k)} of 60 iterations are drawn, evenly spread"
    # Links need more room than firings: they are drawn in fewer iterations.
    known = {k: used for k, used in zip(k, events["used"], strict=True) if used is not None}
    assert 1 < len(known) < len(k)
    assert len({b - a for a, b in pairwise(known)}) == 1
    assert notes["links in use"] == f"drawn in {len(known)} of these {len(k)} iterations"
    table = efhc.Result.load(made / "steps").events.filter(strategy=group.runs[0].strategy, seed=group.runs[0].seed)
    for iteration, fired, starts, ends in table.select("iteration", "fired", "link_from", "link_to").iter_rows():
        if iteration in k:
            assert events["fired"][k.index(iteration)] == fired
        assert known.get(iteration, list(zip(starts, ends, strict=True))) == list(zip(starts, ends, strict=True))


def test_thinned_events_keep_the_links_that_held_then(tmp_path):
    network = efhc.RandomLinks(up_probability=0.5)
    result = efhc.simulate(
        out=tmp_path / "changing", devices=6, iterations=40, evaluate_every=10, seeds=(0,), network=network,
        strategies={"EF-HC": efhc.EventTriggered()},
    )  # fmt: skip
    (group,) = Discovery(tmp_path).find()
    source = TableReader(group.runs[0], most_numbers=60)
    held = {k: (a, b) for k, a, b in result.network.select("iteration", "link_from", "link_to").iter_rows()}
    wirings = source.rows("network").columns
    assert 1 < len(wirings["k"]) < len(held)
    for k in source.rows("events").columns["k"]:
        latest = max(one for one in held if one <= k)
        place = sum(one <= k for one in wirings["k"]) - 1
        assert wirings["links"][place] == list(zip(*held[latest], strict=True))


def test_files_to_save(made, serve):
    with serve(made) as (_, client):
        groups = {group["name"]: group for group in client.get("/api/tree").json()["groups"]}
        run = one(groups["steps"], "ZT", 1)["id"]
        answer = client.get(f"/api/runs/{run}/metrics.csv")
        assert answer.headers["content-disposition"] == 'attachment; filename="metrics.csv"'
        expected = efhc.Result.load(made / "steps").metrics.filter(strategy="ZT", seed=1)
        assert pl.read_csv(io.StringIO(answer.text)).equals(expected)
        assert client.get(f"/api/runs/{run}/config.toml").text == (made / "steps" / "config.toml").read_text()
        for nothing in ("/api/runs/x", "/api/groups/x/curves", "/api/runs/x/metrics.csv", "/api/runs/x/config.toml"):
            assert client.get(nothing).status_code == 404


def test_a_store_is_grouped_by_settings_and_named_by_what_differs(tmp_path):
    (tmp_path / "sweep.toml").write_text(
        'devices = 4\niterations = 20\nevaluate_every = 10\nseeds = [0, 1]\n[strategies.mine]\nkind = "ef-hc"\n'
        '[sweep]\npartition.labels_per_device = [1, 2]\n'
    )  # fmt: skip
    from efhc.experiments.runs.engines.local import LocalEngine
    from efhc.experiments.runs.store import RunStore
    from efhc.experiments.studies.sweep import load_sweep, run_sweep, runs_of

    runs = runs_of(load_sweep(tmp_path / "sweep.toml"))
    run_sweep(runs, tmp_path / "out", RunStore(tmp_path / "out" / "runs"), LocalEngine(), lambda run, share: None)
    watched, groups = found(tmp_path)
    assert {group["kind"] for group in groups.values()} == {"sweep"}
    assert {group["place"] for group in groups.values()} == {"out"}
    assert sorted(name.rpartition(", ")[2] for name in groups) == [
        "partition.labels_per_device=1", "partition.labels_per_device=2",
    ]  # fmt: skip
    for group in groups.values():
        assert [run["seed"] for run in group["runs"]] == [0, 1]
        assert all(run["state"] == "done" and run["latest"]["accuracy"] > 0 for run in group["runs"])
        assert watched.detail(group["runs"][0]["id"])["events"]["k"] == list(range(20))


def test_damaged_and_deleted_runs_are_answers(made, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    watched, groups = found(folder)
    run = one(groups["steps"], "ZT", 0)["id"]
    (folder / "seconds" / "config.toml").write_text("name = ")
    for table in (folder / "steps").glob("runs/*/metrics.parquet"):
        table.write_bytes(b"PAR1 and then nothing")
    watched = Watcher.of(folder, may_be_empty=True)
    damaged, other = sorted(watched.tree["groups"], key=lambda group: group["name"] != "seconds")
    assert damaged["state"] == "failed"
    assert "cannot be read" in other["runs"][0]["problem"]
    with pytest.raises(efhc.EfhcError, match="its files cannot be read"):
        watched.detail(run)
    shutil.rmtree(folder)
    watched = Watcher.of(folder, may_be_empty=True)
    assert watched.tree["groups"] == []


def test_code_that_a_config_names_is_not_run(tmp_path):
    (tmp_path / "own.py").write_text("raise SystemExit('it was run')\n")
    config = 'devices = 3\niterations = 5\nseeds = [0]\nname = "own"\n[strategies.own]\nkind = "own.py:Mine"\n'
    (tmp_path / "config.toml").write_text(config)
    (tmp_path / "meta.json").write_text('{"status": "running", "sessions": []}')
    watched, groups = found(tmp_path)
    assert one(groups["own"], "own", 0)["state"] == "waiting"
    assert watched.detail(one(groups["own"], "own", 0)["id"])["config"] == config


def test_watching_writes_nothing(made, serve):
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    with serve(made) as (_, client):
        for group in client.get("/api/tree").json()["groups"]:
            client.get(f"/api/groups/{group['id']}/curves")
            for run in group["runs"]:
                assert client.get(f"/api/runs/{run['id']}").status_code == 200
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


def test_an_offline_page_holds_everything(made, command, tmp_path):
    done = command("report", made)
    assert done.returncode == 0, done.stderr
    name = f"{made.name}.html"
    assert f"Page: {name}" in done.stdout
    data = json.loads(embedded(tmp_path / name))
    watched, groups = found(made)
    assert data["tree"] == watched.tree
    run = one(groups["steps"], "EF-HC", 1)["id"]
    detail = watched.detail(run)
    assert data["curves"][groups["steps"]["id"]][run] == detail.pop("curve")
    assert data["details"][run] == json.loads(json.dumps(detail))


def test_an_offline_page_has_a_bounded_size_and_says_what_is_left_out(made, tmp_path):
    file = tmp_path / "page.html"

    assert write_page(made, file) == []
    whole = len(embedded(file))
    (line,) = write_page(made, file, most_bytes=whole * 3 // 4)
    assert line.endswith("too long to show whole: network and raster leave out some iterations")
    assert len(embedded(file)) < whole
    lines = write_page(made, file, most_bytes=whole // 4)
    assert lines[0] == "the page would be too large: 5 of 5 runs are shown by curves only"
    assert len(embedded(file)) < whole // 2


def test_a_run_that_is_too_large_hides_no_other_run(tmp_path):
    for name, devices in (("a", 40), ("b", 3)):
        efhc.simulate(
            out=tmp_path / "runs" / name, name=name, devices=devices, iterations=20, evaluate_every=10, seeds=(0,),
            strategies={"EF-HC": efhc.EventTriggered()},
        )  # fmt: skip
    watched, groups = found(tmp_path / "runs")
    sizes = {name: len(to_json(watched.detail(group["runs"][0]["id"]))) for name, group in groups.items()}
    curves = len(to_json({group["id"]: watched.curves(group["id"]) for group in groups.values()}))
    most = curves + sizes["b"] + 200
    assert sizes["a"] > sizes["b"] + 200
    (line,) = write_page(tmp_path / "runs", tmp_path / "page.html", most_bytes=most)
    assert line == "the page would be too large: 1 of 2 runs is shown by curves only"
    data = json.loads(embedded(tmp_path / "page.html"))
    assert list(data["details"]) == [groups["b"]["runs"][0]["id"]]


def test_events_that_are_thinned_for_an_offline_page_keep_the_links_in_force(made):
    watched, groups = found(made)
    detail = watched.detail(one(groups["steps"], "EF-HC", 0)["id"])
    k = list(range(2_000))
    detail["events"] = {"k": k, "fired": [[] for _ in k], "used": [[] for _ in k],
                        "seconds": [None] * len(k)}  # fmt: skip
    detail["network"] = {"k": k[::3], "links": [[(0, 1)] for _ in k[::3]]}
    thinned = offline._within(detail, len(to_json(detail)) // 3)
    shown = thinned["events"]["k"]
    assert 200 < len(shown) < 1_000
    assert thinned["network"]["k"] == sorted({one - one % 3 for one in shown})


def test_totals_in_a_live_file_are_those_of_the_metrics_also_of_a_run_that_went_on(tmp_path, no_short_runs):
    strategies = {"EF-HC": efhc.EventTriggered(), "choco": efhc.ChocoSGD()}
    asked = {"devices": 5, "iterations": 60, "evaluate_every": 10, "seeds": (0,), "strategies": strategies}

    def stop(strategy: str, seed: int, done: int) -> None:
        if 30 <= done < 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(out=tmp_path / "run", progress=stop, jobs=1, **asked)
    stopped = [one for one in found(tmp_path)[1]["experiment"]["runs"] if one["state"] == "stopped"]
    assert 30 <= stopped[0]["k"] < 60
    result = efhc.simulate(out=tmp_path / "run", resume=True, **asked)
    lives = [read_live(path) for path in (tmp_path / "run").glob("runs/*/live.jsonl")]
    for strategy in strategies:
        run = result.metrics.filter(strategy=strategy)
        (live,) = (one for one in lives if one.about.strategy == strategy)
        assert [row.k - 1 for row in live.rows] == run.drop_nulls("evaluation")["iteration"].to_list()
        for row in live.rows:
            so_far = run.filter(pl.col("iteration") < row.k)
            assert row.row["bits_total"] == pytest.approx(so_far["bits"].sum(), rel=1e-12)
            assert row.row["broadcasts_total"] == so_far["fired"].sum()


def test_a_complete_run_has_seconds_and_devices_of_its_live_file(made):
    watched, groups = found(made)
    detail = watched.detail(one(groups["steps"], "EF-HC", 0)["id"])
    assert detail["samples"]["k"][-1] == 60
    assert len(detail["samples"]["drift"][-1]) == 5
    assert all(seconds is not None for seconds in detail["curve"]["seconds"])
    last = efhc.Result.load(made / "steps").metrics.filter(strategy="EF-HC", seed=0, iteration=59)
    assert max(detail["samples"]["accuracy"][-1]) == pytest.approx(last["accuracy_max"].item(), abs=1e-4)


def test_an_offline_page_says_when_a_run_was_running(tmp_path, no_short_runs):
    def write(strategy: str, seed: int, done: int) -> None:
        if 0 < done < 60:
            lines.extend(write_page(tmp_path / "out", tmp_path / "page.html"))

    lines: list[str] = []
    fields = {"iterations": 60, "seeds": 0, "evaluate_every": 10, "strategies": {"ZT": efhc.ZeroThreshold()}}
    efhc.simulate(**fields, out=tmp_path / "out", progress=write)
    assert "1 of 1 run is unfinished: the page shows what is known now" in lines
    assert "It was running when this page was written, on " in (tmp_path / "page.html").read_text()
