"""The state folder of a node in lockstep: checkpoints of whole iterations, `checkpoint-<k>.safetensors`.

All nodes of a run go back together, to the latest iteration of which each has a checkpoint. So a node keeps several,
and removes those before an iteration that all are known to have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.saving import read_tensors, write_tensors, writing
from efhc.core.state import Local
from efhc.runtime.messages import IterationHeader
from efhc.runtime.state.folder import ITERATION_CHECKPOINTS, check_identity, opened

NAME = re.compile(r"checkpoint-(\d+)\.safetensors")
LOCAL, SENT = "local/", "sent/"
"""In front of the names of what the device keeps to itself, and of the models that neighbours may still need."""


@dataclass(frozen=True, eq=False)
class SentBefore:
    """What was sent to one neighbour in one iteration before the checkpoint, and may not have arrived."""

    header: IterationHeader
    model: Floats | None


@dataclass(frozen=True, eq=False)
class IterationState:
    """A device between two iterations."""

    k: int
    model: Floats
    """w_i(k)"""
    last_broadcast: Floats
    """w_hat_i"""
    local: Local
    """What the device keeps to itself, one row each."""
    sent: Mapping[int, Iterable[SentBefore]] | None = None
    """By neighbour, what may have to be sent again; None if the device was not asked to stop at this iteration."""


@dataclass
class IterationStore:
    """One open state folder, locked against other processes. Its methods block: call them outside the event loop."""

    folder: Path
    identity: Mapping[str, str]
    """The experiment, strategy, seed and device that the state belongs to."""
    parameters: int
    precision: str
    notes: list[str] = field(default_factory=list)
    """What could not be used, one line each, for the log."""
    journal_bytes: int = 0
    """A node in lockstep has no journal."""
    _held: ExitStack = field(default_factory=ExitStack, repr=False)

    def __enter__(self) -> Self:
        self._held.enter_context(opened(self.folder, "lockstep"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def available(self) -> list[int]:
        """Return the iterations that have a whole checkpoint, ascending. A damaged one is left out and noted.

        Raises `EfhcError` if a checkpoint belongs to another experiment, strategy, seed or device.
        """
        found = []
        for k in self._iterations():
            try:
                self.load(k)
            except ValueError as error:
                self.notes.append(f"{self._file(k)} cannot be used ({error}); it is left out")
            else:
                found.append(k)
        return found

    def load(self, k: int) -> IterationState:
        """Return the state after k iterations.

        Raises `ValueError` if the file is damaged, and `EfhcError` if it belongs to something else.
        """
        try:
            tensors, facts = read_tensors(self._file(k))
        except OSError as error:
            raise ValueError(str(error.strerror)) from error
        try:
            told = json.loads(facts["efhc"])
            identity, at, said = dict(told["identity"]), int(told["k"]), told["sent"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError("it is no checkpoint of a node") from error
        check_identity(self.folder, identity, self.identity)
        models = {name: tensor for name, tensor in tensors.items() if not name.startswith(LOCAL)}
        if at != k or not {"model", "last_broadcast"} <= models.keys():
            raise ValueError("it is a checkpoint of another iteration, or not whole")
        for name, model in models.items():
            if model.shape != (self.parameters,) or model.dtype != self.precision or not np.isfinite(model).all():
                raise ValueError(f"its {name} is not {self.parameters} finite numbers in {self.precision}")
        local = {name.removeprefix(LOCAL): rows for name, rows in tensors.items() if name.startswith(LOCAL)}
        return IterationState(k, models["model"], models["last_broadcast"], local, _sent(said, models))

    def save(self, state: IterationState) -> None:
        """Write the checkpoint of an iteration. Raises `SaveError` if the disk is full."""
        tensors: dict[str, np.ndarray] = {"model": state.model, "last_broadcast": state.last_broadcast}
        tensors |= {LOCAL + name: np.asarray(rows) for name, rows in state.local.items()}
        said: dict[str, list[list[int | bool]]] | None = None
        if state.sent is not None:
            said = {}
            for neighbour, before in state.sent.items():
                said[str(neighbour)] = []
                for one in before:
                    said[str(neighbour)].append([*one.header, one.model is not None])
                    if one.model is not None:
                        tensors[f"{SENT}{one.header.k}"] = one.model
        told = {"identity": dict(self.identity), "k": state.k, "sent": said}
        write_tensors(self._file(state.k), tensors, {"efhc": json.dumps(told)})

    def remove_before(self, k: int) -> None:
        """Remove the checkpoints of iterations before k."""
        with writing(self.folder):
            for old in self._iterations():
                if old < k:
                    self._file(old).unlink(missing_ok=True)

    def _file(self, k: int) -> Path:
        return self.folder / f"checkpoint-{k}.safetensors"

    def _iterations(self) -> list[int]:
        names = (NAME.fullmatch(file.name) for file in self.folder.glob(ITERATION_CHECKPOINTS))
        return sorted(int(name[1]) for name in names if name)


def _sent(said: object, models: Mapping[str, Floats]) -> dict[int, list[SentBefore]] | None:
    if said is None:
        return None
    try:
        return {
            int(neighbour): [
                SentBefore(
                    IterationHeader(int(k), bool(fired), int(degree)), models[f"{SENT}{k}"] if has_model else None
                )
                for k, fired, degree, has_model in before
            ]
            for neighbour, before in said.items()  # type: ignore[attr-defined]
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError("what it says of its neighbours is damaged") from error
