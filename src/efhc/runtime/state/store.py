"""The state folder of a free-running node: what a kill at any moment leaves of it.

`checkpoint.safetensors` has the model of some iteration and all that belongs to it. `journal` has what happened since and
must not be lost: committed steps, decisions, exchanges in doubt. A restart takes the checkpoint and applies the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from efhc.core.device_state import Device, Step


class Restored(NamedTuple):
    """What a state folder holds."""

    device: Device
    """As `durable` left it. Its steps are those of the checkpoint and all of the journal: none is in the model yet."""
    facts: dict[str, Any]
    """What was given to the last checkpoint."""
    tensors: dict[str, np.ndarray]
    """What was given to the last checkpoint."""
    notes: list[str]
    """What had to be mended, one line each, for the log: a torn tail of the journal that was cut."""


class Store:
    """One open state folder, locked against other processes. Its methods block: call them outside the event loop."""

    journal_bytes: int = 0
    """The size of the journal now."""

    def __init__(
        self, folder: Path, identity: Mapping[str, str], parameters: int, precision: str, *, journal: bool = True
    ) -> None:
        """`identity` names the experiment, strategy, seed and device. Without `journal`, `keep` does nothing."""
        raise NotImplementedError

    def restore(self) -> Restored | None:
        """Return what the folder holds, or None if it holds no state.

        Raises `EfhcError`, one line that says what to do, for a state of another identity or a corrupt checkpoint.
        """
        raise NotImplementedError

    def keep(self, durable: Device, new_steps: Sequence[Step]) -> None:
        """Write what `durable(device)` holds to the journal and onto the disk; `new_steps` were committed just now.

        Model and last broadcast are not written: they are the checkpoint's. Raises `SaveError` if the disk is full.
        """
        raise NotImplementedError

    def checkpoint(self, durable: Device, facts: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
        """Write a checkpoint of all that `durable(device)` holds, then empty the journal. Raises `SaveError`."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError
