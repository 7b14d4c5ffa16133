"""Input files that are not what they should be are one line, in words of ours."""

from __future__ import annotations

import numpy as np
import pytest

from efhc.base.errors import InputError, within
from efhc.base.inputs import parse_numpy, read_bytes


@pytest.mark.parametrize("content", [b"x,y\n1,2\n", b"", b"\x80\x04K\x01.", b"PK\x03\x04broken"])
def test_a_file_that_is_no_numpy_file_is_told_nothing_about_pickles(tmp_path, content):
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        parse_numpy(read_bytes(path), path, "an .npz file")
    assert "pickle" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arrays_of_objects_are_refused_without_advice_to_unpickle_them(tmp_path):
    np.savez(tmp_path / "o.npz", x_train=np.array([{}], dtype=object))
    with pytest.raises(InputError) as caught:
        parse_numpy(read_bytes(tmp_path / "o.npz"), tmp_path / "o.npz", "numbers")
    assert "pickle" not in str(caught.value)


def test_a_name_that_is_nearly_that_of_a_file_is_suggested(tmp_path):
    (tmp_path / "first.toml").touch()
    with pytest.raises(InputError, match=r"frist\.toml does not exist \(did you mean first\.toml\?\)"):
        read_bytes(tmp_path / "frist.toml")
    with pytest.raises(InputError, match=r"absent/frist\.toml does not exist$"):
        read_bytes(tmp_path / "absent" / "frist.toml")


def test_too_little_memory_is_a_line_that_names_the_table():
    with pytest.raises(InputError) as caught, within("network"):
        raise MemoryError
    assert caught.value.field == "network"
