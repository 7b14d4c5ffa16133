"""Whatever a path names, reading it ends at once: with its content, or with one line that says what it is."""

import io
import os
import socket
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from efhc.base.errors import InputError
from efhc.base.inputs import parse_numpy, read_bytes


def refused(path: Path) -> str:
    """The error, which must come at once: a FIFO would be read for ever."""
    caught: list[str] = []

    def read() -> None:
        try:
            read_bytes(path, "network.path")
        except InputError as error:
            caught.append(str(error))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(timeout=5)
    assert caught
    assert caught[0].startswith(f"network.path: got {path} (")
    return caught[0]


def test_only_regular_files_are_read(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    assert "not a regular file" in refused(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    assert "not a regular file" in refused(tmp_path / "link")
    assert "not a regular file" in refused(Path("/dev/zero"))
    assert "a folder" in refused(tmp_path)
    assert "No such file" in refused(tmp_path / "gone")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "socket"))
        assert "not a regular file" in refused(tmp_path / "socket")


def test_a_file_larger_than_the_memory_is_refused(tmp_path: Path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 42)
    assert "larger than the free memory" in refused(tmp_path / "sparse")


def npz(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def npy(shape: tuple[int, ...]) -> bytes:
    """A file whose header promises an array of this shape, and that ends there."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("x_train.npy", npy((1,)))
        file.filelist[0].file_size = 1 << 50
    return buffer.getvalue()


def objects() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}], dtype=object), allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"x,y\n1,2\n", "which is not a NumPy file"),
        (b"", "which is not a NumPy file"),
        (b"\x80\x04K\x01.", "which is not a NumPy file"),
        (objects(), "it holds Python objects, which are never loaded"),
        (npz(x_train=objects()), "it holds Python objects, which are never loaded"),
        (npz(x_train=b"1,2"), "its member x_train is not an array"),
        (npy((10**13,)), "corrupt or of another kind"),
        (npz(x_train=npy((10**13,))), "corrupt or of another kind"),
        (npz(x_train=npy((10**30,))), "corrupt or of another kind"),
        (bomb(), "more than the memory of this machine"),
    ],
    ids=[
        "csv",
        "empty",
        "pickle",
        "objects",
        "objects in npz",
        "csv in npz",
        "huge",
        "huge in npz",
        "overflow",
        "bomb",
    ],
)
def test_what_is_no_numpy_file_is_refused_in_one_line_without_advice_to_unpickle(content: bytes, what: str):
    path = Path("mine.npz")
    with pytest.raises(InputError) as caught:
        parse_numpy(content, path, "a NumPy file")
    text = str(caught.value)
    assert str(path) in text
    assert what in text
    assert "pickle" not in text
    assert text.isprintable()
