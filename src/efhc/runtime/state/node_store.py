"""The state folder of a free-running node, which a kill at any moment leaves whole.

`checkpoint.safetensors` has the model of some iteration and all that belongs to it. `journal` has what happened since
and must not be lost: committed steps, decisions, exchanges in doubt; of half-steps, frames. A restart takes the
checkpoint and applies the journal. A journal names the checkpoint that it follows, so one that a kill left beside a
newer checkpoint is not applied again.
"""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from efhc.base.errors import EfhcError
from efhc.base.saving import SaveError, writing
from efhc.core.device import Device, Step
from efhc.core.half_steps import HalfSteps
from efhc.runtime.state import journal as journal_file
from efhc.runtime.state.contents import (
    ArrayNumbers,
    KeptFrame,
    described_device,
    described_half_steps,
    described_promises,
    device_from_json,
    half_steps_from_json,
    numbered,
    numbers_in,
)
from efhc.runtime.state.journal import MARK_BYTES, Contents, Journal, Kind, read_payload
from efhc.runtime.state.state_folder import (
    CHECKPOINT,
    JOURNAL,
    check_identity,
    opened,
    read_checkpoint,
    sync_folder,
    write_checkpoint,
)  # fmt: skip

_STEP = struct.Struct("<qdqq")
_ARRAY_NUMBER = struct.Struct("<q")


class Restored(NamedTuple):
    """The contents of a state folder."""

    device: Any
    """Of exchanges, as `durable` left it. Its model, last broadcast, k, `finished` and `copies` are those of the
    checkpoint. Its steps are those of the checkpoint and all of the journal: none is in the model yet. Their shares may
    add up to more than 1, so they have to be made before the device offers anything.

    Of half-steps, the `snapshot` of the checkpoint."""
    frames: list[KeptFrame]
    """The frames that a device with half-steps has sent and received since the checkpoint."""
    facts: dict[str, Any]
    """Given to the last checkpoint."""
    tensors: dict[str, np.ndarray]
    """Given to the last checkpoint."""
    notes: list[str]
    """What was repaired, one line each, for the log: a torn tail of the journal that was cut."""


class NodeStore:
    """One open state folder, locked against other processes. Its methods block: call them outside the event loop.

    Call `restore` first. A folder without a state needs a `checkpoint` before the first `keep`.
    """

    def __init__(
        self, folder: Path, identity: Mapping[str, str], parameters: int, precision: str, *, journal: bool = True
    ) -> None:
        """`identity` names the experiment, strategy, seed and device. Without `journal`, `keep` does nothing.

        Raises `EfhcError` if another process holds the folder or a node in lockstep has left its state there,
        `SaveError` if the folder cannot be written.
        """
        self.folder = folder
        self.checkpoint_path, self.journal_path = folder / CHECKPOINT, folder / JOURNAL
        self._identity = {**identity, "parameters": str(parameters), "precision": precision}
        self._parameters, self._dtype = parameters, np.dtype(precision)
        self._keeps_journal = journal
        self._journal: Journal | None = None
        self._checkpoints = 0
        self._numbers = ArrayNumbers()
        self._held = ExitStack()
        self._held.enter_context(opened(folder, "free-running"))

    @property
    def journal_bytes(self) -> int:
        journal = self._journal  # the disk thread may replace it meanwhile
        return 0 if journal is None else journal.length

    # Reading

    def restore(self) -> Restored | None:
        """Return what the folder holds, or None if it holds no state.

        Raises `EfhcError`, one line that says what to do, for a state of another identity or a corrupt checkpoint.
        """
        try:
            tensors, facts = read_checkpoint(self.checkpoint_path)
        except FileNotFoundError:
            if self.journal_path.exists():
                raise EfhcError(
                    f"{self.journal_path} follows a checkpoint that is missing; bring {self.checkpoint_path.name} "
                    f"back, or move the journal away to start anew without the exchanges in it"
                ) from None
            return None
        except (OSError, ValueError) as error:
            raise EfhcError(
                f"{self.checkpoint_path} cannot be used ({getattr(error, 'strerror', None) or error}); move it and "
                f"{self.journal_path.name} away to start anew: what this device has trained and exchanged is then lost"
            ) from error
        check_identity(self.folder, facts["identity"], self._identity)
        self._checkpoints = facts["checkpoint"]
        notes: list[str] = []
        contents = self._read_journal(facts, notes)
        given = {name: tensors[name] for name in facts["given_tensors"]}
        arrays: dict[Any, Any] = {None: None} | {number: tensors[name] for name, number in facts["arrays"].items()}
        if "links" not in facts["device"]:
            return Restored(self._device_of(facts["device"], arrays, contents), [], facts["given"], given, notes)
        device = half_steps_from_json(facts["device"], arrays)
        return Restored(device, self._frames_in(contents), facts["given"], given, notes)

    def _frames_in(self, contents: Contents | None) -> list[KeptFrame]:
        if contents is None or not contents.records:
            return []
        with self.journal_path.open("rb") as file:
            return [KeptFrame.of(read_payload(file, record)) for record in contents.records]

    def _read_journal(self, facts: Mapping[str, Any], notes: list[str]) -> Contents | None:
        """Return what the journal of this checkpoint holds, and open it for more."""
        self._close_journal()
        number, mark = facts["checkpoint"], bytes.fromhex(facts["mark"])
        try:
            found = journal_file.read(self.journal_path) if self.journal_path.exists() else None
        except OSError as error:
            raise EfhcError(
                f"{self.journal_path} cannot be read ({error.strerror}); move it away to go on without what is in it"
            ) from error
        if found is not None and found.mark != mark and found.number >= number:
            raise EfhcError(
                f"{self.journal_path} follows a newer checkpoint than {self.checkpoint_path.name}; bring the newer one "
                f"back, or move the journal away to go on without the exchanges in it"
            )
        contents = found if found is not None and found.mark == mark else None
        if self._keeps_journal and not self.journal_path.exists():
            notes.append(f"there is no {self.journal_path}: if it was removed, the exchanges in it are lost")
        if found is None and self.journal_path.exists():
            notes.append(f"WARNING: the beginning of {self.journal_path} is damaged: all exchanges in it are lost")
        elif contents is not None and contents.damaged:
            notes.append(
                f"WARNING: {self.journal_path} is damaged, and whole records follow: the disk may be failing. All from "
                f"byte {contents.length} on was cut ({contents.cut} bytes): exchanges that neighbours made may be lost"
            )
        elif contents is not None and contents.cut:
            notes.append(
                f"{self.journal_path} ended in {contents.cut} bytes that were not written to their end; they were cut"
            )
        if self._keeps_journal:
            if contents is not None:
                self._journal = Journal(self.journal_path, mark, contents.length)
            else:
                self._journal = Journal.create(self.journal_path, number, mark)
        return contents

    def _device_of(self, described: Mapping[str, Any], arrays: dict[Any, Any], contents: Contents | None) -> Device:
        """Return the device of a checkpoint after all that is in the journal, whose arrays are added to `arrays`."""
        steps, promises = list(described["steps"]), described["promises"]
        for number, array in arrays.items():
            if array is not None:
                self._numbers.add(array, number)
        if contents is not None and contents.records:
            with self.journal_path.open("rb") as file:
                models: dict[int, int] = {}
                for record in contents.records:
                    if record.kind is Kind.STEP:
                        steps.append(_STEP.unpack(read_payload(file, record)))
                    elif record.kind is Kind.MODEL:
                        file.seek(record.start)
                        (number,) = _ARRAY_NUMBER.unpack(file.read(_ARRAY_NUMBER.size))
                        models[number] = record.start + _ARRAY_NUMBER.size
                promises = json.loads(read_payload(file, contents.records[-1]))
                for number in numbers_in(steps, promises):
                    if number not in arrays:
                        file.seek(models[number])
                        array = np.empty(self._parameters, self._dtype)
                        file.readinto(array.view(np.uint8).data)
                        arrays[number] = array
                        self._numbers.add(array, number)
            self._numbers.next = max([self._numbers.next, *(number + 1 for number in models)])
        return device_from_json(described, steps, promises, arrays)

    # Writing

    def keep(self, durable: Device, new_steps: Sequence[Step]) -> None:
        """Write what `durable(device)` holds to the journal and onto the disk; `new_steps` were committed just now.

        `new_steps` were in no earlier `keep` or `checkpoint`. Model, last broadcast and k are not written: they are the
        checkpoint's. Raises `SaveError` if it cannot be written; then nothing of it is kept, and every `keep` fails
        until a `checkpoint` succeeds.
        """
        if not self._keeps_journal:
            return
        (steps, promises), new = numbered([list(new_steps), described_promises(durable)], self._numbers)
        try:
            self._append(
                [
                    *(
                        (Kind.MODEL, (_ARRAY_NUMBER.pack(number), self._bytes_of(array)))
                        for number, array in new.items()
                    ),
                    *((Kind.STEP, (_STEP.pack(*step),)) for step in steps),
                    (Kind.STATE, (json.dumps(promises).encode(),)),
                ]
            )
        except BaseException:
            for array in new.values():
                self._numbers.forget(array)
            raise

    def keep_frames(self, frames: Sequence[KeptFrame]) -> None:
        """Write frames that were just sent or received to the journal and onto the disk. It fails as `keep` does."""
        if self._keeps_journal:
            self._append([(Kind.FRAME, frame.parts()) for frame in frames])

    def _append(self, records: Sequence[tuple[Kind, Sequence[Any]]]) -> None:
        if self._journal is None:
            raise SaveError(f"{self.journal_path} cannot be written (no checkpoint has been written before it)")
        self._journal.append(records)

    def _bytes_of(self, array: np.ndarray) -> memoryview:
        """The bytes of a model, without a copy."""
        if array.shape != (self._parameters,) or array.dtype != self._dtype:
            raise ValueError(f"a model of {array.shape} {array.dtype} in a store of {self._parameters} {self._dtype}")
        return np.ascontiguousarray(array).view(np.uint8).data

    def checkpoint(
        self, durable: Device | HalfSteps, facts: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
    ) -> None:
        """Write a checkpoint of all that `durable(device)`, or `snapshot(device)`, holds, then empty the journal.

        The file's tensors are "model", those of `tensors` by their names, and the other arrays that the device needs.
        Raises `SaveError` if it cannot be written: the folder then holds what it held before, or the new checkpoint.
        """
        numbers = ArrayNumbers()
        device = described_half_steps(durable) if isinstance(durable, HalfSteps) else described_device(durable)
        described, new = numbered(device, numbers)
        names = {"model" if array is durable.model else f"array-{number}": number for number, array in new.items()}
        arrays = {name: new[number] for name, number in names.items()}
        assert arrays.keys().isdisjoint(tensors), "the names of the device's own tensors are taken"
        mark = secrets.token_bytes(MARK_BYTES)
        everything = {
            "identity": self._identity,
            "checkpoint": self._checkpoints + 1,
            "mark": mark.hex(),
            "device": described,
            "arrays": names,
            "given": dict(facts),
            "given_tensors": list(tensors),
        }
        write_checkpoint(self.checkpoint_path, {**arrays, **tensors}, everything)
        sync_folder(self.folder)  # the old journal may go only once the new checkpoint is sure to be found
        self._checkpoints += 1
        self._numbers = numbers
        self._close_journal()
        if self._keeps_journal:
            self._journal = Journal.create(self.journal_path, self._checkpoints, mark)
        else:
            with writing(self.journal_path):
                self.journal_path.unlink(missing_ok=True)

    # Closing

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the journal and release the lock. Nothing is written."""
        self._close_journal()
        self._held.close()
