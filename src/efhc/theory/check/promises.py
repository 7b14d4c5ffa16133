"""What the theorems promise of a strategy, computed from what its runs showed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.schedules import Constant, Schedule
from efhc.core.triggers import AlwaysTrigger, CoinTrigger, NeverTrigger
from efhc.strategies.forms import trigger_of
from efhc.theory.bounds import nonconvex
from efhc.theory.bounds.recursion import Constants, asymptotic_gap, error_bound
from efhc.theory.bounds.step_size_limits import limits
from efhc.theory.check.chosen_window import ChosenWindow
from efhc.theory.check.outcome import Subject
from efhc.theory.check.strategy_check import Promises, SeedCheck, mean_over_seeds, of_seeds
from efhc.theory.constants.problem import Curvature

Firing = Literal["fixed", "never", "coins", "drift"]
"""By what devices fire: at all iterations, never, by independent coins, or by how far their models have drifted.

Only in the last case does P(k) depend on the noise of earlier gradients. A strategy of unknown kind counts as "drift".
"""

ROUNDING = 1e-6
"""The relative rounding error of a run in single precision, by which a measured error may exceed its bound."""
BOUNDS: tuple[tuple[Subject, str, str], ...] = (
    ("optimisation-bound", "eqn:PhikPsikRecursive", "optimisation_error"),
    ("consensus-bound", "eqn:PhikPsikRecursive", "consensus_error"),
)
"""The bounds on Xi(k): subject, label in the paper, and the field of `Measured` that must stay below."""


def firing_of(strategy: object, devices: int) -> Firing:
    """Return by what the devices of a strategy fire; "drift" if its trigger is not built in."""
    trigger = trigger_of(strategy)
    if isinstance(trigger, CoinTrigger):
        p = 1 / devices if trigger.probability is None else trigger.probability
        return "coins" if 0 < p < 1 else "fixed" if p else "never"
    if isinstance(trigger, NeverTrigger):
        return "never"
    return "fixed" if isinstance(trigger, AlwaysTrigger) else "drift"


def constants_of(
    curvature: Curvature,
    window: int,
    contraction: float,
    *,
    diversity: float = 0.0,
    noise: float = 0.0,
    dependent: bool,
) -> Constants:
    """What the bounds are made of. `dependent` says that P(k) may depend on the noise of earlier gradients."""
    devices = len(curvature.smoothness)
    return Constants(devices, curvature.L, curvature.mu, diversity, noise, window, contraction, dependent)


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
    constants = constants_of(
        curvature,
        chosen.length,
        max(contractions),
        diversity=float(of_seeds(seeds, "diversity").max()),
        noise=float(of_seeds(seeds, "noise").max()),
        dependent=firing == "drift",
    )
    starts = np.stack([of_seeds(seeds, name)[:, 0] for _, _, name in BOUNDS], axis=1)
    least_losses = [seed.optimum.loss if seed.optimum else 0.0 for seed in seeds.values()]  # no loss is negative
    loss_gaps = of_seeds(seeds, "loss")[:, 0] - least_losses
    one_more = np.append(step_sizes, schedule(len(step_sizes)))  # the mean up to k has k + 1 terms
    curves = np.stack([error_bound(constants, step_sizes, start) for start in starts])
    gradient_curves = np.stack(
        [
            nonconvex.running_mean_bound(constants, one_more, float(gap), float(start[1]))
            for gap, start in zip(loss_gaps, starts, strict=True)
        ]
    )
    every = [*mean_over_seeds(curves).T, mean_over_seeds(gradient_curves)]
    subjects = [*(subject for subject, _, _ in BOUNDS), "gradient-bound"]
    strongly_convex = constants.convexity > 0 and not np.isnan(starts[:, 0]).any()
    return Promises(
        constants,
        limits(constants),
        bounds=curves[:, iterations],
        gap=asymptotic_gap(constants, schedule(0)) if strongly_convex and isinstance(schedule, Constant) else None,
        gradient_bounds=gradient_curves[:, iterations],
        growing=frozenset(
            subject for subject, curve in zip(subjects, every, strict=True) if only_grows(curve, chosen.length)
        ),
        printed_weights=nonconvex.printed_weights(constants, schedule(0)),
    )


def only_grows(curve: Floats, window: int) -> bool:
    """Whether a bound is never lower at the end of a block of B iterations than it was at the end of one before.

    Within a block it may rise in any case. A bound that rises first and falls later says something.
    """
    ends = curve[::window] if len(curve) > window else curve[[0, -1]]
    highest_before = np.maximum.accumulate(ends)
    return bool(ends[-1] > ends[0] and not (ends < highest_before * (1 - ROUNDING)).any())
