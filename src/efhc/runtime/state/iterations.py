"""The state folder of a node in lockstep: checkpoints of whole iterations, `checkpoint-<k>.safetensors`.

All nodes of a run go back together, to the latest iteration of which each has a checkpoint. So a node keeps several,
and removes those before an iteration that all are known to have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.saving import read_tensors, write_tensors, writing
from efhc.runtime.decoder import Decoder, ModelProgress
from efhc.runtime.state.state_folder import ITERATION_CHECKPOINTS, check_identity, opened
from efhc.runtime.wire import ModelFormat, WireError, encode_whole

NAME = re.compile(r"checkpoint-(\d+)\.safetensors")
SENT = "sent/"
"""What comes before the number of a neighbour, in the name of the messages that it may still need."""


@dataclass(frozen=True, eq=False)
class IterationState:
    """A device between two iterations."""

    k: int
    model: Floats
    """w_i(k)"""
    tensors: Mapping[str, np.ndarray]
    """The other arrays of the device, by name."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """All else of the device, as JSON."""
    sent: Mapping[int, Sequence[Any]] | None = None
    """By neighbour, the messages that may have to be sent again; None if the device was not asked to stop at this
    iteration."""


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
    _held: ExitStack = field(default_factory=ExitStack, repr=False)

    def __enter__(self) -> Self:
        self._held.enter_context(opened(self.folder, "lockstep"))
        return self

    def __exit__(self, *_: object) -> None:
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
            found = json.loads(facts["efhc"])
            identity, at, own, receivers = dict(found["identity"]), int(found["k"]), dict(found["facts"]), found["sent"]
            sent = None if receivers is None else {n: self._messages(tensors.pop(f"{SENT}{n}")) for n in receivers}
        except (KeyError, TypeError, ValueError, WireError) as error:
            raise ValueError("it is no checkpoint of a node") from error
        check_identity(self.folder, identity, self.identity)
        model = tensors.pop("model", None)
        if at != k or model is None:
            raise ValueError("it is a checkpoint of another iteration, or not whole")
        if model.shape != (self.parameters,) or model.dtype != self.precision or not np.isfinite(model).all():
            raise ValueError(f"its model is not {self.parameters} finite numbers in {self.precision}")
        return IterationState(k, model, tensors, own, sent)

    def _messages(self, content: np.ndarray) -> list[Any]:
        decoder = Decoder(self._format)
        decoder.greeted = True
        return [message for message in decoder.feed(content.tobytes()) if not isinstance(message, ModelProgress)]

    def save(self, state: IterationState) -> None:
        """Write the checkpoint of an iteration. Raises `SaveError` if the disk is full."""
        tensors = {"model": state.model, **state.tensors}
        for neighbour, messages in (state.sent or {}).items():
            frames = (encode_whole(message, place, self._format) for place, message in enumerate(messages, 1))
            tensors[f"{SENT}{neighbour}"] = np.array(bytearray(b"".join(frames)), np.uint8)
        receivers = None if state.sent is None else list(state.sent)
        facts = {"identity": dict(self.identity), "k": state.k, "facts": dict(state.facts), "sent": receivers}
        write_tensors(self._file(state.k), tensors, {"efhc": json.dumps(facts)})

    @property
    def _format(self) -> ModelFormat:
        return ModelFormat(self.parameters, self.precision)

    def remove_before(self, k: int) -> None:
        with writing(self.folder):
            for old in self._iterations():
                if old < k:
                    self._file(old).unlink(missing_ok=True)

    def _file(self, k: int) -> Path:
        return self.folder / f"checkpoint-{k}.safetensors"

    def _iterations(self) -> list[int]:
        names = (NAME.fullmatch(file.name) for file in self.folder.glob(ITERATION_CHECKPOINTS))
        return sorted(int(name[1]) for name in names if name)
