"""The real Fashion-MNIST: found in order, verified, and fetched over a real connection, whole or not at all."""

import dataclasses
import gzip
import shutil
import socket
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.error import HTTPError

import numpy as np
import pytest
from servers import Respond, leftovers, send, serving, without_length

from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import sha256
from efhc.learning.data import ARCHIVES, FashionMNIST
from efhc.learning.data.archives import Place, cache_folder
from efhc.learning.data.download import GzipFiles
from efhc.learning.data.fashion_mnist import ARCHIVE

LABELS = "t10k-labels-idx1-ubyte.gz"
"""The smallest of the four files: most tests need no more."""


@pytest.fixture(autouse=True)
def own_cache(fashion_files: Path, no_data: None) -> Path:
    """No test sees or touches the user's cache. (After `fashion_files`, which may be found there.)"""
    return cache_folder() / ARCHIVE.name


@pytest.fixture
def only_labels(tmp_path: Path) -> GzipFiles:
    """The archive cut down to one small file, and no system package."""
    return dataclasses.replace(
        ARCHIVE,
        files=(LABELS,),
        sha256={LABELS: ARCHIVE.sha256[LABELS]},
        system_folder=tmp_path / "not installed",
    )


def read(archive: GzipFiles, folder: Path, place: str = "cache") -> dict[str, bytes]:
    return {file.name: file.content for file in archive.read(Place(place, folder))}


def stock(folder: Path, files: Path, names: object = ARCHIVE.sha256) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).symlink_to(files / name)
    return folder


# Looking


def test_loads_the_real_thing(fashion_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stock(tmp_path / "data" / ARCHIVE.name, fashion_files)
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
    assert data.sha256 == ARCHIVE.sha256

    scaled = data.prepared(FashionMNIST().standardize, "float32")
    inputs = scaled.inputs(scaled.x_train)
    assert inputs.mean(dtype=np.float64) == pytest.approx(0, abs=1e-5)
    assert inputs.std(dtype=np.float64) == pytest.approx(1, abs=1e-5)


def test_search_order_is_the_variable_then_the_cache_then_the_system(
    fashion_files: Path, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    archive = dataclasses.replace(ARCHIVE, system_folder=tmp_path / "system")
    assert archive.find() is None
    system = stock(tmp_path / "system", fashion_files)
    assert archive.find() == ("system", system)
    stock(own_cache, fashion_files)
    assert archive.find() == ("cache", own_cache)
    monkeypatch.setenv("EFHC_DATA", str(tmp_path / "chosen"))
    assert archive.find() == ("cache", own_cache)  # nothing there yet
    chosen = stock(tmp_path / "chosen" / ARCHIVE.name, fashion_files)
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
    assert data.sha256 == {**ARCHIVE.sha256, LABELS: sha256(other)}
    with pytest.raises(InputError, match=LABELS):
        read(ARCHIVE, folder, "system")


@pytest.mark.parametrize(
    ("folder", "what"), [("gone", "no such folder"), (".", f"without {next(iter(ARCHIVE.files))}")]
)
def test_a_folder_given_that_does_not_have_it_is_refused_and_nothing_else_is_tried(
    tmp_path: Path, folder: str, what: str
):
    with pytest.raises(InputError, match=what) as caught:
        FashionMNIST(path=tmp_path / folder).load()
    assert caught.value.field == "path"


def test_it_is_known_by_name():
    assert ARCHIVES["fashion-mnist"] is ARCHIVE


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


def test_loading_refuses_a_damaged_copy_where_it_looks_first(
    fashion_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = stock(tmp_path / "data" / ARCHIVE.name, fashion_files)
    images = "train-images-idx3-ubyte.gz"
    (folder / images).unlink()
    (folder / images).write_bytes((fashion_files / images).read_bytes()[:1_000_000])
    monkeypatch.setenv("EFHC_DATA", str(tmp_path / "data"))
    with pytest.raises(InputError, match=images):
        FashionMNIST().load()


def test_a_file_gone_meanwhile_is_named(tmp_path: Path, only_labels: GzipFiles):
    with pytest.raises(InputError, match=LABELS):
        read(only_labels, tmp_path)


# Fetching


def test_fetches_all_files_into_the_cache_and_then_no_more(fashion_files: Path, own_cache: Path, tmp_path: Path):
    calls: list[tuple[str, int, int]] = []
    with serving(fashion_files, send) as (address, asked):
        archive = dataclasses.replace(ARCHIVE, address=address, system_folder=tmp_path / "none")
        folder = archive.fetch(lambda *call: calls.append(call))
        assert folder == own_cache
        assert asked == [f"/{name}" for name in ARCHIVE.sha256]
        for name in ARCHIVE.sha256:
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
        assert asked[4:] == [f"/{LABELS}"]  # only what the cache lacks
        assert (folder / LABELS).read_bytes() == (fashion_files / LABELS).read_bytes()


def test_a_server_that_does_not_say_the_length(fashion_files: Path, only_labels: GzipFiles):
    calls: list[tuple[str, int, int]] = []
    with serving(fashion_files, without_length) as (address, _):
        dataclasses.replace(only_labels, address=address).fetch(lambda *call: calls.append(call))
    assert calls[-1] == (LABELS, (fashion_files / LABELS).stat().st_size, 0)


@pytest.mark.parametrize("kind", [*KINDS, "cut off"])
def test_a_damaged_download_leaves_nothing_behind(
    fashion_files: Path, own_cache: Path, only_labels: GzipFiles, kind: str
):
    def respond(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        if kind == "cut off":  # promises all, sends half
            send(handler, body[: len(body) // 2], promised=len(body))
        else:
            send(handler, damaged(body)[kind])

    with serving(fashion_files, respond) as (address, _), pytest.raises(EfhcError) as caught:
        dataclasses.replace(only_labels, address=address).fetch()
    assert f"{address}{LABELS}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert leftovers(own_cache) == []


def test_a_damaged_download_spares_a_good_file_and_earlier_ones(fashion_files: Path, own_cache: Path, tmp_path: Path):
    first = "train-labels-idx1-ubyte.gz"
    archive = dataclasses.replace(
        ARCHIVE, sha256={name: ARCHIVE.sha256[name] for name in (first, LABELS)}, system_folder=tmp_path / "none"
    )

    def respond(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        send(handler, body if first in handler.path else body[:100])

    with serving(fashion_files, respond) as (address, _), pytest.raises(EfhcError, match=LABELS):
        dataclasses.replace(archive, address=address).fetch()
    assert leftovers(own_cache) == [own_cache / first]
    assert archive.find() is None


def test_a_fetch_that_is_interrupted_leaves_nothing_behind(
    fashion_files: Path, own_cache: Path, only_labels: GzipFiles
):
    def interrupt(name: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with serving(fashion_files, send) as (address, _), pytest.raises(KeyboardInterrupt):
        dataclasses.replace(only_labels, address=address).fetch(interrupt)
    assert leftovers(own_cache) == []


def not_found(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    handler.send_error(404)


def another_protocol(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")


def chunk_cut_off(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000\r\n" + body[:100])


def length_that_is_no_number(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n" + body[:100])


MISBEHAVING = [not_found, another_protocol, chunk_cut_off, length_that_is_no_number]


@pytest.mark.parametrize("respond", MISBEHAVING)
def test_a_server_that_misbehaves_gives_one_line_and_its_connection_is_closed(
    fashion_files: Path, own_cache: Path, only_labels: GzipFiles, respond: Respond
):
    with serving(fashion_files, respond) as (address, _), pytest.raises(EfhcError) as caught:
        dataclasses.replace(only_labels, address=address).fetch()
    assert f"{address}{LABELS}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert leftovers(own_cache) == []
    answer = caught.value.__cause__
    if isinstance(answer, HTTPError):  # an open connection of its own, until it is closed
        closed = answer.closed
        answer.close()
        assert closed


# Limits


def dripping_body(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    """A byte now and then: never silent for long, never done."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    with suppress(OSError):
        for number in range(400):
            handler.wfile.write(body[number : number + 1])
            time.sleep(0.01)


def dripping_headers(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    with suppress(OSError):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        for _ in range(400):
            handler.wfile.write(b"x")
            time.sleep(0.01)


@pytest.mark.parametrize("respond", [dripping_body, dripping_headers])
def test_a_download_has_a_limit_of_time(fashion_files: Path, own_cache: Path, only_labels: GzipFiles, respond: Respond):
    with serving(fashion_files, respond) as (address, _):
        started = time.monotonic()
        with pytest.raises(EfhcError, match=r"took longer than 0\.2 s"):
            dataclasses.replace(only_labels, address=address, most_seconds=0.2).fetch()
        assert time.monotonic() - started < 2  # the server would go on for four seconds
    assert leftovers(own_cache) == []


def endless(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    handler.send_response(200)
    handler.end_headers()
    with suppress(OSError):
        while True:
            handler.wfile.write(bytes(1 << 16))


def too_long(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    send(handler, body, promised=10**12)


@pytest.mark.parametrize("respond", [endless, too_long])
def test_a_download_has_a_limit_of_size(fashion_files: Path, own_cache: Path, only_labels: GzipFiles, respond: Respond):
    with (
        serving(fashion_files, respond) as (address, _),
        pytest.raises(EfhcError, match="larger than the 1,000,000 bytes accepted"),
    ):
        dataclasses.replace(only_labels, address=address, most_bytes=10**6).fetch()
    assert leftovers(own_cache) == []


def test_a_gzip_file_that_unpacks_to_more_than_is_accepted_is_refused(
    fashion_files: Path, own_cache: Path, only_labels: GzipFiles, tmp_path: Path
):
    bomb = gzip.compress(bytes(1 << 22))
    small = dataclasses.replace(only_labels, most_bytes=1 << 20)
    with (
        serving(fashion_files, lambda handler, _: send(handler, bomb)) as (address, _),
        pytest.raises(InputError, match="unpacks to more than 1,048,576 bytes"),
    ):
        dataclasses.replace(small, address=address).fetch()
    assert leftovers(own_cache) == []
    (tmp_path / LABELS).write_bytes(bomb)
    with pytest.raises(InputError, match="unpacks to more than"):
        read(small, tmp_path, "path")


def test_what_a_server_says_does_not_steer_the_terminal(fashion_files: Path, only_labels: GzipFiles):
    def respond(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        handler.wfile.write(b"HTTP/1.1 404 \x1b]0;yours\x07\x9b31m\r\n\r\n")

    with serving(fashion_files, respond) as (address, _), pytest.raises(EfhcError) as caught:
        dataclasses.replace(only_labels, address=address).fetch()
    assert str(caught.value).isprintable()
    assert r"\x1b]0;yours\x07\x9b31m" in str(caught.value)


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


def test_a_cache_that_cannot_be_written_gives_one_line(fashion_files: Path, own_cache: Path, only_labels: GzipFiles):
    own_cache.parent.parent.mkdir(parents=True)
    own_cache.parent.write_text("a file where a folder should be")
    with serving(fashion_files, send) as (address, _), pytest.raises(EfhcError, match="efhc"):
        dataclasses.replace(only_labels, address=address).fetch()


def test_what_was_fetched_can_be_loaded(fashion_files: Path, only_labels: GzipFiles):
    with serving(fashion_files, send) as (address, _):
        folder = dataclasses.replace(only_labels, address=address).fetch()
    (content,) = read(only_labels, folder).values()
    assert content == gzip.decompress((fashion_files / LABELS).read_bytes())
    shutil.rmtree(folder)
    assert only_labels.find() is None
