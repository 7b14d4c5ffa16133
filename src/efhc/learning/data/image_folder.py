"""Your own images: `train/CLASS/*.png`, `test/CLASS/*.png`, all of one size, all grey or all in colour."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from efhc.base.errors import InputError
from efhc.base.inputs import InputFolder, is_folder, read_bytes, sha256
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

    All are of one size, and all grey or all RGB. The checksum is that of the list `sha256sum` writes of all of them,
    sorted by name.
    """

    kind: Literal["image-folder"] = "image-folder"
    path: InputFolder
    """The folder that holds `train` and `test`."""

    def load(self, precision: str = "float32") -> Dataset:
        classes = _folders(self.path / "train")
        train, test = (list(_read_images(self.path / part, classes)) for part in ("train", "test"))
        first = train[0]
        for image in train + test:
            if image.pixels.shape != first.pixels.shape:
                given = f"{image.path} of shape {image.pixels.shape}"
                raise InputError("path", given, f"{first.pixels.shape}, as {first.path}: one size, all grey or all RGB")
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
    """An image, and where it is from."""

    path: Path
    label: int
    pixels: NDArray[np.uint8]
    sha256: str


def _folders(path: Path) -> list[str]:
    """The sorted names of the folders there."""
    names = sorted(inner.name for inner in path.iterdir() if inner.is_dir()) if is_folder(path) else []
    if not names:
        raise InputError(
            "path", f"{path}, without a folder" if is_folder(path) else f"{path} (no such folder)", ALLOWED
        )
    return names


def _read_images(path: Path, classes: list[str]) -> Iterator[LabelledImage]:
    for name in _folders(path):
        if name not in classes:
            raise InputError("path", f"{path / name}, a class without training images", ", ".join(classes))
        files = sorted(file for file in (path / name).iterdir() if file.suffix.lower() in FORMATS)
        if not files:
            raise InputError("path", f"{path / name} without images", ALLOWED)
        for file in files:
            content = read_bytes(file)
            yield LabelledImage(file, classes.index(name), parse_image(content, file), sha256(content))


def parse_image(content: bytes, path: Path) -> NDArray[np.uint8]:
    """A grey image as (height, width), an RGB one as (3, height, width)."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=[FORMATS[path.suffix.lower()]]) as image:
            mode, pixels = image.mode, np.asarray(image)
    except Exception as error:  # a damaged file raises whatever its first wrong byte leads the decoder to
        raise InputError("path", f"{path} ({error})", "a whole image of the format that its name says") from None
    if mode not in ("L", "RGB"):
        raise InputError("path", f"{path} of mode {mode}", "grey (L) or RGB images of bytes")
    return pixels if mode == "L" else np.ascontiguousarray(pixels.transpose(2, 0, 1))
