"""Data sets of images: those of the user in folders, and published ones.

Digits          1,797 handwritten digits of 8x8, which ship with efhc
Fashion-MNIST   60,000 training and 10,000 test images of 28x28 (Xiao, Rasul, Vollgraf 2017)
CIFAR-10        50,000 training and 10,000 test images of 3x32x32 (Krizhevsky 2009)
"""

from __future__ import annotations

import gzip
import io
import math
import struct
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import InputError
from efhc.base.inputs import InputFile, is_folder, read_bytes, sha256
from efhc.learning.data.archives import Archive, GzipFiles, StoredData, StoredFile, TarFile
from efhc.learning.data.dataset import DataPolicy, Dataset

DIGITS_SHA256 = "f6d9e39f37dc45d327f6db33428ee58970ccceabb2535a5c179de35886b70443"
"""The SHA-256 of pixels and labels as they were published."""


class Digits(DataPolicy):
    """The 1797 handwritten digits that ship with efhc; every fifth sample is a test sample."""

    kind: Literal["digits"] = "digits"

    def load(self, precision: str = "float32") -> Dataset:
        pixels, labels = read_digits()
        test = np.arange(len(labels)) % 5 == 4
        checksum = {"digits": sha256(pixels.tobytes() + labels.tobytes())}
        return Dataset(
            pixels[~test] / 16, labels[~test], pixels[test] / 16, labels[test], "digits", (8, 8), checksum
        ).prepared(self.standardize, precision)


def read_digits() -> tuple[Floats, Ints]:
    """Pixels from 0 to 16, (1797, 64), and labels, (1797,), in the order of the file.

    The file and its licence are in `files/`: the test set of "Optical Recognition of Handwritten Digits" (UCI).
    """
    packed = resources.files("efhc.learning.data").joinpath("files", "digits.csv.gz").read_bytes()
    table = np.loadtxt(io.BytesIO(gzip.decompress(packed)), delimiter=",", dtype=np.int64)
    return table[:, :-1].astype(np.float64), table[:, -1].copy()


# Published data sets

FASHION_FILES = {
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
FASHION_MNIST = GzipFiles(
    name="fashion-mnist",
    files=tuple(FASHION_FILES),
    sha256=FASHION_FILES,
    address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    advice="put its files into $EFHC_DATA/fashion-mnist, or install Debian's package dataset-fashion-mnist",
    system_folder=Path("/usr/share/datasets/fashion-mnist"),
)

CIFAR_FOLDER, CIFAR_TEST = "cifar-10-batches-bin", "test_batch.bin"
CIFAR_10 = TarFile(
    name="cifar-10",
    files=("data_batch_[1-5].bin", CIFAR_TEST),
    subfolders=(CIFAR_FOLDER,),
    address="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    members={name: f"{CIFAR_FOLDER}/{name}" for name in (*(f"data_batch_{n}.bin" for n in range(1, 6)), CIFAR_TEST)},
    advice=f"put the .bin files of its binary version, or some of them, into $EFHC_DATA/{CIFAR_FOLDER}, "
    "or give their folder as data.path",
)


class FashionMNIST(StoredData):
    """Fashion-MNIST from `path`, `$EFHC_DATA`, the user's cache, Debian's package, or a download."""

    kind: Literal["fashion-mnist"] = "fashion-mnist"
    archive: ClassVar[Archive] = FASHION_MNIST
    names: ClassVar[tuple[str, ...]] = (
        "T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
    )  # fmt: skip

    def parse(self, files: Iterator[StoredFile]) -> Dataset:
        x_train, y_train, x_test, y_test = (parse_idx(file.content, str(file.path)) for file in files)
        return Dataset(x_train, y_train, x_test, y_test, class_names=self.names)


def parse_idx(content: bytes, origin: str = "a file") -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes: magic 0, 0, 8, dimensions; one big-endian size each; the values."""
    try:
        zero, kind, dimensions = struct.unpack_from(">HBB", content)
        shape = struct.unpack_from(f">{dimensions}I", content, 4)
        start = 4 + 4 * dimensions
        fits = (zero, kind) == (0, 8) and len(content) == start + math.prod(shape)
    except struct.error:
        fits = False
    if not fits:
        raise InputError("files", f"{origin}, whose IDX header does not fit it", "IDX files of unsigned bytes")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


class CIFAR10(StoredData):
    """CIFAR-10 (binary version) from `path`, `$EFHC_DATA`, the user's cache, or a download.

    A record is one byte with the label, then the red, green and blue values, each row by row.
    """

    kind: Literal["cifar-10"] = "cifar-10"
    archive: ClassVar[Archive] = CIFAR_10
    names: ClassVar[tuple[str, ...]] = (
        "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
    )  # fmt: skip

    def parse(self, files: Iterator[StoredFile]) -> Dataset:
        batches = {file.name: self._records(file.content, str(file.path)) for file in files}
        x_test, y_test = batches.pop(CIFAR_TEST)
        images, labels = zip(*batches.values(), strict=True)
        return Dataset(np.concatenate(images), np.concatenate(labels), x_test, y_test, class_names=self.names)

    def _records(self, content: bytes, origin: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the images, (samples, 3, 32, 32), and the labels, (samples,)."""
        size = 1 + 3 * 32 * 32
        records, rest = divmod(len(content), size)
        if rest or not records:
            raise InputError("files", f"{origin} of {len(content)} bytes", f"one or more whole records of {size} bytes")
        table = np.frombuffer(content, np.uint8).reshape(records, size)
        labels = table[:, 0]
        if (wrong := np.flatnonzero(labels >= len(self.names))).size:
            given = f"label {labels[wrong[0]]} in record {wrong[0]} of {origin}"
            raise InputError("files", given, f"labels 0 to {len(self.names) - 1}")
        return table[:, 1:].reshape(records, 3, 32, 32), labels


# Folders of images


FORMATS = {
    ".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".tif": "TIFF", ".tiff": "TIFF", ".pgm": "PPM",
    ".ppm": "PPM",
}  # fmt: skip
ALLOWED = f"folders train/CLASS and test/CLASS of images ({', '.join(FORMATS)})"


class ImageFolder(DataPolicy):
    """Images in `train/CLASS/` and `test/CLASS/`; the sorted folder names of `train` are the classes.

    All images have one size, and all are grey or all are RGB. The checksum is the SHA-256 of what `sha256sum` prints
    for all images, sorted by name.
    """

    kind: Literal["image-folder"] = "image-folder"
    path: InputFile
    """The folder that holds `train` and `test`."""

    def load(self, precision: str = "float32") -> Dataset:
        classes = _folders(self.path / "train")
        train, test = (_read_images(self.path / part, classes) for part in ("train", "test"))
        listed = {image.path.relative_to(self.path).as_posix(): image.sha256 for image in train + test}
        checksum = sha256("".join(f"{listed[name]}  {name}\n" for name in sorted(listed)).encode())
        x, y = _stacked(train + test)
        data = Dataset(
            *(x[: len(train)], y[: len(train)], x[len(train) :], y[len(train) :]),
            name=self.path.name,
            sha256={self.path.name: checksum},
            class_names=tuple(classes),
        )
        return data.prepared(self.standardize, precision, unit=255)


class LabelledImage(NamedTuple):
    """An image with its label, its file and the checksum of the file."""

    path: Path
    label: int
    pixels: NDArray[np.uint8]
    sha256: str


def images_by_class(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64], tuple[str, ...]]:
    """Return pixels, labels and class names of the images in `path/CLASS/`. A class may be without images, not all."""
    classes = _folders(path)
    images = [image for name in classes for image in _images_of(path / name, classes.index(name))]
    if not images:
        raise InputError("path", f"{path} without images", f"folders CLASS of images ({', '.join(FORMATS)})")
    return *_stacked(images), tuple(classes)


def _stacked(images: list[LabelledImage]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the pixels and the labels of images, which must have one shape."""
    first = images[0]
    for image in images:
        if image.pixels.shape != first.pixels.shape:
            given = f"{image.path} of shape {image.pixels.shape}"
            raise InputError("path", given, f"{first.pixels.shape}, as {first.path}: one size, all grey or all RGB")
    return np.stack([image.pixels for image in images]), np.array([image.label for image in images])


def _folders(path: Path) -> list[str]:
    """Return the sorted names of the folders in `path`; they must be UTF-8, because they name classes."""
    names = sorted(inner.name for inner in path.iterdir() if inner.is_dir()) if is_folder(path) else []
    if not names:
        given = f"{path}, without a folder" if is_folder(path) else f"{path} (no such folder)"
        raise InputError("path", given, ALLOWED)
    for name in names:
        _require_utf8(path / name)
    return names


def _require_utf8(path: Path) -> None:
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise InputError("path", f"{path}, whose name is not UTF-8", "names of folders and images in UTF-8") from None


def _read_images(path: Path, classes: list[str]) -> list[LabelledImage]:
    """Return the images in `path/CLASS/`; every folder must be one of the classes and hold an image."""
    found: list[LabelledImage] = []
    for name in _folders(path):
        if name not in classes:
            raise InputError("path", f"{path / name}, a class without training images", ", ".join(classes))
        images = list(_images_of(path / name, classes.index(name)))
        if not images:
            raise InputError("path", f"{path / name} without images", ALLOWED)
        found += images
    return found


def _images_of(folder: Path, label: int) -> Iterator[LabelledImage]:
    for file in sorted(file for file in folder.iterdir() if file.suffix.lower() in FORMATS):
        _require_utf8(file)
        content = read_bytes(file)
        yield LabelledImage(file, label, parse_image(content, file), sha256(content))


def parse_image(content: bytes, path: Path) -> NDArray[np.uint8]:
    """Return the pixels: (height, width) of a grey image, (3, height, width) of an RGB one."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=[FORMATS[path.suffix.lower()]]) as image:
            image.load()
            pixels = pixels_of(image)
    except Exception as error:  # a damaged file raises whatever its first wrong byte leads the decoder to
        raise InputError("path", f"{path} ({error})", "a whole image of the format that its name says") from None
    if pixels is None:
        raise InputError("path", f"{path} of mode {image.mode}", "grey (L) or RGB images of bytes")
    return pixels


def pixels_of(image: Any) -> NDArray[np.uint8] | None:
    """Return (height, width) of a grey image, (3, height, width) of an RGB one; None of any other image."""
    if image.mode not in ("L", "RGB"):
        return None
    pixels = np.asarray(image)
    return pixels if image.mode == "L" else np.ascontiguousarray(pixels.transpose(2, 0, 1))
