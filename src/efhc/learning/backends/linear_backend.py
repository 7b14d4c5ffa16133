"""Linear models in compiled loops: batches of bytes are gathered, scaled and used while in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.threads import in_ranges
from efhc.core.graph import Graph
from efhc.core.state import Local
from efhc.kernels import iteration_loops, linear_loops
from efhc.kernels.compiled_arithmetic import consensus_error, drift, links_of
from efhc.kernels.iteration_loops import Buffers, Outcome, Plan, Step
from efhc.kernels.linear_loops import Batches, room_for
from efhc.kernels.model_loops import Links, copy_rows
from efhc.learning.backends.backend import Batch
from efhc.learning.backends.linear_evaluation import LinearEvaluation
from efhc.learning.backends.rows import OfRows, checked_rows, end_to_end
from efhc.learning.data.dataset import Dataset
from efhc.learning.models.linear import SVM, LeastSquares, LinearModel, Regularized, Softmax

COMPILED: dict[Callable[..., Any], int] = {
    SVM.score_loss: linear_loops.MULTI_MARGIN,
    Softmax.score_loss: linear_loops.CROSS_ENTROPY,
    LeastSquares.score_loss: linear_loops.SQUARED,
}
"""What the kernels call the loss that a function computes."""


class LinearBackend(OfRows):
    """`LinearModel.loss_and_gradient`, compiled."""

    def __init__(self, model: LinearModel, data: Dataset, *, threads: int = 1) -> None:
        self.parameters, self.threads = model.parameters(data), threads
        self._evaluation = LinearEvaluation(data, data.classes)
        kind = np.dtype(data.precision).type
        self._inputs = linear_loops.Inputs(data.x_train, kind(data.scale), kind(data.shift), data.y_train)
        self._loss = linear_loops.Loss(
            COMPILED[type(model).score_loss], kind(model.l2 if isinstance(model, Regularized) else 0)
        )

    @staticmethod
    def knows(model: Any) -> bool:
        """Whether its loss is compiled; one that a subclass changed is not."""
        return isinstance(model, LinearModel) and type(model).score_loss in COMPILED

    def grads_of_rows(self, pool: Floats, rows: Ints, batch: Batch, out: Floats, places: Ints) -> Floats:
        batches = end_to_end(batch.samples)
        models, gradients = checked_rows(rows, pool, batches.ends), checked_rows(places, out, batches.ends)
        losses = np.empty(len(models))
        arguments = (pool, models, self._inputs, self._loss, batches, losses, out, gradients)

        def linear_picked(low: int, high: int) -> None:
            linear_loops.linear_picked(room_for(pool, self._inputs), *arguments, low, high)

        in_ranges(linear_picked, (), len(models), self.threads)
        return losses

    def stretch(
        self,
        buffers: Buffers,
        samples: Ints | Sequence[Ints],
        graph: Graph,
        new_links: Flags,
        thresholds: Floats,
        step_sizes: Floats,
        in_cache: bool,
    ) -> tuple[int, Buffers, Outcome]:
        shape = thresholds.shape
        outcome = Outcome(np.zeros(shape, dtype=bool), np.zeros(shape), np.zeros(len(thresholds)))
        batches = self._in_rows(samples, len(thresholds))
        links, plan = links_of(graph, buffers.models.dtype), Plan(new_links, thresholds, step_sizes)
        if np.isnan(buffers.drifts[0]) and iteration_loops.needs_drifts(thresholds[0]):
            buffers.drifts[:] = drift(buffers.models, buffers.last_broadcast, self.threads)
        if in_cache:
            room = iteration_loops.stretch_room(buffers.models, self._inputs, len(new_links))
            done, after = iteration_loops.stretch(
                room, buffers, self._inputs, self._loss, batches, links, plan, outcome
            )
        else:
            done, after = self._in_passes(buffers, batches, links, plan, outcome)
        return done, after, outcome

    def _in_passes(
        self, buffers: Buffers, batches: Batches, links: Links, plan: Plan, outcome: Outcome
    ) -> tuple[int, Buffers]:
        """`iteration_loops.stretch`, with every pass over the models spread over threads."""
        used, next_drifts = plan.new_links.copy(), np.empty(len(buffers.drifts))
        iterations, devices = plan.thresholds.shape
        for k, alpha in enumerate(plan.step_sizes):
            models, last_broadcast, spare, drifts = buffers
            thresholds, fired, losses = plan.thresholds[k], outcome.fired[k], outcome.losses[k]
            iteration_loops.begin(links, thresholds, drifts, used, fired)
            following = min(k + 1, iterations - 1)
            looks = iteration_loops.needs_drifts(plan.thresholds[following])
            samples, upcoming = (batches.samples[row % len(batches.samples)] for row in (k, following))
            step = Step(samples, upcoming, used, fired, alpha, looks, losses, next_drifts)
            self._step(buffers, batches.ends, links, step)
            if not np.isfinite(losses).all():
                return k, buffers
            outcome.consensus_errors[k] = consensus_error(spare, self.threads)
            if not np.isfinite(outcome.consensus_errors[k]):
                return k, buffers
            used = np.zeros_like(used)
            drifts[:] = next_drifts if looks else np.nan
            if fired.all():
                buffers = Buffers(spare, models, last_broadcast, drifts)
            else:
                in_ranges(copy_rows, (models, last_broadcast, fired), devices, self.threads)
                buffers = Buffers(spare, last_broadcast, models, drifts)
        return iterations, buffers

    def _step(self, buffers: Buffers, ends: Ints, links: Links, step: Step) -> None:
        """Events 3 and 4 of all devices."""
        arguments = (buffers, self._inputs, self._loss, ends, links, step)

        def step_rows(low: int, high: int) -> None:
            iteration_loops.step_rows(room_for(buffers.models, self._inputs), *arguments, low, high)

        in_ranges(step_rows, (), len(buffers.models), self.threads)

    def _in_rows(self, samples: Ints | Sequence[Ints], iterations: int) -> Batches:
        """The batches of several iterations, a row for each; full batches are one row for all."""
        if isinstance(samples, np.ndarray):
            _, devices, size = samples.shape
            return Batches(samples[:iterations].reshape(iterations, -1), np.arange(devices + 1) * size)
        joined, ends = end_to_end(samples)
        return Batches(joined[None], ends)

    def accuracies(self, models: Floats, local: Local) -> Floats:
        return self._evaluation.accuracies(models, self.threads)
