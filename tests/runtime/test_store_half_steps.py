"""The state folder of a device with half-steps: what a checkpoint and a journal bring back."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stored_devices import IDENTITY, PARAMETERS, opened

from efhc.base.errors import EfhcError
from efhc.core.half_step_messages import Acknowledgement, Frame, Send
from efhc.core.half_steps import HalfSteps, LinkEnd, LinkLaw
from efhc.core.uplink import Pacing, Uplink
from efhc.runtime.state.contents import KeptFrame, replay, snapshot
from efhc.runtime.state.node_store import NodeStore
from efhc.runtime.training import WireArithmetic
from efhc.strategies.parts.codecs import FullCodec

LAWS = {
    "one frame": LinkLaw(0.5, 0.1, keeps_link_correction=True),
    "a window": LinkLaw(1.0, 0.1, keeps_link_correction=True, settles=True, window=4, most_steps=8),
}
UPLINK = Uplink(Pacing(), 1e6, 4, lambda neighbour: 0.0, lambda neighbour: True, 1e-6, chooses_links=True)
ARITHMETIC = WireArithmetic(FullCodec())
DERIVED = {"session", "pull", "learned", "count", "is_paced", "links"}
"""What a restart sets anew."""


class Devices:
    """Device 1 and its neighbour 0, which have exchanged frames, and what the folder of device 1 was given."""

    def __init__(self, law: LinkLaw) -> None:
        self.random, self.kept = np.random.default_rng(0), list[KeptFrame]()
        self.one, self.other = (HalfSteps(number, 7, law, self.model()) for number in (1, 0))
        start = self.model()
        for device in (self.one, self.other):
            device.model = start
            device.link_up(1 - device.number, shared_start=start, sessions=(7, 7))

    def model(self) -> np.ndarray:
        return self.random.standard_normal(PARAMETERS).astype(np.float32)

    def step(self, device: HalfSteps) -> list[Any]:
        """Make a local step; returns the messages."""
        uplink = UPLINK if device.law.settles else None
        effects = device.stepped(self.model(), 0.1, lambda known: [0.0] * len(known), ARITHMETIC, uplink=uplink)
        device.take_pull()
        sent = [effect.message for effect in effects if isinstance(effect, Send)]
        if device is self.one:
            self.kept += [KeptFrame(True, 0, message) for message in sent if isinstance(message, Frame)]
        return sent

    def give(self, device: HalfSteps, messages: list[Any]) -> list[Any]:
        """Deliver messages; returns the answers."""
        answers = []
        for message in messages:
            before = device.links[1 - device.number].last_received
            answers += device.received(1 - device.number, message, ARITHMETIC)
            is_made = isinstance(message, Frame) and device.links[1 - device.number].last_received > before
            if device is self.one and is_made:
                self.kept.append(KeptFrame(False, 0, message))
        device.take_pull()
        return [effect.message for effect in answers if isinstance(effect, Send)]

    def go_on(self, rounds: int) -> None:
        """Some rounds, in the last of which nothing of device 1 arrives; the next ones begin with what was lost."""
        again = [effect.message for effect in self.one.retry(0, all_frames=True) if isinstance(effect, Send)]
        self.give(self.one, self.give(self.other, again))
        for place in range(rounds):
            frames = self.step(self.one)
            if place < rounds - 1:
                self.give(self.one, self.give(self.other, frames))
            self.give(self.other, self.give(self.one, self.step(self.other)))


def values(one: Any) -> Any:
    """What dataclasses and tuples of arrays hold, to be compared."""
    if isinstance(one, np.ndarray):
        return one.tolist()
    if isinstance(one, LinkEnd | HalfSteps):
        return {each.name: values(getattr(one, each.name)) for each in fields(one) if each.name not in DERIVED}
    if isinstance(one, Frame):
        return one._replace(bits=0)  # the sender alone counts bits, and only once
    return [values(each) for each in one] if isinstance(one, list | tuple) else one


@pytest.mark.parametrize("law", LAWS)
def test_a_device_comes_back_with_all_its_versions_and_frames(tmp_path: Path, law: str) -> None:
    devices = Devices(LAWS[law])
    devices.go_on(6)
    kept = snapshot(devices.one)
    with opened(tmp_path) as store:
        store.checkpoint(kept, {}, {})
        expected = values(kept), values(kept.links[0])
        devices.go_on(3)  # a snapshot does not change
        found = store.restore()
    assert found is not None
    device = replace(found.device, law=LAWS[law])
    assert (values(device), values(device.links[0])) == expected == (values(kept), values(kept.links[0]))
    assert kept.links[0].pending
    assert (kept.links[0].about is not None) == (law == "a window")


@pytest.mark.parametrize("law", LAWS)
def test_the_journal_makes_the_steps_since_the_checkpoint_again(tmp_path: Path, law: str) -> None:
    devices = Devices(LAWS[law])
    devices.go_on(4)
    devices.kept.clear()
    with opened(tmp_path) as store:
        store.checkpoint(snapshot(devices.one), {}, {})
        devices.go_on(40)  # whose acknowledgements are not in the journal
        store.keep_frames(devices.kept)
        found = store.restore()
    assert found is not None
    device = replace(found.device, law=LAWS[law])
    made = replay(device, found.frames, ARITHMETIC)
    assert len(made) == len(devices.kept) > 40
    lived, end = devices.one.links[0], device.links[0]
    same = (
        "last_sent", "last_received", "known_here", "moved_by_other", "sent_at_k", "has_news", "link_correction",
        "about", "about_sent", "degree_sent",
    )  # fmt: skip
    for name in same:
        assert values(getattr(end, name)) == values(getattr(lived, name)), name
    assert [each.frame.number for each in lived.pending] == [each.frame.number for each in end.pending][
        -len(lived.pending) :
    ]
    assert len(end.pending) <= len(end.versions) <= LAWS[law].window + 1
    assert values(end.versions[-1]) == values(lived.versions[-1])
    assert (device.about, device.redundant) == (devices.one.about, devices.one.redundant)
    answer = Acknowledgement(lived.partner, lived.token, lived.last_sent, lived.last_received, 1)
    for one in (devices.one, device):
        one.received(0, answer, ARITHMETIC)
    assert values(end.versions) == values(lived.versions)
    assert not end.pending


def test_frames_that_have_overtaken_others_are_not_kept(tmp_path: Path) -> None:
    devices = Devices(LAWS["a window"])
    devices.go_on(3)
    devices.step(devices.other)
    devices.give(devices.one, devices.step(devices.other))
    assert devices.one.links[0].out_of_order
    with opened(tmp_path) as store:
        store.checkpoint(snapshot(devices.one), {}, {})
        found = store.restore()
    assert found is not None
    assert found.device.links[0].out_of_order == {}


def test_a_state_of_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = Devices(LAWS["one frame"])
    with opened(tmp_path) as store:
        monkeypatch.setattr("efhc.runtime.state.contents.FORMAT", 1)
        store.checkpoint(snapshot(devices.one), {}, {})
    monkeypatch.undo()
    with NodeStore(tmp_path, IDENTITY, PARAMETERS, "float32") as store, pytest.raises(EfhcError, match="format 1"):
        store.restore()
