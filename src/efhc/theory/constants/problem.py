"""The learning problem that a run solves, and its constants in the paper's assumptions.

The loss F_i(w) of device i is the mean over its samples, including the L2 term; F = (1/m) sum_i F_i. All results are in
float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.randomness import Randomness
from efhc.learning.backends.backend import Backend
from efhc.learning.data.dataset import Dataset


class Curvature(NamedTuple):
    """The constants of `assump:smooth_convex_graddiv`-(a) and (b). For all w and w':

    ||grad F_i(w) - grad F_i(w')|| <= L_i ||w - w'||, and <grad F_i(w) - grad F_i(w'), w - w'> >= mu_i ||w - w'||^2.
    """

    smoothness: Floats
    """L_i per device; infinite where the loss has kinks."""
    convexity: Floats
    """mu_i per device."""
    known: Literal["exact", "bound", "estimate"]
    """How L_i and mu_i are known: exactly, as bounds with which the assumption certainly holds, or as estimates near
    one model."""

    @property
    def L(self) -> float:  # noqa: N802, the paper's letter
        """L = max_i L_i"""
        return float(self.smoothness.max())

    @classmethod
    def worst(cls, several: Sequence[Curvature]) -> Curvature:
        """Return the constants with which the assumption holds for `several` problems at once."""
        smoothness = np.max([each.smoothness for each in several], axis=0)
        return cls(smoothness, np.min([each.convexity for each in several], axis=0), several[0].known)

    @property
    def mu(self) -> float:
        """mu = min_i mu_i"""
        return float(self.convexity.min())


class Noise(NamedTuple):
    """sigma_i^2 = E ||g_i - grad F_i||^2 at given models, over the draw of a mini-batch (`assump:graderror`-(b))."""

    variance: Floats
    """sigma_i^2 per device."""
    error: Floats
    """The standard error of sigma_i^2; 0 where it is exact."""


class NoiseSource(NamedTuple):
    """From what sigma_i^2 is estimated."""

    draws: int
    """The number of samples, or of mini-batches, per device."""
    of: Literal["samples", "mini-batches"]


class Optimum(NamedTuple):
    """An approximation of w* = argmin F."""

    model: Floats
    """w"""
    loss: float
    """F(w)"""
    distance: float
    """||grad F(w)|| / mu, an upper bound on ||w - w*|| up to rounding errors of about 1e-16 / mu."""


class Problem(ABC):
    """The functions F_i of one run."""

    devices: int
    """m"""

    @property
    @abstractmethod
    def noise_source(self) -> NoiseSource | None:
        """From what the noise is estimated, or None if it is exact."""

    @abstractmethod
    def local(self, model: Floats) -> tuple[Floats, Floats]:
        """Return F_i(w), (m,), and grad F_i(w), (m, n), of all devices at one model w, (n,)."""

    def local_at(self, models: Floats) -> tuple[Floats, Floats]:
        """Return F_i(w), (p, m), and grad F_i(w), (p, m, n), at each of several models w, (p, n)."""
        losses, gradients = zip(*map(self.local, models), strict=True)
        return np.stack(losses), np.stack(gradients)

    @abstractmethod
    def noise(self, models: Floats) -> Noise:
        """Return sigma_i^2 at each device's own model w_i; `models` is (m, n)."""

    @abstractmethod
    def curvature(self, model: Floats) -> Curvature:
        """Return L_i and mu_i: near `model` if they are estimates, else for all models."""

    def optimum(self) -> Optimum | None:
        """Return w*, or None if no minimiser is known to be the only one."""
        return None


def gradient_diversity(gradients: Floats) -> Floats:
    """Return delta_i = ||grad F_i(w) - grad F(w)|| per device, from `gradients`, grad F_i(w), (m, n), at one model w.

    This is `assump:smooth_convex_graddiv`-(c). Its value at w = w_bar is enough for `lemma:kplus1`-(a), although there
    each gradient is taken at its device's own model: since
    grad F_i(w_i) - mean_j grad F_j(w_j) = (grad F_i(w_bar) - grad F(w_bar)) + (e_i - e_bar) with
    e_i = grad F_i(w_i) - grad F_i(w_bar), ||e_i|| <= L ||w_i - w_bar||, the sum of their squares over i is at most
    2 m delta^2 + 2 L^2 ||W - 1 w_bar||^2.
    """
    exact = gradients.astype(np.float64)
    diversity: Floats = np.linalg.norm(exact - exact.mean(axis=0), axis=1)
    return diversity


def problem_for(
    model: Any,
    data: Dataset,
    parts: list[Ints],
    batch_size: int | Literal["full"],
    backend: Backend,
    randomness: Randomness,
    noise_samples: int | None = None,
) -> Problem:
    """Return the problem of a run: a `LinearProblem` for the built-in linear models, else a `SampledProblem`.

    `noise_samples` is the number of samples per device from which the noise of a linear model is estimated.
    Default: all samples, which is exact.
    """
    from efhc.theory.constants.linear_problem import LinearProblem
    from efhc.theory.constants.sampled_problem import SampledProblem

    if LinearProblem.knows(model):
        return LinearProblem(model, data, parts, batch_size, randomness.seed, noise_samples)
    return SampledProblem(backend, data, parts, batch_size, randomness)
