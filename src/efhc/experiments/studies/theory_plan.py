"""`efhc theory plan CONFIG`: the limits and bounds of a run, before it is made.

Graphs, thresholds and step sizes are known beforehand. How fast devices drift is not: a rehearsal of the first
iterations shows it, and who fires after that is predicted from there. Numbers are of that prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from efhc.base.arrays import Flags, Ints
from efhc.core.state import State
from efhc.drivers.lockstep import PaperLockstep
from efhc.drivers.observers import drive
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.experiments.runs.resources import usable_cores
from efhc.experiments.runs.tables import require_papers_form
from efhc.experiments.studies.theory_check import FiringLooks, ReportProgress, SeedProblem, in_parallel, windows_of
from efhc.kernels.compiled_arithmetic import drift
from efhc.report.theory import check_as_dict, plain, windows_as_dict
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import trigger_of
from efhc.theory.bounds import Constants, StepSizeLimits, step_size_limits
from efhc.theory.checks import check_step_size
from efhc.theory.connectivity import (
    ChosenWindow,
    Connectivity,
    Flow,
    drift_speeds,
    fitting_window,
    predicted_firing,
)
from efhc.theory.contractions import window_contractions
from efhc.theory.findings import Check
from efhc.theory.problem import Curvature

HORIZON = 4_000
"""Iterations that are predicted at most."""
CONTRACTED = 300
"""Iterations whose windows' contraction is computed; a plan need not be exact."""


@dataclass(frozen=True, eq=False)
class StrategyPlan:
    """The prediction for one strategy."""

    strategy: str
    seeds: Mapping[int, Connectivity]
    silent: Mapping[int, list[int]]
    """By seed, the devices that are not expected to fire within `horizon`."""
    doubtful: Mapping[int, list[int]]
    """By seed, the devices that were silent in the second half of the rehearsal and may not fire again."""
    curvature: Curvature
    chosen: ChosenWindow | None
    """The B with which rho and the limits are computed."""
    contraction: float | None
    """rho"""
    limits: StepSizeLimits | None
    """For `chosen`, and so for the step sizes of this config. None if no B is known, or the loss is not smooth."""
    step_size: Check | None
    """alpha(0) against its limit."""
    horizon: int
    """Number of iterations that were predicted."""

    @property
    def window(self) -> int | None:
        """The B of `chosen`."""
        return self.chosen and self.chosen.length

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        windows = {
            str(seed): {
                **windows_as_dict(found, self.horizon),
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
                "window_is": self.chosen and self.chosen.kind,
                "rho": self.contraction,
                "step_size_limits": self.limits and self.limits._asdict(),
                "step_size": self.step_size and check_as_dict(self.step_size),
                "iterations": self.horizon,
            }
        )
        return numbers


def plan_theory(
    experiment: Experiment, rehearse: int = 1000, progress: ReportProgress = lambda what, share: None
) -> list[StrategyPlan]:
    """Plan every strategy, over all seeds; the first `rehearse` iterations are made."""
    require_papers_form(experiment)
    data = load_data(experiment)
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(usable_cores(), thread_name_prefix="efhc-theory") as pool:
        progress("the learning problem", 0.0)
        drawn = [(experiment, draw_scenario(experiment, data, seed), seed, False) for seed in experiment.seeds]
        problems: list[SeedProblem] = in_parallel(pool, SeedProblem.of, drawn)
        plans = []
        for n, strategy in enumerate(experiment.strategies):
            progress(f"{strategy}: a rehearsal", (n + 1) / (len(experiment.strategies) + 1))
            items = ((experiment, of.scenario, strategy, rehearse) for of in problems)
            expected: list[tuple[Flow, Ints]] = in_parallel(pool, _expected, items)
            plans.append(_plan(experiment, problems, strategy, expected))
    return plans


def _expected(experiment: Experiment, scenario: Scenario, strategy: str, rehearse: int) -> tuple[Flow, Ints]:
    """Return a rehearsal and the prediction after it; and the devices for which that is a guess."""
    horizon = min(experiment.iterations, HORIZON)
    rehearse = min(rehearse, horizon)
    trigger = trigger_of(experiment.strategies[strategy])
    alphas = np.array([scenario.step_size(k) for k in range(horizon)])
    thresholds = scenario.reader().thresholds_of_many(trigger, 0, horizon)
    drifts = np.empty((rehearse + 1, experiment.devices))

    def measure(state: State) -> None:
        drifts[state.k] = drift(state.models, state.last_broadcast)

    seen = FiringLooks(range(rehearse + 1), (rehearse, experiment.devices), measure)
    drive(PaperLockstep(scenario, trigger), scenario.initial_state(), rehearse, [seen])
    silent_after = np.concatenate([seen.fired, np.zeros((1, experiment.devices), dtype=bool)])
    speeds = drift_speeds(drifts, silent_after, alphas[:rehearse])
    later = predicted_firing(speeds, alphas[rehearse:], thresholds[rehearse:], drifts[rehearse])
    by_drift = ((thresholds[rehearse:] > 0) & np.isfinite(thresholds[rehearse:])).any(axis=0)  # not by coins alone
    guessed = np.flatnonzero(by_drift & ~seen.fired[rehearse // 2 :].any(axis=0))
    fired = np.concatenate([seen.fired, later])
    return Flow(scenario.network.graph, fired, exchange_at_start=experiment.exchange_at_start), guessed


def _plan(
    experiment: Experiment, problems: Sequence[SeedProblem], strategy: str, expected: Sequence[tuple[Flow, Ints]]
) -> StrategyPlan:
    flows, curvature = [flow for flow, _ in expected], Curvature.worst([of.curvature for of in problems])
    firing, windows, _ = windows_of(experiment, strategy, problems, flows)
    chosen = fitting_window(windows, flows[0].iterations, by_chance=True)  # a rehearsal promises nothing
    contraction, constants = None, None
    if chosen:
        length = chosen.length
        contraction = max(
            window_contractions(flow.matrix, min(flow.iterations, CONTRACTED + length), length).largest
            for flow in flows
        )
        if math.isfinite(curvature.L):
            known = experiment.devices, curvature.L, curvature.mu
            # A plan knows neither delta nor sigma^2, on which no limit depends.
            constants = Constants(*known, 0.0, 0.0, length, contraction, dependent=firing == "drift")
    silent, doubtful = {}, {}
    for seed, (flow, guessed) in zip(experiment.seeds, expected, strict=True):
        fires: Flags = np.logical_or.reduce(flow.fired, axis=0)
        silent[seed] = np.flatnonzero(~fires).tolist()
        doubtful[seed] = guessed[fires[guessed]].tolist()
    return StrategyPlan(
        strategy,
        dict(zip(experiment.seeds, windows, strict=True)),
        {seed: devices for seed, devices in silent.items() if devices},
        {seed: devices for seed, devices in doubtful.items() if devices},
        curvature,
        chosen,
        contraction,
        step_size_limits(constants) if constants else None,
        check_step_size(experiment.step_size, constants) if constants else None,
        flows[0].iterations,
    )
