"""What the runs of a strategy showed, and what the theorems promise of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.schedules import Constant, Schedule
from efhc.core.triggers import AlwaysTrigger, CoinTrigger, NeverTrigger
from efhc.strategies.forms import trigger_of
from efhc.theory.bounds import (
    Constants,
    StepSizeLimits,
    Weights,
    asymptotic_gap,
    error_bound,
    printed_weights,
    running_mean_bound,
    step_size_limits,
)
from efhc.theory.connectivity import ChosenWindow, Connectivity
from efhc.theory.contractions import Contractions
from efhc.theory.findings import Check
from efhc.theory.problem import Curvature, Measured, NoiseSource, Optimum

Firing = Literal["fixed", "never", "coins", "drift"]
"""What makes devices fire: every iteration, nothing, independent coins, or how far their models have drifted.

Only in the last case does P(k) depend on the noise of earlier gradients. A strategy of unknown kind counts as "drift".
"""

ROUNDING = 1e-6
"""The relative rounding error of a run in single precision, by which a measured error may exceed its bound."""
BOUNDS = {"optimisation-bound": "optimisation_error", "consensus-bound": "consensus_error"}
"""The subjects of the bounds on Xi(k), each with the field of `Measured` that must stay below."""


@dataclass(frozen=True, eq=False)
class SeedCheck:
    """What one run showed."""

    checks: list[Check]
    """Of its transition weights and links."""
    connectivity: Connectivity
    contractions: Contractions | None
    curvature: Curvature
    optimum: Optimum | None
    measured: Measured
    noise_source: NoiseSource | None = None
    """From what the noise in `measured` is estimated. Default: nothing, it is exact."""


@dataclass(frozen=True, eq=False)
class Promises:
    """What the theorems say of a strategy."""

    constants: Constants
    """The worst of all seeds."""
    limits: StepSizeLimits
    bounds: Floats
    """On Xi(k) at the k looked at, (seeds, points, 2), each from its seed's own start.

    The first of the last two is infinite where there is no w*.
    """
    gap: Floats | None
    """limsup Xi of `theorem:constant`, for a constant step size."""
    gradient_bounds: Floats
    """On the running mean of ||grad F(w_bar)||^2 at the k looked at, (seeds, points)."""
    growing: frozenset[str]
    """Subjects of the bounds that only ever grow from block to block, and so say nothing."""
    printed_weights: Weights
    """w_1 .. w_4 of `theorem:nonconvex`, which is not a bound."""

    @property
    def bound(self) -> Floats:
        """On Xi(k), (points, 2): the mean over seeds, which is the bound from their mean start."""
        return mean_over_seeds(self.bounds)

    @property
    def gradient_bound(self) -> Floats:
        """The mean over seeds, (points,)."""
        return mean_over_seeds(self.gradient_bounds)


def firing_of(strategy: object, devices: int) -> Firing:
    """Return what makes the devices of a strategy fire; "drift" if its trigger is not built in."""
    trigger = trigger_of(strategy)
    if isinstance(trigger, CoinTrigger):
        p = 1 / devices if trigger.probability is None else trigger.probability
        return "coins" if 0 < p < 1 else "fixed" if p else "never"
    if isinstance(trigger, NeverTrigger):
        return "never"
    return "fixed" if isinstance(trigger, AlwaysTrigger) else "drift"


def promises_of(
    seeds: Mapping[int, SeedCheck],
    curvature: Curvature,
    chosen: ChosenWindow | None,
    schedule: Schedule,
    step_sizes: Floats,
    iterations: Ints,
    firing: Firing,
) -> Promises | None:
    """Return limits and bounds, or None where no theorem applies: no window is connected, or the loss is not smooth.

    The constants are the worst of all seeds. The bounds are those at `iterations`, each from its seed's own start.
    """
    contractions = [seed.contractions.largest for seed in seeds.values() if seed.contractions]
    if chosen is None or not math.isfinite(curvature.L):
        return None
    constants = Constants(
        len(curvature.smoothness),
        curvature.L,
        curvature.mu,
        diversity=float(of_seeds(seeds, "diversity").max()),
        noise=float(of_seeds(seeds, "noise").max()),
        window=chosen.length,
        contraction=max(contractions),
        dependent=firing == "drift",
    )
    starts = np.stack([of_seeds(seeds, name)[:, 0] for name in BOUNDS.values()], axis=1)
    least_losses = [seed.optimum.loss if seed.optimum else 0.0 for seed in seeds.values()]  # no loss is negative
    loss_gaps = of_seeds(seeds, "loss")[:, 0] - least_losses
    one_more = np.append(step_sizes, schedule(len(step_sizes)))  # the mean up to k has k + 1 terms
    curves = np.stack([error_bound(constants, step_sizes, start) for start in starts])
    gradient_curves = np.stack(
        [
            running_mean_bound(constants, one_more, float(gap), float(start[1]))
            for gap, start in zip(loss_gaps, starts, strict=True)
        ]
    )
    every = [*mean_over_seeds(curves).T, mean_over_seeds(gradient_curves)]
    has_gap = constants.convexity > 0 and not np.isnan(starts[:, 0]).any() and isinstance(schedule, Constant)
    return Promises(
        constants,
        step_size_limits(constants),
        bounds=curves[:, iterations],
        gap=asymptotic_gap(constants, schedule(0)) if has_gap else None,
        gradient_bounds=gradient_curves[:, iterations],
        growing=frozenset(
            subject
            for subject, curve in zip((*BOUNDS, "gradient-bound"), every, strict=True)
            if only_grows(curve, chosen.length)
        ),
        printed_weights=printed_weights(constants, schedule(0)),
    )


def only_grows(curve: Floats, window: int) -> bool:
    """Whether a bound is never lower at the end of a block of B iterations than it was at the end of one before.

    Within a block it may rise in any case. A bound that rises first and falls later says something.
    """
    ends = curve[::window] if len(curve) > window else curve[[0, -1]]
    highest_before = np.maximum.accumulate(ends)
    return bool(ends[-1] > ends[0] and not (ends < highest_before * (1 - ROUNDING)).any())


def mean_over_seeds(values: Floats) -> Floats:
    """The mean over the first axis; infinite where the sum is too large for a number."""
    with np.errstate(over="ignore"):
        return np.asarray(values.mean(axis=0))


def of_seeds(seeds: Mapping[int, SeedCheck], name: str) -> Floats:
    """Something measured, (seeds, points)."""
    return np.stack([getattr(seed.measured, name) for seed in seeds.values()])


def observed_window(seeds: Mapping[int, SeedCheck]) -> float:
    """The least B such that in every seed every B iterations of used links are connected."""
    return max(seed.connectivity.observed.length for seed in seeds.values())
