"""All checks of one strategy: from what its runs showed to how each assumption and each promise came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.schedules import Schedule
from efhc.theory.bounds import convergence_rates
from efhc.theory.check.bound_checks import check_promises, check_rate, slopes_of
from efhc.theory.check.connectivity_checks import check_contraction, check_windows
from efhc.theory.check.outcome import Certainty, Check, worst_checks
from efhc.theory.check.problem_checks import check_problem
from efhc.theory.check.promises import Firing, Promises, SeedCheck, of_seeds, promises_of
from efhc.theory.check.step_size_checks import check_schedule
from efhc.theory.connectivity.windows import ChosenWindow, observed_is_known
from efhc.theory.constants.measured import running_mean
from efhc.theory.constants.problem import Curvature


@dataclass(frozen=True, eq=False)
class StrategyCheck:
    """One strategy."""

    strategy: str
    seeds: Mapping[int, SeedCheck]
    iterations: Ints
    """The iterations k at which models were measured."""
    checks: list[Check]
    curvature: Curvature
    chosen: ChosenWindow | None
    """None if used links are cut off when the run ends, so that no B is known."""
    promises: Promises | None
    """None where the theorems promise nothing: no B is known, or the loss is not smooth."""
    slope: convergence_rates.Slope | None
    """Of log ||w_bar - w*||^2 against log k, for a diminishing step size."""
    promised_slope: float | None
    total_iterations: int
    """K, the iterations of the run."""

    @property
    def window(self) -> int | None:
        """The B of `chosen`."""
        return self.chosen and self.chosen.length

    def of_seeds(self, name: str) -> Floats:
        """Something measured, (seeds, points)."""
        return of_seeds(self.seeds, name)

    @property
    def running_gradient_norm(self) -> Floats:
        """The running mean of ||grad F(w_bar)||^2, over seeds."""
        return running_mean(self.iterations, self.of_seeds("gradient_norm").mean(axis=0))

    def check_of(self, subject: str) -> Check | None:
        """The check of one subject, if it was made."""
        return next((check for check in self.checks if check.subject == subject), None)


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
    certainty = Certainty(links=not links_by_chance, firing=firing != "coins")
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
        *check_windows(windows, total_iterations, certainty),
        check_contraction(seeds, chosen, certainty),
        *check_problem(
            curvature,
            *(of_seeds(seeds, name) for name in ("diversity", "noise", "noise_error")),
            total_iterations=total_iterations,
            noise_source=next((seed.noise_source for seed in seeds.values() if seed.noise_source), None),
        ),
        check_schedule(schedule, total_iterations),
        *check_promises(promises, curvature, schedule, seeds, iterations, certainty, optimum_sought=optimum_sought),
        *check_rate(slope, promised_slope, schedule),
    ]
    return StrategyCheck(
        strategy, seeds, iterations, checks, curvature, chosen, promises, slope, promised_slope, total_iterations
    )
