from __future__ import annotations

import os
from pathlib import Path

import pytest

from efhc.base.errors import EfhcError
from efhc.base.saving import write_safely


def test_a_file_is_replaced_whole(tmp_path):
    write_safely(tmp_path / "a" / "b.txt", b"one")
    write_safely(tmp_path / "a" / "b.txt", b"two")
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"two"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.txt"]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EfhcError, match=r"file/b\.txt cannot be written"):
        write_safely(tmp_path / "file" / "b.txt", b"one")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "folder"
    (target / "full").mkdir(parents=True)  # a folder that holds something cannot be replaced by a file
    with pytest.raises(EfhcError, match="cannot be written"):
        write_safely(target, b"one")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_pipe_is_not_replaced_and_a_link_stays_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EfhcError, match=r"pipe cannot be written .it is not a regular file"):
        write_safely(tmp_path / "pipe", b"one")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").symlink_to("real")
    write_safely(tmp_path / "link", b"one")
    write_safely(tmp_path / "link", b"two")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"two"


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
