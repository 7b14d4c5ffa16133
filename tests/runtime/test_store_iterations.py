"""The state folder of a node in lockstep: one node at a time, of one mode, and nothing that a kill left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from stored_devices import IDENTITY, PARAMETERS, History, opened

from efhc.base.errors import EfhcError
from efhc.base.saving import BusyError
from efhc.core.device import durable
from efhc.runtime.state.iterations import IterationState, IterationStore


def store_in(folder: Path, **identity: str) -> IterationStore:
    return IterationStore(folder, IDENTITY | identity, PARAMETERS, "float32")


def save_in(folder: Path, k: int) -> None:
    model = np.ones(PARAMETERS, dtype=np.float32)
    with store_in(folder) as store:
        store.save(IterationState(k, model, {"last_broadcast": model}))


def test_a_free_running_and_a_lockstep_node_cannot_hold_one_folder(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(BusyError, match="another process is working on"), store_in(tmp_path):
        pass
    with store_in(tmp_path), pytest.raises(BusyError, match="another process is working on"):
        opened(tmp_path)


def test_the_state_of_the_other_mode_is_refused_and_the_folder_is_released(tmp_path: Path) -> None:
    with opened(tmp_path / "free") as store:
        store.checkpoint(durable(History().device), {}, {})
    with pytest.raises(EfhcError, match="state of mode = 'free-running'"), store_in(tmp_path / "free"):
        pass
    with opened(tmp_path / "free") as store:
        assert store.restore() is not None
    save_in(tmp_path / "lockstep", 50)
    with pytest.raises(EfhcError, match="state of mode = 'lockstep'"):
        opened(tmp_path / "lockstep")
    with store_in(tmp_path / "lockstep") as store:
        assert store.available() == [50]


def test_a_file_that_a_kill_left_unfinished_is_removed(tmp_path: Path) -> None:
    save_in(tmp_path, 50)
    left = tmp_path / ".checkpoint-100.safetensors.0badcafe.partial"
    left.write_bytes(b"half")
    with store_in(tmp_path) as store:
        assert not left.exists()
        assert store.available() == [50]


def test_a_checkpoint_of_another_node_is_refused(tmp_path: Path) -> None:
    save_in(tmp_path, 50)
    with store_in(tmp_path, seed="other") as store, pytest.raises(EfhcError, match="state of another node: its seed"):
        store.available()
