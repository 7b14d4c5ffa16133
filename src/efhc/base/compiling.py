# mypy: allow-untyped-calls
"""Compiling loops with numba, and keeping the machine code on disk.

numba trusts its cache: a file that was cut short or damaged raises anything from `EOFError` to a crash when it is
loaded. Here every file carries a checksum of its content and of what it was compiled for; what cannot be read is
compiled again and written anew, and what cannot be written is done without. The user is told once.
"""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.registry import CPUDispatcher

OPTIONS: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz"}, "nogil": True}
"""Sums may be reordered: that is what turns them into vector instructions."""


class CacheWarning(UserWarning):
    """The cache of compiled loops is damaged or cannot be written."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function to machine code when it is first called, and keep the code on disk where that is possible.

    A loop that other loops call is compiled anew into each of them, and only whole loops are kept. Would a loop take
    parts from the cache, LLVM would inline them otherwise than fresh ones, and the last bits of its sums would depend
    on what was compiled before.
    """
    kernel = numba.njit(**OPTIONS, forceinline=True)(function)
    kernel.__class__ = _Kernel
    kernel.whole = numba.njit(**OPTIONS)(function)
    with suppress(RuntimeError):  # there is no place for it: neither beside its file nor in the user's cache
        kernel.whole._cache = _Cache(function)
    result: Callable[..., Any] = kernel
    return result


class _Kernel(CPUDispatcher):
    """Called from Python, the loop that is kept on disk; within another loop, a part that never is."""

    whole: Any

    def __call__(self, *arguments: Any) -> Any:
        return self.whole(*arguments)


class _Cache(FunctionCache):
    """numba's cache of one function, which is done without where it fails."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        file = self._cache_file
        self._cache_file = _CheckedFile(self._cache_path, self._impl.filename_base, file._source_stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # unpickling what is damaged raises anything
            self._warn("cannot be read", error)
            with suppress(Exception):
                self.flush()  # an index that cannot be read cannot be added to either
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as error:
            self._warn("cannot be written", error)

    def _warn(self, what: str, error: Exception) -> None:
        text = f"the compiled loops in {self._cache_path} {what} ({type(error).__name__}); they are compiled again"
        if not _warned:
            _warned.append(text)
            warnings.warn(text, CacheWarning, stacklevel=2)


_warned: list[str] = []
"""What was said, once per process."""


class _CheckedFile(IndexDataCacheFile):
    """Machine code behind a checksum of it and of its key, so that damaged code is not executed.

    This is no protection against somebody who may write to the cache: they could change the package as well.
    """

    def save(self, key: Any, data: Any) -> None:
        self._key = key
        super().save(key, data)

    def _data_name(self, number: int) -> Any:
        # numba counts 1, 2, ...: two processes that compile at once would take the same number for different code.
        return super()._data_name(int.from_bytes(self._checksum(b"")[:6], "big") + number)

    def load(self, key: Any) -> Any:
        self._key = key
        return super().load(key)

    def _save_data(self, name: str, data: Any) -> None:
        content: bytes = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(self._checksum(content) + content)

    def _load_data(self, name: str) -> Any:
        stored = Path(self._data_path(name)).read_bytes()
        checksum, content = stored[:32], stored[32:]
        if checksum != self._checksum(content):
            raise ValueError(f"{name} is damaged")
        return pickle.loads(content)

    def _checksum(self, content: bytes) -> bytes:
        return hashlib.sha256(repr(self._key).encode() + content).digest()
