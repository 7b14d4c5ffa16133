"""The folder of an experiment: its config, its facts, and a list of its runs, which lie in a store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from efhc.base.errors import InputError
from efhc.base.inputs import InputContent, sha256
from efhc.base.saving import UNFINISHED, is_unfinished, lock, write_safely, writing
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import first_difference, to_tables
from efhc.experiments.runs.folder import Pair, RunFolder, completed
from efhc.experiments.runs.run import DATA, Run
from efhc.learning.data import Dataset
from efhc.learning.data.dataset import npz_content

OWN_RUNS = "runs"
"""The folder of the runs of an experiment or a study, within its own."""


class ExperimentFolder(RunFolder):
    """The folder of an experiment."""

    @property
    def store(self) -> Path:
        elsewhere = next((one["store"] for one in reversed(self.meta["sessions"]) if one.get("store")), None)
        return self.path / OWN_RUNS if elsewhere is None else Path(elsewhere)

    @property
    def holds_tables(self) -> bool:
        """Whether the tables and models of all runs are in this folder: efhc 0.2 completed it, or `Result.save`."""
        return self.is_complete and "runs" not in self.meta

    @property
    def keys(self) -> dict[Pair, str]:
        """The keys of the runs, by strategy and seed. Empty for folders of efhc 0.2."""
        return {(one["strategy"], one["seed"]): one["key"] for one in self.meta.get("runs", [])}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder if needed, and hold its lock in the body, so that no other process works on it.

        Raises `BusyError` if another process holds the lock.
        """
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with lock(self.path / ".lock"):
            self.forget()
            yield

    @contextmanager
    def session(
        self,
        experiment: Experiment,
        checksums: Mapping[str, Mapping[str, str]],
        runs: Sequence[Run],
        *,
        resume: bool,
        store: Path | None,
    ) -> Iterator[None]:
        """Make this the folder of a new experiment or, with `resume`, check that it is that of the same one.

        The body makes the runs: if it raises, the session ends there, and otherwise with `finish`. `checksums` are
        those of the data and of the input files. Call it within `locked`. Raises `InputError` if the folder holds
        something else.
        """
        self._prepare(experiment, resume=resume)
        if self.is_begun:
            self.check_same(experiment, checksums)
        listed = [{"strategy": run.strategy, "seed": run.seed, "key": run.key} for run in runs]
        self.begin_session(to_tables(experiment), checksums, store=store, runs=listed)
        try:
            yield
        except BaseException:
            self.forget()  # an engine may have added facts
            self.end_session()
            raise

    def describe(self, experiment: Experiment, checksums: Mapping[str, Mapping[str, str]]) -> None:
        """Make this the folder of a result that is saved from memory; parts without a name are described."""
        self._prepare(experiment, resume=False)
        self.begin_session(to_tables(experiment, "describe"), checksums)

    def _prepare(self, experiment: Experiment, *, resume: bool) -> None:
        self.check_may_go_on(experiment, resume=resume)
        if not self.is_begun and self.path.exists() and any(map(_is_foreign, self.path.iterdir())):
            raise InputError("--out", f"{self.path}, which holds other files", "a new or empty directory")
        with writing(self.path):
            for leftover in filter(is_unfinished, self.path.glob(f".*{UNFINISHED}")):
                leftover.unlink()
            # The lock of the experiment is held, so no other process works in a store of its own.
            for leftover in filter(is_unfinished, (self.path / OWN_RUNS).glob(f".*{UNFINISHED}")):
                shutil.rmtree(leftover, ignore_errors=True)

    def check_may_go_on(self, experiment: Experiment, *, resume: bool) -> None:
        """Raise `InputError` if the folder holds an experiment, this one or another, and not `resume`."""
        if not self.is_begun or resume:
            return
        if first_difference(self.config, to_tables(experiment, "describe")):
            raise InputError("--out", f"{self.path}, which holds another experiment", "a new or empty directory")
        problem = (
            f"{self.path} already holds this experiment. Add --resume to continue or show it, or choose another --out."
        )
        raise InputError("--out", self.path, "--resume, or another --out", problem)

    def in_the_order_begun(self, experiment: Experiment) -> Experiment:
        """Return the same experiment with its strategies in the order of config.toml."""
        names = self.config["strategies"]
        return experiment.model_copy(update={"strategies": {name: experiment.strategies[name] for name in names}})

    def finish(self, failures: Mapping[Pair, str], warnings: Sequence[str]) -> None:
        self.forget()  # as above
        failed = [{"strategy": pair[0], "seed": pair[1], "reason": text} for pair, text in failures.items()]
        some = {"failed": failed, "warnings": list(warnings)}
        self.end_session(**completed(), **{name: facts for name, facts in some.items() if facts})

    # A data set that was made in Python

    def data_of(self, experiment: Experiment) -> InputContent | None:
        """Return the content of data.npz for a data set that was made in Python; None for others, which have names."""
        content = npz_content(experiment.data) if isinstance(experiment.data, Dataset) else None
        return None if content is None else InputContent((self.path / DATA).absolute(), content, sha256(content))

    def keep_data(self, data: InputContent | None) -> None:
        """Write data.npz, if there is such data and it is not there yet. Call it after `begin`."""
        if data is not None and not data.path.exists():
            write_safely(data.path, data.content)


def _is_foreign(path: Path) -> bool:
    return not is_unfinished(path) and path.name != ".lock"


def refuse_experiment(folder: Path) -> None:
    """Raise `InputError` if a folder, which shall hold a study, holds an experiment."""
    if RunFolder(folder).is_begun:
        raise InputError("--out", f"{folder}, which holds an experiment", "a new or empty directory")
