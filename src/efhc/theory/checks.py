"""What is known of a strategy once its runs were looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.theory import nonconvex, rates
from efhc.theory.bounds import Constants
from efhc.theory.findings import Finding
from efhc.theory.measured import Measured, running_mean
from efhc.theory.network import Connectivity
from efhc.theory.problem import Curvature, Optimum
from efhc.theory.spectral import Contractions
from efhc.theory.step_sizes import Limits


@dataclass(frozen=True, eq=False)
class SeedCheck:
    """What one run showed."""

    findings: list[Finding]
    """Of its transition weights and links."""
    connectivity: Connectivity
    contractions: Contractions | None
    curvature: Curvature
    optimum: Optimum | None
    measured: Measured


@dataclass(frozen=True, eq=False)
class Promises:
    """What the theorems say of a strategy."""

    constants: Constants
    """The worst of all seeds."""
    limits: Limits
    bound: Floats
    """On Xi(k) at the k looked at, (points, 2); the first column infinite where there is no w*."""
    gap: Floats | None
    """limsup Xi of `theorem:constant`, for a constant step size."""
    gradient_bound: Floats
    """On the running mean of ||grad F(w_bar)||^2 at the k looked at."""
    printed_weights: nonconvex.Weights
    """w_1 .. w_4 of `theorem:nonconvex`, which is not a bound."""


@dataclass(frozen=True, eq=False)
class StrategyCheck:
    """One strategy."""

    strategy: str
    seeds: Mapping[int, SeedCheck]
    iterations: Ints
    """The k looked at."""
    findings: list[Finding]
    curvature: Curvature
    window: int | None
    """The B that rho and all bounds are computed with; None if used links are never connected."""
    promises: Promises | None
    """None where the theorems promise nothing: used links are not connected, or the loss is not smooth."""
    slope: rates.Slope | None
    """Of log ||w_bar - w*||^2 against log k, for a diminishing step size."""
    promised_slope: float | None

    def of_seeds(self, name: str) -> Floats:
        """Something measured, (seeds, points)."""
        return of_seeds(self.seeds, name)

    @property
    def running_gradient_norm(self) -> Floats:
        """The running mean of ||grad F(w_bar)||^2, over seeds."""
        return running_mean(self.iterations, self.of_seeds("gradient_norm").mean(axis=0))


def of_seeds(seeds: Mapping[int, SeedCheck], name: str) -> Floats:
    """Something measured, (seeds, points)."""
    return np.stack([getattr(seed.measured, name) for seed in seeds.values()])
