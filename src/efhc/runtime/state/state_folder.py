"""The state folders of both modes: lock, identity, checkpoints, and files that a kill left unfinished.

The file `checkpoint.safetensors` holds tensors, and facts about them as JSON in its header.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from efhc.base.errors import EfhcError
from efhc.base.saving import is_unfinished, lock, write_tensors, writing

LOCK = "lock"
CHECKPOINT, JOURNAL = "checkpoint.safetensors", "journal"
"""The files of a free-running node."""
ITERATION_CHECKPOINTS = "checkpoint-*.safetensors"
"""The files of a node in lockstep, as a pattern."""

ANOTHER_FOLDER = "choose another folder as `state`, or move this one away"

FORMAT = 1
"""The format of checkpoints."""
_FACTS, _CHECKSUM = "efhc", "efhc_sha256"
_LONGEST_HEADER = 1 << 26


@contextmanager
def opened(folder: Path, mode: Literal["free-running", "lockstep"]) -> Iterator[None]:
    """Hold the state folder of a node in the body: make it, lock it, and remove files that a kill left unfinished.

    Raises `EfhcError` if another process holds the folder, or if a node of the other mode has left its state there;
    `SaveError` if the folder cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    sync_folder(folder.parent)
    with lock(folder / LOCK):
        is_lockstep = mode == "lockstep"
        foreign = (CHECKPOINT, JOURNAL) if is_lockstep else (ITERATION_CHECKPOINTS,)
        if any(path for pattern in foreign for path in folder.glob(pattern)):
            other = "free-running" if is_lockstep else "lockstep"
            raise EfhcError(
                f"{folder} holds the state of mode = '{other}', and this node has '{mode}'; {ANOTHER_FOLDER}"
            )
        with writing(folder):
            for path in folder.iterdir():
                if is_unfinished(path):
                    path.unlink()
        yield


def check_identity(folder: Path, theirs: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Raise `EfhcError` unless the state in a folder belongs to this node."""
    for name in {**theirs, **own}:
        there, here = theirs.get(name), own.get(name)
        if there != here:
            raise EfhcError(
                f"{folder} holds the state of another node: its {name} is {there}, and this node's is {here}; "
                f"{ANOTHER_FOLDER}"
            )


def sync_folder(folder: Path) -> None:
    """Put the names of the files in a folder onto the disk: a file's own content is no use without its name."""
    with writing(folder):
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def write_checkpoint(path: Path, tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write a checkpoint whole, or leave the one that is there. Raises `SaveError` if it cannot be written."""
    shapes = {name: [array.dtype.name, array.shape] for name, array in tensors.items()}
    text = json.dumps({"format": FORMAT, "shapes": shapes, **facts})
    write_tensors(path, tensors, {_FACTS: text, _CHECKSUM: _sha256(text)})


def read_checkpoint(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return tensors and facts. Each array is read into its own memory: nothing is held twice.

    Raises `ValueError` if the file is damaged, `OSError` if it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= _LONGEST_HEADER:
            raise ValueError("it has no header")
        try:
            metadata = json.loads(file.read(length))["__metadata__"]
            text, checksum, expected = metadata[_FACTS], metadata[_CHECKSUM], metadata["sha256"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError("its header is damaged") from error
        if _sha256(text) != checksum:
            raise ValueError("its header is not the one that was written")
        facts = json.loads(text)
        if facts["format"] != FORMAT:
            raise ValueError(f"it has format {facts['format']}, and this version of efhc reads format {FORMAT}")
        tensors = {}
        for name, (dtype, shape) in facts["shapes"].items():
            tensors[name] = np.empty(shape, dtype)
            numbers = tensors[name].reshape(-1).view(np.uint8).data
            if file.readinto(numbers) != numbers.nbytes:
                raise ValueError("it does not have its whole length")
            digest.update(numbers)
    if digest.hexdigest() != expected:
        raise ValueError("its numbers are not those that were written")
    return tensors, facts


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
