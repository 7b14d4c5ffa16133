"""A folder of images is the arrays that its images hold; images that do not fit together are refused by name."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from efhc.base.errors import InputError
from efhc.learning.data import CIFAR10, ImageFolder

RNG = np.random.default_rng(0)


def picture(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def save(path: Path, pixels: np.ndarray, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of grey 4x6 images, three to train on and one to test with."""
    for name in ("train/cat/a.png", "train/cat/b.png", "train/bird/a.png", "test/cat/c.png"):
        save(tmp_path / "pets" / name, picture(4, 6))
    return tmp_path / "pets"


def test_grey_images_become_rows_and_sorted_folders_classes(folder: Path):
    (folder / "train" / "cat" / "notes.txt").write_text("not an image")
    (folder / "train" / "notes.txt").write_text("not a class")
    data = ImageFolder(path=folder).load()
    assert (data.shape, data.classes, data.label_names, data.name) == ((4, 6), 2, ("bird", "cat"), "pets")
    assert data.y_train.tolist() == [0, 1, 1]
    assert data.y_test.tolist() == [1]
    assert data.x_train.dtype == np.uint8
    expected = np.asarray(Image.open(folder / "train" / "cat" / "b.png"))
    assert np.array_equal(data.x_train[2], expected.ravel())
    inputs = ImageFolder(path=folder, standardize=False).load("float64").inputs(data.x_train)
    np.testing.assert_allclose(inputs[2], expected.ravel() / 255, atol=1e-15)


def test_colour_images_are_channels_first_and_equal_to_what_they_were_made_from(cifar_files: Path, tmp_path: Path):
    data = CIFAR10(path=cifar_files).load()
    for part, x, y in (("train", data.x_train[:40], data.y_train), ("test", data.x_test[:15], data.y_test)):
        for n, (pixels, label) in enumerate(zip(x, y, strict=False)):
            save(tmp_path / part / str(label) / f"{n:03}.png", pixels.reshape(3, 32, 32).transpose(1, 2, 0))
    assert len(set(data.y_train[:40])) == 10
    mine = ImageFolder(path=tmp_path).load()
    assert mine.shape == (3, 32, 32)
    order = np.argsort(data.y_train[:40], kind="stable")
    assert np.array_equal(mine.x_train, data.x_train[:40][order])
    assert np.array_equal(mine.y_train, data.y_train[:40][order])


def test_the_checksum_is_that_of_sha256sums_own_list(folder: Path):
    if not shutil.which("sha256sum"):
        pytest.skip("there is no sha256sum on this machine")
    command = "find train test -type f | LC_ALL=C sort | xargs sha256sum"
    listed = subprocess.run(command, shell=True, cwd=folder, capture_output=True, check=True).stdout
    before = ImageFolder(path=folder).load().sha256
    assert before == {"pets": hashlib.sha256(listed).hexdigest()}
    (folder / "train" / "cat" / "a.png").rename(folder / "train" / "cat" / "z.png")
    assert ImageFolder(path=folder).load().sha256 != before


@pytest.mark.parametrize("name", ["x.jpg", "x.JPEG", "x.bmp", "x.tiff", "x.pgm"])
def test_other_formats(folder: Path, name: str):
    path = save(folder / "train" / "bird" / name, np.full((4, 6), 90, np.uint8))
    data = ImageFolder(path=folder, standardize=False).load()
    assert np.abs(data.x_train[1].astype(int) - 90).max() <= 3
    assert path.exists()


def without(name: str) -> Callable[[Path], Path]:
    """Removes a folder; what is refused is it, or the one above if that has no other class."""

    def spoil(folder: Path) -> Path:
        shutil.rmtree(folder / name)
        return folder / name.removesuffix("/cat")

    return spoil


def holding(spoil: Callable[[Path], object], name: str = "train/cat/d.png") -> Callable[[Path], Path]:
    """Puts something there instead of a good image."""

    def put(folder: Path) -> Path:
        spoil(folder / name)
        return folder / name

    return put


def cut_off(path: Path) -> None:
    path.write_bytes(save(path, picture(4, 6)).read_bytes()[:60])


BAD = {
    "no train": without("train"),
    "no test": without("test"),
    "no classes": without("test/cat"),
    "empty class": holding(Path.mkdir, "train/ant"),
    "class only in test": holding(lambda path: save(path / "a.png", picture(4, 6)), "test/dog"),
    "other size": holding(lambda path: save(path, picture(6, 4)), "test/cat/d.png"),
    "other mode": holding(lambda path: save(path, picture(4, 6, 3))),
    "transparent": holding(lambda path: save(path, picture(4, 6, 4))),
    "16 bits": holding(lambda path: save(path, picture(4, 6).astype(np.uint16))),
    "text": holding(lambda path: path.write_text("once upon a time")),
    "cut off": holding(cut_off),
    "another format": holding(lambda path: save(path, picture(4, 6), format="BMP")),
    "a folder": holding(Path.mkdir),
    "fifo": holding(os.mkfifo),
    "device": holding(lambda path: path.symlink_to("/dev/zero")),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused_by_name(folder: Path, case: str):
    culprit = BAD[case](folder)
    with pytest.raises(InputError) as caught:
        ImageFolder(path=folder).load()
    assert caught.value.field == "path"
    assert f"cannot use {culprit}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [b"train/\xe9t\xe9", b"train/cat/\xe9t\xe9.png"])
def test_a_name_that_is_not_utf8_is_refused_in_one_printable_line(folder: Path, name: bytes):
    odd = os.path.join(os.fsencode(folder), name)  # noqa: PTH118 - of bytes
    if name.endswith(b".png"):
        shutil.copy(folder / "train" / "cat" / "a.png", odd)
    else:
        shutil.copytree(os.fsencode(folder / "train" / "cat"), odd)
    with pytest.raises(InputError, match="whose name is not UTF-8") as caught:
        ImageFolder(path=folder).load()
    assert r"\xe9t\xe9" in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_damaged_image_at_any_byte_loads_or_is_refused(folder: Path):
    path = folder / "train" / "cat" / "a.png"
    whole, refusals = path.read_bytes(), set()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            ImageFolder(path=folder).load()
        except InputError as error:
            refusals.add(str(path) in str(error))
    assert refusals == {True}
