# mypy: allow-untyped-calls
"""Compile loops with numba, and keep the machine code on disk.

| way            | called from            | sums              | kept on disk  | allocates |
|----------------|------------------------|-------------------|---------------|-----------|
| `compiled`     | Python, compiled loops | LLVM orders them  | yes           | yes       |
| `as_written`   | Python, compiled loops | as written        | yes           | no        |
| `part`         | compiled loops         | as written        | with callers  | no        |
| `compiled_for` | Python                 | as written        | yes, by a key | yes       |
| `part_for`     | loops of a key         | as written        | with callers  | yes       |
| `joined_for`   | loops of a key         | it only calls     | with callers  | yes       |

Two inner parts of numba are replaced.

`numba.njit(cache=True)` optimises every loop that another one calls, and again in each of its callers. `_Unfinished`
leaves that to the loop that Python calls. A first `efhc demo` takes 12.7 s of processor time with it and 18.7 s
without, a first event-driven run 4.7 s and 6.1 s; later runs take the same. Its cache has 1.2 MB, and 3.6 MB if loops
that other loops call are kept, too.

numba's cache trusts its files: one that is cut short raises an error, a flipped bit may end the process or give wrong
numbers, and a change in a loop of another file goes unnoticed. `_Cache` names files by the content of the sources and
checks them.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import secrets
import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher
from numba.core.serialize import dumps
from platformdirs import user_cache_path

from efhc.base.saving import replacing

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


KEPT_SECONDS = 30 * 86400.0


class CacheWarning(UserWarning):
    """The cache of compiled loops is damaged or cannot be written."""


def compiled(function: Callable[..., Any], options: dict[str, Any] = REORDERED) -> Callable[..., Any]:
    """Compile a function to machine code when it is first called, and keep the code on disk where that is possible.

    Only loops that are called from Python are kept, each with all that it calls.
    """
    whole = _kept(function, {**options, "forceinline": False, "no_cfunc_wrapper": True})
    return _within(function, options | WITHIN, whole)


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
    """Compile a loop that was made for one key, which must describe it in full, and keep the code by that key."""
    return _kept(function, OF_A_KEY, key)


def is_to_be_kept(kernel: Any) -> bool:
    """Return whether a loop was never compiled on this machine, and will be kept on disk when it is."""
    cache: _Cache = kernel.whole._cache
    return cache.folder is not None and not any(cache.folder.glob(f"{cache.name}-*"))


def _name_apart(function: Callable[..., Any]) -> None:
    """Give a function a name that no other process gives to another. Call it after the cache was named.

    numba numbers the functions of a process, so that functions made in a function for different keys get the same name
    in different processes. Loaded from disk side by side, one of them would run in place of the other.
    """
    function.__qualname__ += f".{secrets.token_hex(8)}"


def _kept(function: Callable[..., Any], options: dict[str, Any], key: str = "") -> Callable[..., Any]:
    """Return a loop that Python calls and whose machine code is kept on disk."""
    cache = _Cache(function, key)
    _name_apart(function)
    kernel: Any = numba.njit(**options)(function)
    kernel._cache = cache
    result: Callable[..., Any] = kernel
    return result


def _part(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    _name_apart(function)
    return _within(function, options, function)


def _within(function: Callable[..., Any], options: dict[str, Any], whole: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loop for other loops. Python calls `whole` instead."""
    kernel: Any = numba.njit(**options)(function)
    kernel.__class__ = _Within
    kernel.whole = whole
    result: Callable[..., Any] = kernel
    return result


class _Within(CPUDispatcher):
    """A loop that is copied into the loops that call it, and optimised there."""

    whole: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.whole(*arguments)

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
    """Code that is neither optimised nor turned into machine code, because it is only called from other loops.

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


class _Cache(NullCache):
    """The machine code of one function: a file per signature, processor and key, with a checksum in front.

    The folder is named by the content of all source files beside the function's own, because loops call loops of those.
    So a file holds what its name says or is damaged, whichever process wrote it. What is damaged is compiled again and
    written anew, and what cannot be written is done without; the user is warned once.
    """

    def __init__(self, function: Callable[..., Any], key: str = "") -> None:
        source = Path(function.__code__.co_filename)
        self.folder = _folder(source.parent)
        self.name = f"{source.stem}.{function.__qualname__}-{function.__code__.co_firstlineno}".replace("<locals>.", "")
        self._key = key

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        if self.folder is None:
            return None
        target_context.refresh()
        file = self._file(sig, target_context.codegen())
        try:
            stored = file.read_bytes()
            if stored[:32] != hashlib.sha256(stored[32:]).digest():
                raise ValueError("it is damaged")
            return CompileResult._rebuild(target_context, *pickle.loads(stored[32:]))
        except FileNotFoundError:
            return None
        except Exception as error:
            self._warn("cannot be read", error)
            return None

    def save_overload(self, sig: Any, cres: Any) -> None:
        if self.folder is None:
            return
        content: bytes = dumps(cres._reduce())
        try:
            with replacing(self._file(sig, cres.library.codegen)) as temporary:
                temporary.write_bytes(hashlib.sha256(content).digest() + content)
        except OSError as error:
            self._warn("cannot be written", error)

    def _file(self, sig: Any, codegen: Any) -> Path:
        assert self.folder is not None
        made_for = repr((str(sig), codegen.magic_tuple(), self._key))
        return self.folder / f"{self.name}-{hashlib.sha256(made_for.encode()).hexdigest()[:32]}"

    def _warn(self, what: str, error: Exception) -> None:
        if not _warned:
            text = f"the compiled loops in {self.folder} {what} ({type(error).__name__}); they are compiled again"
            _warned.append(text)
            warnings.warn(text, CacheWarning, stacklevel=2)


_warned: list[str] = []
"""The warning, once per process."""


@cache
def _folder(source: Path) -> Path | None:
    """Return where the loops of a folder of source files are kept; None if no place can be written.

    Folders of other versions that were not written to for `KEPT_SECONDS` are removed when a new one is made.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    for file in sorted([Path(__file__), *source.glob("*.py")]):
        digest.update(file.name.encode() + file.read_bytes())
    chosen = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    places = [Path(chosen)] if chosen else [source / "__pycache__", user_cache_path("efhc")]
    for place in places:
        folder = place / f"loops-{source.name}-{digest.hexdigest()[:16]}"
        with suppress(OSError):
            if not folder.exists():
                folder.mkdir(parents=True)
                for old in place.glob(f"loops-{source.name}-*"):
                    if old.stat().st_mtime < time.time() - KEPT_SECONDS:
                        shutil.rmtree(old, ignore_errors=True)
        if os.access(folder, os.W_OK):
            return folder
    return None
