from __future__ import annotations

import os
from pathlib import Path

import pytest

from efhc.base.saving import write_safely


def test_a_file_is_on_the_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Otherwise a power cut may leave the new name with nothing behind it."""
    target = tmp_path / "table.parquet"
    synced: list[tuple[bytes, bool]] = []
    fsync = os.fsync

    def listening(number: int) -> None:
        if not os.path.isdir(f"/proc/self/fd/{number}"):  # noqa: PTH112 - a folder may be synced as well
            synced.append((Path(f"/proc/self/fd/{number}").read_bytes(), target.exists()))
        fsync(number)

    monkeypatch.setattr(os, "fsync", listening)
    write_safely(target, b"whole")
    assert synced == [(b"whole", False)]
    assert target.read_bytes() == b"whole"
