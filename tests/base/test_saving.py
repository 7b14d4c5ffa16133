from __future__ import annotations

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
