"""Single runs, one strategy and one seed each: what sweeps, figures and tuning are made of.

Each is kept in a run directory that is named after everything that determines it, so whoever needs the same run finds
it there, and one that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from efhc import __version__
from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import read_bytes, sha256
from efhc.base.saving import write_safely
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import input_files, to_tables
from efhc.experiments.runs.directory import TABLES, RunDirectory
from efhc.experiments.runs.draw import load_data
from efhc.learning.data import Dataset


@dataclass(frozen=True, eq=False)
class Run:
    """One strategy and one seed of an experiment."""

    experiment: Experiment
    """With that strategy and seed only, and names that say no more than they do."""
    strategy: str
    """What whoever asked for it calls the strategy."""
    data: Dataset = field(repr=False)
    key: str
    """The hash of all that determines the run."""

    @property
    def seed(self) -> int:
        """The one seed."""
        return self.experiment.seeds[0]


class Runs:
    """The runs of experiments, each data set being loaded once."""

    def __init__(self) -> None:
        self._data: dict[str, Dataset] = {}
        self._files: dict[Path, str] = {}

    def of(self, experiment: Experiment) -> list[Run]:
        """Every strategy with every seed."""
        data = self._load(experiment)
        inputs = {name: self._checksum(name, path) for name, path in input_files(experiment).items()}
        runs = []
        for seed in experiment.seeds:
            for name, strategy in experiment.strategies.items():
                kind = str(getattr(strategy, "kind", name))
                alone = experiment.model_copy(update={"name": "run", "seeds": (seed,), "strategies": {kind: strategy}})
                identity = {"config": to_tables(alone), "data": dict(data.sha256), "inputs": inputs}
                text = json.dumps(identity | {"efhc": __version__}, sort_keys=True)
                runs.append(Run(alone, name, data, sha256(text.encode())[:24]))
        return runs

    def _load(self, experiment: Experiment) -> Dataset:
        tables = to_tables(experiment)
        which = json.dumps([tables["data"], experiment.precision, experiment.test_samples])
        if which not in self._data:
            self._data[which] = load_data(experiment)
        return self._data[which]

    def _checksum(self, name: str, path: Path) -> str:
        if path not in self._files:
            self._files[path] = sha256(read_bytes(path, name))
        return self._files[path]


class BatchProgress(Protocol):
    """Told how far a run has got."""

    def __call__(self, run: Run, share: float) -> None:
        """`share` of the run is done, 1.0 once its tables are kept."""


class Engine(Protocol):
    """Makes runs, several at once, wherever it finds the cores."""

    def session(self) -> AbstractContextManager[None]:
        """For several batches one after the other: what the engine has to start, it starts once."""

    def make(self, runs: list[Run], store: RunStore, progress: BatchProgress) -> None:
        """Make them all and keep them in the store."""


class RunStore:
    """A folder of run directories, each named after the key of its run."""

    def __init__(self, path: Path, warn: Callable[[str], None] = lambda text: None) -> None:
        self.path, self._warn = path, warn

    def directory(self, run: Run) -> Path:
        """Where a run is, or will be."""
        return self.path / run.key

    def complete(self, runs: Iterable[Run], engine: Engine, progress: BatchProgress) -> None:
        """See to it that all these runs are there: those that are missing, stopped or damaged are made."""
        missing: dict[str, Run] = {}
        for run in runs:
            if self._holds(run):
                progress(run, 1.0)
            else:
                missing.setdefault(run.key, run)
        if missing:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError("--out", f"{self.path} ({error.strerror})", "a folder that can be written") from None
            engine.make(list(missing.values()), self, progress)

    def _holds(self, run: Run) -> bool:
        """Whether a run is there whole. What is damaged is said to be, and removed."""
        directory = RunDirectory(self.directory(run))
        if not directory.path.exists():
            return False
        try:
            if directory.is_complete:
                for name in TABLES:
                    directory.load_table(name)
                return True
            RunDirectory.start(directory.path, run.experiment, run.data.sha256, resume=True)
            directory.load_checkpoint(next(iter(run.experiment.strategies)), run.seed)
        except (EfhcError, LookupError, TypeError, AttributeError) as error:
            self._warn(f"{directory.path} is damaged, and that run is made again: {error}")
            shutil.rmtree(directory.path)
        return False

    def keep(self, run: Run, files: Mapping[str, bytes]) -> None:
        """Take in the files of a run that was made elsewhere; meta.json, which says that it is complete, last."""
        for name in sorted(files, key=lambda name: name == "meta.json"):
            write_safely(self.directory(run) / name, files[name])

    def table(self, run: Run, name: str) -> pl.DataFrame:
        """A table of a run, its strategy called as whoever asked for the run calls it."""
        table = RunDirectory(self.directory(run)).load_table(name)
        return table.with_columns(strategy=pl.lit(run.strategy)) if "strategy" in table.columns else table

    def curve(self, run: Run) -> pl.DataFrame:
        """The iterations of a run after which accuracy was measured, and the broadcasts up to each."""
        metrics = self.table(run, "metrics").with_columns(broadcasts_total=pl.col("fired").cum_sum())
        return metrics.drop_nulls("accuracy")

    def meta(self, run: Run) -> dict[str, Any]:
        """meta.json of a run."""
        return RunDirectory(self.directory(run)).meta
