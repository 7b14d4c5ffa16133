"""Runs: fair between strategies, repeatable, and the same whether stopped and resumed or not."""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from stopped_runs import assert_same

import efhc
from efhc.base.saving import read_tensors
from efhc.drivers.record import Record
from efhc.experiments.runs.run import Runs
from efhc.learning.learner import Learner
from efhc.scenarios.scenario import ScenarioReader

SMALL = {"iterations": 12, "seeds": (0, 1), "evaluate_every": 5, "devices": 6}
METRIC_COLUMNS = [
    "strategy", "seed", "iteration", "transmission_time", "transmission_time_total", "fired", "links_used",
    "train_loss", "consensus_error", "bits", "evaluation",
    "accuracy", "accuracy_min", "accuracy_max", "accuracy_p10", "accuracy_std",
    "own_accuracy", "own_accuracy_min", "own_accuracy_max", "own_accuracy_p10", "own_accuracy_std",
    "mean_model_accuracy", "mean_model_own_accuracy",
    "loss", "loss_min", "loss_max", "loss_p90", "loss_std",
    "own_loss", "own_loss_min", "own_loss_max", "own_loss_p90", "own_loss_std",
    "mean_model_loss", "mean_model_own_loss",
]  # fmt: skip


def checkpoint_of(out: Path, kind: str, seed: int) -> int | None:
    """The number of iterations after which an unfinished run has its checkpoint."""
    for folder in (out / "runs").glob("[!.]*"):
        config = tomllib.loads((folder / "config.toml").read_text())
        if list(config["strategies"]) == [kind] and config["seeds"] == [seed]:
            path = folder / "checkpoint.safetensors"
            return int(read_tensors(path)[0]["k"].item()) if path.exists() else None
    return None


def test_metrics_have_a_row_per_strategy_seed_and_iteration():
    result = efhc.simulate(**SMALL)
    assert result.metrics.columns == METRIC_COLUMNS
    assert len(result.metrics) == 4 * 2 * 12
    evaluated = (
        result.metrics.filter(pl.col("accuracy").is_not_null()).group_by("seed").agg(pl.col("iteration").unique())
    )
    for moments in evaluated["iteration"].to_list():  # after the first, in each window of five, and at the end
        assert [moments.count(k) for k in (0, 11)] == [1, 1]
        assert [any(k // 5 == window for k in moments) for window in (0, 1, 2)] == [True] * 3
    totals = result.metrics.group_by("strategy", "seed").agg(
        pl.col("transmission_time").sum(), pl.col("transmission_time_total").last()
    )
    assert np.allclose(totals["transmission_time"], totals["transmission_time_total"], rtol=1e-12)
    for models in result.models.values():
        assert models.shape == (6, 650)


def test_events_are_what_the_metrics_count():
    result = efhc.simulate(**SMALL, network=efhc.RandomLinks())
    counted = result.events.select(pl.col("fired").list.len(), pl.col("link_from").list.len().alias("links_used"))
    assert counted["fired"].to_list() == result.metrics["fired"].to_list()
    assert counted["links_used"].to_list() == result.metrics["links_used"].to_list()
    whole_models = result.events.select(pl.col("link_from").list.eval(pl.lit(32 * 650, pl.Int64)))[
        "link_from"
    ].to_list()
    assert result.events["bits_forth"].to_list() == result.events["bits_back"].to_list() == whole_models
    zero = result.events.filter(strategy="ZT")
    assert zero["fired"].to_list() == [list(range(6))] * 24
    physical = result.network.select("seed", "iteration", "link_from", "link_to")
    both = zero.join(physical, on=["seed", "iteration"], how="inner")  # with all firing, all physical links are used
    assert len(both) > 12
    assert both["link_from"].to_list() == both["link_from_right"].to_list()
    assert both["link_to"].to_list() == both["link_to_right"].to_list()


def test_the_last_row_tells_of_the_final_models():
    result = efhc.simulate(**SMALL)
    data = efhc.Digits().load()
    for (strategy, seed), models in result.models.items():
        last = result.metrics.filter(strategy=strategy, seed=seed, iteration=11).row(0, named=True)
        scores = [data.x_test @ w[:640].reshape(10, 64).T + w[640:] for w in models]
        accuracies = [np.mean(s.argmax(axis=1) == data.y_test) for s in scores]
        assert last["accuracy"] == pytest.approx(np.mean(accuracies), abs=1e-12)
        assert (last["accuracy_min"], last["accuracy_max"]) == (min(accuracies), max(accuracies))
        spread = ((models - models.mean(axis=0)) ** 2).sum()
        assert last["consensus_error"] == pytest.approx(spread, rel=1e-4)


def test_a_strategy_more_leaves_the_others_alone():
    rg = {"RG": efhc.RandomizedGossip()}
    alone = efhc.simulate(**SMALL, strategies=rg)
    among = efhc.simulate(**SMALL, strategies={"ZT": efhc.ZeroThreshold(), **rg, "RG2": efhc.RandomizedGossip()})
    assert_frame_equal(among.metrics.filter(strategy="RG"), alone.metrics, check_exact=True)
    twin = among.metrics.filter(strategy="RG2").with_columns(strategy=pl.lit("RG"))
    assert_frame_equal(twin, alone.metrics, check_exact=True)


def test_a_seed_more_leaves_the_others_alone():
    one = efhc.simulate(**{**SMALL, "seeds": (1,)})
    two = efhc.simulate(**SMALL)
    assert_frame_equal(two.metrics.filter(seed=1), one.metrics, check_exact=True)
    assert not np.array_equal(two.models["ZT", 0], two.models["ZT", 1])


def test_a_device_more_leaves_the_draws_of_the_others_alone():
    few, more = (
        efhc.simulate(
            iterations=1,
            seeds=(0,),
            devices=m,
            network=efhc.ErdosRenyi(probability=0.5, connected=False),
            strategies={"never": efhc.Never()},
            partition=efhc.IID(),
            step_size=lambda k: 0.0,
        )
        for m in (5, 6)
    )
    assert few.devices["bandwidth"].to_list() == more.devices["bandwidth"].to_list()[:5]
    assert np.array_equal(few.models["never", 0], more.models["never", 0][:5])
    (links,) = few.network.select("link_from", "link_to").rows()
    (more_links,) = more.network.select("link_from", "link_to").rows()
    assert [pair for pair in zip(*more_links, strict=True) if 5 not in pair] == list(zip(*links, strict=True))


class StopAt:
    """Interrupts like Ctrl-C when progress has been told so many times in all."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, strategy: str, seed: int, done: int) -> None:
        if done:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


NETWORKS = {
    "static": efhc.Geometric(),
    "random links": efhc.RandomLinks(),
    "waypoint": efhc.RandomWaypoint(radius=0.5, slowest=0.05, fastest=0.2, pause=2),
    "rotating": efhc.Rotating(period=3),
}


@pytest.mark.parametrize(
    ("kind", "stop"), [*(("static", stop) for stop in (1, 5, 31)), *((kind, 27) for kind in NETWORKS)]
)
@pytest.mark.parametrize("jobs", [1, 2])
def test_stopped_at_any_iteration_and_resumed_is_bit_identical(tmp_path, kind, stop, jobs):
    network = NETWORKS[kind]
    told = []
    whole = efhc.simulate(**SMALL, network=network, progress=lambda strategy, seed, done: told.append(done))
    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(**SMALL, network=network, out=tmp_path / "run", progress=StopAt(stop), jobs=jobs)
    done_again = []
    resumed = efhc.simulate(
        **SMALL,
        network=network,
        out=tmp_path / "run",
        resume=True,
        progress=lambda strategy, seed, done: done_again.append(done) if done else None,
    )
    assert_same(resumed, whole)
    assert_same(efhc.Result.load(tmp_path / "run"), whole)
    assert len(done_again) <= len(told) - stop + 8  # what was done is not done again: each run tells where it starts


def test_a_run_directory_is_complete_and_its_config_runs_again(tmp_path):
    run = tmp_path / "run"
    first = efhc.simulate(**SMALL, out=run)
    tables = {f"{name}.parquet" for name in ("metrics", "events", "network", "devices")}
    of_run = {*tables, "models.safetensors", "config.toml"}
    assert {path.name for path in run.iterdir()} == {"config.toml", "meta.json", ".lock", "runs"}
    again = efhc.simulate(efhc.load_experiment(run / "config.toml"), out=tmp_path / "again")
    assert_same(first, again)
    for key in (one.key for one in Runs().of(first.experiment)):
        assert {path.name for path in (run / "runs" / key).iterdir()} == {*of_run, "meta.json"}
        for name in of_run:
            assert (run / "runs" / key / name).read_bytes() == (tmp_path / "again" / "runs" / key / name).read_bytes()
    meta = json.loads((run / "meta.json").read_text())
    assert meta["status"] == "complete"
    assert meta["seeds"] == [0, 1]
    assert meta["data_sha256"].keys() == {"digits"}
    assert {"versions", "git", "machine", "wall_seconds", "started", "finished"} <= meta.keys()
    assert [session["wall_seconds"] for session in meta["sessions"]] == [meta["wall_seconds"]]
    assert [(one["strategy"], one["seed"]) for one in meta["runs"]] == [*first.states]
    of_run = json.loads((run / "runs" / meta["runs"][0]["key"] / "meta.json").read_text())
    assert of_run["names"] == {"experiment": "experiment", "strategy": "EF-HC"}
    assert of_run["table_sha256"].keys() == {"metrics", "events", "network", "devices", "models"}
    assert tomllib.loads((run / "config.toml").read_text())["iterations"] == 12


def test_an_output_directory_that_holds_something_is_refused(tmp_path):
    efhc.simulate(**SMALL, out=tmp_path / "run")
    with pytest.raises(efhc.InputError, match=r"--out.*already holds this experiment.*--resume"):
        efhc.simulate(**SMALL, out=tmp_path / "run")
    with pytest.raises(efhc.InputError, match=r"--out.*holds another experiment"):
        efhc.simulate(**SMALL | {"iterations": 13}, out=tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    for resume in (False, True):
        with pytest.raises(efhc.InputError, match=r"--out.*holds other files"):
            efhc.simulate(**SMALL, out=tmp_path / "other", resume=resume)
    with pytest.raises(efhc.InputError, match=r"--store.*outside of --out"):
        efhc.simulate(**SMALL, out=tmp_path / "new", store=tmp_path / "new" / "runs")


def test_a_resume_with_a_changed_config_or_input_file_is_refused(tmp_path):
    links = tmp_path / "links.txt"
    links.write_text("0 1\n1 2\n2 3\n3 4\n4 5\n")
    fields = {**SMALL, "network": {"kind": "edge-list", "path": str(links)}, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(**fields, progress=StopAt(5))
    with pytest.raises(efhc.InputError, match=r"iterations: .* was begun with 12, not 13"):
        efhc.simulate(**{**fields, "iterations": 13}, resume=True)
    with pytest.raises(efhc.InputError, match=r"network.kind: .* was begun with 'edge-list', not 'geometric'"):
        efhc.simulate(**{**fields, "network": "geometric"}, resume=True)
    links.write_text("0 1\n1 2\n2 3\n3 4\n4 5\n5 0\n")
    with pytest.raises(efhc.InputError, match=r"^network.path: cannot use a changed links.txt"):
        efhc.simulate(**fields, resume=True)


def test_a_table_is_an_input_like_any_other(tmp_path):
    """The file is found beside the config, its content is part of the run's identity, and a changed one is refused."""
    table, config = tmp_path / "t.csv", tmp_path / "t.toml"
    table.write_text("a,b,y\n" + "".join(f"{n},{n % 5},{'no' if n % 2 else 'yes'}\n" for n in range(40)))
    config.write_text(
        'devices = 2\niterations = 10\nseeds = [0]\nnetwork = "complete"\npartition = "shards"\n'
        'strategies = { ZT = "zt" }\ndata = { kind = "csv", path = "t.csv", label = "y" }\n'
    )
    experiment = efhc.load_experiment(config)
    first, again = efhc.simulate(experiment, out=tmp_path / "run"), efhc.simulate(experiment)
    assert first.metrics.equals(again.metrics)
    meta = json.loads((tmp_path / "run" / "meta.json").read_bytes())
    assert meta["data_sha256"] == {"t.csv": hashlib.sha256(table.read_bytes()).hexdigest()}
    assert meta["input_sha256"]["data.path"] == meta["data_sha256"]["t.csv"]
    key = Runs().of(experiment)[0].key
    table.write_text(table.read_text() + "1,2,no\n")
    assert Runs().of(experiment)[0].key != key
    with pytest.raises(efhc.InputError, match=r"a changed t\.csv"):
        efhc.simulate(experiment, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"partition": {"labels_per_device": 11}}, "partition.labels_per_device: cannot use 11. Use at most 10"),
        ({"batch_size": 10_000}, "batch_size: cannot use 10000. Use at most"),
        ({"devices": 2000, "partition": {"kind": "iid"}}, "partition.kind: cannot use a partition that leaves device"),
        (
            {"network": {"radius": 0.01, "attempts": 5}},
            "network.radius: no connected graph of 6 devices",
        ),
        ({"network": {"kind": "grid", "rows": 4}}, "network.rows: cannot use 4. Use a divisor"),
        ({"network": {"kind": "rotating", "period": 6}}, "network.period: cannot use 6. Use at most 5"),
        (
            {"network": {"kind": "rotating", "topology": {"kind": "star", "center": 9}}},
            "network.topology.center: cannot use 9",
        ),
        (
            {"bandwidths": {"kind": "list", "values": [1.0]}},
            "bandwidths.values: cannot use 1 bandwidths. Use one per device",
        ),
    ],
)
def test_impossible_draws_are_refused_before_anything_is_written(tmp_path, fields, message):
    with pytest.raises(efhc.InputError) as caught:
        efhc.simulate(**{**SMALL, **fields}, out=tmp_path / "run")
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_numbers_out_of_range_are_refused_before_anything_is_written(tmp_path):
    np.save(tmp_path / "large.npy", np.full(650, 1e300))
    large = {"kind": "npy", "path": str(tmp_path / "large.npy")}
    with pytest.raises(efhc.InputError, match=r"^initial_models.kind: cannot use numbers too large for float32"):
        efhc.simulate(**SMALL, initial_models=large, out=tmp_path / "run")
    with pytest.raises(efhc.InputError, match=r"^bandwidths.value: cannot use 1e-320. Use at least"):
        efhc.simulate(**SMALL, bandwidths={"kind": "constant", "value": 1e-320}, out=tmp_path / "run")
    vanishing = efhc.ConstantBandwidth.model_construct(value=1e-320)
    with pytest.raises(efhc.InputError, match=r"^bandwidths: cannot use 1e-320. Use .* finite"):
        efhc.simulate(**SMALL, bandwidths=vanishing, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_divergence_stops_with_device_and_iteration_and_keeps_the_run_so_far(tmp_path):
    growing = {"kind": "constant", "value": 1e30}
    with pytest.raises(efhc.EfhcError, match=r"diverged at iteration \d+: the (loss|model) of device \d is not finite"):
        efhc.simulate(**SMALL, model={"kind": "softmax"}, step_size=growing, out=tmp_path / "run")
    reached = checkpoint_of(tmp_path / "run", "ef-hc", 0)
    assert reached is not None
    assert 0 < reached < 12


def test_arrays_and_policies_of_ones_own_can_be_handed_over():
    class Path:
        """A topology of one's own."""

        def over_time(self, devices, randomness):
            return self

        def graph(self, k):
            from efhc.core.graph import Graph

            return Graph.of(4, [(0, 1), (1, 2), (2, 3)])

    class EveryTenth:
        def thresholds(self, k, gamma, bandwidths, coins):
            return np.full(len(bandwidths.values), 0.0 if k % 10 == 0 else np.inf)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    arrays = efhc.Dataset(x, np.arange(80) % 4, x, np.arange(80) % 4)
    result = efhc.simulate(
        data=arrays,
        devices=4,
        batch_size="full",
        iterations=20,
        seeds=[0],
        network=Path(),
        strategies={"every tenth": EveryTenth()},
        step_size=lambda k: 0.05,
    )
    assert result.metrics.filter(pl.col("fired") > 0)["iteration"].to_list() == [0, 10]
    assert result.metrics["links_used"].max() == 3


@pytest.mark.parametrize(
    ("owner", "name", "at", "backend"),
    [
        *((ScenarioReader, "batch", at, "arrays") for at in (1, 13)),
        *((Learner, "evaluate", at, "arrays") for at in (1, 5)),
        (Learner, "evaluate", 2, "auto"),  # of k = 4, after that of k = 0
        (Record, "add", 6, "auto"),  # the second of the second run
    ],
)
def test_stopped_in_the_middle_of_an_iteration_and_resumed_is_bit_identical(
    tmp_path, monkeypatch, owner, name, at, backend
):
    fields, original, calls = {**SMALL, "backend": backend}, getattr(owner, name), []
    whole = efhc.simulate(**fields)

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(**fields, out=tmp_path / "run", jobs=1)
    monkeypatch.undo()
    if backend == "auto":  # the iteration is not whole, and the one before is used up by it
        assert checkpoint_of(tmp_path / "run", "gt" if owner is Record else "ef-hc", 0) is None
    assert_same(efhc.simulate(**fields, out=tmp_path / "run", resume=True), whole)
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    assert len(meta["sessions"]) == 2
    assert meta["wall_seconds"] == pytest.approx(sum(s["wall_seconds"] for s in meta["sessions"]), abs=2e-3)


def test_strategies_named_in_another_order_resume_the_same_run(tmp_path):
    a, b = {"ZT": efhc.ZeroThreshold()}, {"RG": efhc.RandomizedGossip()}
    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(**SMALL, strategies=a | b, out=tmp_path / "run", progress=StopAt(5))
    resumed = efhc.simulate(**SMALL, strategies=b | a, out=tmp_path / "run", resume=True)
    assert_same(resumed, efhc.simulate(**SMALL, strategies=a | b))


def test_any_name_can_be_drawn_and_a_single_device_too(tmp_path):
    efhc.simulate(iterations=3, seeds=[0], devices=1, name="from $10_{ to [/b] $20", network=efhc.Ring()).plot(
        tmp_path / "r" / "figures" / "comparison.png"
    )
    assert (tmp_path / "r" / "figures" / "comparison.png").exists()


@pytest.mark.parametrize("fields", [{}, {"network": efhc.RandomLinks()}, {"backend": "arrays"}], ids=str)
def test_the_number_of_jobs_changes_nothing(fields):
    one, several = (efhc.simulate(**SMALL, **fields, jobs=jobs) for jobs in (1, 5))
    assert_same(one, several)


def test_memory_that_will_not_do_is_foreseen(tmp_path):
    with pytest.raises(
        efhc.EfhcError, match=r"^memory: 12 runs of 1000000 devices .* need [\d.]+ GiB, and [\d.]+ GiB are free"
    ):
        efhc.simulate(devices=1_000_000, precision="float64", data=Wide(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Wide:
    """A data set with many features."""

    def load(self, precision):
        return efhc.Dataset(np.ones((10, 5000)), np.arange(10), np.ones((10, 5000)), np.arange(10)).load(precision)


def test_one_device_that_diverges_is_noticed_in_its_last_iteration_too():
    alone = {"devices": 1, "network": efhc.Ring(), "model": efhc.Softmax(), "seeds": [0], "iterations": 1}
    with pytest.raises(efhc.EfhcError, match="diverged at iteration 0: the model of device 0 is not finite"):
        efhc.simulate(**alone, step_size=lambda k: 3e38)


class Kept:
    """Initial models that somebody else keeps."""

    def __init__(self, models: np.ndarray) -> None:
        self.kept = models

    def models(self, *_):
        return self.kept


@pytest.mark.parametrize("order", ["C", "F"])
def test_initial_models_of_ones_own_are_left_alone(order):
    kept = Kept(np.zeros((6, 650), order=order))
    ours, zeros = (efhc.simulate(**SMALL, initial_models=start) for start in (kept, efhc.Zeros()))
    assert not kept.kept.any()
    assert_same(ours, zeros)


class WritesData(efhc.Partition):
    def split(self, data, devices, randomness):
        data.x_train[:] = 0
        return np.array_split(np.arange(len(data.y_train)), devices)


class Parts:
    """A partition of one's own."""

    def __init__(self, *parts) -> None:
        self.parts = parts

    def split(self, data, devices, randomness):
        return self.parts


class Thresholds:
    """A strategy with these thresholds, always."""

    def __init__(self, given) -> None:
        self.given = given

    def thresholds(self, *_):
        return self.given


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"partition": Parts([0, 1], [2, 10_000])},
            "partition.split: cannot use numbers from 2 to 10000 for device 1. Use",
        ),
        ({"partition": Parts([0, 1], [-1, 3])}, "partition.split: cannot use numbers from -1 to 3 for device 1"),
        ({"partition": Parts([0, 1])}, "partition.split: cannot use a partition of 1 parts. Use 2 arrays"),
        ({"partition": Parts([0, 1], [])}, "float64 of shape (0,) for device 1"),
        ({"partition": Parts([[0, 1]], [[2, 3]])}, "int64 of shape (1, 2) for device 0"),
        (
            {"initial_models": Kept(np.zeros((2, 5)))},
            "initial_models.models: cannot use float64 of shape (2, 5). Use",
        ),
        (
            {"initial_models": Kept(np.full((2, 650), 1e300))},
            "initial_models.models: cannot use numbers that are not finite",
        ),
        ({"jobs": 0}, "jobs: cannot use 0. Use at least 1"),
        ({"partition": WritesData()}, "partition.kind: your WritesData raised ValueError"),
        ({"network": type("N", (), {"over_time": lambda self, m, r: None})()}, "network: your N raised"),
        (
            {"bandwidths": type("B", (), {"draw": lambda self, m, r: np.ones(m)})()},
            "bandwidths.kind: cannot use a ndarray",
        ),
        ({"step_size": lambda k: "fast"}, "step_size: cannot use 'fast' at k = 0"),
        ({"step_size": lambda k: -1.0}, "step_size: cannot use -1.0 at k = 0"),
        ({"step_size": lambda k: 1 / 0}, "raised ZeroDivisionError"),
    ],
    ids=itertools.count(),
)
def test_what_objects_of_ones_own_return_is_checked(fields, message):
    with pytest.raises(efhc.InputError) as caught:
        efhc.simulate(**{**SMALL, "devices": 2, "batch_size": 1, "network": efhc.Ring(), **fields})
    assert message in str(caught.value)


def test_a_graph_of_other_devices_is_refused():
    class Wrong:
        def over_time(self, devices, randomness):
            return self

        def graph(self, k):
            from efhc.core.graph import Graph

            return Graph.of(3 if k < 4 else 5, [(0, 1)])

    with pytest.raises(
        efhc.InputError, match=r"network: cannot use a graph of 5 devices at k = 4. Use an efhc.Graph of 3 devices"
    ):
        efhc.simulate(**{**SMALL, "devices": 3}, network=Wrong())


def test_thresholds_may_be_one_number_for_all():
    given = {"one": Thresholds(0.0), "a list of one": Thresholds([0]), "ZT": efhc.ZeroThreshold()}
    result = efhc.simulate(**SMALL, strategies=given)
    for strategy in given:
        assert np.array_equal(result.models[strategy, 0], result.models["ZT", 0])


def test_a_source_of_data_may_return_images_as_they_are():
    class Images:
        def load(self, precision):
            images = np.arange(60 * 4 * 4, dtype=np.uint8).reshape(60, 4, 4)
            return efhc.Dataset(images, np.arange(60) % 6, np.asfortranarray(images), np.arange(60) % 6)

    result = efhc.simulate(**SMALL, data=Images(), batch_size=2)
    assert result.models["ZT", 0].shape == (6, 6 * 17)
