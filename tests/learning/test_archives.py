"""The real Fashion-MNIST: found in order, verified, and fetched over a real connection, whole or not at all."""

import dataclasses
import gzip
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.error import HTTPError

import numpy as np
import pytest
from servers import Respond, leftovers, send, serving, without_length

from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import sha256
from efhc.learning.data import FashionMNIST
from efhc.learning.data.archives import GzipFiles, Place, cache_folder
from efhc.learning.data.images import FASHION_MNIST

LABELS = "t10k-labels-idx1-ubyte.gz"
"""The smallest of the four files: most tests need no more."""


@pytest.fixture(autouse=True)
def own_cache(fashion_files: Path, no_data: None) -> Path:
    """No test sees or touches the user's cache. (After `fashion_files`, which may be found there.)"""
    return cache_folder() / FASHION_MNIST.name


@pytest.fixture
def only_labels(tmp_path: Path) -> GzipFiles:
    """The archive cut down to one small file, and no system package."""
    return dataclasses.replace(
        FASHION_MNIST,
        files=(LABELS,),
        sha256={LABELS: FASHION_MNIST.sha256[LABELS]},
        system_folder=tmp_path / "not installed",
    )


def read(archive: GzipFiles, folder: Path, place: str = "cache") -> dict[str, bytes]:
    return {file.name: file.content for file in archive.read(Place(place, folder))}


def stock(folder: Path, files: Path, names: object = FASHION_MNIST.sha256) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).symlink_to(files / name)
    return folder


# Looking


def test_loads_the_real_thing(fashion_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stock(tmp_path / "data" / FASHION_MNIST.name, fashion_files)
    monkeypatch.setenv("EFHC_DATA", str(tmp_path / "data"))
    data = FashionMNIST(standardize=False).load()
    assert data.x_train.shape == (60_000, 784)
    assert data.x_test.shape == (10_000, 784)
    assert data.shape == (28, 28)
    assert data.classes == 10
    assert np.bincount(data.y_train).tolist() == [6000] * 10
    assert np.bincount(data.y_test).tolist() == [1000] * 10
    assert data.x_train.dtype == np.uint8
    inputs = data.inputs(data.x_train)
    assert inputs.dtype == np.float32
    assert inputs.min() == 0
    assert inputs.max() == 1
    assert inputs.mean(dtype=np.float64) == pytest.approx(0.2860, abs=5e-5)
    assert inputs.std(dtype=np.float64) == pytest.approx(0.3530, abs=5e-5)
    assert data.sha256 == FASHION_MNIST.sha256

    scaled = data.prepared(FashionMNIST().standardize, "float32")
    inputs = scaled.inputs(scaled.x_train)
    assert inputs.mean(dtype=np.float64) == pytest.approx(0, abs=1e-5)
    assert inputs.std(dtype=np.float64) == pytest.approx(1, abs=1e-5)


def test_search_order_is_the_variable_then_the_cache_then_the_system(
    fashion_files: Path, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    archive = dataclasses.replace(FASHION_MNIST, system_folder=tmp_path / "system")
    assert archive.find() is None
    system = stock(tmp_path / "system", fashion_files)
    assert archive.find() == ("system", system)
    stock(own_cache, fashion_files)
    assert archive.find() == ("cache", own_cache)
    monkeypatch.setenv("EFHC_DATA", str(tmp_path / "chosen"))
    assert archive.find() == ("cache", own_cache)  # nothing there yet
    chosen = stock(tmp_path / "chosen" / FASHION_MNIST.name, fashion_files)
    assert archive.find() == ("$EFHC_DATA", chosen)
    (chosen / LABELS).unlink()
    assert archive.find() == ("cache", own_cache)  # a folder counts when it has all files
    assert [place for place, _ in archive.places()] == ["$EFHC_DATA", "$EFHC_DATA", "cache", "system"]
    direct = stock(tmp_path / "direct", fashion_files)
    monkeypatch.setenv("EFHC_DATA", str(direct))
    assert archive.find() == ("$EFHC_DATA", direct)  # the files may lie in the folder itself


def test_a_folder_given_is_used_whatever_its_checksums_and_these_are_reported(fashion_files: Path, tmp_path: Path):
    folder = stock(tmp_path / "mine", fashion_files)
    values = gzip.decompress((fashion_files / LABELS).read_bytes())
    other = values[:-1] + bytes([(values[-1] + 1) % 10])
    (folder / LABELS).unlink()
    (folder / LABELS).write_bytes(gzip.compress(other))
    data = FashionMNIST(path=folder).load()
    assert data.y_test[-1] == other[-1]
    assert data.sha256 == {**FASHION_MNIST.sha256, LABELS: sha256(other)}
    with pytest.raises(InputError, match=LABELS):
        read(FASHION_MNIST, folder, "system")


@pytest.mark.parametrize(
    ("folder", "what"), [("gone", "no such folder"), (".", f"without {next(iter(FASHION_MNIST.files))}")]
)
def test_a_folder_given_that_does_not_have_it_is_refused_and_nothing_else_is_tried(
    tmp_path: Path, folder: str, what: str
):
    with pytest.raises(InputError, match=what) as caught:
        FashionMNIST(path=tmp_path / folder).load()
    assert caught.value.field == "path"


# Damaged copies


def damaged(content: bytes) -> dict[str, bytes]:
    values = gzip.decompress(content)
    return {
        "truncated": content[: len(content) // 2],
        "short by one": content[:-1],
        "empty": b"",
        "not gzip": values,
        "altered": gzip.compress(values[:-1] + bytes([values[-1] ^ 1])),
        "flipped": content[:2000] + bytes([content[2000] ^ 0xFF]) + content[2001:],
        "longer": content + b"more",
    }


KINDS = ["truncated", "short by one", "empty", "not gzip", "altered", "flipped", "longer"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_copy_is_refused_by_name(fashion_files: Path, tmp_path: Path, only_labels: GzipFiles, kind: str):
    (tmp_path / LABELS).write_bytes(damaged((fashion_files / LABELS).read_bytes())[kind])
    with pytest.raises(InputError) as caught:
        read(only_labels, tmp_path)
    assert str(tmp_path / LABELS) in str(caught.value)
    assert "efhc data fetch fashion-mnist" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_copy_that_was_compressed_anew_counts(fashion_files: Path, tmp_path: Path, only_labels: GzipFiles):
    content = (fashion_files / LABELS).read_bytes()
    (tmp_path / LABELS).write_bytes(gzip.compress(gzip.decompress(content), compresslevel=1))
    assert read(only_labels, tmp_path) == {LABELS: gzip.decompress(content)}


# Fetching


def test_fetches_all_files_into_the_cache_and_then_no_more(fashion_files: Path, own_cache: Path, tmp_path: Path):
    calls: list[tuple[str, int, int]] = []
    with serving(fashion_files, send) as (address, requests):
        archive = dataclasses.replace(FASHION_MNIST, address=address, system_folder=tmp_path / "none")
        folder = archive.fetch(lambda *call: calls.append(call))
        assert folder == own_cache
        assert requests == [f"/{name}" for name in FASHION_MNIST.sha256]
        for name in FASHION_MNIST.sha256:
            content = (fashion_files / name).read_bytes()
            assert (folder / name).read_bytes() == content
            done = [sofar for file, sofar, _ in calls if file == name]
            assert done == sorted(set(done))
            assert done[-1] == len(content)
            assert {total for file, _, total in calls if file == name} == {len(content)}
        assert len(leftovers(own_cache)) == 4
        assert archive.find() == ("cache", folder)

        (folder / LABELS).write_bytes(b"damaged since")
        archive.fetch()
        assert requests[4:] == [f"/{LABELS}"]  # only what the cache lacks
        assert (folder / LABELS).read_bytes() == (fashion_files / LABELS).read_bytes()


def test_a_server_that_does_not_say_the_length(fashion_files: Path, only_labels: GzipFiles):
    calls: list[tuple[str, int, int]] = []
    with serving(fashion_files, without_length) as (address, _):
        dataclasses.replace(only_labels, address=address).fetch(lambda *call: calls.append(call))
    assert calls[-1] == (LABELS, (fashion_files / LABELS).stat().st_size, 0)


def damaging(kind: str) -> Respond:
    return lambda handler, body: send(handler, damaged(body)[kind])


def cut_off(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    send(handler, body[: len(body) // 2], promised=len(body))


def not_found(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    handler.send_error(404)


def sending(*pieces: bytes) -> Respond:
    """Sends these bytes, and then the first of the file."""
    return lambda handler, body: handler.wfile.write(b"".join(pieces) + body[:100])  # type: ignore[return-value]


def endless(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    handler.send_response(200)
    handler.end_headers()
    with suppress(OSError):
        while True:
            handler.wfile.write(bytes(1 << 16))


BAD_SERVERS: dict[str, Respond] = {
    **{kind: damaging(kind) for kind in KINDS},
    "cut off": cut_off,
    "not found": not_found,
    "another protocol": sending(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    "chunk cut off": sending(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000\r\n"),
    "length that is no number": sending(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"),
    "words for the terminal": sending(b"HTTP/1.1 404 \x1b]0;yours\x07\x9b31m\r\n\r\n"),
    "endless": endless,
    "too long": lambda handler, body: send(handler, body, promised=10**12),
    "unpacks to too much": lambda handler, body: send(handler, gzip.compress(bytes(1 << 22))),
}


@pytest.mark.parametrize("case", BAD_SERVERS)
def test_a_download_that_fails_leaves_nothing_behind_and_gives_one_line(
    fashion_files: Path, own_cache: Path, only_labels: GzipFiles, case: str
):
    with serving(fashion_files, BAD_SERVERS[case]) as (address, _), pytest.raises(EfhcError) as caught:
        dataclasses.replace(only_labels, address=address, most_bytes=1 << 20).fetch()
    assert f"{address}{LABELS}" in str(caught.value)
    assert str(caught.value).isprintable()  # one line, and nothing that steers a terminal
    if "too" in case or case == "endless":
        assert "than " in str(caught.value)
        assert "1,048,576 bytes" in str(caught.value)
    assert leftovers(own_cache) == []
    answer = caught.value.__cause__
    if isinstance(answer, HTTPError):  # an open connection of its own, until it is closed
        closed = answer.closed
        answer.close()
        assert closed


@pytest.mark.parametrize(
    "start", [b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Long: "]
)
def test_a_download_has_a_limit_of_time(fashion_files: Path, own_cache: Path, only_labels: GzipFiles, start: bytes):
    """Of a server that sends a byte of its body, or of a header, now and then: never silent for long, never done."""
    refused = threading.Event()

    def drip(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        with suppress(OSError):
            handler.wfile.write(start)
            while not refused.wait(0.01):
                handler.wfile.write(b"x")

    with serving(fashion_files, drip) as (address, _):
        with pytest.raises(EfhcError, match=r"took longer than 0\.2 s"):
            dataclasses.replace(only_labels, address=address, most_seconds=0.2).fetch()
        refused.set()
    assert leftovers(own_cache) == []


def test_a_server_that_is_not_there_gives_one_line_with_the_way_out(own_cache: Path, only_labels: GzipFiles):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(EfhcError) as caught:
        dataclasses.replace(only_labels, address=f"http://127.0.0.1:{port}/").fetch()
    text = str(caught.value)
    assert f"127.0.0.1:{port}" in text
    assert "EFHC_DATA" in text
    assert "dataset-fashion-mnist" in text
    assert "\n" not in text
    assert leftovers(own_cache) == []


def test_a_copy_that_unpacks_to_more_than_is_accepted_is_refused(only_labels: GzipFiles, tmp_path: Path):
    (tmp_path / LABELS).write_bytes(gzip.compress(bytes(1 << 22)))
    with pytest.raises(InputError, match="unpacks to more than 1,048,576 bytes"):
        read(dataclasses.replace(only_labels, most_bytes=1 << 20), tmp_path, "path")
