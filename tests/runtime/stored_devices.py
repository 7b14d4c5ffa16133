"""Devices with a history, for the tests of the state folder: what they hold, written down without identity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from efhc.core.device import Decision, Device, Exchange, Link, Step, durable
from efhc.runtime.state.node_store import NodeStore, Restored
from efhc.runtime.state.state_folder import read_checkpoint

PARAMETERS = 5
IDENTITY = {"experiment": "0123abcd", "strategy": "EF-HC", "seed": "3", "device": "1"}


def opened(
    folder: Path, *, parameters: int = PARAMETERS, precision: str = "float32", journal: bool = True
) -> NodeStore:
    return NodeStore(folder, IDENTITY, parameters, precision, journal=journal)


def found_in(folder: Path, **options: Any) -> Restored:
    """Return what a folder holds."""
    with opened(folder, **options) as store:
        found = store.restore()
    assert found is not None
    return found


def state_of(folder: Path) -> Restored:
    """Return what a node left in a folder, whoever it was."""
    _, facts = read_checkpoint(folder / "checkpoint.safetensors")
    identity = dict(facts["identity"])
    parameters, precision = int(identity.pop("parameters")), identity.pop("precision")
    with NodeStore(folder, identity, parameters, precision) as store:
        found = store.restore()
    assert found is not None
    return found


class History:
    """A device, the steps that no `keep` has seen, and what a restart must find, by value."""

    def __init__(self, seed: int = 0, parameters: int = PARAMETERS) -> None:
        self.random = np.random.default_rng(seed)
        self.parameters = parameters
        first = self.array()
        self.device = Device(number=1, session=7, model=first, last_broadcast=first)
        self.new: list[Step] = []
        self.offered = first

    def array(self) -> np.ndarray:
        return self.random.standard_normal(self.parameters).astype(np.float32)

    def _exchange(self, *, decides: bool) -> Exchange:
        self.device.count += 1
        token, partner = (1, 7, self.device.count), (4, 11, self.device.count)
        share = float(self.random.random()) / 8
        return Exchange(token, self.offered, share, decides, 2, self.device.k, partner, 3, self.array(), ready=True)

    # What may happen

    def doubt(self, neighbour: int) -> None:
        """This end says Ready."""
        if neighbour not in self.device.links:
            self.device.links[neighbour] = Link(exchange=self._exchange(decides=False))

    def told(self, neighbour: int) -> None:
        """The neighbour has committed what was in doubt."""
        link = self.device.links.pop(neighbour, None)
        if link is not None and link.exchange is not None:
            self._step(neighbour, link.exchange)

    def decide(self, neighbour: int) -> None:
        """This end commits."""
        exchange = self._exchange(decides=True)
        assert exchange.partner is not None
        self.device.unacknowledged[exchange.token] = Decision(neighbour, exchange.partner)
        self._step(neighbour, exchange)

    def _step(self, neighbour: int, exchange: Exchange) -> None:
        step = Step(neighbour, exchange.share, exchange.sent, exchange.received)
        self.device.steps.append(step)
        self.new.append(step)

    def acknowledged(self, neighbour: int) -> None:
        if self.device.unacknowledged:
            del self.device.unacknowledged[next(iter(self.device.unacknowledged))]

    def gradient(self, neighbour: int) -> None:
        """The model of the next iteration has all steps in it."""
        self.device.model = self.offered = self.array()
        self.device.steps.clear()
        self.device.k += 1


class Expected:
    """What a folder must give back: kept beside the store, by value."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.base: dict[str, Any] = {}
        self.steps: list[Any] = []

    def checkpoint(self, store: NodeStore) -> dict[str, Any]:
        device = self.history.device
        facts, tensors = {"k": device.k}, {"start": np.arange(3.0)}
        store.checkpoint(durable(device), facts, tensors)
        self.history.new.clear()
        self.base, self.steps = described(device), described(device)["steps"]
        return self.now()

    def keep(self, store: NodeStore) -> dict[str, Any]:
        store.keep(durable(self.history.device), self.history.new)
        self.steps = self.steps + [_step(step) for step in self.history.new]
        self.history.new.clear()
        return self.now()

    def now(self) -> dict[str, Any]:
        """Model and k of the checkpoint; steps, decisions and doubts of this moment."""
        now = described(self.history.device)
        of_the_checkpoint = {name: self.base[name] for name in ("model", "last_broadcast", "k", "finished", "copies")}
        return {**now, **of_the_checkpoint, "steps": self.steps}


def described(device: Device) -> dict[str, Any]:
    """A device as plain values: two are equal if and only if these are."""
    return {
        "number": device.number,
        "session": device.session,
        "model": device.model.tolist(),
        "last_broadcast": device.last_broadcast.tolist(),
        "k": device.k,
        "finished": device.finished,
        "copies": device.waits_for_model,
        "steps": [_step(step) for step in device.steps],
        "unacknowledged": dict(device.unacknowledged),
        "doubts": {neighbour: _doubt(link.exchange) for neighbour, link in device.links.items() if link.exchange},
    }


def _step(step: Step) -> tuple[Any, ...]:
    return step.neighbour, step.beta, step.sent.tolist(), step.received.tolist()


def _doubt(exchange: Exchange) -> tuple[Any, ...]:
    models = exchange.sent.tolist(), exchange.received.tolist() if exchange.received is not None else None
    numbers = exchange.share, exchange.event, exchange.k, exchange.partner_k
    return exchange.token, exchange.partner, exchange.decides, exchange.ready, *models, *numbers
