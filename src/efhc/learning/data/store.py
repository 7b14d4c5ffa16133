"""Where the files of known data sets are looked for.

A folder that the user names, in the config or as `$EFHC_DATA`, is taken as it is and may hold a part of the data set:
its checksums are reported. A copy in the cache, or from the system, is whole and what was published: they are enforced.
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
from efhc.base.inputs import InputFolder, is_folder, read_bytes, sha256
from efhc.learning.data.dataset import DataPolicy, Dataset

MANIFEST = "SHA256SUMS"
"""A copy of files without published checksums has a list of those that it was made with, as `sha256sum` writes it."""

Progress = Callable[[str, int, int], None]
"""Called with file name, bytes so far, bytes in all (0 where the server does not say)."""


def silent(name: str, done: int, total: int) -> None:
    """No progress shown."""


class Place(NamedTuple):
    """A folder where a data set may lie, and what to call it."""

    name: str
    folder: Path

    @property
    def is_given(self) -> bool:
        """Whether the user chose it."""
        return self.name not in ("cache", "system")


class StoredFile(NamedTuple):
    """A file of a data set, unpacked, and the checksum of its content."""

    name: str
    path: Path
    content: bytes
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A data set made of files."""

    name: str
    files: tuple[str, ...]
    """Its files, or patterns of their names: a folder that the user chose needs one for each."""
    advice: str
    """How else to get it."""
    subfolders: tuple[str, ...] = ()
    """What its folder in `$EFHC_DATA` may be called, besides its name."""

    def places(self) -> Iterator[Place]:
        """Where to look, in order."""
        if chosen := os.environ.get("EFHC_DATA"):
            for subfolder in (*self.subfolders, self.name, ""):
                yield Place("$EFHC_DATA", Path(chosen) / subfolder)

    def find(self, path: Path | None = None) -> Place | None:
        """The first place that has all it needs, damaged or not; with `path`, it is there or nowhere."""
        if path is None:
            return next((place for place in self.places() if not self.missing(place)), None)
        place = Place("path", path)
        if missing := self.missing(place):
            why = f"without {missing}" if is_folder(path) else "(no such folder)"
            raise InputError("path", f"{path} {why}", f"a folder with {', '.join(self.files)}")
        return place

    def locate(self, path: Path | None = None) -> Place:
        """Where it is; if it is nowhere, it is fetched."""
        return self.find(path) or Place("cache", self.fetch())

    def missing(self, place: Place) -> str | None:
        """The first file that the place lacks."""
        needed = self._needed(place)
        return next((name for name in needed if not self._matches(place, name)), None) if needed else MANIFEST

    def read(self, place: Place) -> Iterator[StoredFile]:
        """Every file there, one at a time, unpacked, and checked where its checksum is known."""
        if missing := self.missing(place):
            raise InputError("files", f"{place.folder} without {missing}", f"the files of {self.name}; {self.remedy}")
        expected = self.expected(place)
        for name in (name for pattern in self._needed(place) for name in self._matches(place, pattern)):
            path = place.folder / name
            content = self.unpack(read_bytes(path, "files"), str(path), self.remedy)
            yield StoredFile(name, path, content, self.check(content, expected.get(name), str(path), self.remedy))

    def expected(self, place: Place) -> Mapping[str, str]:
        """The checksum that each file must have there: none in a folder that the user chose."""
        return {}

    def unpack(self, packed: bytes, origin: str, remedy: str) -> bytes:
        """What a file holds."""
        return packed

    @staticmethod
    def check(content: bytes, expected: str | None, origin: str, remedy: str) -> str:
        """The checksum, which must be the expected one where there is one."""
        found = sha256(content)
        if expected and found != expected:
            raise InputError("files", f"{origin} with SHA-256 {found[:12]}...", f"{expected[:12]}...; {remedy}")
        return found

    @property
    def remedy(self) -> str:
        """What to do about a broken copy."""
        return self.advice

    def fetch(self, progress: Progress = silent) -> Path:
        """Put it into the user's cache. Only for those that can be downloaded."""
        looked = ", ".join(str(place.folder) for place in self.places()) or "$EFHC_DATA, which is not set"
        raise EfhcError(f"data: {self.name} cannot be downloaded, and is looked for in {looked}; {self.advice}")

    def _needed(self, place: Place) -> Collection[str]:
        return self.files if place.is_given else self.expected(place)

    @staticmethod
    def _matches(place: Place, pattern: str) -> list[str]:
        if not is_folder(place.folder):
            return []
        files = (path for path in place.folder.glob(pattern) if path.is_file())
        return sorted(path.relative_to(place.folder).as_posix() for path in files)


class StoredData(DataPolicy):
    """A data set made of files."""

    archive: ClassVar[Archive]
    path: InputFolder | None = None
    """The folder of its files, or of some of them. Left out, they are looked for, and fetched if that is possible."""

    def load(self, precision: str = "float32") -> Dataset:
        checksums: dict[str, str] = {}

        def noted(files: Iterator[StoredFile]) -> Iterator[StoredFile]:
            for file in files:
                checksums[file.name] = file.sha256
                yield file

        place = self.archive.locate(self.path)
        data = replace(self.parse(noted(self.archive.read(place))), name=self.archive.name, sha256=checksums)
        return data.prepared(self.standardize, precision, unit=255 if data.x_train.dtype == np.uint8 else 1)

    @abstractmethod
    def parse(self, files: Iterator[StoredFile]) -> Dataset:
        """What the files say; pixels as bytes, or as numbers 0 to 1."""


def cache_folder() -> Path:
    """The user's cache of data sets."""
    return Path(platformdirs.user_cache_dir("efhc"))
