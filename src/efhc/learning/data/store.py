"""Where the files of known data sets are looked for, and how a missing one is fetched.

Every file is known by the SHA-256 of what it holds once unpacked, so a copy that was compressed anew (Debian's) counts.
"""

from __future__ import annotations

import gzip
import http.client
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from efhc.core.errors import EfhcError, InputError
from efhc.inputs import read_bytes, sha256
from efhc.saving import write_safely

Progress = Callable[[str, int, int], None]
"""Called with file name, bytes so far, bytes in all (0 where the server does not say)."""


def silent(name: str, done: int, total: int) -> None:
    """No progress shown."""


@dataclass(frozen=True)
class Archive:
    """A data set made of gzip files at one address."""

    name: str
    address: str
    sha256: dict[str, str]
    """File name -> checksum of its unpacked content."""
    system_folder: Path
    """Where a package of the operating system puts it."""
    system_package: str

    def folders(self) -> Iterator[tuple[str, Path]]:
        """Where to look, in order, and what to call that place."""
        if chosen := os.environ.get("EFHC_DATA"):
            yield "$EFHC_DATA", Path(chosen) / self.name
            yield "$EFHC_DATA", Path(chosen)
        yield "cache", cache_folder() / self.name
        yield "system", self.system_folder

    def find(self) -> tuple[str, Path] | None:
        """The first place that has all files, whole or not."""
        return next((place for place in self.folders() if all((place[1] / f).is_file() for f in self.sha256)), None)

    def read(self, folder: Path) -> dict[str, bytes]:
        """Every file unpacked and checked."""
        return {name: self.unpack(name, read_bytes(folder / name), str(folder / name)) for name in self.sha256}

    def unpack(self, name: str, packed: bytes, origin: str, remedy: str = "") -> bytes:
        """The content of one file, if it is the known one; `remedy` says what to do if not."""
        remedy = remedy or self.remedy
        try:
            content = gzip.decompress(packed)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(
                "files", f"{origin}, truncated or corrupt ({error})", f"the {self.name} file; {remedy}"
            ) from None
        if (found := sha256(content)) != self.sha256[name]:
            raise InputError(
                "files", f"{origin} with SHA-256 {found[:12]}...", f"{self.sha256[name][:12]}...; {remedy}"
            )
        return content

    @property
    def remedy(self) -> str:
        """What to do about a broken copy."""
        return f"replace that copy by `efhc data fetch {self.name}`, or by Debian's package {self.system_package}"

    def fetch(self, progress: Progress = silent) -> Path:
        """Download what the cache lacks; a file is put there only once it is whole and checked."""
        folder = cache_folder() / self.name
        for name in self.sha256:
            try:
                self.unpack(name, (folder / name).read_bytes(), name)
            except (OSError, InputError):
                packed = self._download(name, progress)
                self.unpack(name, packed, f"{self.address}{name}", "fetch it again later")
                write_safely(folder / name, packed)
        return folder

    def _download(self, name: str, progress: Progress) -> bytes:
        chunks: list[bytes] = []
        try:
            with urllib.request.urlopen(self.address + name, timeout=30) as response:
                total = int(response.headers.get("Content-Length") or 0)
                while chunk := response.read(1 << 16):
                    chunks.append(chunk)
                    progress(name, sum(map(len, chunks)), total)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            raise EfhcError(
                f"data: {self.name} is not on this machine and {self.address}{name} cannot be reached ({error}); "
                f"put its files into $EFHC_DATA/{self.name}, or install Debian's package {self.system_package}"
            ) from error
        return b"".join(chunks)


def cache_folder() -> Path:
    """The user's cache of data sets."""
    return Path(platformdirs.user_cache_dir("efhc"))
