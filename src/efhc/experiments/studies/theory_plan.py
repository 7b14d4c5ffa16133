"""`efhc theory plan CONFIG`: what the theorems will say of a run, before it.

Graphs, thresholds and step sizes are known beforehand. How fast devices drift is not: a rehearsal of the first
iterations shows it, and who fires after that is predicted from there. Numbers are of that prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from efhc.base.arrays import Flags, Ints
from efhc.drivers.lockstep import Lockstep
from efhc.drivers.scenario import Scenario
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.experiments.runs.resources import usable_cores
from efhc.experiments.studies.theory_check import SeedProblem, fitting_window, in_parallel
from efhc.kernels.compiled_arithmetic import drift
from efhc.learning.data import Dataset
from efhc.report.theory_data import plain
from efhc.theory.bounds import Constants
from efhc.theory.findings import Finding
from efhc.theory.flow import Flow
from efhc.theory.network import Connectivity, connectivity
from efhc.theory.prediction import drift_speeds, predicted_firing
from efhc.theory.problem import Curvature
from efhc.theory.spectral import window_contractions
from efhc.theory.step_sizes import Limits, check_step_size, limits

HORIZON = 4_000
"""Iterations that are predicted at most."""
CONTRACTED = 300
"""Iterations whose windows' contraction is looked at; a plan need not be exact."""


@dataclass(frozen=True, eq=False)
class StrategyPlan:
    """What is to be expected of one strategy."""

    strategy: str
    seeds: Mapping[int, Connectivity]
    silent: Mapping[int, list[int]]
    """By seed, the devices that will never fire."""
    doubtful: Mapping[int, list[int]]
    """By seed, those that were silent in the second half of the rehearsal: that they fire again is a guess."""
    curvature: Curvature
    window: int | None
    contraction: float | None
    limits: Limits | None
    """None where the theorems allow no step size at all: B is infinite, or the loss is not smooth."""
    step_size: Finding | None
    """alpha(0) against its limit."""
    horizon: int
    """Iterations that were looked ahead."""

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        windows = {
            str(seed): {
                "B1": found.physical.length,
                "B2": found.broadcast.length,
                "B_promised": found.promised,
                "B_observed": found.observed.length,
                "never_fire": self.silent.get(seed, []),
                "may_never_fire": self.doubtful.get(seed, []),
            }
            for seed, found in self.seeds.items()
        }
        numbers: dict[str, Any] = plain(
            {
                "strategy": self.strategy,
                "seeds": windows,
                "curvature": {"L": self.curvature.L, "mu": self.curvature.mu, "known": self.curvature.known},
                "window": self.window,
                "rho": self.contraction,
                "step_size_limits": self.limits and self.limits._asdict(),
                "step_size": self.step_size and self.step_size._asdict(),
                "iterations": self.horizon,
            }
        )
        return numbers


def plan_theory(
    experiment: Experiment, rehearse: int = 1000, tell: Callable[[str], None] = lambda what: None
) -> list[StrategyPlan]:
    """Every strategy, over all seeds; `rehearse` iterations are made."""
    data = load_data(experiment)
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(usable_cores(), thread_name_prefix="efhc-theory") as pool:
        tell("the learning problem")
        curvature = Curvature.worst(in_parallel(pool, _curvature, _scenarios(experiment, data)))
        plans = []
        for strategy in experiment.strategies:
            tell(f"{strategy}: a rehearsal")
            items = ((*item[:2], strategy, rehearse) for item in _scenarios(experiment, data))
            expected: list[tuple[Flow, Ints]] = in_parallel(pool, _expected, items)
            plans.append(_plan(experiment, strategy, expected, curvature))
    return plans


def _scenarios(experiment: Experiment, data: Dataset) -> Iterator[tuple[Experiment, Scenario, int]]:
    """One for each seed; drawn here, as torch traces modules one at a time only."""
    return ((experiment, draw_scenario(experiment, data, seed), seed) for seed in experiment.seeds)


def _curvature(experiment: Experiment, scenario: Scenario, seed: int) -> Curvature:
    return SeedProblem.of(experiment, scenario, seed, optimum=False).curvature


def _expected(experiment: Experiment, scenario: Scenario, strategy: str, rehearse: int) -> tuple[Flow, Ints]:
    """A rehearsal, and what is predicted after it; and the devices of which that is a guess."""
    horizon = min(experiment.iterations, HORIZON)
    fired, guessed = _rehearsed_firing(experiment, scenario, strategy, min(rehearse, horizon), horizon)
    return Flow(scenario.network.graph, fired, exchange_at_start=experiment.exchange_at_start), guessed


def _rehearsed_firing(
    experiment: Experiment, scenario: Scenario, strategy: str, rehearse: int, horizon: int
) -> tuple[Flags, Ints]:
    trigger = experiment.strategies[strategy]
    lockstep, state = Lockstep(scenario, trigger), scenario.initial_state()
    alphas = np.array([scenario.step_size(k) for k in range(horizon)])
    reader = scenario.reader()
    thresholds = np.stack([reader.thresholds(trigger, k) for k in range(horizon)])
    drifts, fired = np.empty((rehearse + 1, experiment.devices)), np.zeros(thresholds.shape, dtype=bool)
    for k in range(rehearse):
        drifts[k] = drift(state.models, state.last_broadcast)
        state, steps = lockstep.advance(state)
        fired[k] = steps.fired[0]
    drifts[rehearse] = drift(state.models, state.last_broadcast)
    silent_after = np.concatenate([fired[:rehearse], np.zeros((1, experiment.devices), dtype=bool)])
    speeds = drift_speeds(drifts, silent_after, alphas[:rehearse])
    fired[rehearse:] = predicted_firing(speeds, alphas[rehearse:], thresholds[rehearse:], drifts[rehearse])
    by_drift = ((thresholds[rehearse:] > 0) & np.isfinite(thresholds[rehearse:])).any(axis=0)  # not by coins alone
    return fired, np.flatnonzero(by_drift & ~fired[rehearse // 2 : rehearse].any(axis=0))


def _plan(
    experiment: Experiment,
    strategy: str,
    expected: list[tuple[Flow, Ints]],
    curvature: Curvature,
) -> StrategyPlan:
    flows = [flow for flow, _ in expected]
    windows = [connectivity(flow) for flow in flows]
    window = fitting_window(windows, flows[0].iterations)
    contraction = window and max(
        window_contractions(flow.matrix, min(flow.iterations, CONTRACTED + window), window).largest for flow in flows
    )
    constants = None
    if window and contraction is not None and math.isfinite(curvature.L):
        constants = Constants(experiment.devices, curvature.L, curvature.mu, 0.0, 0.0, window, contraction)
    silent, doubtful = {}, {}
    for seed, (flow, guessed) in zip(experiment.seeds, expected, strict=True):
        fires: Flags = np.logical_or.reduce(flow.fired, axis=0)
        silent[seed] = np.flatnonzero(~fires).tolist()
        doubtful[seed] = [device for device in guessed.tolist() if fires[device]]
    return StrategyPlan(
        strategy,
        dict(zip(experiment.seeds, windows, strict=True)),
        {seed: devices for seed, devices in silent.items() if devices},
        {seed: devices for seed, devices in doubtful.items() if devices},
        curvature,
        window,
        contraction,
        limits(constants) if constants else None,
        check_step_size(experiment.step_size, constants) if constants else None,
        flows[0].iterations,
    )
