"""Errors, gradients and constants of the problem, measured at the models that a run visited."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.kernels.compiled_arithmetic import consensus_error
from efhc.theory.constants.problem import Optimum, Problem, gradient_diversity


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
    return _row(models, mean_model, *problem.local(mean_model), problem, optimum)


def look_at_several(several: Sequence[Floats], problem: Problem, optimum: Optimum | None) -> list[tuple[float, ...]]:
    """Return a row of `Measured` for each W of `several`, in one pass over the data."""
    mean_models = np.stack([models.mean(axis=0, dtype=np.float64) for models in several])
    found = zip(several, mean_models, *problem.local_at(mean_models), strict=True)
    return [_row(*each, problem, optimum) for each in found]


def _row(
    models: Floats,
    mean_model: Floats,
    losses: Floats,
    gradients: Floats,
    problem: Problem,
    optimum: Optimum | None,
) -> tuple[float, ...]:
    """Return one row of `Measured`; `losses` and `gradients` are F_i and grad F_i at the mean model."""
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
