"""The learning problem that a run solves, and its constants in the paper's assumptions.

Device i's loss F_i(w) is the mean over its own samples, the L2 term included; F = (1/m) sum_i F_i. All in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.randomness import Randomness
from efhc.learning.backends.backend import Backend
from efhc.learning.data.dataset import Dataset


class Curvature(NamedTuple):
    """`assump:smooth_convex_graddiv`-(a), (b), for all w and w'.

    ||grad F_i(w) - grad F_i(w')|| <= L_i ||w - w'||, and <grad F_i(w) - grad F_i(w'), w - w'> >= mu_i ||w - w'||^2.
    """

    smoothness: Floats
    """L_i per device; infinite where the loss has kinks."""
    convexity: Floats
    """mu_i per device."""
    known: Literal["exact", "bound", "estimate"]
    """The constants themselves; numbers with which the assumption certainly holds; or what was found near one model."""

    @property
    def L(self) -> float:  # noqa: N802, the paper's letter
        """L = max_i L_i"""
        return float(self.smoothness.max())

    @classmethod
    def worst(cls, several: Sequence[Curvature]) -> Curvature:
        """With which the assumption holds for all of them."""
        smoothness = np.max([each.smoothness for each in several], axis=0)
        return cls(smoothness, np.min([each.convexity for each in several], axis=0), several[0].known)

    @property
    def mu(self) -> float:
        """mu = min_i mu_i"""
        return float(self.convexity.min())


class Noise(NamedTuple):
    """`assump:graderror`-(b): sigma_i^2 = E ||g_i - grad F_i||^2 at given models, over the draw of a mini-batch."""

    variance: Floats
    """sigma_i^2 per device."""
    error: Floats
    """Its standard error; 0 where it is exact."""


class Optimum(NamedTuple):
    """w* = argmin F, as close as it was found."""

    model: Floats
    """w"""
    loss: float
    """F(w)"""
    distance: float
    """||grad F(w)|| / mu. Where F is mu-strongly convex, ||w - w*|| is at most that, and rounding: about 1e-16 / mu."""


class Problem(Protocol):
    """The functions F_i of one run."""

    devices: int
    """m"""

    def local(self, model: Floats) -> tuple[Floats, Floats]:
        """F_i(w), (m,), and grad F_i(w), (m, n), of all devices at one model w, (n,)."""
        ...

    def noise(self, models: Floats) -> Noise:
        """sigma_i^2 at each device's own model w_i, (m, n)."""
        ...

    def curvature(self, model: Floats) -> Curvature:
        """L_i and mu_i: near this model w where they are an estimate, else everywhere."""
        ...

    def optimum(self) -> Optimum | None:
        """w*, or None where there is no minimiser that is known to be the only one."""
        ...


def gradient_diversity(gradients: Floats) -> Floats:
    """delta_i = ||grad F_i(w) - grad F(w)|| per device (`assump:graddiversity`), from grad F_i, (m, n), at one model w.

    At w = w_bar that is enough for lemma:kplus1-(a), where each gradient is taken at its device's own model: since
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
    """The problem of a run: exact for the linear models that are built in, through the run's backend for all others.

    `noise_samples` is the largest number of samples per device from which the noise of a linear model is estimated.
    Default: all, which is exact.
    """
    from efhc.theory.linear_problem import LinearProblem
    from efhc.theory.sampled_problem import SampledProblem

    if LinearProblem.knows(model):
        return LinearProblem(model, data, parts, batch_size, randomness.seed, noise_samples)
    return SampledProblem(backend, data, parts, batch_size, randomness)
