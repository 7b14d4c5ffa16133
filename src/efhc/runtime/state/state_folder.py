"""The state folders of both modes: their lock, their identity, and files that a kill left unfinished."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from efhc.base.errors import EfhcError
from efhc.base.saving import is_unfinished, lock, writing
from efhc.runtime.state.journal import sync_folder

LOCK = "lock"
CHECKPOINT, JOURNAL = "checkpoint.safetensors", "journal"
"""The files of a free-running node."""
ITERATION_CHECKPOINTS = "checkpoint-*.safetensors"
"""The files of a node in lockstep, as a pattern."""

ANOTHER_FOLDER = "choose another folder as `state`, or move this one away"


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
