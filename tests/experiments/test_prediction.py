"""`efhc predict`: what can be compared, and a small comparison with real nodes in namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from efhc.base.errors import EfhcError, InputError
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import build_experiment, load_experiment, with_overrides
from efhc.experiments.studies import prediction
from efhc.experiments.studies.prediction import EXAMPLES, check_comparable, late_starts, predict

ROOT = Path(__file__).parents[2]
SMALL = """
name = "small"
devices = 3
seeds = [0]
exchange_at_start = true
initial_models = "shared"
partition = "iid"
network = "complete"
bandwidths = { kind = "constant", value = 20000.0 }
strategies.ZT = { kind = "zt" }

[driver]
kind = "event-driven"
compute = { kind = "constant", seconds = 0.2 }
links = { kind = "shared" }
seconds = 15.0 # nodes may begin late on a busy machine
sample_seconds = 1.0
target = 0.4
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def changed(small: Path, *settings: str) -> Experiment:
    return load_experiment(small, settings)


def test_the_examples_can_be_compared():
    for name in EXAMPLES:
        experiment = load_experiment(ROOT / name)
        check_comparable(experiment)
        assert list(experiment.strategies) == ["EF-HC", "GT", "ZT", "RG"]
        assert experiment.devices == 10


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("driver.compute={kind='lognormal'}", "driver.compute.kind"),
        ("driver.links={kind='per-link'}", "driver.links"),
        ("driver.links.loss=0.1", "driver"),
        ("driver.links.rates={kind='markov'}", "driver.links"),
        ("exchange_at_start=false", "exchange_at_start"),
    ],
)
def test_what_nodes_do_not_do_is_refused_by_its_name(small: Path, setting: str, field: str):
    experiment = changed(small, setting)  # it can be simulated
    with pytest.raises(InputError) as refused:
        check_comparable(experiment)
    assert refused.value.field == field


def test_without_seconds_or_target_there_is_nothing_to_predict(small: Path):
    for name in ("seconds", "target"):
        experiment = changed(small)
        driver = experiment.driver.model_copy(update={name: None})
        with pytest.raises(InputError, match=f"driver.{name}"):
            check_comparable(experiment.model_copy(update={"driver": driver}))
    with pytest.raises(InputError, match="event-driven"):
        check_comparable(build_experiment(with_overrides({}, [])))


def test_two_experiments_of_one_name_are_refused(small: Path, tmp_path: Path):
    with pytest.raises(InputError, match="2 experiments named small"):
        predict([changed(small)] * 2, tmp_path / "out")


def test_without_root_nothing_is_run(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(prediction, "simulate", lambda *given, **more: pytest.fail("it was run"))
    with pytest.raises(EfhcError, match="root"):
        predict([changed(small)], tmp_path / "out")


def test_late_nodes_are_told():
    steps = pl.DataFrame(
        {"strategy": ["ZT", "ZT", "RG"], "seed": [0, 0, 0], "k": [0, 0, 0], "seconds": [0.2, 3.2, 0.3]}
    )
    (line,) = late_starts(steps, 0.2)
    assert line.startswith("ZT, seed 0: a node began 3.0 s late")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_comparison_ends_with_a_table_a_figure_and_the_error(small: Path, tmp_path: Path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "efhc", "predict", str(small), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "Error of the prediction, relative to what was measured: seconds" in done.stdout
    (row,) = pl.read_csv(out / "prediction.csv").iter_rows(named=True)
    assert (row["experiment"], row["strategy"], row["seed"]) == ("small", "ZT", 0)
    assert 0 < row["seconds_measured"] <= 15
    assert row["bytes_predicted"] > 0
    assert (out / "prediction.png").read_bytes().startswith(b"\x89PNG")
    curves = pl.read_csv(out / "prediction-curves.csv")
    assert set(curves["source"]) == {"measured", "predicted"}
    assert [*(out / "small" / "measured" / "runs").glob("*/timeline.parquet")]
    # What is there is not run again.
    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 0, again.stderr
