"""A stand-in with the interface of the event-driven simulator: devices learn, and no message takes any time.

It serves tests of what keeps and shows runs. Replace it by the simulator, where that does as well.
"""

from __future__ import annotations

import numpy as np

from efhc.drivers.event_driven.record import EventRecord


class SmallPieces(EventRecord):
    """A record of which pieces are taken often."""

    @property
    def is_large(self) -> bool:
        return len(self.timeline) >= 3


class StandIn:
    """One step of every device per `advance`, and one exchange."""

    def __init__(self, scenario, trigger, settings, iterations, randomness, **how) -> None:
        self._scenario, self._iterations, self._k = scenario, iterations, 0
        self.record, self.local = SmallPieces(), {}
        self.models = scenario.initial_models()
        self.warnings = ["the link 0-1 carried nothing"] if type(trigger).__name__ == "ZeroThreshold" else []
        self._rate = 1.0 if type(trigger).__name__ == "ZeroThreshold" else 0.5

    @property
    def is_over(self) -> bool:
        return self._k == self._iterations

    @property
    def progress(self) -> float:
        return self._k / self._iterations

    def advance(self) -> None:
        k, record, devices = self._k, self.record, len(self.models)
        if k == 0:
            links = self._scenario.network.graph(0).links
            record.network.append((0, links[:, 0].tolist(), links[:, 1].tolist()))
        gradients = np.empty_like(self.models)
        batch = self._scenario.reader().batch(k)
        losses, _ = self._scenario.learner.backend.grads(self.models, batch, {}, gradients)
        self.models = self.models - np.float32(self._rate) * gradients
        self._k = k = k + 1
        for device, loss in enumerate(losses):
            record.steps.append((device, k - 1, float(k), True, float(loss)))
        record.exchanges.append((k - 1.0, float(k), 0, 1, k, k, 0.25, 2, "committed", 100))
        accuracies, of_mean = self._scenario.learner.accuracies(self.models, {})
        found = accuracies.mean(), accuracies.min(), accuracies.max(), of_mean
        error = float(((self.models - self.models.mean(axis=0)) ** 2).sum())
        record.timeline.append(
            (float(k), k * devices, k * devices, k, 100 * k, devices, *map(float, found), error, 0.0)
        )

    def checkpoint(self):
        tensors = {"models": self.models, "k": np.array([self._k])}
        return tensors, {"pieces": str(self.record.pieces)}

    def restore(self, tensors, facts) -> None:
        if tensors["models"].shape != self.models.shape:
            raise ValueError("models of another shape")
        self.models, self._k = tensors["models"], int(tensors["k"].item())
        self.record.pieces = int(facts["pieces"])
