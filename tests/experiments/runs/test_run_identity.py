"""A run that does not use a setting keeps the name that it had before there was such a setting."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import efhc
from efhc.base.errors import InputError
from efhc.experiments.config.files import build_experiment, first_difference, to_tables
from efhc.experiments.runs import run
from efhc.experiments.runs.run import Runs

# As efhc 0.1.0 computed them before an experiment had a driver.
KEYS: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"seeds": [0]},
        [
            "34927fe9e28d8a988277cf6c",
            "7512489b5bd54256ffec2c37",
            "7d2a01d4d5afd857f6340a02",
            "a3099125e51e3e4df557f3de",
        ],
    ),
    (
        {
            "devices": 7,
            "iterations": 30,
            "seeds": [4],
            "network": {"kind": "random-links", "topology": "ring"},
            "bandwidths": "beta",
            "keep_models_every": 10,
            "precision": "float64",
            "strategies": {"a": {"kind": "ef-hc", "r": 3.0}},
        },
        ["f5ff3aa1c79a0fbe3f115ea6"],
    ),
]


@pytest.mark.parametrize(("tables", "keys"), KEYS)
def test_keys_of_lockstep_runs_are_those_of_before(tables: dict[str, Any], keys: list[str], monkeypatch):
    monkeypatch.setattr(run, "__version__", "0.1.0")
    tables = {**tables, "evaluate_at": "multiples"}
    assert [one.key for one in Runs().of(build_experiment(tables))] == keys
    assert [one.key for one in Runs().of(build_experiment({**tables, "driver": "lockstep"}))] == keys


def test_every_setting_of_the_driver_is_part_of_the_key():
    def key(driver: Any) -> str:
        return Runs().of(build_experiment({"seeds": 0, "strategies": {"ZT": "zt"}, "driver": driver}))[0].key

    drivers: list[Any] = [
        "lockstep",
        "event-driven",
        efhc.EventDriven(seconds=3),
        efhc.EventDriven(compute=efhc.LognormalCompute()),
        efhc.EventDriven(compute=efhc.LognormalCompute(sigma=0.6)),
        efhc.EventDriven(churn=efhc.ChurnRates(crash_every=3)),
    ]
    assert len({key(driver) for driver in drivers}) == len(drivers)


def test_directories_without_a_driver_load_and_go_on(tmp_path: Path):
    experiment = efhc.Experiment(iterations=3, seeds=(0,), strategies={"ZT": efhc.ZeroThreshold()})
    before = efhc.simulate(experiment, out=tmp_path / "old")
    config = tmp_path / "old" / "config.toml"
    text = config.read_text()
    assert tomllib.loads(text)["driver"] == {"kind": "lockstep"}
    config.write_text(text.replace('[driver]\nkind = "lockstep"\n', ""))
    assert "driver" not in tomllib.loads(config.read_text())
    assert efhc.Result.load(tmp_path / "old").experiment == experiment
    again = efhc.simulate(experiment, out=tmp_path / "old", resume=True)
    assert again.metrics.equals(before.metrics)
    with pytest.raises(InputError, match=r"driver\.kind"):
        efhc.simulate(experiment.model_copy(update={"driver": efhc.EventDriven()}), out=tmp_path / "old", resume=True)


def test_a_config_without_a_driver_is_that_of_lockstep():
    assert first_difference({"devices": 3}, {"devices": 3, "driver": {"kind": "lockstep"}}) is None
    assert first_difference({"devices": 3}, {"devices": 3, "driver": {"kind": "event-driven"}}) == (
        "driver.kind",
        "lockstep",
        "event-driven",
    )


def test_an_experiment_without_a_name_is_called_as_its_file_and_its_runs_keep_their_keys(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("seeds = [0]\n")
    unnamed, in_file = efhc.Experiment(seeds=(0,)), efhc.load_experiment(tmp_path / "mine.toml")
    assert (unnamed.name, in_file.name) == ("experiment", "mine")
    assert [run.key for run in Runs().of(unnamed)] == [run.key for run in Runs().of(in_file)]
    assert first_difference(to_tables(unnamed), to_tables(in_file)) is None  # what was begun can be resumed
