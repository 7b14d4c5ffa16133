"""Nodes in lockstep within one event loop, over links that a test can cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memory_transport import MemoryNetwork, MemoryTransport

from efhc import Experiment
from efhc.core.half_step_messages import Frame
from efhc.experiments.nodes.assemble import own_scenario
from efhc.runtime.lockstep import LockstepMode
from efhc.runtime.node import NodeParts
from efhc.runtime.node_messages import Message, model_in
from efhc.runtime.node_settings import Limits, Neighbour, NodeSettings, RecordingSettings
from efhc.runtime.state.iterations import IterationStore
from efhc.runtime.training import Trainer
from efhc.runtime.wire import ModelFormat
from efhc.strategies.forms import form_of


class Wires(MemoryNetwork):
    """All links between nodes. The first node says how long a model is."""

    def __init__(self) -> None:
        super().__init__(ModelFormat(0, "float32"))
        self.lose_models = False
        """Whether models and frames are lost on the way until the link is cut and heals."""

    def heal_all(self) -> None:
        for pair in list(self.cuts):
            self.heal(*pair)


class Wire(MemoryTransport):
    """One node's end. It remembers what was sent."""

    network: Wires

    def __init__(self, network: Wires, device: int) -> None:
        super().__init__(network, device)
        self.sent: list[tuple[int, Message]] = []

    def send(self, neighbour: int, message: Message) -> None:
        if neighbour in self.connections:
            self.sent.append((neighbour, message))
        if not self.network.lose_models or (model_in(message) is None and not isinstance(message, Frame)):
            super().send(neighbour, message)


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
            "record": RecordingSettings(start=1.0, models_after="every"),
        }
        self.settings = NodeSettings.model_validate(settings | more)
        scenario = own_scenario(experiment, seed, device, None, apart=False)
        self.trainer = Trainer(scenario, device, form_of(strategy))
        wires.models = ModelFormat(self.trainer.parameters, experiment.precision)
        self.store = IterationStore(state, {"device": str(device)}, self.trainer.parameters, experiment.precision)
        self.lines: list[dict[str, Any]] = []
        parts = NodeParts(self.settings, self.trainer, experiment.iterations, session, {}, self._log)
        self.mode = LockstepMode(parts, self.store)
        self.wire = Wire(wires, device)

    def _log(self, event: str, level: str = "info", **fields: Any) -> None:
        self.lines.append({"event": event, "level": level, **fields})

    async def run(self) -> None:
        with self.store:
            await self.mode.run(self.wire)
