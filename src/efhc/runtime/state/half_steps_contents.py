"""A device with half-steps as JSON, in which the arrays are numbers, and its frames as records of a journal.

A checkpoint holds the device; the journal, the frames that it has sent or received since. `replay` makes their steps
again. The model itself, and all that local steps remember, is that of the checkpoint.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from efhc.core.half_steps import Arithmetic, Frame, HalfSteps, LinkEnd
from efhc.runtime.state.contents import Number, token_from_json
from efhc.runtime.wire import HEADER, decode, encode

_RECORD = struct.Struct("<?QI")
"""Whether the frame was sent or received, the neighbour, and the bytes of the frame without its payload."""
_ARRAYS = {"told", "told_before", "heard", "pending_heard", "taught"}
_SCALARS = [each.name for each in fields(LinkEnd) if each.name not in {*_ARRAYS, "token", "partner", "pending"}]


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
    return replace(end, taught=None if end.taught is None else end.taught.copy())


def half_steps_as_json(device: HalfSteps, number: Number) -> dict[str, Any]:
    """Return all that `snapshot` has of a device."""
    return {
        "number": device.number,
        "model": None if device.model is None else number(device.model),
        "k": device.k,
        "steps": device.steps,
        "silent": device.silent,
        "links": [[neighbour, _end_as_json(end, number)] for neighbour, end in device.links.items()],
    }


def _end_as_json(end: LinkEnd, number: Number) -> dict[str, Any]:
    arrays = {name: getattr(end, name) for name in _ARRAYS}
    described: dict[str, Any] = {name: None if array is None else number(array) for name, array in arrays.items()}
    described |= {name: getattr(end, name) for name in _SCALARS} | {"token": end.token, "partner": end.partner}
    if end.pending is not None:
        payload = np.frombuffer(end.pending.payload, np.uint8)
        described["pending"] = [encode(end.pending._replace(payload=b"")).hex(), number(payload)]
    return described


def half_steps_from_json(described: Mapping[str, Any], arrays: Mapping[int, np.ndarray]) -> HalfSteps:
    """Return the device of a checkpoint. Its session and the numbers of its link law are to be set."""
    model = None if described["model"] is None else arrays[described["model"]]
    links = {neighbour: _end(end, arrays) for neighbour, end in described["links"]}
    device = HalfSteps(described["number"], 0, 0.0, 0.0, False, model, described["k"], links)
    device.steps, device.silent = described["steps"], described["silent"]
    return device


def _end(described: Mapping[str, Any], arrays: Mapping[int, np.ndarray]) -> LinkEnd:
    values: dict[str, Any] = {name: described[name] for name in _SCALARS}
    for name in _ARRAYS:
        values[name] = None if described[name] is None else arrays[described[name]]
    values["later"] = tuple(described["later"])
    values["partner"] = None if described["partner"] is None else token_from_json(described["partner"])
    if "pending" in described:
        head, payload = described["pending"]
        values["pending"] = _frame(bytes.fromhex(head), arrays[payload].tobytes())
    return LinkEnd(token_from_json(described["token"]), **values)


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
        (device.commit_sent if is_sent else device.commit_received)(end, frame, version, arithmetic)
        made.append(kept)
    return made
