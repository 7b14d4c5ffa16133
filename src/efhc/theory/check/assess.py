"""All checks of one strategy: from what its runs showed to how each assumption and each promise came out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from efhc.base.arrays import Ints
from efhc.core.schedules import Schedule
from efhc.theory.check.bound_checks import check_promises
from efhc.theory.check.chosen_window import ChosenWindow, observed_is_known
from efhc.theory.check.connectivity_checks import check_contraction, check_windows
from efhc.theory.check.outcome import worst_checks
from efhc.theory.check.problem_checks import check_problem
from efhc.theory.check.promises import Firing, promises_of
from efhc.theory.check.rate_checks import check_rate, slopes_of
from efhc.theory.check.step_size_checks import check_schedule
from efhc.theory.check.strategy_check import SeedCheck, StrategyCheck, of_seeds
from efhc.theory.constants.problem import Curvature


def assess(
    strategy: str,
    seeds: Mapping[int, SeedCheck],
    schedule: Schedule,
    total_iterations: int,
    iterations: Ints,
    chosen: ChosenWindow | None,
    firing: Firing = "drift",
    *,
    links_by_chance: bool = False,
    optimum_sought: bool = True,
) -> StrategyCheck:
    """Put together what all seeds showed.

    `iterations` are the k at which models were looked at, of 0 .. `total_iterations`. `optimum_sought` is False where
    no w* was looked for. `links_by_chance` says that nothing is known of the physical links after the run.
    """
    by_chance = firing == "coins" or links_by_chance
    windows = {seed: each.connectivity for seed, each in seeds.items()}
    curvature = Curvature.worst([seed.curvature for seed in seeds.values()])
    step_sizes = np.array([schedule(k) for k in range(total_iterations)])
    promises = None
    # A B of the user's is as little known as an observed one if the end of the run cuts used links off.
    if chosen and (chosen.kind != "given" or observed_is_known(list(windows.values()), total_iterations)):
        promises = promises_of(seeds, curvature, chosen, schedule, step_sizes, iterations, firing)
    slope, promised_slope = slopes_of(schedule, iterations, of_seeds(seeds, "optimisation_error"))
    checks = [
        *worst_checks(list(seeds), [seed.checks for seed in seeds.values()]),
        *check_windows(windows, total_iterations, coins=firing == "coins", links_by_chance=links_by_chance),
        check_contraction(seeds, chosen, by_chance=by_chance),
        *check_problem(
            curvature,
            *(of_seeds(seeds, name) for name in ("diversity", "noise", "noise_error")),
            total_iterations=total_iterations,
            noise_source=next((seed.noise_source for seed in seeds.values() if seed.noise_source), None),
        ),
        check_schedule(schedule, total_iterations),
        *check_promises(
            promises, curvature, schedule, seeds, iterations, optimum_sought=optimum_sought, by_chance=by_chance
        ),
        *check_rate(slope, promised_slope, schedule),
    ]
    return StrategyCheck(
        strategy, seeds, iterations, checks, curvature, chosen, promises, slope, promised_slope, total_iterations
    )
