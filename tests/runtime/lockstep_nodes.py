"""Nodes in lockstep within one event loop, over links that a test can cut."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from efhc import Experiment
from efhc.core.half_steps import Frame
from efhc.experiments.nodes.own_part import own_scenario
from efhc.runtime.lockstep import Lockstep
from efhc.runtime.messages import Hello, Message, model_in
from efhc.runtime.mode import NodeParts
from efhc.runtime.recording import Recorder
from efhc.runtime.settings import Limits, Neighbour, NodeSettings, Recording
from efhc.runtime.state.iterations import IterationStore
from efhc.runtime.status import NodeStatus
from efhc.runtime.training import Trainer
from efhc.runtime.transport import Listener, Traffic
from efhc.strategies.forms import form_of


@dataclass
class Wires:
    """All links between nodes. Whoever is attached is connected to whoever allows it, unless the link is cut."""

    ends: dict[int, Wire] = field(default_factory=dict)
    cut: set[frozenset[int]] = field(default_factory=set)
    up: dict[frozenset[int], int] = field(default_factory=dict)
    """The connections that are up, each with a number of its own."""
    lose_models: bool = False
    """Whether models and frames are lost on the way until the link is cut and heals."""
    count: int = 0

    def refresh(self) -> None:
        """Connect and disconnect, as it now should be."""
        for pair in list(self.up):
            if pair in self.cut or not pair <= self.ends.keys():
                del self.up[pair]
                for end in pair & self.ends.keys():
                    (other,) = pair - {end}
                    self.ends[end].listener.disconnected(other, "cut")
        for one in list(self.ends):
            for other in list(self.ends):
                pair = frozenset({one, other})
                allowed = one in self.ends[other].allowed and other in self.ends[one].allowed
                if one < other and allowed and pair not in self.cut and pair not in self.up:
                    self.count += 1
                    self.up[pair] = self.count
                    hellos: dict[int, Hello] = {
                        a: self.ends[a].listener.hello_for(b) for a, b in ((one, other), (other, one))
                    }
                    self.ends[one].listener.connected(other, hellos[other])
                    self.ends[other].listener.connected(one, hellos[one])

    def sever(self, *pairs: tuple[int, int]) -> None:
        self.cut |= set(map(frozenset, pairs))
        self.refresh()

    def heal(self) -> None:
        self.cut.clear()
        self.refresh()


class Wire:
    """One node's end: a `Transport`."""

    def __init__(self, wires: Wires, device: int) -> None:
        self._wires, self._device = wires, device
        self._traffic: dict[int, Traffic] = {}
        self.allowed: set[int] = set()
        self.listener: Listener
        self.sent: list[tuple[int, Message]] = []

    async def start(self, listener: Listener, neighbours: Sequence[Neighbour]) -> None:
        self.listener, self.allowed = listener, {neighbour.device for neighbour in neighbours}
        self._wires.ends[self._device] = self
        self._wires.refresh()

    def allow(self, neighbours: Sequence[Neighbour]) -> None:
        self.allowed = {neighbour.device for neighbour in neighbours}

    def send(self, neighbour: int, message: Message) -> None:
        pair = frozenset({self._device, neighbour})
        connection = self._wires.up.get(pair)
        if connection is None:
            return
        self.sent.append((neighbour, message))
        model, is_frame = model_in(message), isinstance(message, Frame)
        if (model is not None or is_frame) and self._wires.lose_models:
            return
        if model is not None:
            self.traffic(neighbour).model_bytes_sent += model.nbytes

        def deliver() -> None:
            if self._wires.up.get(pair) == connection and neighbour in self._wires.ends:
                copy = message if model is None else message._replace(model=model.copy())  # type: ignore[call-arg]
                if is_frame:
                    copy = copy._replace(bits=0)  # as it is on a wire
                self._wires.ends[neighbour].listener.received(self._device, copy)

        loop = asyncio.get_running_loop()
        if model is not None:
            loop.call_later(0.001, deliver)  # small messages overtake models
        else:
            loop.call_soon(deliver)

    def withdraw(self, neighbour: int, model: Any) -> None:
        pass

    def disconnect(self, neighbour: int, reason: str, *, final: bool = False) -> None:
        pair = frozenset({self._device, neighbour})
        self._wires.cut.add(pair)
        asyncio.get_running_loop().call_soon(self._wires.refresh)

    def traffic(self, neighbour: int) -> Traffic:
        return self._traffic.setdefault(neighbour, Traffic())

    async def drain(self, seconds: float) -> bool:
        await asyncio.sleep(0.01)
        return True

    async def stop(self, reason: str) -> None:
        self._wires.ends.pop(self._device, None)
        self._wires.refresh()


class Node:
    """One device of an experiment, with a state folder."""

    def __init__(
        self, experiment: Experiment, device: int, state: Path, wires: Wires, session: int = 1, **more: Any
    ) -> None:
        (strategy,), (seed,) = experiment.strategies.values(), experiment.seeds
        others = tuple(
            Neighbour(device=other, address="localhost:1") for other in range(experiment.devices) if other != device
        )
        settings = {
            "experiment": Path("experiment.toml"),
            "device": device,
            "neighbours": others,
            "state": state,
            "mode": "lockstep",
            "checkpoint_every": 5,
            "stop_seconds": 2.0,
            "limits": Limits(give_up=20.0),
            "record": Recording(start=1.0, models_every=1),
        }
        self.settings = NodeSettings.model_validate(settings | more)
        scenario = own_scenario(experiment, seed, device, None, apart=False)
        self.trainer = Trainer(scenario, device, form_of(strategy))
        self.store = IterationStore(state, {"device": str(device)}, self.trainer.parameters, experiment.precision)
        self.lines: list[dict[str, Any]] = []
        status = NodeStatus(device, session, "lockstep", "0", 0)
        recorder = Recorder(state, self.settings.record, self.trainer.parameters, self.trainer.dtype)
        parts = NodeParts(self.settings, self.trainer, experiment.iterations, session, {}, status, recorder, self._log)
        self.mode = Lockstep(parts, self.store)
        self.wire = Wire(wires, device)

    def _log(self, event: str, level: str = "info", **fields: Any) -> None:
        self.lines.append({"event": event, "level": level, **fields})

    async def run(self) -> None:
        with self.store:
            await self.mode.run(self.wire)
