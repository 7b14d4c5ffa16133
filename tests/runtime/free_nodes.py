"""Free-running nodes in one event loop, joined by a network in memory, with real state folders."""

import asyncio
import io
import json
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from memory_transport import MemoryNetwork
from stored_devices import state_of

from efhc.core.half_steps import HalfSteps
from efhc.experiments.config.files import build_experiment
from efhc.experiments.nodes.assemble import choose, fingerprint, identity, mode_of, own_scenario
from efhc.runtime.free_running import FreeRunning
from efhc.runtime.logs import Log
from efhc.runtime.node import NodeParts
from efhc.runtime.node_settings import NodeSettings, RecordingSettings
from efhc.runtime.state.node_store import NodeStore
from efhc.runtime.training import Trainer
from efhc.runtime.wire import ModelFormat
from efhc.scenarios.personal import personalized

SESSIONS = count(1000)
"""No session comes twice."""
STRATEGIES = {
    "exchange": {"kind": "zt"},
    "entrywise": {"kind": "entrywise", "r": 50.0, "momentum": 0.9},
    "whole models": {"kind": "composed", "trigger": "always", "mixing": "half-steps", "local": "corrected"},
    "Adam": {"kind": "composed", "trigger": "always", "codec": "levels", "mixing": "half-steps", "local": "adam"},
    "own biases": {"kind": "zt", "personal": {"keep": "bias"}},
    "Ditto": {"kind": "composed", "trigger": "always", "mixing": "half-steps", "personal": {"kind": "ditto"}},
    "paced": {"kind": "paced"},
    "paced over all links": {"kind": "paced", "links": "all"},
}
DEFAULTS = {"devices": 3, "iterations": 60, "seeds": 0, "precision": "float64", "strategies": {"ZT": {"kind": "zt"}}}


def is_idle(device):
    """Whether nothing of a device is under way, in doubt or owed."""
    if isinstance(device, HalfSteps):
        return device.is_idle and device.pull is None
    return (
        not device.unacknowledged
        and not device.steps
        and not any(link.exchange or link.pending_offer for link in device.links.values())
    )


@dataclass
class Node:
    mode: FreeRunning
    store: NodeStore
    transport: object
    task: asyncio.Task | None = None
    lines: io.StringIO = field(default_factory=io.StringIO)

    def log(self):
        return [json.loads(line) for line in self.lines.getvalue().splitlines()]


def fleet_of(folder, strategy, **fields):
    """Return a fleet of nodes with one of the `STRATEGIES`."""
    return Fleet(folder, strategies={"S": STRATEGIES[strategy]}, **fields)


class Fleet:
    """All nodes of a test. `folder` holds their states."""

    def __init__(self, folder, *, wire="exact", delay=0.0, loss=0.0, **fields):
        self.folder, self.experiment = folder, build_experiment(DEFAULTS | fields)
        self.parameters = self.trainer(0).parameters
        models = ModelFormat(self.parameters, self.experiment.precision, wire)
        self.network = MemoryNetwork(models, delay=delay, loss=loss)
        self.wire = wire
        self.nodes: dict[int, Node] = {}

    def chosen(self, device):
        return choose(self.experiment, NodeSettings(experiment="e.toml", device=device))

    def trainer(self, device):
        chosen = self.chosen(device)
        scenario = own_scenario(self.experiment, chosen.seed, device, None, apart=True)
        own = personalized(scenario, self.experiment.strategies[chosen.strategy], chosen.strategy)
        return Trainer(own, device, chosen.form)

    def add(self, device, **settings):
        """Make a node and start it."""
        others = [{"device": j, "address": "127.0.0.1:1"} for j in range(self.experiment.devices) if j != device]
        given = {
            "experiment": "e.toml", "device": device, "neighbours": others, "state": self.folder / str(device),
            "record": RecordingSettings(gradients=True), "wire": self.wire, "stop_seconds": 3.0, "down_after": 0.3,
        }  # fmt: skip
        settings = NodeSettings.model_validate(given | settings)
        trainer = self.trainer(device)
        agreed = fingerprint(settings, self.chosen(device), trainer.parameters)
        belongs = identity(agreed, settings)
        precision = self.experiment.precision
        store = NodeStore(settings.state, belongs, trainer.parameters, precision, journal=settings.journal)
        lines = io.StringIO()
        iterations, log = self.experiment.iterations, Log(device, lines)
        parts = NodeParts(settings, trainer, iterations, next(SESSIONS), agreed, log)
        mode = mode_of(parts, store)
        node = Node(mode, store, self.network.transport(device), lines=lines)
        node.task = asyncio.create_task(mode.run(node.transport))
        self.nodes[device] = node
        return node

    def add_all(self, **settings):
        """Make all nodes and start them."""
        for device in range(self.experiment.devices):
            self.add(device, **settings)

    async def until(self, condition, seconds=180.0):
        """Wait until a condition holds."""
        async with asyncio.timeout(seconds):
            while not condition():
                for node in self.nodes.values():
                    if node.task.done() and node.task.exception():
                        raise node.task.exception()
                await asyncio.sleep(0.005)

    async def all_at(self, k, **keywords):
        await self.until(lambda: all(self.status(d).iteration >= k for d in self.nodes), **keywords)

    def status(self, device):
        return self.nodes[device].mode.status()

    def is_idle(self):
        """Whether nothing is under way, in doubt or owed anywhere."""
        return all(is_idle(node.mode.device) for node in self.nodes.values())

    def ends(self, one=0, other=1):
        """Return the two ends of a link with half-steps."""
        return [self.nodes[here].mode.device.links[there] for here, there in ((one, other), (other, one))]

    def assert_corrections_cancel(self, tolerance=1e-11):
        """Check that the sum of h over all nodes is 0, if there is a drift correction."""
        rows = [node.mode._trainer.rows.arrays.get("correction") for node in self.nodes.values()]
        found = np.array([row[0] for row in rows if row is not None])
        if len(found):
            assert np.abs(found.sum(axis=0)).max() <= tolerance * max(1.0, np.abs(found).max())

    def finish(self):
        """Let all nodes send nothing new, as after their last iteration."""
        for node in self.nodes.values():
            node.mode.finish()

    async def end(self, *, finish=True, tolerance=1e-11):
        """Stop all nodes once nothing is under way, and check both laws of the sum. Returns the last statuses."""
        if finish:
            self.finish()
        await self.until(self.is_idle)
        statuses = [self.status(device) for device in self.nodes]
        self.assert_corrections_cancel(tolerance)
        await self.stop()
        assert np.abs(self.defect()).max() < 1e-11
        return statuses

    async def kill(self, device):
        """End a node as kill -9 does: what it says and writes from now on counts for nothing."""
        node, state = self.nodes.pop(device), self.folder / str(device)
        self.network.transports.pop(device, None)  # it may be starting still
        for other in list(self.network.transports.values()):
            other.lose(device, "killed")
        left = {path.name: path.read_bytes() for path in state.iterdir() if path.is_file()}
        node.transport.connections.clear()
        node.task.cancel()
        await asyncio.wait({node.task})
        node.store.__exit__(None, None, None)
        for name, content in left.items():
            (state / name).write_bytes(content)

    async def stop(self):
        """Stop all nodes, in order."""
        for node in self.nodes.values():
            node.mode.stop()
        await self.ended()

    async def ended(self):
        """Wait until all nodes have ended, and close their folders."""
        async with asyncio.timeout(180):
            await asyncio.gather(*(node.task for node in self.nodes.values()))
        for node in self.nodes.values():
            node.store.__exit__(None, None, None)

    def defect(self):
        """Return the sum of all models less what the law of the sum says, from what the nodes left on disk."""
        total = np.zeros(self.parameters)
        for device in range(self.experiment.devices):
            folder = self.folder / str(device)
            if not folder.exists():
                continue
            found = state_of(folder)
            total += found.device.model
            if isinstance(found.device, HalfSteps):
                assert not found.frames, "a node that has stopped has written a checkpoint"
            else:
                total += sum(step.beta * (step.received - step.sent) for step in found.device.steps)
            total -= found.tensors["start"] - found.tensors["gradients"]
        return total
