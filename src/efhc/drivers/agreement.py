"""Does the driver do what Alg. 1 says? Side by side with `core.reference`, which says it in plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from efhc.core.reference import reference_iteration
from efhc.drivers.lockstep import IN_CACHE, PaperLockstep
from efhc.learning.backends.backend import Backend
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import trigger_of


def difference_from_reference(
    scenario: Scenario,
    strategy: Any,
    iterations: int,
    oracle: Backend | None = None,
    threads: int = 1,
    fuse_up_to: int = IN_CACHE,
) -> float:
    """The largest difference of any parameter after `iterations` iterations; infinite if other devices fired.

    The reference has its gradients from `oracle`. Default: the scenario's own backend.
    """
    trigger, oracle = trigger_of(strategy), oracle or scenario.learner.backend
    models = last_broadcast = list(scenario.initial_models())
    local = oracle.initial_local(len(models))
    reader = scenario.reader()
    lockstep, state = PaperLockstep(scenario, trigger, threads, fuse_up_to=fuse_up_to), scenario.initial_state()
    while state.k < iterations:
        state, steps = lockstep.advance(state, iterations - state.k)
        for k, fired_here, used_here in zip(range(steps.k, state.k), steps.fired, steps.used, strict=True):
            previous_graph, graph = scenario.graphs(k)
            gradients = np.empty_like(state.models)
            _, local = oracle.grads(np.stack(models), reader.batch(k), local, gradients)
            models, last_broadcast, fired, used = reference_iteration(
                models,
                last_broadcast,
                graph.neighbours(),
                previous_graph.neighbours(),
                reader.thresholds(trigger, k).tolist(),
                lambda i, w: gradients[i],  # noqa: B023, called at once
                scenario.step_size(k),
            )
            links_used = set(map(tuple, graph.links[used_here].tolist()))
            if fired != set(np.flatnonzero(fired_here)) or used != links_used:
                return np.inf
    return float(np.abs(state.models - np.stack(models)).max())
