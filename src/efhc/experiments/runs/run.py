"""One run is one strategy with one seed, named by the hash of everything that determines it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from efhc import __version__
from efhc.base.errors import EfhcError
from efhc.base.inputs import InputContent, sha256, using_inputs
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import read_inputs, to_tables, without_implied
from efhc.experiments.runs.draw import Scenarios, load_data
from efhc.learning.data import Dataset

DATA = "data.npz"
"""A data set that was made in Python, in the folder of its experiment."""


def file_name(strategy: str, seed: int) -> str:
    """Return the name of a run in the names of files and folders, and in trackers: "EF-HC.seed0"."""
    return f"{strategy}.seed{seed}"


@dataclass(frozen=True, eq=False)
class Inputs:
    """What an experiment reads: its data set, and the files that its settings name, each as it was read once."""

    data: Dataset
    files: Mapping[str, InputContent]
    """By setting."""

    @property
    def checksums(self) -> dict[str, dict[str, str]]:
        """The checksums of the data and of the input files, as meta.json holds them."""
        files = {setting: file.sha256 for setting, file in self.files.items()}
        return {"data_sha256": dict(self.data.sha256), "input_sha256": files}


@dataclass(frozen=True, eq=False)
class Run:
    """One strategy with one seed."""

    experiment: Experiment
    """With that strategy and seed only, and with names that do not depend on the experiment it is part of."""
    strategy: str
    """The name of the strategy in the experiment that the run is part of."""
    key: str
    """The hash of everything that determines the run."""
    inputs: Inputs = field(repr=False)
    whole: Experiment = field(repr=False)
    """The experiment that the run is part of."""
    tables: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The experiment as config.toml has it. Empty if it has parts without a name."""
    scenarios: Scenarios = field(default_factory=Scenarios, repr=False)
    """Those of all runs of that experiment."""

    @property
    def seed(self) -> int:
        return self.experiment.seeds[0]

    @property
    def name(self) -> str:
        return f"{self.strategy}, seed {self.seed}"

    @property
    def data(self) -> Dataset:
        return self.inputs.data

    @property
    def pair(self) -> tuple[str, int]:
        """Strategy and seed, as results are indexed."""
        return self.strategy, self.seed


def without_place(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config in which a data set that was made in Python has no folder: its SHA-256 identifies it."""
    data = tables.get("data")
    is_own = isinstance(data, dict) and isinstance(data.get("path"), str) and Path(data["path"]).name == DATA
    return {**tables, "data": {**data, "path": DATA}} if is_own else dict(tables)  # type: ignore[dict-item]


class Runs:
    """Turns experiments into runs. Each data set and each input file is read once."""

    def __init__(self, known: Iterable[InputContent] = ()) -> None:
        """`known` are files whose content is known already: they are not read."""
        self._data: dict[str, Dataset] = {}
        self._files = {str(file.path): file for file in known}
        self._made_in_python: list[object] = []

    def of(self, experiment: Experiment) -> list[Run]:
        """Return the runs of an experiment: every strategy with every seed, seed by seed."""
        inputs, scenarios = self.inputs(experiment), Scenarios()
        with using_inputs(self._files):
            alone = [_runs_of(experiment, name, inputs.data, scenarios) for name in experiment.strategies]
        return [run for of_seed in zip(*alone, strict=True) for run in of_seed]

    def inputs(self, experiment: Experiment) -> Inputs:
        """Return the data set and the input files of an experiment."""
        with using_inputs(self._files):  # a file that several experiments name is read once
            files = read_inputs(experiment)
        self._files |= {str(file.path): file for file in files.values()}
        try:
            data = to_tables(experiment)["data"]
        except EfhcError:  # a data set made in Python
            self._made_in_python.append(experiment.data)  # as long as it is there, no other object has its id
            data = id(experiment.data)
        which = json.dumps([data, experiment.precision, experiment.test_samples, experiment.validation])
        if which not in self._data:
            with using_inputs(files):
                self._data[which] = load_data(experiment)
        return Inputs(self._data[which], files)


def _runs_of(whole: Experiment, name: str, data: Dataset, scenarios: Scenarios) -> list[Run]:
    """Return the runs of one strategy of an experiment, one per seed."""
    strategy = whole.strategies[name]
    kind = str(getattr(strategy, "kind", "own"))
    called = kind if kind.replace("-", "").isalnum() else "own"
    alone = whole.model_copy(update={"name": "run", "strategies": {called: strategy}, "measure": None, "log": ()})
    inputs = Inputs(data, read_inputs(alone))  # those of other strategies are not the runs'
    tables: dict[str, Any] = {}
    with suppress(EfhcError):  # made in Python, without a name
        tables = to_tables(alone)
    runs = []
    for seed in whole.seeds:
        own = {**tables, "seeds": [seed]} if tables else {}
        one = alone.model_copy(update={"seeds": (seed,)})
        runs.append(Run(one, name, _key(own, inputs), inputs, whole, own, scenarios))
    return runs


def _key(tables: dict[str, Any], inputs: Inputs) -> str:
    if not tables:  # the same run cannot be described again
        return secrets.token_hex(12)
    of_data, of_files = inputs.checksums["data_sha256"], inputs.checksums["input_sha256"]
    identity = {"config": without_implied(without_place(tables)), "data": of_data, "inputs": of_files}
    return sha256(json.dumps(identity | {"efhc": __version__}, sort_keys=True).encode())[:24]
