"""How a data set that is published comes into the user's cache: each file whole and checked, or not at all."""

from __future__ import annotations

import gzip
import http.client
import io
import re
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import sha256
from efhc.base.saving import write_safely
from efhc.learning.data.store import MANIFEST, Archive, Place, Progress, cache_folder, silent

LATER = "fetch it again later"


@dataclass(frozen=True, kw_only=True)
class Download(Archive):
    """A data set with a home on the web."""

    address: str
    system_folder: Path | None = None
    """Where a package of the operating system puts it."""

    def places(self) -> Iterator[Place]:
        yield from super().places()
        yield self.cache
        if self.system_folder:
            yield Place("system", self.system_folder)

    @property
    def cache(self) -> Place:
        """Where it is kept once it was fetched."""
        return Place("cache", cache_folder() / self.name)

    @property
    def remedy(self) -> str:
        return f"`efhc data fetch {self.name}` gets a good one; or {self.advice}"

    def download(self, address: str, progress: Progress) -> bytes:
        """What is at the address."""
        content, name = bytearray(), address.rpartition("/")[2]
        try:
            with urllib.request.urlopen(address, timeout=30) as response:
                total = int(response.headers.get("Content-Length") or 0)
                while chunk := response.read(1 << 16):
                    content += chunk
                    progress(name, len(content), total)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            raise EfhcError(
                f"data: {self.name} is not on this machine and {address} cannot be reached ({error}); {self.advice}"
            ) from error
        return bytes(content)


@dataclass(frozen=True, kw_only=True)
class GzipFiles(Download):
    """Gzip files at one address. Each is known by what it unpacks to, so a copy compressed anew (Debian's) counts."""

    sha256: Mapping[str, str]
    """File name -> checksum of its unpacked content."""

    def expected(self, place: Place) -> Mapping[str, str]:
        return {} if place.is_given else self.sha256

    def unpack(self, packed: bytes, origin: str, remedy: str) -> bytes:
        try:
            return gzip.decompress(packed)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(
                "files", f"{origin}, truncated or corrupt ({error})", f"a file of {self.name}; {remedy}"
            ) from None

    def fetch(self, progress: Progress = silent) -> Path:
        """Download the files that the cache lacks."""
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
    """Files in one .tar.gz, whose checksum is known. Theirs are not: a list of them is written once all are there."""

    sha256: str
    members: Mapping[str, str]
    """File name -> name in the .tar.gz."""

    def expected(self, place: Place) -> Mapping[str, str]:
        if place.is_given:
            return {}
        try:
            listed = re.findall(r"^([0-9a-f]{64})  (.+)$", (place.folder / MANIFEST).read_text(), re.MULTILINE)
        except (OSError, ValueError):
            return {}
        checksums = {name: checksum for checksum, name in listed}
        return checksums if set(checksums) == set(self.members) else {}

    def fetch(self, progress: Progress = silent) -> Path:
        """Download it, unless the cache has it whole."""
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
        """The content of the members, and of nothing else in the tar file."""
        try:
            with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as tar:
                for name, member in self.members.items():
                    if not tar.getmember(member).isreg():
                        raise tarfile.TarError(f"{member} is not a file")
                    with tar.extractfile(member) as file:  # type: ignore[union-attr]
                        yield name, file.read()
        except (tarfile.TarError, OSError, EOFError, zlib.error, KeyError) as error:
            raise InputError("files", f"{self.address} ({error})", f"a .tar.gz of {self.name}; {LATER}") from None
