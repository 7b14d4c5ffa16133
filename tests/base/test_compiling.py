"""A damaged cache of compiled loops costs time and a warning, and nothing else."""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from efhc.base import compiling
from efhc.base.compiling import CacheWarning

LOOPS = """
from efhc.base.compiling import compiled

@compiled
def twice(x):
    return 2 * x

@compiled
def fourfold(x):
    return twice(twice(x))
"""


def call(folder: Path) -> tuple[int, float, int]:
    """The loops of a new session: what they compute, and how many came from the disk."""
    compiling._folder.cache_clear()  # which a new process begins without
    loops = _loaded(folder / "loops.py")
    return loops.fourfold(2), loops.fourfold(2.5), sum(loops.fourfold.whole.stats.cache_hits.values())


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module and a sound cache of it."""
    monkeypatch.setattr(compiling, "_warned", [])
    (tmp_path / "loops.py").write_text(LOOPS)
    assert call(tmp_path) == (8, 10.0, 0)
    assert call(tmp_path) == (8, 10.0, 2)
    return tmp_path


REFUSING = """
from efhc.base.compiling import compiled

@compiled
def root(x):
    if x < 0:
        raise ValueError("negative")
    return x ** 0.5

@compiled
def inverse_root(x):
    return 1 / root(x)
"""


def test_only_loops_that_python_calls_become_machine_code(tmp_path: Path):
    (tmp_path / "refusing.py").write_text(REFUSING)
    for hits in 0, 1:  # compiled, and loaded from the disk
        loops = _loaded(tmp_path / "refusing.py")
        assert loops.inverse_root(4.0) == 0.5
        assert sum(loops.inverse_root.whole.stats.cache_hits.values()) == hits
        within = [compiled.library for compiled in loops.root.overloads.values()]
        assert [type(library) for library in within] == [compiling._Unfinished] * (1 - hits)
        with pytest.raises(ValueError, match="negative"):
            loops.inverse_root(-1.0)
        with pytest.raises(ZeroDivisionError):
            loops.inverse_root(0.0)
        assert loops.root(9.0) == 3.0


def test_a_loop_that_was_never_compiled_here_is_told_from_one_that_was(tmp_path: Path):
    (tmp_path / "loops.py").write_text(LOOPS)
    loops = _loaded(tmp_path / "loops.py")
    assert compiling.is_to_be_kept(loops.fourfold)
    loops.fourfold(2)
    assert not compiling.is_to_be_kept(loops.fourfold)
    assert not compiling.is_to_be_kept(_loaded(tmp_path / "loops.py").fourfold)


DAMAGE = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "one bit": lambda content: content[:-200] + bytes([content[-200] ^ 1]) + content[-199:],
}


def kept(folder: Path) -> list[Path]:
    """The files of fourfold."""
    return sorted((folder / "__pycache__").glob("loops-*/loops.fourfold-*"))


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_compiled_again_and_written_anew(folder: Path, damage: str):
    assert len(kept(folder)) == 2
    for file in kept(folder):
        file.write_bytes(DAMAGE[damage](file.read_bytes()))
    with pytest.warns(CacheWarning, match="the compiled loops in .* cannot be read") as caught:
        assert call(folder)[:2] == (8, 10.0)
    assert len(caught) == 1
    assert call(folder) == (8, 10.0, 2)


def test_old_versions_are_removed_when_a_new_one_is_made(tmp_path: Path):
    new, old = (tmp_path / "__pycache__" / f"loops-{tmp_path.name}-{name}" for name in ("new", "old"))
    for folder in new, old:
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    (tmp_path / "loops.py").write_text(LOOPS)
    call(tmp_path)
    assert new.exists()
    assert not old.exists()


LAST_BITS = """
import efhc
fields = dict(iterations=20, devices=6, seeds=(0,), model=efhc.Softmax(), precision="float64")
result = efhc.simulate(**fields, strategies={"RG": efhc.RandomizedGossip()})
print(result.metrics["train_loss"].to_numpy().tobytes().hex())
"""


@pytest.mark.slow
def test_the_last_bits_do_not_depend_on_what_was_compiled_before(tmp_path: Path):
    """Just compiled, loaded from the cache, and compiled again beside the cache of other loops."""

    def bits() -> str:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", LAST_BITS]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    compiled = bits()
    loaded = bits()
    (file,) = tmp_path.rglob("iteration_loops.stretch_of.stretch-*")
    file.unlink()
    assert compiled == loaded == bits()


MADE = """
from efhc.base.compiling import compiled_for, part_for

def made(number):
    @part_for
    def part(x):
        return number * x

    def whole(x):
        return part(x)

    return compiled_for(f"times {number}", whole)
"""


def test_loops_that_are_made_are_kept_by_their_key_until_a_source_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "made.py").write_text(MADE)
    (tmp_path / "other.py").write_text("")

    def session(number: int) -> tuple[int, int]:
        compiling._folder.cache_clear()  # which a new process begins without
        loop = _loaded(tmp_path / "made.py").made(number)
        return loop(2), sum(loop.stats.cache_hits.values())

    assert [session(3), session(5), session(3), session(5)] == [(6, 0), (10, 0), (6, 1), (10, 1)]
    (tmp_path / "other.py").write_text("changed = True")  # beside it: it might call loops from there
    assert [session(3), session(3)] == [(6, 0), (6, 1)]


def test_a_full_disk_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(compiling, "_warned", [])
    (tmp_path / "loops.py").write_text(LOOPS)
    with pytest.warns(CacheWarning, match="cannot be written") as caught:
        assert call(tmp_path) == (8, 10.0, 0)
    assert len(caught) == 1


def test_where_nothing_can_be_written_loops_are_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "loops.py").write_text(LOOPS)
    (tmp_path / "__pycache__").write_text("a file where a folder should be")
    monkeypatch.setattr(compiling, "user_cache_path", lambda name: tmp_path / "loops.py" / name)
    for _ in range(2):
        assert call(tmp_path) == (8, 10.0, 0)
    monkeypatch.setattr(compiling, "user_cache_path", lambda name: tmp_path / name)
    assert [call(tmp_path), call(tmp_path)] == [(8, 10.0, 0), (8, 10.0, 2)]


FOR_KEYS = """
import sys

import numpy as np

from efhc.base.compiling import compiled_for, part_for

def made(factor):
    @part_for
    def scale(x, out):
        for i in range(len(x)):
            out[i] = x[i] * factor + np.sqrt(x[i]) * factor + np.sin(x[i])

    @part_for
    def there_and_back(x, out):
        scale(x, out)
        scale(out, x)

    def loop(x):
        out = np.zeros(len(x))
        there_and_back(x, out)
        there_and_back(x, out)

    return compiled_for(f"times {factor}", loop)

for factor in map(float, sys.argv[1:]):
    loop, x, wanted = made(factor), np.arange(9.0), np.arange(9.0)
    loop(x)
    loop.py_func(wanted)
    print(factor, np.allclose(x, wanted), sum(loop.stats.cache_hits.values()))
"""


@pytest.mark.slow
def test_loops_of_several_keys_from_several_processes_do_not_take_each_others_parts(tmp_path: Path):
    (tmp_path / "for_keys.py").write_text(FOR_KEYS)

    def run(*factors: str) -> str:
        command = [sys.executable, tmp_path / "for_keys.py", *factors]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    assert run("2") == "2.0 True 0\n"
    assert run("3") == "3.0 True 0\n"
    assert run("2", "3") == "2.0 True 1\n3.0 True 1\n"
