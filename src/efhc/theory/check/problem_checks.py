"""`assump:smooth_convex_graddiv` and `assump:graderror`: the constants L, mu, delta and sigma^2 of the problem."""

from __future__ import annotations

import math

import numpy as np

from efhc.base.arrays import Floats
from efhc.theory.check.outcome import Check, Value, finding
from efhc.theory.constants.problem import Curvature, NoiseSource


def check_problem(
    curvature: Curvature,
    diversity: Floats,
    noise: Floats,
    noise_error: Floats,
    *,
    total_iterations: int,
    noise_source: NoiseSource | None = None,
) -> list[Check]:
    """Check L, mu, delta and sigma^2. The three arrays, (seeds, points), are NaN where nothing was measured."""
    smooth = math.isfinite(curvature.L)
    return [
        finding("smoothness", curvature.known, {"L": curvature.L}) if smooth else finding("smoothness", "kinks"),
        _convexity_check(curvature),
        _diversity_check(curvature, diversity, total_iterations),
        _noise_check(noise, noise_error, total_iterations, noise_source),
    ]


def _convexity_check(curvature: Curvature) -> Check:
    values = {"mu": curvature.mu}
    if curvature.known == "estimate" or curvature.mu > 0:
        return finding("convexity", curvature.known, values)
    if (curvature.convexity <= 0).all():
        return finding("convexity", "flat", values)
    return finding("convexity", "flat-device", values, device=int(curvature.convexity.argmin()))


def _diversity_check(curvature: Curvature, diversity: Floats, total_iterations: int) -> Check:
    if np.isnan(diversity).all():
        return finding("diversity", "not-looked")
    values = {"delta": float(diversity.max()), "points": diversity.shape[1], "iterations": total_iterations}
    # The gradients of quadratics whose Hessians differ are arbitrarily far apart: no delta is good for all w.
    quadratic = curvature.known == "exact" and math.isfinite(curvature.L)
    unbounded = quadratic and not (np.ptp(curvature.smoothness) == np.ptp(curvature.convexity) == 0)
    return finding("diversity", "unbounded" if unbounded else "visited", values)


def _noise_check(noise: Floats, noise_error: Floats, total_iterations: int, source: NoiseSource | None) -> Check:
    if np.isnan(noise).all():
        return finding("noise", "not-looked")
    error = float(noise_error.ravel()[noise.argmax()])
    values: dict[str, Value] = {"sigma2": float(noise.max()), "error": error}
    values |= {"points": noise.shape[1], "iterations": total_iterations}
    if error and source:
        values |= source._asdict()
    return finding("noise", "estimate" if error else "exact", values)
