"""Devices as JSON, in which arrays are numbers, and frames as records of a journal.

With exchanges, a checkpoint holds the device, and the journal the steps that were committed since, decisions and
exchanges in doubt. With half-steps, the journal holds the frames that the device has sent or received since, and
`replay` makes their steps again. The model, and all that local steps remember, is that of the checkpoint. Frames that
have overtaken others are not kept: neighbours send all unacknowledged frames again on the next connection.
"""

from __future__ import annotations

import json
import struct
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from efhc.base.errors import EfhcError
from efhc.core.device import Decision, Device, Exchange, Link, Step
from efhc.core.half_step_messages import Frame
from efhc.core.half_steps import Arithmetic, HalfSteps, LinkEnd, LinkLaw, Pending, Version
from efhc.core.protocol import Token
from efhc.core.uplink import About
from efhc.runtime.state.state_folder import ANOTHER_FOLDER
from efhc.runtime.wire import HEADER, decode, encode

Arrays = Mapping[int | None, Any]
"""Arrays by number, and None by None."""


class ArrayNumbers:
    """The numbers of the arrays that are on the disk. An array is known by its identity, and is not kept alive.

    So no model is written twice: the same array is the `sent` of all exchanges that a device begins in an iteration,
    and it is in a journal both while its exchange is in doubt and when its step is committed. Arrays with a number must
    not be changed.
    """

    def __init__(self) -> None:
        self.next = 0
        """The number of the next array that is new."""
        self._known: dict[int, tuple[weakref.ref[np.ndarray], int]] = {}

    def find(self, array: np.ndarray) -> int | None:
        """Return the number of an array, or None if it has none."""
        known, number = self._known.get(id(array), (None, None))
        return number if known is not None and known() is array else None

    def add(self, array: np.ndarray, number: int | None = None) -> int:
        """Give an array a number (default: the next one), and return it."""
        number = self.next if number is None else number
        self.next = max(self.next, number + 1)
        known, name = self._known, id(array)
        # Once the array is gone, another one may get its id. The callback runs before that, in whatever thread.
        known[name] = weakref.ref(array, lambda _: known.pop(name, None)), number
        return number

    def forget(self, array: np.ndarray) -> None:
        """Take the number of an array away: it is not on the disk after all."""
        self._known.pop(id(array), None)


def numbered(described: Any, numbers: ArrayNumbers) -> tuple[Any, dict[int, np.ndarray]]:
    """Return plain data with the numbers of arrays in place of the arrays, and by number, those that had none before.

    They get their numbers in the order in which they come.
    """
    new: dict[int, np.ndarray] = {}

    def plain(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value.item()  # a number of NumPy
        number = numbers.find(value)
        if number is None:
            number = numbers.add(value)
            new[number] = value
        return number

    return json.loads(json.dumps(described, default=plain)), new


# Exchanges


def described_promises(device: Device) -> dict[str, Any]:
    """Return all that changes between two checkpoints and must survive: session, decisions, exchanges in doubt."""
    exchanges = {neighbour: link.exchange for neighbour, link in device.links.items() if link.exchange is not None}
    assert all(exchange.in_doubt for exchange in exchanges.values()), "no other exchange survives"
    return {
        "session": device.session,
        "decisions": list(device.unacknowledged.items()),
        "doubts": [
            [neighbour, {name: getattr(exchange, name) for name in _OF_EXCHANGE}]
            for neighbour, exchange in exchanges.items()
        ],
    }


_OF_DEVICE_WITH_EXCHANGES = {name: name for name in (
    "number", "model", "last_broadcast", "k", "finished", "copies", "rounds", "steps",
)} | {"copies": "waits_for_model", "rounds": "sends_rounded"}  # fmt: skip
"""By name in the file, the field of `Device`."""
_OF_EXCHANGE = ("token", "sent", "share", "event", "k", "partner", "partner_k", "received")


def described_device(device: Device) -> dict[str, Any]:
    """Return the device that `durable` returned."""
    described = {name: getattr(device, attribute) for name, attribute in _OF_DEVICE_WITH_EXCHANGES.items()}
    return described | {"promises": described_promises(device)}


def numbers_in(steps: list[list[Any]], promises: Mapping[str, Any]) -> Iterator[int]:
    """Yield the numbers of the arrays that steps and promises need."""
    for *_, sent, received in steps:
        yield from (sent, received)
    for _, exchange in promises["doubts"]:
        yield from (exchange["sent"], exchange["received"])


def device_from_json(
    device: Mapping[str, Any], steps: list[list[Any]], promises: Mapping[str, Any], arrays: Arrays
) -> Device:
    """Return the device of a checkpoint, with these steps and promises."""
    return Device(
        number=device["number"],
        session=promises["session"],
        model=arrays[device["model"]],
        last_broadcast=arrays[device["last_broadcast"]],
        k=device["k"],
        links={neighbour: Link(up=False, exchange=_exchange(doubt, arrays)) for neighbour, doubt in promises["doubts"]},
        steps=[Step(neighbour, beta, arrays[sent], arrays[received]) for neighbour, beta, sent, received in steps],
        unacknowledged={
            token_from_json(token): Decision(neighbour, token_from_json(partner))
            for token, (neighbour, partner) in promises["decisions"]
        },
        finished=device["finished"],
        waits_for_model=device["copies"],
        sends_rounded=device["rounds"],
    )


def _exchange(doubt: Mapping[str, Any], arrays: Arrays) -> Exchange:
    tokens = {name: token_from_json(doubt[name]) for name in ("token", "partner")}
    models = {name: arrays[doubt[name]] for name in ("sent", "received")}
    return Exchange(**{**doubt, **tokens, **models}, decides=False, ready=True)


def token_from_json(given: list[int]) -> Token:
    """Return a token that was written as JSON."""
    device, session, count = given
    return device, session, count


# Half-steps

FORMAT = 2
"""Format of a device with half-steps. Format 1 had no such number, and one unacknowledged frame per end."""
_RECORD = struct.Struct("<?QI")
"""Whether the frame was sent or received, the neighbour, and the bytes of the frame without its payload."""
_ARRAYS = ("known_here", "moved_by_other", "pending_known_here", "link_correction")
_SCALARS = {name: name for name in (
    "acknowledged", "oldest_usable", "elapsed", "local_steps", "has_news", "degree", "degree_sent", "is_new",
)} | {
    "out": "last_sent", "inn": "last_received", "later": "usable_after", "served": "sent_at_k",
    "owes": "must_acknowledge", "degree": "other_degree",
}  # fmt: skip
"""By name in the file, the field of `LinkEnd`. The names in the file stay when a field is renamed."""
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
        is_sent, neighbour, size = _RECORD.unpack_from(record)
        head, payload = record[_RECORD.size : _RECORD.size + size], record[_RECORD.size + size :]
        return cls(is_sent, neighbour, _frame(head, payload))


def snapshot(device: HalfSteps) -> HalfSteps:
    """Return a copy that later steps do not change. The model must contain the steps of all links."""
    assert device.pull is None
    links = {neighbour: _copy(end) for neighbour, end in device.links.items()}
    return replace(device, links=links)


def _copy(end: LinkEnd) -> LinkEnd:
    link_correction = None if end.link_correction is None else end.link_correction.copy()
    return replace(
        end, link_correction=link_correction, versions=list(end.versions), pending=list(end.pending), out_of_order={}
    )


def described_half_steps(device: HalfSteps) -> dict[str, Any]:
    """Return the device that `snapshot` returned."""
    return {name: getattr(device, name) for name in _OF_DEVICE} | {
        "format": FORMAT,
        "number": device.number,
        "model": device.model,
        "about": device.about,
        "links": [[neighbour, _described_end(end)] for neighbour, end in device.links.items()],
    }


def _described_end(end: LinkEnd) -> dict[str, Any]:
    described: dict[str, Any] = {name: getattr(end, name) for name in _ARRAYS}
    described |= {name: getattr(end, attribute) for name, attribute in _SCALARS.items()}
    described |= {name: getattr(end, name) for name in ("token", "partner", "about", "about_sent", "versions")}
    described["pending"] = [
        [encode(frame._replace(payload=b"")).hex(), np.frombuffer(frame.payload, np.uint8), elapsed, steps]
        for frame, elapsed, steps in end.pending
    ]
    return described


def half_steps_from_json(described: Mapping[str, Any], arrays: Arrays) -> HalfSteps:
    """Return the device of a checkpoint. Its session and its link law are to be set.

    Raises `EfhcError` if another version of efhc has written it.
    """
    if (found := described.get("format", 1)) != FORMAT:
        raise EfhcError(
            f"the state folder of this node has format {found} of half-steps, and this version of efhc reads format "
            f"{FORMAT}; {ANOTHER_FOLDER}"
        )
    model = arrays[described["model"]]
    links = {neighbour: _end(end, arrays) for neighbour, end in described["links"]}
    device = HalfSteps(described["number"], 0, LinkLaw(0.0), model, links=links, about=_about(described["about"]))
    for name in _OF_DEVICE:
        setattr(device, name, described[name])
    device.choose_links()
    return device


def _end(described: dict[str, Any], arrays: Arrays) -> LinkEnd:
    given = described | {"later": tuple(described["later"])}
    values: dict[str, Any] = {attribute: given[name] for name, attribute in _SCALARS.items()}
    values |= {name: arrays[described[name]] for name in _ARRAYS}
    values |= {name: _about(described[name]) for name in ("about", "about_sent")}
    values["partner"] = None if described["partner"] is None else token_from_json(described["partner"])
    values["versions"] = [Version(arrays[known], arrays[moved]) for known, moved in described["versions"]]
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
    """Make the steps of the journal again, which the lost model contained. Returns the frames whose steps it made."""
    made = []
    for kept in frames:
        is_sent, neighbour, frame = kept
        end = device.links.get(neighbour)
        if end is None or (end.token if is_sent else end.partner) != frame.source:
            continue  # the link has begun anew since
        version = arithmetic.decode(frame.payload, end.known_there if is_sent else end.known_here)
        if is_sent:
            device.commit_sent(end, frame, version, arithmetic)
            end.sent_at_k, end.degree_sent, device.about = frame.k, frame.degree, end.about_sent
            end.must_acknowledge = False
        else:
            device.commit_received(end, frame, version, arithmetic)
            end.other_degree, end.must_acknowledge = frame.degree, True
        made.append(kept)
    device.load = 0.0  # it is that of many local steps
    device.choose_links()
    return made
