"""The learning problem that a run solves, its constants in the paper's assumptions, and what is measured of a run.

The loss F_i(w) of device i is the mean over its samples, including the L2 term; F = (1/m) sum_i F_i. All results are in
float64.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.randomness import Randomness
from efhc.kernels.compiled_arithmetic import consensus_error
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
    from efhc.theory.linear_problem import LinearProblem
    from efhc.theory.sampled_problem import SampledProblem

    if LinearProblem.knows(model):
        return LinearProblem(model, data, parts, batch_size, randomness.seed, noise_samples)
    return SampledProblem(backend, data, parts, batch_size, randomness)


@dataclass(frozen=True, eq=False)
class Measured:
    """Measurements of one run, one entry per iteration k looked at. NaN where a value is unknown, as without a w*."""

    optimisation_error: Floats
    """||w_bar - w*||^2"""
    consensus_error: Floats
    """||W - 1 w_bar||^2"""
    loss: Floats
    """F(w_bar)"""
    loss_gap: Floats
    """F(w_bar) - F(w*)"""
    gradient_norm: Floats
    """||grad F(w_bar)||^2"""
    diversity: Floats
    """delta: max_i ||grad F_i(w_bar) - grad F(w_bar)||"""
    noise: Floats
    """sigma^2: max_i sigma_i^2, at each device's own model."""
    noise_error: Floats
    """The standard error of `noise`; 0 where it is exact."""

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[float, ...]]) -> Measured:
        """Collect rows of `look`, one per iteration in order."""
        return cls(*np.array(rows).T)

    @classmethod
    def of_consensus(cls, errors: Floats) -> Measured:
        """Collect consensus errors only, for runs to which no theorem applies."""
        unknown = np.full(len(errors), math.nan)
        return cls(unknown, errors, *[unknown] * 6)


def look(models: Floats, problem: Problem, optimum: Optimum | None) -> tuple[float, ...]:
    """Return one row of `Measured`, at W = `models`."""
    mean_model = models.mean(axis=0, dtype=np.float64)
    losses, gradients = problem.local(mean_model)
    noise = problem.noise(models)
    noisiest, loss = int(noise.variance.argmax()), float(losses.mean())
    return (
        float(np.square(mean_model - optimum.model).sum()) if optimum else math.nan,
        consensus_error(models),
        loss,
        loss - optimum.loss if optimum else math.nan,
        float(np.square(gradients.mean(axis=0, dtype=np.float64)).sum()),
        float(gradient_diversity(gradients).max()),
        float(noise.variance[noisiest]),
        float(noise.error[noisiest]),
    )


def running_mean(iterations: Ints, values: Floats) -> Floats:
    """Return (1/(k+1)) sum_{r <= k} values(r) at the k looked at, with values between them interpolated linearly."""
    areas = np.concatenate([[0.0], np.cumsum(np.diff(iterations) * (values[1:] + values[:-1]) / 2)])
    running: Floats = (areas + (values[0] + values) / 2) / (iterations + 1)
    return running
