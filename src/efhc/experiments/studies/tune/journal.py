"""The journal of a tuning: its finished trials, in Optuna's format, and what they follow from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efhc import __version__
from efhc.base.errors import EfhcError, InputError
from efhc.base.saving import write_safely
from efhc.experiments.config.files import first_difference, to_tables
from efhc.experiments.runs.run import Runs
from efhc.experiments.studies.tune.search import Search

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

JOURNAL = "optuna.journal"


class Journal:
    """The finished trials in a folder. A journal that does not exist yet is created."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL
        with self._writing():
            self._study = self._open()

    def _open(self) -> Study:
        from optuna import create_study
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        path = self._path
        # This process holds the folder, so a lock was left by a process that was killed. So was a line without an end,
        # to which the next line would be appended.
        for leftover in path.parent.glob(f"{path.name}.lock*"):
            leftover.unlink()
        if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
            write_safely(path, content[: content.rfind(b"\n") + 1])
        backend = JournalFileBackend(str(path), JournalFileOpenLock(str(path)))
        try:
            return create_study(
                storage=JournalStorage(backend), study_name="r", direction="maximize", load_if_exists=True
            )
        except (ValueError, KeyError, TypeError) as error:
            advice = "remove it to tune again with the runs that are there"
            raise EfhcError(f"{path} is corrupt ({error}); {advice}") from error

    def finished(self) -> list[FrozenTrial]:
        """Return the finished trials in the order in which they were made."""
        from optuna.trial import TrialState

        done = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        return self._study.get_trials(deepcopy=False, states=done)

    def add(self, trial: FrozenTrial) -> None:
        """Record a finished trial, in one step."""
        with self._writing():
            self._study.add_trial(trial)

    def check_same(self, identity: dict[str, Any]) -> None:
        """Record what the trials follow from; raise an error if the trials here follow from something else."""
        begun, folder = self._study.user_attrs.get("identity"), self._path.parent
        if begun is None:  # new, or killed before it was written
            with self._writing():
                self._study.set_user_attr("identity", identity)
            return
        if "--on" not in begun:
            by = "was made by an earlier version of efhc, which chose by the test accuracy"
            raise EfhcError(f"the tuning in {folder} {by}; use another --out")
        if difference := first_difference(begun, identity):
            key, old, new = difference
            allowed = f"{old!r}, as that tuning was begun; a changed one needs another --out"
            raise InputError(key, f"{new!r} to go on with {folder}", allowed)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A full disk is one line, not a traceback through Optuna."""
        try:
            yield
        except OSError as error:
            raise EfhcError(f"{self._path} cannot be written ({error.strerror or error})") from error


def identity(search: Search, runs: Runs) -> dict[str, Any]:
    """Return everything that trials follow from: trials of another tuning must not be mixed with them."""
    (run, *_) = runs.of(search.part({one.name: one.first_allowed for one in search.parameters}, 1))
    asked = {
        "--budget": str(search.budget),
        "--strategy": search.strategy,
        "--parameter": {one.name: f"{one.low!r}:{one.high!r}" for one in search.parameters},
        "--on": search.on if search.validation is None else f"{search.on}, {search.validation:g}",
    }
    everything: dict[str, Any] = json.loads(
        json.dumps({**to_tables(search.experiment), **asked, **run.inputs.checksums, "efhc": __version__})
    )
    return everything


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna from logging every trial; the caller reports them."""
    from optuna import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(before)
