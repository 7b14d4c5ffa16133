"""Whatever happens to a device, and wherever its journal is cut: a restart finds a state that was kept."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_devices import Expected, History, described, opened

from efhc.runtime.state.node_store import NodeStore

State = dict[str, Any]

WHAT = ("doubt", "told", "decide", "acknowledged", "gradient")
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(WHAT), st.integers(2, 5)),
        st.sampled_from([("keep", 0), ("keep", 0), ("checkpoint", 0), ("restart", 0)]),
    ),
    max_size=25,
)


LONGEST_STATE = 3000
"""No state of these histories takes more bytes."""


def no_sync(number: int) -> None:
    """A disk is not waited for where only the content of files matters."""


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", no_sync)


def play(actions: list[tuple[str, int]], seed: int, folder: Path) -> list[tuple[int, State]]:
    """Let things happen to a device; returns the length of the journal and the state after each `keep`."""
    history = History(seed)
    expected = Expected(history)
    store = opened(folder)
    assert store.restore() is None
    state = expected.checkpoint(store)
    kept = [(store.journal_bytes, state)]
    for action, neighbour in actions:
        if action == "keep":
            state = expected.keep(store)
            kept.append((store.journal_bytes, state))
        elif action == "checkpoint":
            state = expected.checkpoint(store)
            kept = [(store.journal_bytes, state)]
        elif action == "restart":  # nothing is lost by it, and the journal goes on
            store.__exit__(None, None, None)
            store = opened(folder)
            assert found_in(store) == (kept[-1][1], [])
        else:
            getattr(history, action)(neighbour)
    store.__exit__(None, None, None)
    return kept


def found_in(store: NodeStore) -> tuple[State, list[str]]:
    found = store.restore()
    assert found is not None
    assert found.tensors["start"].tolist() == [0, 1, 2]
    assert found.facts == {"k": found.device.k}
    return described(found.device), found.notes


@given(actions=ACTIONS, cut=st.integers(0, 1500), seed=st.integers(0, 9))
def test_a_cut_journal_gives_the_last_state_that_was_kept_before_the_cut(
    actions: list[tuple[str, int]], cut: int, seed: int
):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "state"
        kept = play(actions, seed, folder)
        journal = folder / "journal"
        length = max(0, journal.stat().st_size - cut)
        os.truncate(journal, length)
        expected = [state for end, state in kept[1:] if end <= length] or [kept[0][1]]
        with opened(folder) as store:
            state, notes = found_in(store)
            assert state == expected[-1]
            assert len(notes) == (length not in [end for end, _ in kept])
        with opened(folder) as store:  # what was cut is gone for good, and is said once
            assert found_in(store) == (expected[-1], [])


@given(actions=ACTIONS, seed=st.integers(0, 9), data=st.data())
def test_a_flipped_bit_gives_a_state_that_was_kept_before_it(
    actions: list[tuple[str, int]], seed: int, data: st.DataObject
):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "state"
        kept = play(actions, seed, folder)
        content = bytearray((folder / "journal").read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= 1 << data.draw(st.integers(0, 7))
        (folder / "journal").write_bytes(content)
        with opened(folder) as store:
            state, notes = found_in(store)
        assert state == ([kept[0][1]] + [state for end, state in kept[1:] if end <= at])[-1]
        assert len(notes) == 1
        if at < kept[-1][0] - LONGEST_STATE or at < kept[0][0]:  # the last record may as well have been torn
            assert "WARNING" in notes[0]


@given(actions=ACTIONS, seed=st.integers(0, 9))
def test_a_journal_beside_a_newer_checkpoint_is_not_applied_again(actions: list[tuple[str, int]], seed: int):
    """A kill between the two leaves the new checkpoint and the old journal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "state"
        play(actions, seed, folder)
        old = (folder / "journal").read_bytes()
        kept = play_on(folder)
        (folder / "journal").write_bytes(old)
        with opened(folder) as store:
            assert found_in(store) == (kept, [])


def play_on(folder: Path) -> State:
    """Make a checkpoint of another device in the same folder."""
    with opened(folder) as store:
        store.restore()
        return Expected(History(99)).checkpoint(store)
