from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from stored_devices import IDENTITY, PARAMETERS, Expected, History, described, found_in, opened

from efhc.base.errors import EfhcError
from efhc.base.saving import read_tensors
from efhc.core.device import durable
from efhc.runtime.state.node_store import NodeStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def with_one_doubt(folder: Path) -> tuple[History, Expected]:
    """A folder with a checkpoint, and a journal with an exchange in doubt and a step."""
    history = History()
    expected = Expected(history)
    with opened(folder) as store:
        assert store.restore() is None
        expected.checkpoint(store)
        history.doubt(2)
        history.decide(3)
        expected.keep(store)
    return history, expected


def test_facts_and_tensors_come_back(folder: Path):
    tensors = {"start": np.arange(4.0), "counts": np.array([[1, 2]], np.int64), "gradients": np.zeros(0)}
    facts = {"loss": 0.25, "recorded": [1, None, "text"], "deep": {"a": True}}
    with opened(folder) as store:
        store.restore()
        store.checkpoint(History().device, facts, tensors)
    found = found_in(folder)
    assert found.facts == facts
    assert found.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert np.array_equal(found.tensors[name], tensor)
        assert found.tensors[name].flags.writeable


def test_a_checkpoint_can_be_read_by_others(folder: Path):
    """It is an ordinary .safetensors file, in which the model has its name."""
    history, _ = with_one_doubt(folder)
    tensors, _ = read_tensors(folder / "checkpoint.safetensors")
    assert tensors["model"].tolist() == history.device.model.tolist()
    assert tensors["start"].tolist() == [0, 1, 2]


def test_a_model_is_written_once(folder: Path):
    """Two exchanges of one iteration send the same array; the one in doubt is committed later; a checkpoint has it."""
    parameters = 10_000
    model_bytes = 4 * parameters
    history = History(parameters=parameters)
    with opened(folder, parameters=parameters) as store:
        store.restore()
        expected = Expected(history)
        expected.checkpoint(store)
        sizes = [store.journal_bytes]
        for happen in (lambda: history.doubt(2), lambda: history.decide(3), lambda: history.told(2)):
            happen()
            expected.keep(store)
            sizes.append(store.journal_bytes)
        received_only = [round((after - before) / model_bytes, 1) for before, after in itertools.pairwise(sizes)]
        assert received_only == [1.0, 1.0, 0.0], "what was sent is the checkpoint's model"
        history.doubt(4)
        expected.checkpoint(store)
        empty = store.journal_bytes
        history.told(4)
        state = expected.keep(store)
        assert store.journal_bytes - empty < model_bytes
    with opened(folder, parameters=parameters) as store:
        found = store.restore()
        assert described(found.device) == state
        before = store.journal_bytes
        store.keep(found.device, [])
        store.keep(found.device, found.device.steps[:1])  # arrays that were read are known as well
        assert store.journal_bytes - before < model_bytes


def test_the_store_keeps_no_model_alive(folder: Path):
    history = History()
    expected = Expected(history)
    with opened(folder) as store:
        store.restore()
        expected.checkpoint(store)
        history.decide(2)
        gone = weakref.ref(history.device.steps[0].received)
        expected.keep(store)
        history.gradient(0)
        gc.collect()
        assert gone() is None
        for _ in range(200):  # new arrays get the ids of old ones
            history.decide(3)
            state = expected.keep(store)
            history.gradient(0)
        state = expected.keep(store)
    assert described(found_in(folder).device) == state


def test_without_a_journal_only_checkpoints_are_kept(folder: Path):
    history = History()
    expected = Expected(history)
    with opened(folder, journal=False) as store:
        assert store.restore() is None
        state = expected.checkpoint(store)
        history.decide(2)
        store.keep(durable(history.device), history.new)
        assert store.journal_bytes == 0
    assert not (folder / "journal").exists()
    assert described(found_in(folder).device) == state


def test_a_journal_that_was_written_counts_where_none_is_kept_any_more(folder: Path):
    _, expected = with_one_doubt(folder)
    with opened(folder, journal=False) as store:
        assert described(store.restore().device) == expected.now()
        expected.checkpoint(store)
    assert not (folder / "journal").exists()


@pytest.mark.parametrize("name", [*IDENTITY, "parameters", "precision"])
def test_the_state_of_another_node_is_refused_by_the_field_that_differs(folder: Path, name: str):
    with_one_doubt(folder)
    identity = {**IDENTITY, **({name: "other"} if name in IDENTITY else {})}
    parameters = PARAMETERS + (name == "parameters")
    precision = "float64" if name == "precision" else "float32"
    with (
        NodeStore(folder, identity, parameters, precision) as store,
        pytest.raises(EfhcError, match=rf"holds the state of another node: its {name} is .*choose another folder"),
    ):
        store.restore()


DAMAGES = {
    "a bit of the numbers": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "half": lambda content: content[: len(content) // 2],
    "nothing": lambda content: b"",
    "another session": lambda content: content.replace(b'\\"session\\": 7', b'\\"session\\": 6'),
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_corrupt_checkpoint_says_what_to_do(folder: Path, damage: str):
    with_one_doubt(folder)
    path = folder / "checkpoint.safetensors"
    content = path.read_bytes()
    path.write_bytes(DAMAGES[damage](content))
    assert path.read_bytes() != content
    with opened(folder) as store, pytest.raises(EfhcError) as error:
        store.restore()
    assert str(error.value).startswith(f"{path} cannot be used (")
    path.unlink()
    (folder / "journal").unlink()
    with opened(folder) as store:  # what the line says helps
        assert store.restore() is None


def test_a_checkpoint_of_a_later_version_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("efhc.runtime.state.state_folder.FORMAT", 2)
    with_one_doubt(folder)
    monkeypatch.undo()
    with opened(folder) as store, pytest.raises(EfhcError, match="format 2, and this version of efhc reads format 1"):
        store.restore()


def test_a_journal_without_its_checkpoint_is_refused(folder: Path):
    with_one_doubt(folder)
    (folder / "checkpoint.safetensors").unlink()
    with opened(folder) as store, pytest.raises(EfhcError, match="follows a checkpoint that is missing; bring"):
        store.restore()


def test_a_journal_beside_an_older_checkpoint_is_refused(folder: Path):
    """Somebody copied a backup of one of the two files."""
    _, expected = with_one_doubt(folder)
    path = folder / "checkpoint.safetensors"
    old = path.read_bytes()
    with opened(folder) as store:
        store.restore()
        expected.checkpoint(store)
    path.write_bytes(old)
    with opened(folder) as store, pytest.raises(EfhcError, match="follows a newer checkpoint than"):
        store.restore()


def test_damage_in_the_middle_is_said_louder(folder: Path):
    history, expected = with_one_doubt(folder)
    sealed, state = (folder / "journal").stat().st_size, expected.now()
    with opened(folder) as store:
        store.restore()
        for _ in range(3):
            history.decide(4)
            expected.keep(store)
    content = bytearray((folder / "journal").read_bytes())
    content[sealed + 40] ^= 1
    (folder / "journal").write_bytes(content)
    found = found_in(folder)
    assert described(found.device) == state
    assert len(found.notes) == 1
    assert "WARNING" in found.notes[0]
    assert f"All from byte {sealed} on was cut ({len(content) - sealed} bytes)" in found.notes[0]


def test_damage_is_found_across_chunks(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("efhc.runtime.state.journal._CHUNK", 16)
    test_damage_in_the_middle_is_said_louder(folder)


def test_all_is_on_the_disk_before_it_is_relied_on(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The journal's content after each `keep`, and names before the old journal goes."""
    synced: list[str] = []
    fsync = os.fsync

    def listening(number: int) -> None:
        path = Path(f"/proc/self/fd/{number}").readlink()
        name = path.name.split(".")[1] if path.name.startswith(".") else path.name
        size = "" if path.is_dir() else f" {path.stat().st_size}"
        old = old_journal is not None and (folder / "journal").stat().st_ino == old_journal
        synced.append(f"{name}{size}{' beside the old journal' if old else ''}")
        fsync(number)

    history = History()
    expected = Expected(history)
    old_journal: int | None = None
    with opened(folder) as store:
        store.restore()
        expected.checkpoint(store)
        monkeypatch.setattr(os, "fsync", listening)
        history.decide(2)
        expected.keep(store)
        assert synced == [f"journal {(folder / 'journal').stat().st_size}"]
        synced.clear()
        old_journal = (folder / "journal").stat().st_ino
        expected.checkpoint(store)
        checkpoint = (folder / "checkpoint.safetensors").stat().st_size
        assert synced == [
            f"checkpoint {checkpoint} beside the old journal",
            "state beside the old journal",
            f"journal {store.journal_bytes} beside the old journal",
            "state",
        ]


MEMORY = """
import sys
from pathlib import Path
import numpy as np
from efhc.core.device import Device, Exchange, Link
from efhc.runtime.state.node_store import NodeStore

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024

n = 5_000_000  # 20 MB
model, received = np.ones(n, np.float32), np.ones(n, np.float32)
exchange = Exchange((1, 1, 1), model, 0.25, False, 2, 0, (2, 1, 1), 0, received, None, True)
device = Device(1, 1, model, model, links={2: Link(exchange=exchange)})
with NodeStore(Path(sys.argv[1]), {}, n, "float32") as store:
    store.restore()
    before = peak()
    store.checkpoint(device, {}, {})
    store.keep(device, [])
    del model, received, exchange
    links, device.links = device.links, {}
    store.checkpoint(device, {}, {})
    device.links = links
    store.keep(device, [])
    print(peak() - before)
del device, links
with NodeStore(Path(sys.argv[1]), {}, n, "float32") as store:
    found = store.restore()
    print(peak() - before)
"""


def test_no_model_is_copied(folder: Path):
    """Neither to write it, nor to read it. A model has 20 MB here."""
    command = [sys.executable, "-c", MEMORY, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    writing, reading = map(float, done.stdout.split())
    assert writing < 8
    assert reading < 8, "what was written is gone, so what is read takes its place"
