"""Full disks, failing disks and kills: real ones where the machine allows it."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from stored_devices import Expected, History, described, found_in, opened

from efhc.base.saving import SaveError


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    if os.geteuid() != 0:
        pytest.skip("to mount a small disk takes root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fill(folder: Path, history: History, expected: Expected, *, at_most: int) -> tuple[dict, SaveError]:
    """Keep steps until the disk is full; returns the last state that was kept, and the error."""
    with opened(folder, parameters=history.parameters) as store:
        store.restore()
        state = expected.checkpoint(store)
        for _ in range(at_most):
            history.decide(2)
            try:
                state = expected.keep(store)
            except SaveError as error:
                size = (folder / "journal").stat().st_size
                assert size == store.journal_bytes, "what was written in part is taken back"
                with pytest.raises(SaveError, match="an earlier write failed"):
                    store.keep(history.device, [])
                return state, error
    raise AssertionError("the disk was never full")


def test_a_checkpoint_on_a_full_disk_leaves_the_old_one_and_its_journal(small_disk: Path):
    history = History(parameters=1000)
    expected = Expected(history)
    folder = small_disk / "state"
    state, _ = fill(folder, history, expected, at_most=50)
    with opened(folder, parameters=1000) as store:
        store.restore()
        with pytest.raises(SaveError, match="No space left on device"):
            store.checkpoint(history.device, {}, {})
        assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.safetensors", "journal", "lock"]
    assert described(found_in(folder, parameters=1000).device) == state


def test_a_checkpoint_makes_a_failed_journal_whole(small_disk: Path):
    """Once there is space again."""
    history = History(parameters=1000)
    expected = Expected(history)
    folder = small_disk / "state"
    with opened(folder, parameters=1000) as store:
        store.restore()
        expected.checkpoint(store)
        (small_disk / "other").write_bytes(bytes(50_000))
        history.decide(2)
        history.decide(3)
        with pytest.raises(SaveError):
            store.keep(history.device, history.new)
        (small_disk / "other").unlink()
        expected.checkpoint(store)
        history.decide(4)
        state = expected.keep(store)
    assert described(found_in(folder, parameters=1000).device) == state


def test_a_file_that_may_not_grow_keeps_what_was_kept(tmp_path: Path):
    """As on a quota. Python ignores the signal that comes with it."""
    history = History(parameters=1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        state, error = fill(tmp_path / "state", history, Expected(history), at_most=20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in str(error)
    assert described(found_in(tmp_path / "state", parameters=1000).device) == state


def test_a_disk_that_fails_to_sync_is_not_relied_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After an EIO the system may call the same pages clean, so the next fsync must not count either."""
    history = History()
    expected = Expected(history)
    with opened(tmp_path / "state") as store:
        store.restore()
        expected.checkpoint(store)
        history.decide(2)
        state = expected.keep(store)

        def failing(number: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        history.decide(3)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            with pytest.raises(SaveError, match="Input/output error"):
                store.keep(history.device, history.new)
        with pytest.raises(SaveError, match="an earlier write failed"):
            store.keep(history.device, history.new)
    assert described(found_in(tmp_path / "state").device) == state


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from stored_devices import Expected, History, described, opened

history = History(parameters=20_000)
expected = Expected(history)
with opened(Path(sys.argv[2]), parameters=20_000) as store:
    found = store.restore()
    history.device.session = 0 if found is None else found.device.session
    expected.checkpoint(store)
    print(history.device.session, flush=True)
    for n in range(1, 100_000):
        history.device.session += 1
        history.decide(n % 5)
        history.doubt(7 + n % 5)
        history.told(7 + (n + 1) % 5)
        if n % 7 == 0:
            history.gradient(0)
        expected.keep(store) if n % 20 else expected.checkpoint(store)
        print(history.device.session, flush=True)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_loses_nothing_that_was_kept(tmp_path: Path):
    """A number is on the disk before the process says it; after the kill it is there, or the one that came next."""
    command = [sys.executable, "-c", CHILD, str(Path(__file__).parent), str(tmp_path / "state")]
    last, grew = 0, 0
    for moment in range(15):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert int(child.stdout.readline()) == last
            time.sleep(0.002 * moment)
            child.send_signal(signal.SIGKILL)
            said = [int(line) for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        with opened(tmp_path / "state", parameters=20_000) as store:
            found = store.restore()
            assert found is not None
            assert found.device.session in {said[-1] if said else last, (said[-1] if said else last) + 1}
            assert all("WARNING" not in note for note in found.notes)
            grew += found.device.session > last
            last = found.device.session
    assert grew > 5, "the kills came in the midst of work"
