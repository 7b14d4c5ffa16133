"""A device as JSON, in which the arrays are numbers: what a checkpoint and the STATE of a journal hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from efhc.core.device_state import Decision, Device, Exchange, Link, Step
from efhc.core.protocol import Token

Number = Callable[[np.ndarray], int]
"""Returns the number of an array, which it gives one if it has none."""


def promises_as_json(device: Device, number: Number) -> dict[str, Any]:
    """What changes between two checkpoints and must survive: the session, decisions and exchanges in doubt."""
    return {
        "session": int(device.session),
        "decisions": [[token, decision] for token, decision in device.unacknowledged.items()],
        "doubts": [
            [neighbour, _exchange_as_json(link.exchange, number)]
            for neighbour, link in device.links.items()
            if link.exchange is not None
        ],
    }


def device_as_json(device: Device, number: Number) -> dict[str, Any]:
    """All that `durable` leaves of a device."""
    return {
        "number": int(device.number),
        "model": None if device.model is None else number(device.model),
        "last_broadcast": None if device.last_broadcast is None else number(device.last_broadcast),
        "k": int(device.k),
        "finished": device.finished,
        "copies": device.copies,
        "rounds": device.rounds,
        "steps": [step_as_json(step, number) for step in device.steps],
        "promises": promises_as_json(device, number),
    }


def step_as_json(step: Step, number: Number) -> list[Any]:
    """A step that is committed and not yet part of the model."""
    return [int(step.neighbour), float(step.beta), number(step.sent), number(step.received)]


def _exchange_as_json(exchange: Exchange, number: Number) -> dict[str, Any]:
    assert exchange.in_doubt, "an exchange that is not in doubt does not survive"
    assert exchange.received is not None
    return {
        "token": exchange.token,
        "sent": number(exchange.sent),
        "share": float(exchange.share),
        "event": int(exchange.event),
        "k": int(exchange.k),
        "partner": exchange.partner,
        "partner_k": int(exchange.partner_k),
        "received": number(exchange.received),
    }


def numbers_in(steps: list[list[Any]], promises: Mapping[str, Any]) -> Iterator[int]:
    """Yield the numbers of the arrays that steps and promises need."""
    for *_, sent, received in steps:
        yield from (sent, received)
    for _, exchange in promises["doubts"]:
        yield from (exchange["sent"], exchange["received"])


def device_from_json(
    device: Mapping[str, Any], steps: list[list[Any]], promises: Mapping[str, Any], arrays: Mapping[int, np.ndarray]
) -> Device:
    """The device of a checkpoint, with the steps and promises that it has by now."""
    return Device(
        number=device["number"],
        session=promises["session"],
        model=None if device["model"] is None else arrays[device["model"]],
        last_broadcast=None if device["last_broadcast"] is None else arrays[device["last_broadcast"]],
        k=device["k"],
        links={neighbour: Link(up=False, exchange=_exchange(doubt, arrays)) for neighbour, doubt in promises["doubts"]},
        steps=[Step(neighbour, beta, arrays[sent], arrays[received]) for neighbour, beta, sent, received in steps],
        unacknowledged={
            token_from_json(token): Decision(neighbour, token_from_json(partner))
            for token, (neighbour, partner) in promises["decisions"]
        },
        finished=device["finished"],
        copies=device["copies"],
        rounds=device["rounds"],
    )


def _exchange(doubt: Mapping[str, Any], arrays: Mapping[int, np.ndarray]) -> Exchange:
    return Exchange(
        token=token_from_json(doubt["token"]),
        sent=arrays[doubt["sent"]],
        share=doubt["share"],
        decides=False,
        event=doubt["event"],
        k=doubt["k"],
        partner=token_from_json(doubt["partner"]),
        partner_k=doubt["partner_k"],
        received=arrays[doubt["received"]],
        ready=True,
    )


def token_from_json(given: list[int]) -> Token:
    """Return a token that was written as JSON."""
    device, session, count = given
    return device, session, count
