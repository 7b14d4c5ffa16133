"""A damaged cache of compiled loops costs time and a warning, and nothing else."""

from __future__ import annotations

import errno
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from numba.core import caching

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
    spec = importlib.util.spec_from_file_location("loops", folder / "loops.py")
    loops = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loops)
    return loops.fourfold(2), loops.fourfold(2.5), sum(loops.fourfold.stats.cache_hits.values())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module and a sound cache of it."""
    monkeypatch.setattr(compiling, "_warned", [])
    (tmp_path / "loops.py").write_text(LOOPS)
    assert call(tmp_path) == (8, 10.0, 0)
    assert call(tmp_path) == (8, 10.0, 2)
    return tmp_path


DAMAGE = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "garbage": lambda content: b"\x93garbage" * 40,
    "one bit": lambda content: content[:-200] + bytes([content[-200] ^ 1]) + content[-199:],
}


@pytest.mark.parametrize(
    ("ending", "damage"),
    [(".nbi", "empty"), (".nbi", "cut"), (".nbi", "garbage"), (".nbc", "empty"), (".nbc", "cut"), (".nbc", "one bit")],
)
def test_damaged_files_are_compiled_again_and_written_anew(folder: Path, ending: str, damage: str):
    for file in (folder / "__pycache__").glob(f"loops.fourfold*{ending}"):
        file.write_bytes(DAMAGE[damage](file.read_bytes()))
    with pytest.warns(CacheWarning, match="the compiled loops in .* cannot be read") as caught:
        assert call(folder)[:2] == (8, 10.0)
    assert len(caught) == 1
    assert call(folder) == (8, 10.0, 2)


def test_machine_code_of_another_signature_is_not_executed(folder: Path):
    """Two processes that save at the same time may give their files one number."""
    first, second = sorted((folder / "__pycache__").glob("loops.fourfold*.nbc"))
    second.write_bytes(first.read_bytes())
    with pytest.warns(CacheWarning):
        assert call(folder)[:2] == (8, 10.0)


def test_a_full_disk_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: str, mode: str = "r") -> Any:
        if "w" in mode:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return Path(path).open(mode)

    monkeypatch.setattr(caching, "open", full, raising=False)
    monkeypatch.setattr(compiling, "_warned", [])
    (tmp_path / "loops.py").write_text(LOOPS)
    with pytest.warns(CacheWarning, match="cannot be written") as caught:
        assert call(tmp_path) == (8, 10.0, 0)
    assert len(caught) == 1


def test_files_that_cannot_be_read_are_done_without(folder: Path):
    for file in (folder / "__pycache__").glob("loops.fourfold*.nbi"):
        file.unlink()
        file.mkdir()  # unreadable for root, too
    with pytest.warns(CacheWarning) as caught:
        assert call(folder) == (8, 10.0, 0)
    assert len(caught) == 1
