# mypy: allow-untyped-calls
"""Compiling loops with numba, and keeping the machine code on disk.

| way            | called from            | sums              | kept on disk  | allocates |
|----------------|------------------------|-------------------|---------------|-----------|
| `compiled`     | Python, compiled loops | LLVM orders them  | yes           | yes       |
| `as_written`   | Python, compiled loops | as written        | yes           | no        |
| `part`         | compiled loops         | as written        | with callers  | no        |
| `compiled_for` | Python                 | as written        | yes, by a key | yes       |
| `part_for`     | loops of a key         | as written        | with callers  | yes       |
| `joined_for`   | loops of a key         | it only calls     | with callers  | yes       |

numba trusts its cache: a file that was cut short or damaged raises anything from `EOFError` to a crash when it is
loaded. Here every file carries a checksum of its content and of what it was compiled for; what cannot be read is
compiled again and written anew, and what cannot be written is done without. The user is told once.
"""

from __future__ import annotations

import hashlib
import pickle
import secrets
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

REORDERED: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz"}, "nogil": True, "forceinline": True}
"""Sums may be reordered: that is what turns them into vector instructions.

A loop that other loops call is compiled anew into each of them. LLVM inlines parts that were compiled before
differently, so the last bits would depend on what was compiled before.
"""
AS_WRITTEN: dict[str, Any] = {"nogil": True, "_nrt": False}
"""Every sum is made in the order in which it is written, and no references are counted: nothing is allocated."""
OF_A_KEY: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
"""As `AS_WRITTEN`, but may allocate, and a division by zero gives infinity instead of an error."""

WITHIN: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""For loops that only compiled code calls: what Python would call them by takes a fifth of the time of compiling."""


class CacheWarning(UserWarning):
    """The cache of compiled loops is damaged or cannot be written."""


def compiled(function: Callable[..., Any], options: dict[str, Any] = REORDERED) -> Callable[..., Any]:
    """Compile a function to machine code when it is first called, and keep the code on disk where that is possible.

    Only loops that are called from Python are kept, each with all that it calls.
    """
    kernel = numba.njit(**options, **WITHIN)(function)
    kernel.__class__ = _Kernel
    kernel.whole = numba.njit(**{**options, "forceinline": False, "no_cfunc_wrapper": True})(function)
    with suppress(RuntimeError):  # there is no place for it: neither beside its file nor in the user's cache
        kernel.whole._cache = _Cache(function)
    _name_apart(function)
    result: Callable[..., Any] = kernel
    return result


def as_written(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function whose numbers have the same bits wherever it is called from: no sum is reordered.

    It cannot make arrays. Those that it needs are arguments.
    """
    return compiled(function, AS_WRITTEN)


def part(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a part of loops that takes or returns values which only compiled code has."""
    return _part(function, AS_WRITTEN | WITHIN | {"forceinline": True})


def part_for(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a part of loops that `compiled_for` compiles."""
    return _part(function, OF_A_KEY | WITHIN)


def joined_for(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a function that only calls others into loops that `compiled_for` compiles, before these are compiled."""
    return _part(function, OF_A_KEY | {"inline": "always"})


def compiled_for(key: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop that was made for one key, which must describe it in full, and keep the code on disk.

    numba would tell such loops apart by the parts that they call, and those differ from process to process. Here it is
    the key that does.
    """
    kernel = numba.njit(**OF_A_KEY)(function)
    with suppress(RuntimeError):  # as above
        kernel._cache = _CacheFor(key, function)
    _name_apart(function)
    result: Callable[..., Any] = kernel
    return result


def is_to_be_kept(kernel: Any) -> bool:
    """Return whether a loop was never compiled on this machine, and will be kept on disk when it is."""
    cache = kernel.whole._cache
    return isinstance(cache, _Cache) and not cache.has_index


def _name_apart(function: Callable[..., Any]) -> None:
    """Give a function a name that no other process gives to another. Call it after the cache was named.

    numba numbers the functions of a process, so that functions made in a function for different keys get the same name
    in different processes. Loaded from disk side by side, one of them would run in place of the other.
    """
    function.__qualname__ += f".{secrets.token_hex(8)}"


def _part(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    _name_apart(function)
    kernel = numba.njit(**options)(function)
    kernel.__class__ = _Part
    result: Callable[..., Any] = kernel
    return result


class _Within(CPUDispatcher):
    """A loop that is copied into the loops that call it, and optimised there."""

    def compile(self, sig: Any) -> Any:
        context: Any = self.targetctx
        codegen = context.codegen()
        with global_compiler_lock:
            before, codegen._library_class = codegen._library_class, _Unfinished
            try:
                return super().compile(sig)
            finally:
                codegen._library_class = before


class _Unfinished(JITCodeLibrary):
    """Code that is neither optimised nor turned into machine code, because nobody calls it as it is.

    numba would do both to every loop, and again to each loop that calls it, and so on up to the one that Python calls.
    """

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    @property
    def codegen(self) -> Any:
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Nothing: there is no machine code that could use it."""


class _Part(_Within):
    """Called from Python, the text: there is no machine code that Python could call."""

    def __call__(self, *arguments: Any) -> Any:
        return self.py_func(*arguments)


class _Kernel(_Within):
    """Called from Python, the loop that is kept on disk; within another loop, a part that never is."""

    whole: Any

    def __call__(self, *arguments: Any) -> Any:
        return self.whole(*arguments)


class _Cache(FunctionCache):
    """numba's cache of one function, which is done without where it fails."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = _stamp(Path(function.__code__.co_filename).parent)
        self._cache_file = _CheckedFile(self._cache_path, self._impl.filename_base, stamp)

    @property
    def has_index(self) -> bool:
        """Whether machine code was kept, be it of an older text of the function."""
        return Path(self._cache_file._index_path).exists()

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


class _CacheFor(_Cache):
    """The cache of a function that is made anew for each of several keys."""

    def __init__(self, key: str, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._key = key

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return sig, codegen.magic_tuple(), self._key


@cache
def _stamp(folder: Path) -> Any:
    """What changes if a file of a folder changes: loops call loops of other files beside their own."""
    files = sorted([Path(__file__), *folder.glob("*.py")])
    return [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files]


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
