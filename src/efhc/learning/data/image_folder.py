"""Images of your own: `train/CLASS/*.png`, `test/CLASS/*.png`, all of one size, all grey or all in colour."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from efhc.base.errors import InputError
from efhc.base.inputs import InputFile, is_folder, read_bytes, sha256
from efhc.learning.data.dataset import DataPolicy, Dataset

FORMATS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".bmp": "BMP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".pgm": "PPM",
    ".ppm": "PPM",
}
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
        train, test = (list(_read_images(self.path / part, classes)) for part in ("train", "test"))
        _require_one_shape(train + test)
        listed = {image.path.relative_to(self.path).as_posix(): image.sha256 for image in train + test}
        checksum = sha256("".join(f"{listed[name]}  {name}\n" for name in sorted(listed)).encode())
        data = Dataset(
            np.stack([image.pixels for image in train]),
            np.array([image.label for image in train]),
            np.stack([image.pixels for image in test]),
            np.array([image.label for image in test]),
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
    _require_one_shape(images)
    return np.stack([image.pixels for image in images]), np.array([image.label for image in images]), tuple(classes)


def _require_one_shape(images: list[LabelledImage]) -> None:
    first = images[0]
    for image in images:
        if image.pixels.shape != first.pixels.shape:
            given = f"{image.path} of shape {image.pixels.shape}"
            raise InputError("path", given, f"{first.pixels.shape}, as {first.path}: one size, all grey or all RGB")


def _folders(path: Path) -> list[str]:
    """Return the sorted names of the folders in `path`; they must be UTF-8, because they name classes."""
    names = sorted(inner.name for inner in path.iterdir() if inner.is_dir()) if is_folder(path) else []
    if not names:
        raise InputError(
            "path", f"{path}, without a folder" if is_folder(path) else f"{path} (no such folder)", ALLOWED
        )
    for name in names:
        _require_utf8(path / name)
    return names


def _require_utf8(path: Path) -> None:
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise InputError("path", f"{path}, whose name is not UTF-8", "names of folders and images in UTF-8") from None


def _read_images(path: Path, classes: list[str]) -> Iterator[LabelledImage]:
    for name in _folders(path):
        if name not in classes:
            raise InputError("path", f"{path / name}, a class without training images", ", ".join(classes))
        images = list(_images_of(path / name, classes.index(name)))
        if not images:
            raise InputError("path", f"{path / name} without images", ALLOWED)
        yield from images


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
            mode, pixels = image.mode, np.asarray(image)
    except Exception as error:  # a damaged file raises whatever its first wrong byte leads the decoder to
        raise InputError("path", f"{path} ({error})", "a whole image of the format that its name says") from None
    if mode not in ("L", "RGB"):
        raise InputError("path", f"{path} of mode {mode}", "grey (L) or RGB images of bytes")
    return pixels if mode == "L" else np.ascontiguousarray(pixels.transpose(2, 0, 1))
