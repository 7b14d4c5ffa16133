"""`assump:smooth_convex_graddiv` and `assump:graderror`: the constants L, mu, delta and sigma^2 of the problem."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from efhc.base.arrays import Flags, Floats
from efhc.theory.check.outcome import Check, Subject, Value
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
    return [
        _smoothness_check(curvature),
        _convexity_check(curvature),
        _diversity_check(curvature, diversity, total_iterations),
        _noise_check(noise, noise_error, total_iterations, noise_source),
    ]


def _smoothness_check(curvature: Curvature) -> Check:
    subject: Subject = "smoothness"
    label, values = "assump:smooth_convex_graddiv-(a)", {"L": curvature.L}
    if not math.isfinite(curvature.L):
        return Check(subject, label, "broken", "kinks")
    verdict: Literal["held", "not checkable"] = "not checkable" if curvature.known == "estimate" else "held"
    return Check(subject, label, verdict, curvature.known, values)


def _convexity_check(curvature: Curvature) -> Check:
    subject: Subject = "convexity"
    label, values = "assump:smooth_convex_graddiv-(b)", {"mu": curvature.mu}
    if curvature.known == "estimate":
        return Check(subject, label, "not checkable", "estimate", values)
    if curvature.mu > 0:
        return Check(subject, label, "held", curvature.known, values)
    flat: Flags = curvature.convexity <= 0
    to_blame = None if flat.all() else int(curvature.convexity.argmin())
    return Check(subject, label, "broken", "flat" if to_blame is None else "flat-device", values, None, to_blame)


def _diversity_check(curvature: Curvature, diversity: Floats, total_iterations: int) -> Check:
    subject: Subject = "diversity"
    label = "assump:smooth_convex_graddiv-(c)"
    if np.isnan(diversity).all():
        return Check(subject, label, "not checkable", "not-looked")
    values = {"delta": float(diversity.max()), "points": diversity.shape[1], "iterations": total_iterations}
    # The gradients of quadratics whose Hessians differ are arbitrarily far apart: no delta is good for all w.
    quadratic = curvature.known == "exact" and math.isfinite(curvature.L)
    unbounded = quadratic and not (np.ptp(curvature.smoothness) == np.ptp(curvature.convexity) == 0)
    return Check(subject, label, "held where looked", "unbounded" if unbounded else "visited", values)


def _noise_check(noise: Floats, noise_error: Floats, total_iterations: int, source: NoiseSource | None) -> Check:
    subject: Subject = "noise"
    label = "assump:graderror"
    if np.isnan(noise).all():
        return Check(subject, label, "not checkable", "not-looked")
    error = float(noise_error.ravel()[noise.argmax()])
    values: dict[str, Value] = {
        "sigma2": float(noise.max()),
        "error": error,
        "points": noise.shape[1],
        "iterations": total_iterations,
    }
    if error and source:
        values |= source._asdict()
    return Check(subject, label, "held where looked", "estimate" if error else "exact", values)
