"""The law of the sum, from the state folders of all nodes.

    sum over nodes of (model + steps not yet made) = sum of (start - gradients)

`start` is w(0) or the model that a newcomer copied, `gradients` the sum of all alpha g that the model contains. The two
sides differ by rounding, or by steps that one end has made and the other never will.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from counts import Counts
from fleet import Fleet
from stored_devices import state_of

from efhc.core.device import Device, Link
from efhc.runtime.state.node_store import Restored

ROUNDING = 1e-11
"""Relative to the sum of all that was added. Models are float64."""


class Audit(NamedTuple):
    """What the folders say."""

    off: float
    """The norm of the difference of the two sides."""
    rounding: float
    """What of it rounding explains."""
    smallest_step: float
    """The norm of the smallest step that could be missing: the rounding is far below it, or the audit is blind."""
    in_doubt: int
    unresolved: int
    unresolved_norm: float
    lost: int

    @property
    def holds(self) -> bool:
        return self.off <= self.rounding

    @property
    def explained(self) -> bool:
        """Whether what the metrics call unresolved explains the difference."""
        return self.off <= self.rounding + self.unresolved_norm


def audit(folders: Iterable[Path]) -> Audit:
    """Compare the two sides. Every node must have been stopped, or killed."""
    states = [state_of(folder) for folder in folders]
    left = np.sum([_with_steps(state, states) for state in states], axis=0)
    right = np.sum([state.tensors["start"] - state.tensors["gradients"] for state in states], axis=0)
    size = sum(
        float(np.linalg.norm(state.device.model)) + float(np.linalg.norm(state.tensors["start"])) for state in states
    )
    spread = [float(np.linalg.norm(a.device.model - b.device.model)) for a in states for b in states if a is not b]
    links = [link for state in states for link in state.device.links.values()]
    doubts = sum(link.exchange is not None for link in links if isinstance(link, Link))
    return Audit(
        off=float(np.linalg.norm(left - right)),
        rounding=ROUNDING * size,
        smallest_step=min(spread, default=0.0) / len(states),
        in_doubt=doubts,
        unresolved=sum(state.facts["unresolved"] for state in states),
        unresolved_norm=sum(state.facts["unresolved_norm"] for state in states),
        lost=sum(state.facts["lost"] for state in states),
    )


def _with_steps(state: Restored, states: Iterable[Restored]) -> np.ndarray:
    """The model, with the steps that it will have made when all that is under way has arrived."""
    device, model = state.device, state.device.model.astype(np.float64)
    if isinstance(device, Device):
        for step in device.steps:
            model += step.beta * (step.received - step.sent)
        return np.asarray(model)
    assert not state.frames, "a node that was stopped has written a checkpoint"
    for other in states:
        sent = other.device.links.get(device.number)
        if sent is not None and sent.pending:
            model -= sent.steps_after(device.links[other.device.number].last_received)
    return np.asarray(model)


def assert_the_sum_is_kept(fleet: Fleet, counts: Counts) -> None:
    """Heal, stop and audit: nothing is in doubt, nothing was given up, nothing is missing."""
    for device in fleet.devices:
        fleet.network.heal(device)
        fleet.network.limit(device, None)
    fleet.wait(fleet.all_connected, 60, "all links are up at the end")
    for one, other in fleet.links:
        fleet.wait_for_exchange(one, other)
    fleet.stop()
    found = audit(fleet.state(device) for device in fleet.devices)
    counts.lost += found.lost
    assert found.holds, found
    assert (found.in_doubt, found.unresolved, found.lost) == (0, 0, 0), found
