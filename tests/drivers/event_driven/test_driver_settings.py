"""The setting `driver`: what it accepts, what it refuses in one line, and that configs keep it."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import efhc
from efhc.base.errors import InputError
from efhc.cli import app
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import (
    build_experiment,
    load_experiment,
    read_inputs,
    to_toml,
    with_overrides,
)

EXAMPLE = Path(__file__).parents[3] / "examples" / "wall-clock.toml"
EVENT_DRIVEN = "driver=event-driven"


def problem_with(*overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        build_experiment(with_overrides({}, overrides))
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_lockstep_is_the_default_and_a_bare_word_is_enough():
    assert Experiment().driver == efhc.LockstepDriver()
    assert build_experiment({"driver": "event-driven"}).driver == efhc.EventDriven()
    assert build_experiment({"driver": efhc.EventDriven(seconds=5)}).driver.seconds == 5.0
    driver = build_experiment(with_overrides({}, [EVENT_DRIVEN, "driver.compute=lognormal"])).driver
    assert driver.compute == efhc.LognormalCompute()
    driver = build_experiment(with_overrides({}, [EVENT_DRIVEN, "driver.compute.seconds=2"])).driver
    assert driver.compute == efhc.ConstantCompute(seconds=2.0)


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["driver.compute=lognormal"], ["driver.compute", "'lockstep' lacks", "driver.kind = 'event-driven'"]),
        (["driver.seconds=3"], ["driver.seconds: cannot use a setting that the driver 'lockstep' lacks"]),
        (
            [EVENT_DRIVEN, "keep_models_every=3"],
            ["keep_models_every: cannot use 3 with driver.kind = 'event-driven'", "'lockstep'"],
        ),
        (["driver=event"], ["driver.kind: cannot use 'event'", "lockstep, event-driven"]),
        (["driver=mine.py:Driver"], ["driver.kind", "mine.py:Driver", "Use lockstep, event-driven"]),
        ([EVENT_DRIVEN, "driver.bandwidth=guessed"], ["driver.bandwidth", "'true' or 'measured'"]),
        (
            [EVENT_DRIVEN, "driver.give_up_seconds=3"],
            ["driver.give_up_seconds: cannot use 3", "at least patience_seconds, 30"],
        ),
        (
            [EVENT_DRIVEN, "driver.compute.seconds=[1, -1]"],
            ["driver.compute.seconds.1: cannot use -1. Use a number greater"],
        ),
        ([EVENT_DRIVEN, "driver.compute.seconds=[]"], ["driver.compute.seconds: cannot use []. Use at least 1 entry"]),
        ([EVENT_DRIVEN, "driver.churn={crash_every=1, absent=[2, 2]}"], ["driver.churn.absent", "each device once"]),
    ],
)
def test_a_bad_driver_is_one_line(overrides: list[str], parts: list[str]):
    text = problem_with(*overrides)
    for part in parts:
        assert part in text


def test_configs_keep_the_driver(tmp_path: Path):
    for name in ("compute.csv", "churn.csv"):
        (tmp_path / name).write_text("to be read\n")
    tables = {
        "driver": {
            "kind": "event-driven",
            "compute": {"kind": "csv", "path": "compute.csv"},
            "links": {"kind": "shared", "latency": 0.25},
            "churn": {"kind": "csv", "path": "churn.csv", "absent": [2, 3], "journal": "lose"},
            "bandwidth": "measured",
            "target": 0.9,
        }
    }
    experiment = build_experiment(tables, tmp_path)
    assert experiment.driver.churn.absent == (2, 3)
    assert build_experiment(tomllib.loads(to_toml(experiment))) == experiment
    assert set(read_inputs(experiment)) == {"driver.compute.path", "driver.churn.path"}
    assert pickle.loads(pickle.dumps(experiment)) == experiment
    lists = build_experiment({"driver": {"kind": "event-driven", "compute": {"seconds": [1, 2.5]}}})
    assert lists.driver.compute.seconds == (1.0, 2.5)
    assert build_experiment(tomllib.loads(to_toml(lists))) == lists


def test_the_example_can_be_shown_and_reads_back_the_same():
    done = CliRunner().invoke(app, ["config", "show", str(EXAMPLE)])
    assert done.exit_code == 0
    experiment = load_experiment(EXAMPLE)
    assert build_experiment(tomllib.loads(done.stdout)) == experiment
    assert isinstance(experiment.driver, efhc.EventDriven)
    assert list(experiment.strategies) == ["EF-HC", "GT", "ZT", "RG", "entrywise", "one-way"]
    assert len(experiment.seeds) == 5


def test_settings_are_read_without_what_only_runs_need():
    code = "import sys, efhc; efhc.EventDriven(); print([m for m in ('numba', 'torch', 'polars') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
