"""All devices step together, k = 0, 1, ...: W(k+1) = P(k) W(k) - alpha(k) G(k).

`PaperLockstep` decides how many iterations are made in one go; the rules are those of `core.iteration`. Nothing here
measures or keeps anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.arithmetic import finite_rows
from efhc.core.graph import Graph
from efhc.core.iteration import iterate
from efhc.core.memory import Memories
from efhc.core.state import Diverged, State
from efhc.drivers.steps import Steps
from efhc.kernels.compiled_arithmetic import InPlaceLaw
from efhc.kernels.iteration_loops import Buffers
from efhc.learning.backends.linear_backend import LinearBackend
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import trigger_of

IN_CACHE = 2_000_000
"""Numbers in W up to which a fused backend makes iterations in one thread; beyond, every pass uses all threads."""

AT_ONCE = 1 << 27
"""Numbers of models and samples that one call of a fused backend goes through at most."""


def refuse_used_up(state: State, own: Iterable[Floats]) -> None:
    """Raise `ValueError` if a state lies in one of a driver's own arrays, and is not its latest state."""
    if any(np.may_share_memory(*pair) for pair in product((state.models, state.last_broadcast), own)):
        given = f"the state of iteration {state.k}"
        raise ValueError(f"{given} was used up; to go back to a state, keep a copy of its arrays")


class PaperLockstep:
    """Moves a state on, in place.

    A `PaperLockstep` computes in three arrays (m, n): W, w_hat, and one for the gradients, which becomes the next W. It
    takes over the arrays of the first state it is given, and every state that it returns is a view of its own arrays,
    good until the next call of `advance`. Copy what you keep of it. A state that was used up is refused.
    """

    def __init__(self, scenario: Scenario, strategy: Any, threads: int = 1, *, fuse_up_to: int = IN_CACHE) -> None:
        """`strategy` is one of the paper's form, or a trigger.

        `fuse_up_to` is the number of entries of W up to which a fused backend makes its iterations in one thread.
        """
        self._scenario, self._trigger = scenario, trigger_of(strategy)
        self._reader, self._arithmetic, self._fuse_up_to = scenario.reader(), InPlaceLaw(threads), fuse_up_to
        backend = scenario.learner.backend
        self._backend, self._fused = backend, backend if isinstance(backend, LinearBackend) else None
        self._latest: State | None = None
        self._spare: Floats = np.empty((0, 0))
        self._drifts: Floats = np.empty(0)

    memories: Memories = MappingProxyType({})
    """What the strategy remembers: nothing."""

    def leaves_cores(self, state: State) -> bool:
        """Whether such a run computes with one thread, however many it has."""
        return self._fused is not None and state.models.size <= self._fuse_up_to

    def initial_state(self) -> State:
        """The state at k = 0."""
        return self._scenario.initial_state()

    def advance(self, state: State, most: int = 1) -> tuple[State, Steps]:
        """Make at least one and at most `most` iterations; returns the new state, and what the iterations did.

        `state` is the one that the last call returned, or one whose arrays this object takes over. It is used up: its
        arrays hold another iteration's numbers afterwards. If training diverges, `Diverged` is raised, and `state` is
        as it was.
        """
        state = self._owned(state)
        if self._fused:
            buffers = Buffers(state.models, state.last_broadcast, self._spare, self._drifts)
            done, buffers, steps = self._stretch(self._fused, state.k, buffers, most)
            self._latest = State(state.k + done, buffers.models, buffers.last_broadcast, state.local)
            self._spare = buffers.spare
        else:
            self._latest, steps = self._iteration(state, self._spare)
            self._spare = state.models
        return self._latest, steps

    def _owned(self, state: State) -> State:
        """The state, in arrays that belong to this object."""
        models, last_broadcast, latest = state.models, state.last_broadcast, self._latest
        if latest:
            if latest.k == state.k and latest.models is models and latest.last_broadcast is last_broadcast:
                return state
            refuse_used_up(state, (latest.models, latest.last_broadcast, self._spare))
        drift = 0.0 if all(map(np.array_equal, models, last_broadcast)) else np.nan
        models, last_broadcast = (np.require(one, requirements=["C", "W"]) for one in (models, last_broadcast))
        if np.may_share_memory(models, last_broadcast):
            last_broadcast = last_broadcast.copy()
        self._spare, self._drifts = np.empty_like(models), np.full(len(models), drift)
        self._latest = State(state.k, models, last_broadcast, state.local)
        return self._latest

    def _iteration(self, state: State, gradients: Floats) -> tuple[State, Steps]:
        """One iteration, pass by pass. W(k+1) takes the memory of the gradients."""
        scenario, k = self._scenario, state.k
        previous_graph, graph = scenario.graphs(k)
        losses, local = self._backend.grads(state.models, self._reader.batch(k), state.local, gradients)
        if not (finite := np.isfinite(losses)).all():
            raise Diverged(k, "loss", finite)
        thresholds = self._reader.thresholds(self._trigger, k)
        next_state, info = iterate(
            state, graph, previous_graph, thresholds, gradients, scenario.step_size(k), self._arithmetic
        )
        errors = np.array([info.consensus_error])
        return next_state._replace(local=local), Steps(k, previous_graph, graph, info.fired[None], losses[None], errors)

    def _stretch(self, backend: LinearBackend, k: int, buffers: Buffers, most: int) -> tuple[int, Buffers, Steps]:
        """Iterations on one graph and with batches of one draw, in one call: their number, where W is, and steps."""
        scenario, reader, models = self._scenario, self._reader, buffers.models
        previous_graph, graph = scenario.graphs(k)
        most = min(most, self._most_at_once(graph, models))
        batches = reader.batches(k, most)
        if isinstance(batches, np.ndarray):
            most = len(batches)
        count = scenario.iterations_on_graph(k, most)
        thresholds = reader.thresholds_of_many(self._trigger, k, count)
        step_sizes = reader.step_sizes(k, count).astype(models.dtype)
        new_links, in_cache = graph.new_since(previous_graph), models.size <= self._fuse_up_to
        done, after, outcome = backend.stretch(buffers, batches, graph, new_links, thresholds, step_sizes, in_cache)
        fired, losses, errors = outcome
        if done == 0:  # its models, if it got that far, are in the spare array
            finite = np.isfinite(losses[0])
            raise Diverged(k, "model", finite_rows(buffers.spare)) if finite.all() else Diverged(k, "loss", finite)
        steps = Steps(k, previous_graph, graph, fired[:done], losses[:done], errors[:done])
        return done, after, steps

    def _most_at_once(self, graph: Graph, models: Floats) -> int:
        """As many iterations as take neither long nor much memory to look at what they did."""
        learner = self._scenario.learner
        samples = sum(map(len, learner.parts)) if learner.batches is None else learner.batches.size * len(models)
        return max(1, AT_ONCE // (models.size + samples * learner.data.features + 8 * len(graph.links)))
