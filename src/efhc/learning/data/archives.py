"""Where efhc searches for the files of known data sets.

A folder that the user names, in the config or as `$EFHC_DATA`, is used as it is and may hold a part of the data set:
the checksums of its files are reported. A copy in the cache or from the system must be what was published: there the
checksums are enforced.
"""

from __future__ import annotations

import gzip
import http.client
import io
import os
import re
import tarfile
import threading
import urllib.error
import urllib.request
import zlib
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import platformdirs

from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import InputFile, is_folder, read_bytes, sha256
from efhc.base.saving import write_safely
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


# Downloads into the cache of the user: each file is whole and checked, or it is not there


LATER = "fetch it again later"
CHUNK = 1 << 16
SILENCE = 30.0
"""Seconds without a byte after which a connection is given up."""


@dataclass(frozen=True, kw_only=True)
class Download(Archive):
    """A data set that is published on the web."""

    address: str
    system_folder: Path | None = None
    """The folder where a package of the operating system installs the data set."""
    most_bytes: int = 1 << 30
    """The largest size of a file that is accepted, both packed and unpacked."""
    most_seconds: float = 3600.0
    """The longest time that the download of one file may take."""

    def places(self) -> Iterator[Place]:
        yield from super().places()
        yield self.cache
        if self.system_folder:
            yield Place("system", self.system_folder)

    @property
    def cache(self) -> Place:
        """The folder where the data set is kept once it has been fetched."""
        return Place("cache", cache_folder() / self.name)

    @property
    def source(self) -> str:
        return f"efhc data fetch {self.name}"

    @property
    def remedy(self) -> str:
        return f"`{self.source}` gets a good one; or {self.advice}"

    def download(self, address: str, progress: Progress) -> bytes:
        """Return the content at `address`, which must not be larger or take longer than this data set allows.

        The timeout of a socket is one of silence: a server that sends a byte now and then never exceeds it. The
        transfer therefore runs in a thread, which is abandoned after `most_seconds`; it ends with the next byte, or
        with the process.
        """
        name, content, result = address.rpartition("/")[2], bytearray(), Future[bytes]()
        expired = threading.Event()

        def transfer() -> None:
            try:
                with urllib.request.urlopen(address, timeout=SILENCE) as response:
                    total = int(response.headers.get("Content-Length") or 0)
                    self._check_size(total, address)
                    # `read1` returns what has arrived, so that a server that drips cannot hold up the checks.
                    while (not total or len(content) < total) and (chunk := response.read1(CHUNK)):
                        if expired.is_set():
                            return
                        content.extend(chunk)
                        self._check_size(len(content), address)
                        progress(name, len(content), total)
                if len(content) < total:
                    raise OSError(f"the connection ended after {len(content)} bytes")
                result.set_result(bytes(content))
            except BaseException as error:  # raised again in the thread that waits
                result.set_exception(error)

        threading.Thread(target=transfer, name="efhc-download", daemon=True).start()
        try:
            return result.result(self.most_seconds)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            reason = error if result.done() else f"took longer than {self.most_seconds:g} s"
            where = f"{self.name} is not on this machine and {address} cannot be reached"
            raise EfhcError(f"data: {where} ({reason}); {self.advice}") from error
        finally:
            expired.set()

    def _check_size(self, size: int, origin: str) -> None:
        if size > self.most_bytes:
            raise EfhcError(f"data: {origin} is larger than the {self.most_bytes:,} bytes accepted; {self.advice}")

    def gunzip(self, packed: bytes, origin: str, remedy: str) -> bytes:
        """Return the content of a gzip file, unless it is damaged or larger than `most_bytes`."""
        content = bytearray()
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
                while chunk := file.read(1 << 20):
                    content += chunk
                    if len(content) > self.most_bytes:
                        raise EOFError(f"it unpacks to more than {self.most_bytes:,} bytes")
                if not packed:
                    raise EOFError("it is empty")
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(
                "files", f"{origin}, truncated or corrupt ({error})", f"a file of {self.name}; {remedy}"
            ) from None
        return bytes(content)


@dataclass(frozen=True, kw_only=True)
class GzipFiles(Download):
    """Gzip files at one address.

    The checksum of a file is that of its unpacked content, so that a copy compressed anew (such as Debian's) counts.
    """

    sha256: Mapping[str, str]
    """The checksum of the unpacked content of each file, by file name."""

    def expected(self, place: Place) -> Mapping[str, str]:
        return {} if place.is_given else self.sha256

    def unpack(self, packed: bytes, origin: str, remedy: str) -> bytes:
        return self.gunzip(packed, origin, remedy)

    def fetch(self, progress: Progress = silent) -> Path:
        """Download the files that the cache lacks, and return the cache folder."""
        folder = self.cache.folder
        for name, expected in self.sha256.items():
            try:
                self.check(self.unpack((folder / name).read_bytes(), name, ""), expected, name, "")
            except (OSError, InputError):
                address = self.address + name
                packed = self.download(address, progress)
                self.check(self.unpack(packed, address, LATER), expected, address, LATER)
                write_safely(folder / name, packed)
        return folder


@dataclass(frozen=True, kw_only=True)
class TarFile(Download):
    """Files in one .tar.gz with a published checksum.

    The files themselves have none: `fetch` lists the checksums of the files that it took out of the verified .tar.gz.
    """

    sha256: str
    members: Mapping[str, str]
    """The name in the .tar.gz of each file, by file name."""

    def expected(self, place: Place) -> Mapping[str, str]:
        if place.is_given:
            return {}
        try:
            listed = re.findall(r"^([0-9a-f]{64})  (.+)$", (place.folder / MANIFEST).read_text(), re.MULTILINE)
        except (OSError, ValueError):
            return {}
        checksums = {name: checksum for checksum, name in listed}
        return checksums if set(checksums) == set(self.members) else {}

    def compared(self, place: Place) -> str:
        if place.is_given:
            return super().compared(place)
        return (
            f"each SHA-256 equals the one in {place.folder / MANIFEST}, which `efhc data fetch` wrote when it took the "
            f"files out of the published .tar.gz (SHA-256 {self.sha256[:12]}...); efhc has no list of its own"
        )

    def fetch(self, progress: Progress = silent) -> Path:
        """Download the .tar.gz unless the cache has all its files, and return the cache folder."""
        folder = self.cache.folder
        try:
            for _ in self.read(self.cache):
                pass
        except InputError:
            packed = self.download(self.address, progress)
            self.check(packed, self.sha256, self.address, LATER)
            checksums = {}
            for name, content in self._taken_out(packed):
                checksums[name] = sha256(content)
                write_safely(folder / name, content)
            lines = "".join(f"{checksum}  {name}\n" for name, checksum in checksums.items())
            write_safely(folder / MANIFEST, lines.encode())
        return folder

    def _taken_out(self, packed: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of each member; nothing else is taken out of the tar file."""
        unpacked = self.gunzip(packed, self.address, LATER)
        try:
            with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as tar:
                for name, member in self.members.items():
                    if not tar.getmember(member).isreg():
                        raise tarfile.TarError(f"{member} is not a file")
                    with tar.extractfile(member) as file:  # type: ignore[union-attr]
                        yield name, file.read()
        except (tarfile.TarError, OSError, EOFError, KeyError) as error:
            raise InputError("files", f"{self.address} ({error})", f"a .tar.gz of {self.name}; {LATER}") from None
