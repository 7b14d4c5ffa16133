"""What was found of a strategy: one typed `Check` per assumption or promise, and the numbers that it rests on.

Nothing here is worded; `efhc.theory.check.sentences` turns a check into a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.theory.bounds import nonconvex, rates
from efhc.theory.bounds.recursion import Constants
from efhc.theory.bounds.step_size_limits import Limits
from efhc.theory.check.chosen_window import ChosenWindow
from efhc.theory.check.outcome import Check
from efhc.theory.connectivity.contractions import Contractions
from efhc.theory.connectivity.windows import Connectivity
from efhc.theory.constants.measured import Measured, running_mean
from efhc.theory.constants.problem import Curvature, NoiseSource, Optimum


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
    limits: Limits
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
    printed_weights: nonconvex.Weights
    """w_1 .. w_4 of `theorem:nonconvex`, which is not a bound."""

    @property
    def bound(self) -> Floats:
        """On Xi(k), (points, 2): the mean over seeds, which is the bound from their mean start."""
        return mean_over_seeds(self.bounds)

    @property
    def gradient_bound(self) -> Floats:
        """The mean over seeds, (points,)."""
        return mean_over_seeds(self.gradient_bounds)


@dataclass(frozen=True, eq=False)
class StrategyCheck:
    """One strategy."""

    strategy: str
    seeds: Mapping[int, SeedCheck]
    iterations: Ints
    """The k looked at."""
    checks: list[Check]
    curvature: Curvature
    chosen: ChosenWindow | None
    """None if used links are cut off when the run ends, so that no B is known."""
    promises: Promises | None
    """None where the theorems promise nothing: no B is known, or the loss is not smooth."""
    slope: rates.Slope | None
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
