"""A device with half-steps as JSON, in which the arrays are numbers, and its frames as records of a journal.

A checkpoint holds the device; the journal, the frames that it has sent or received since. `replay` makes their steps
again. The model itself, and all that local steps remember, is that of the checkpoint. Frames that have overtaken others
are not kept: after a restart there is a new connection, on which neighbours send all unacknowledged frames again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from efhc.base.errors import EfhcError
from efhc.core.half_steps import Arithmetic, Frame, HalfSteps, LinkEnd, LinkLaw, Pending, Version
from efhc.core.uplink import About
from efhc.runtime.state.contents import Number, token_from_json
from efhc.runtime.state.folder import ANOTHER_FOLDER
from efhc.runtime.wire import HEADER, decode, encode

FORMAT = 2
"""Of what `half_steps_as_json` returns. Format 1 had no such number, and one unacknowledged frame per end."""
_RECORD = struct.Struct("<?QI")
"""Whether the frame was sent or received, the neighbour, and the bytes of the frame without its payload."""
_ARRAYS = {"heard", "heard_moved", "pending_heard", "taught"}
_ABOUT = {"about", "about_told"}
_OTHERS = {"token", "partner", "known_to", "versions", "pending", "early"}
_SCALARS = [each.name for each in fields(LinkEnd) if each.name not in _ARRAYS | _ABOUT | _OTHERS]
_OF_DEVICE = ("k", "steps", "load", "scale", "silent", "frame_bytes")


class KeptFrame(NamedTuple):
    """A frame whose step a device has made."""

    is_sent: bool
    neighbour: int
    frame: Frame

    def parts(self) -> Sequence[bytes]:
        """Return the payload of the record, in parts."""
        head = encode(self.frame._replace(payload=b""))
        return _RECORD.pack(self.is_sent, self.neighbour, len(head)), head, self.frame.payload

    @classmethod
    def of(cls, record: bytes) -> KeptFrame:
        """Return what `parts` made a record of."""
        is_sent, neighbour, size = _RECORD.unpack_from(record)
        head, payload = record[_RECORD.size : _RECORD.size + size], record[_RECORD.size + size :]
        return cls(is_sent, neighbour, _frame(head, payload))


def snapshot(device: HalfSteps) -> HalfSteps:
    """Return a copy that later steps do not change. What links have added must be in the model already."""
    assert device.pull is None
    links = {neighbour: _copy(end) for neighbour, end in device.links.items()}
    return replace(device, links=links)


def _copy(end: LinkEnd) -> LinkEnd:
    taught = None if end.taught is None else end.taught.copy()
    return replace(end, taught=taught, versions=list(end.versions), pending=list(end.pending), early={})


def half_steps_as_json(device: HalfSteps, number: Number) -> dict[str, Any]:
    """Return all that `snapshot` has of a device."""
    return {name: getattr(device, name) for name in _OF_DEVICE} | {
        "format": FORMAT,
        "number": device.number,
        "model": None if device.model is None else number(device.model),
        "about": device.about,
        "links": [[neighbour, _end_as_json(end, number)] for neighbour, end in device.links.items()],
    }


def _end_as_json(end: LinkEnd, number: Number) -> dict[str, Any]:
    def place(array: np.ndarray | None) -> int | None:
        return None if array is None else number(array)

    described: dict[str, Any] = {name: place(getattr(end, name)) for name in _ARRAYS}
    described |= {name: getattr(end, name) for name in [*_SCALARS, *_ABOUT]}
    described |= {"token": end.token, "partner": end.partner}
    described["versions"] = [[place(told), place(moved)] for told, moved in end.versions]
    described["pending"] = [
        [encode(frame._replace(payload=b"")).hex(), number(np.frombuffer(frame.payload, np.uint8)), elapsed, steps]
        for frame, elapsed, steps in end.pending
    ]
    return described


def half_steps_from_json(described: Mapping[str, Any], arrays: Mapping[int, np.ndarray]) -> HalfSteps:
    """Return the device of a checkpoint. Its session and its link law are to be set.

    Raises `EfhcError` if another version of efhc has written it.
    """
    if (found := described.get("format", 1)) != FORMAT:
        raise EfhcError(
            f"the state folder of this node has format {found} of half-steps, and this version of efhc reads format "
            f"{FORMAT}; {ANOTHER_FOLDER}"
        )
    model = None if described["model"] is None else arrays[described["model"]]
    links = {neighbour: _end(end, arrays) for neighbour, end in described["links"]}
    device = HalfSteps(described["number"], 0, LinkLaw(0.0), model, links=links, about=_about(described["about"]))
    for name in _OF_DEVICE:
        setattr(device, name, described[name])
    device.choose_links()
    return device


def _end(described: Mapping[str, Any], arrays: Mapping[int, np.ndarray]) -> LinkEnd:
    def array(place: int | None) -> np.ndarray | None:
        return None if place is None else arrays[place]

    values: dict[str, Any] = {name: described[name] for name in _SCALARS}
    values |= {name: array(described[name]) for name in _ARRAYS}
    values |= {name: _about(described[name]) for name in _ABOUT}
    values["later"] = tuple(described["later"])
    values["partner"] = None if described["partner"] is None else token_from_json(described["partner"])
    values["versions"] = [Version(array(told), array(moved)) for told, moved in described["versions"]]
    values["pending"] = [
        Pending(_frame(bytes.fromhex(head), arrays[payload].tobytes()), elapsed, steps)
        for head, payload, elapsed, steps in described["pending"]
    ]
    return LinkEnd(token_from_json(described["token"]), **values)


def _about(described: Sequence[Any] | None) -> About | None:
    if described is None:
        return None
    rate, is_slow, neighbours = described
    return About(rate, is_slow, tuple(neighbours))


def _frame(head: bytes, payload: bytes) -> Frame:
    frame: Frame = decode(head[HEADER.size - 1], head[HEADER.size :])
    return frame._replace(payload=payload)


def replay(device: HalfSteps, frames: Iterable[KeptFrame], arithmetic: Arithmetic) -> list[KeptFrame]:
    """Make the steps of the journal again, which the lost model contained; returns the frames whose steps it made."""
    made = []
    for kept in frames:
        is_sent, neighbour, frame = kept
        end = device.links.get(neighbour)
        if end is None or (end.token if is_sent else end.partner) != frame.source:
            continue  # of an earlier life of the link
        version = arithmetic.decode(frame.payload, end.told if is_sent else end.heard)
        if is_sent:
            device.commit_sent(end, frame, version, arithmetic)
            end.served, end.degree_told, end.owes, device.about = frame.k, frame.degree, False, end.about_told
        else:
            device.commit_received(end, frame, version, arithmetic)
            end.degree, end.owes = frame.degree, True
        made.append(kept)
    device.load = 0.0  # it is that of many local steps
    device.choose_links()
    return made
