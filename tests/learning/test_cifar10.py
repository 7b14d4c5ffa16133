"""CIFAR-10's records are read as published, wherever they are; what is fetched is checked and taken out safely."""

import dataclasses
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from servers import leftovers, send, serving

from efhc.base.errors import InputError
from efhc.base.inputs import sha256
from efhc.learning.data import CIFAR10
from efhc.learning.data.archives import MANIFEST, TarFile
from efhc.learning.data.images import CIFAR_10

NAMES = tuple(CIFAR_10.members)


def records(*labels: int) -> bytes:
    """A record per label, its pixels counting up."""
    return b"".join(bytes([label]) + (np.arange(3072) % 251).astype(np.uint8).tobytes() for label in labels)


def put(folder: Path, **files: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.bin").write_bytes(content)
    return folder


# The real thing


def test_the_sample_is_what_its_description_says(cifar_files: Path):
    data = CIFAR10(path=cifar_files).load()
    assert data.x_train.shape == (10_000, 3072)
    assert data.x_test.shape == (2_000, 3072)
    assert data.x_train.dtype == np.uint8
    assert (data.shape, data.classes, data.name) == ((3, 32, 32), 10, "cifar-10")
    assert np.bincount(data.y_train).tolist() == [1000] * 10
    assert np.bincount(data.y_test).tolist() == [200] * 10
    channels = data.x_train.reshape(-1, 3, 1024) / 255
    np.testing.assert_allclose(channels.mean(axis=(0, 2)), [0.4896, 0.4801, 0.4448], atol=5e-5)
    np.testing.assert_allclose(channels.std(axis=(0, 2)), [0.2447, 0.2425, 0.2599], atol=5e-5)
    assert data.sha256 == {
        "data_batch_1.bin": "70b9b85cb4d2a3ca591f4ad39384ddf70967b19d406517a50c1c7fc95ef7f4c0",
        "test_batch.bin": "7922f9d0cca94c15bf793c8dabdf3f01010710ce86590351fd4850f9ec9d4779",
    }
    assert data.label_names == tuple((cifar_files / "batches.meta.txt").read_text().split())
    inputs = data.inputs(data.x_train)
    assert inputs.mean(dtype=np.float64) == pytest.approx(0, abs=1e-5)
    assert inputs.std(dtype=np.float64) == pytest.approx(1, abs=1e-5)


# Records


def test_records_are_label_then_red_green_blue_row_by_row(tmp_path: Path):
    put(tmp_path, data_batch_3=records(7, 0), data_batch_2=records(9), test_batch=records(1))
    data = CIFAR10(path=tmp_path).load()
    assert data.y_train.tolist() == [9, 7, 0]  # in the order of the files' names
    assert data.y_test.tolist() == [1]
    assert data.x_train[0].tolist() == (np.arange(3072) % 251).tolist()
    assert set(data.sha256) == {"data_batch_2.bin", "data_batch_3.bin", "test_batch.bin"}
    assert data.classes == 10


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (records(1, 2)[:-1], "of 6145 bytes"),
        (records(1) + b"\0", "of 3074 bytes"),
        (b"", "of 0 bytes"),
        (records(3, 10), "label 10 in record 1"),
        (records(255), "label 255 in record 0"),
    ],
)
def test_damaged_records_are_refused_by_file(tmp_path: Path, content: bytes, what: str):
    put(tmp_path, data_batch_1=content, test_batch=records(1))
    with pytest.raises(InputError) as caught:
        CIFAR10(path=tmp_path).load()
    assert what in str(caught.value)
    assert str(tmp_path / "data_batch_1.bin") in str(caught.value)
    assert "\n" not in str(caught.value)


# Looking


@pytest.mark.usefixtures("no_data")
def test_search_order_is_the_variables_folders_then_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EFHC_DATA", str(tmp_path / "root"))
    assert CIFAR_10.find() is None
    kept = put(CIFAR_10.cache.folder, **{name.removesuffix(".bin"): records(1) for name in NAMES})
    assert CIFAR_10.find() is None  # a copy without its list may have been cut off
    (kept / MANIFEST).write_text("".join(f"{sha256(records(1))}  {name}\n" for name in NAMES))
    assert CIFAR_10.find() == ("cache", kept)
    for subfolder in (".", "cifar-10", "cifar-10-batches-bin"):
        folder = put(tmp_path / "root" / subfolder, data_batch_1=records(1))
        assert CIFAR_10.find() != ("$EFHC_DATA", folder)  # no test images yet
        put(folder, test_batch=records(1))
        assert CIFAR_10.find() == ("$EFHC_DATA", folder)
    with pytest.raises(InputError, match=r"^path: cannot use .*gone \(no such folder\). Use a folder with data_batch"):
        CIFAR10(path=tmp_path / "gone").load()


# Fetching


def packed(members: dict[str, bytes | tarfile.TarInfo]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


WHOLE = {f"cifar-10-batches-bin/{name}": records(n, n) for n, name in enumerate(NAMES)}


LINK = f"cifar-10-batches-bin/{NAMES[1]}"


def symlink(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


@pytest.fixture
def publish(tmp_path: Path, no_data: None) -> Callable[[bytes], TarFile]:
    """The archive as if these bytes were the published ones."""

    def put(content: bytes) -> TarFile:
        (tmp_path / "cifar-10-binary.tar.gz").write_bytes(content)
        return dataclasses.replace(CIFAR_10, sha256=sha256(content))

    return put


def fetch(archive: TarFile, folder: Path, **how: Callable[..., None]) -> tuple[Path, list[str]]:
    with serving(folder, how.get("respond", send)) as (address, requests):
        served = dataclasses.replace(archive, address=f"{address}cifar-10-binary.tar.gz")
        return served.fetch(how.get("progress", lambda *_: None)), requests


def test_fetches_into_the_cache_what_is_wanted_and_nothing_else(publish: Callable[[bytes], TarFile], tmp_path: Path):
    more = {"cifar-10-batches-bin/readme.html": b"hello", "../outside.bin": b"bad", "/outside.bin": b"bad"}
    content = packed({**more, **WHOLE})
    archive, calls = publish(content), []
    folder, requests = fetch(archive, tmp_path, progress=lambda *call: calls.append(call))
    assert requests == ["/cifar-10-binary.tar.gz"]
    assert calls[-1] == ("cifar-10-binary.tar.gz", len(content), len(content))
    assert {path.name for path in leftovers(folder)} == {*NAMES, MANIFEST}
    assert not list(tmp_path.rglob("outside.bin"))
    for n, name in enumerate(NAMES):
        assert (folder / name).read_bytes() == records(n, n)
    assert archive.find() == ("cache", folder)
    data = CIFAR10().load()  # finds it there
    assert data.y_train.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert data.y_test.tolist() == [5, 5]

    assert fetch(archive, tmp_path) == (folder, [])  # no need to
    (folder / NAMES[2]).write_bytes(records(8, 8))
    with pytest.raises(InputError, match=f"{NAMES[2]} with SHA-256"):
        CIFAR10().load()
    assert fetch(archive, tmp_path)[1] == requests
    assert (folder / NAMES[2]).read_bytes() == records(2, 2)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (packed({name: content for name, content in WHOLE.items() if "batch_4" not in name}), "data_batch_4.bin"),
        (packed({**WHOLE, LINK: symlink(LINK, "/etc/passwd")}), "not a file"),
        (packed(WHOLE)[: len(packed(WHOLE)) // 2], "end"),
        (b"not a tar file", "Not a gzipped file"),
    ],
    ids=["a file is missing", "a link", "cut off", "another format"],
)
def test_a_tar_file_without_the_files_is_refused_and_not_taken_for_whole(
    publish: Callable[[bytes], TarFile], tmp_path: Path, content: bytes, what: str
):
    archive = publish(content)
    with pytest.raises(InputError, match=what) as caught:
        fetch(archive, tmp_path)
    assert "\n" not in str(caught.value)
    assert archive.find() is None


def test_a_fetch_that_is_interrupted_is_not_taken_for_whole(
    publish: Callable[[bytes], TarFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    archive, written = publish(packed(WHOLE)), []

    def interrupted(path: Path, content: bytes) -> None:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(path.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    with monkeypatch.context() as patched:
        patched.setattr("efhc.learning.data.archives.write_safely", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(archive, tmp_path)
    assert len(leftovers(archive.cache.folder)) == 3
    assert archive.find() is None
    fetch(archive, tmp_path)
    assert archive.find() == ("cache", archive.cache.folder)
