from __future__ import annotations

import os

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
    with pytest.raises(EfhcError, match=r"pipe cannot be written .it is there and is no regular file"):
        write_safely(tmp_path / "pipe", b"one")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").symlink_to("real")
    write_safely(tmp_path / "link", b"one")
    write_safely(tmp_path / "link", b"two")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"two"
