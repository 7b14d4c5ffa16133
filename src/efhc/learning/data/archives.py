"""Where efhc searches for the files of known data sets.

A folder that the user names, in the config or as `$EFHC_DATA`, is used as it is and may hold a part of the data set:
the checksums of its files are reported. A copy in the cache or from the system must be what was published: there the
checksums are enforced.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import platformdirs

from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import InputFile, is_folder, read_bytes, sha256
from efhc.learning.data.dataset import DataPolicy, Dataset

MANIFEST = "SHA256SUMS"
"""The list of checksums, in the format of `sha256sum`, beside files whose checksums are not published."""

Progress = Callable[[str, int, int], None]
"""Called with the file name, the bytes so far and the bytes in all (0 if the server does not say)."""


def silent(name: str, done: int, total: int) -> None:
    """Show no progress."""


class Place(NamedTuple):
    """A folder that may hold a data set, and the name of this kind of place."""

    name: str
    folder: Path

    @property
    def is_given(self) -> bool:
        """Whether the user chose the folder."""
        return self.name not in ("cache", "system")


class StoredFile(NamedTuple):
    """A file of a data set: its unpacked content and the SHA-256 of that content."""

    name: str
    path: Path
    content: bytes
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A data set made of files."""

    name: str
    files: tuple[str, ...]
    """File names or patterns. A folder that the user chose must have at least one file for each."""
    advice: str
    """How to get the data set other than by `efhc data fetch`."""
    subfolders: tuple[str, ...] = ()
    """Further names of its folder in `$EFHC_DATA`, besides `name`."""

    def places(self) -> Iterator[Place]:
        """Yield the places to look in, in order."""
        if chosen := os.environ.get("EFHC_DATA"):
            for subfolder in (*self.subfolders, self.name, ""):
                yield Place("$EFHC_DATA", Path(chosen) / subfolder)

    def find(self, path: Path | None = None) -> Place | None:
        """Return the first place with all needed files, damaged or not, or None; with `path`, only look there."""
        if path is None:
            return next((place for place in self.places() if not self.missing(place)), None)
        place = Place("path", path)
        if missing := self.missing(place):
            why = f"without {missing}" if is_folder(path) else "(no such folder)"
            raise InputError("path", f"{path} {why}", f"a folder with {', '.join(self.files)}")
        return place

    def locate(self, path: Path | None = None) -> Place:
        """Return the place of the data set; fetch it if there is none."""
        return self.find(path) or Place("cache", self.fetch())

    def missing(self, place: Place) -> str | None:
        """Return the name of the first file that the place lacks, or None."""
        needed = self._needed(place)
        return next((name for name in needed if not self._matches(place, name)), None) if needed else MANIFEST

    def read(self, place: Place) -> Iterator[StoredFile]:
        """Yield every file, unpacked; one with another checksum than the expected one is refused."""
        if missing := self.missing(place):
            raise InputError("files", f"{place.folder} without {missing}", f"the files of {self.name}; {self.remedy}")
        expected = self.expected(place)
        for name in (name for pattern in self._needed(place) for name in self._matches(place, pattern)):
            path = place.folder / name
            content = self.unpack(read_bytes(path, "files"), str(path), self.remedy)
            yield StoredFile(name, path, content, self.check(content, expected.get(name), str(path), self.remedy))

    def expected(self, place: Place) -> Mapping[str, str]:
        """Return the checksum that each file must have there, by name; none in a folder that the user chose."""
        return {}

    def compared(self, place: Place) -> str:
        """Return a sentence that says what the checksums of the files in `place` are compared with."""
        if self.expected(place):
            return "each SHA-256 equals the one of the published file, which efhc knows"
        return "a folder of your own: its SHA-256 are shown and compared with nothing"

    def unpack(self, packed: bytes, origin: str, remedy: str) -> bytes:
        """Return the content of a file."""
        return packed

    @staticmethod
    def check(content: bytes, expected: str | None, origin: str, remedy: str) -> str:
        """Return the SHA-256 of `content`. Raises `InputError` if `expected` is given and differs."""
        found = sha256(content)
        if expected and found != expected:
            raise InputError("files", f"{origin} with SHA-256 {found[:12]}...", f"{expected[:12]}...; {remedy}")
        return found

    @property
    def remedy(self) -> str:
        """What to do about a broken copy."""
        return self.advice

    @property
    def source(self) -> str:
        """How to get the data set."""
        return f"no download; {self.advice}"

    def fetch(self, progress: Progress = silent) -> Path:
        """Download the data set into the user's cache; raises an `EfhcError` if it has no download."""
        looked = ", ".join(str(place.folder) for place in self.places()) or "$EFHC_DATA, which is not set"
        raise EfhcError(f"data: {self.name} has no download and is not in {looked}. {self.advice}")

    def _needed(self, place: Place) -> Collection[str]:
        return self.files if place.is_given else self.expected(place)

    @staticmethod
    def _matches(place: Place, pattern: str) -> list[str]:
        if not is_folder(place.folder):
            return []
        files = (path for path in place.folder.glob(pattern) if path.is_file())
        return sorted(path.relative_to(place.folder).as_posix() for path in files)


class StoredData(DataPolicy):
    """A data set whose files are searched for in known folders."""

    archive: ClassVar[Archive]
    unit: ClassVar[float] = 255.0
    """What bytes are divided by: pixels become 0 .. 1."""
    path: InputFile | None = None
    """The folder with its files, or some of them. Default: the known places, then a download if it has one."""

    def load(self, precision: str = "float32") -> Dataset:
        checksums: dict[str, str] = {}

        def noted(files: Iterator[StoredFile]) -> Iterator[StoredFile]:
            for file in files:
                checksums[file.name] = file.sha256
                yield file

        place = self.archive.locate(self.path)
        data = replace(self.parse(noted(self.archive.read(place))), name=self.archive.name, sha256=checksums)
        return data.prepared(self.standardize, precision, unit=self.unit if data.x_train.dtype == np.uint8 else 1)

    @abstractmethod
    def parse(self, files: Iterator[StoredFile]) -> Dataset:
        """Return the data set in the files, with inputs as bytes or as they are once divided by `unit`."""


def cache_folder() -> Path:
    """Return the folder of the user's cache."""
    return Path(platformdirs.user_cache_dir("efhc"))
