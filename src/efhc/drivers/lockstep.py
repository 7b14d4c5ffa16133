"""All devices step together, k = 0, 1, ...: W(k+1) = P(k) W(k) - alpha(k) G(k).

`Lockstep` decides how many iterations are made in one go; the rules are `core.iteration`'s. Nothing here measures or
keeps anything.
"""

from __future__ import annotations

import numpy as np

from efhc import kernels
from efhc.base.arrays import Floats
from efhc.core.graph import Graph
from efhc.core.iteration import Diverged, State, finite_rows, iterate
from efhc.core.triggers import Trigger
from efhc.drivers.scenario import Scenario
from efhc.drivers.steps import Steps
from efhc.learning.backends.compiled_backend import LinearBackend

IN_CACHE = 2_000_000
"""Numbers in W up to which a stretch of iterations is one compiled call; beyond, every pass is spread over threads."""

AT_ONCE = 1 << 27
"""Numbers of models and samples that one compiled call goes through at most."""


class Lockstep:
    """Moves a state on. Holds three arrays (m, n) at a time: W, w_hat, and one for the gradients."""

    def __init__(self, scenario: Scenario, trigger: Trigger, threads: int = 1) -> None:
        self._scenario, self._trigger, self._threads = scenario, trigger, threads
        self._spare: Floats = np.empty((0, 0))

    def advance(self, state: State, most: int = 1) -> tuple[State, Steps]:
        """Make at least one iteration and at most so many. The state that is given is used up.

        If training diverges, `Diverged` is raised, and the given state is as it was.
        """
        if self._spare.shape != state.models.shape:
            self._spare = np.empty_like(state.models)
        backend = self._scenario.learner.backend
        if isinstance(backend, LinearBackend) and state.models.size <= IN_CACHE:
            next_state, steps = self._stretch(backend, state, most)
        else:
            next_state, steps = self._iteration(state)
        if next_state.models is not state.models:
            self._spare = state.models
        return next_state, steps

    def _iteration(self, state: State) -> tuple[State, Steps]:
        scenario, k = self._scenario, state.k
        previous_graph, graph = scenario.graphs(k)
        learner = scenario.learner
        losses, local = learner.backend.grads(state.models, learner.batch(k), state.local, self._spare)
        if not (finite := np.isfinite(losses)).all():
            raise Diverged(k, "loss", finite)
        next_state, info = iterate(
            state,
            graph,
            previous_graph,
            scenario.thresholds(self._trigger, k),
            self._spare,
            scenario.step_size(k),
            self._threads,
        )
        errors = np.array([info.consensus_error])
        return next_state._replace(local=local), Steps(k, previous_graph, graph, info.fired[None], losses[None], errors)

    def _stretch(self, backend: LinearBackend, state: State, most: int) -> tuple[State, Steps]:
        """Iterations on one graph and with batches of one draw, in one compiled call."""
        scenario, (k, models, last_broadcast, _) = self._scenario, state
        previous_graph, graph = scenario.graphs(k)
        batches = scenario.learner.batches
        samples = scenario.learner.parts if batches is None else batches.samples(k, most)
        most = min(most, self._most_at_once(graph, models), most if batches is None else len(samples))
        count = 1
        while count < most and scenario.network.graph(k + count) is graph:
            count += 1
        samples = samples if batches is None else samples[:count]
        thresholds = np.stack([scenario.thresholds(self._trigger, k + step) for step in range(count)])
        alphas = np.array([scenario.step_size(k + step) for step in range(count)], dtype=models.dtype)
        fired, losses, errors = np.zeros(thresholds.shape, dtype=bool), np.zeros(thresholds.shape), np.zeros(count)
        starts, neighbours, link_of, order = graph.rows
        done = kernels.stretch(
            models,
            self._spare,
            last_broadcast,
            *backend.problem(samples),
            *(order, starts, neighbours, link_of, graph.links),
            graph.metropolis_weights.astype(models.dtype),
            graph.new_since(previous_graph),
            thresholds,
            alphas,
            fired,
            losses,
            errors,
        )
        if done == 0:
            self._explain(k, losses[0])
        models = self._spare if done % 2 else models
        steps = Steps(k, previous_graph, graph, fired[:done], losses[:done], errors[:done])
        return State(k + done, models, last_broadcast), steps

    def _most_at_once(self, graph: Graph, models: Floats) -> int:
        """So many iterations that nobody waits for them for long, nor needs much memory to look at what they did."""
        learner = self._scenario.learner
        samples = sum(map(len, learner.parts)) if learner.batches is None else learner.batches.size * len(models)
        return max(1, AT_ONCE // (models.size + samples * learner.data.features + 8 * len(graph.links)))

    def _explain(self, k: int, losses: Floats) -> None:
        """An iteration could not be made; its models, if it got that far, are in the spare array."""
        if not (finite := np.isfinite(losses)).all():
            raise Diverged(k, "loss", finite)
        raise Diverged(k, "model", finite_rows(self._spare))
