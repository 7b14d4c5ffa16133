"""A sample of a run: how good the models are, how far apart, and what is still out of balance. Nothing is changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.device_state import Device, Exchange
from efhc.core.state import Diverged, Local
from efhc.drivers.event_driven.rows import Rows
from efhc.kernels.compiled_arithmetic import consensus_error
from efhc.learning.backends.backend import ScoresNotFinite
from efhc.learning.learner import Learner


class Sampled(Protocol):
    """A run, as a sample sees it."""

    now: float
    devices: list[Device]
    rows: Rows

    @property
    def local(self) -> Local:
        """What devices keep to themselves."""


def quality(run: Sampled, there: list[int], learner: Learner, threads: int) -> tuple[Floats, tuple[float | None, ...]]:
    """Return the accuracies of the devices that are there, and a summary of them and of their models.

    The summary is the mean, least and greatest accuracy, that of the mean model, and the consensus error. All are None
    if nobody is there. Raises `Diverged` and `ScoresNotFinite`.
    """
    if not there:
        return np.empty(0), (None, None, None, None, None)
    models = run.rows.gathered([run.devices[number].model for number in there])
    local = {name: values[there] for name, values in run.local.items()}
    error = consensus_error(models, threads)
    if not math.isfinite(error):
        finite = np.ones(len(run.devices), dtype=bool)
        finite[there] = np.isfinite(models).all(axis=1)
        raise Diverged(max(run.devices[number].k for number in there), "model", finite)
    try:
        accuracies, of_mean = learner.accuracies(models, local)
    except ScoresNotFinite as failure:
        raise failure.about(f"at second {run.now:g}") from failure
    summary = float(accuracies.mean()), float(accuracies.min()), float(accuracies.max()), of_mean, error
    return accuracies, summary


def imbalance(devices: Sequence[Device], rows: Rows) -> float:
    """The norm of the committed steps that one end has made and the other has not."""
    weights: dict[int, float] = {}

    def add(beta: float, sent: Any, received: Any) -> None:
        weights[received.index] = weights.get(received.index, 0.0) + beta
        weights[sent.index] = weights.get(sent.index, 0.0) - beta

    for device in devices:
        for step in device.steps:
            add(*step[1:])
        for neighbour, link in device.links.items():
            if (exchange := link.exchange) is not None and _is_owed(devices[neighbour], exchange):
                add(exchange.share, exchange.sent, exchange.received)
    places = [index for index, weight in weights.items() if weight]
    if not places:
        return 0.0
    total = np.zeros(rows.array.shape[1])
    for index in places:
        total += weights[index] * rows.array[index]
    return float(np.linalg.norm(total))


def _is_owed(neighbour: Device, exchange: Exchange) -> bool:
    """Whether the neighbour has committed an exchange whose end is in doubt here."""
    if not exchange.in_doubt or exchange.partner is None:
        return False
    decision = neighbour.unacknowledged.get(exchange.partner)
    return decision is not None and decision.partner == exchange.token
