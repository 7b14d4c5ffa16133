"""The rate at which the error falls under alpha(k) = alpha0 / (1 + k/eta)^theta: the proved one and the measured one.

theta is `power`. What the printed lemmas on sums of step sizes get wrong is in docs/errata.md; no rate depends on it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import InputError

POINTS = 40
"""The largest number of points that a slope is fitted to."""

CONFIDENCE = 0.95
"""The confidence level of the interval around a slope."""


class Rate(NamedTuple):
    """error(k) = O((ln k)^logarithms k^-exponent)."""

    exponent: float
    logarithms: int
    """The power of ln k: 1, 0 or -1."""
    proved: bool
    """Whether the paper's proof covers this theta. The paper states its rates for all theta from 0.5 to 1."""

    @property
    def text(self) -> str:
        """The rate as a formula."""
        if self.logarithms > 0:
            return "ln k / sqrt(k)"
        return "1 / ln k" if self.logarithms < 0 else f"k^-{self.exponent:.3g}"


def rate(power: float) -> Rate | None:
    """The rate of E||w_mean - w*||^2 and E||W - 1 w_mean||^2 (`theorem:diminishing`, end of `appendix:generalTheta`).

    ln k / sqrt(k) for theta = 0.5, k^-(1-theta) between 0.5 and 1, 1 / ln k for theta = 1. Returns None below 0.5,
    where the paper states no rate.

    The paper's proof needs theta = Q / (Q+1) for an integer Q. For other theta the rate holds as well: in the sum over
    r <= k of alpha(r-1)^2 / (alpha(r) + ... + alpha(k)), the terms up to k/2 together are at most a finite
    sum_r alpha(r)^2 over a sum of order k^(1-theta), and the others are of order k^-theta ln k, which is less as
    theta > 1 - theta.
    """
    theta = power
    if theta < 0.5:
        return None
    if theta == 0.5:
        return Rate(0.5, 1, proved=True)
    if theta == 1:
        return Rate(0.0, -1, proved=True)
    Q = round(theta / (1 - theta))
    return Rate(1 - theta, 0, proved=abs(theta - Q / (Q + 1)) < 1e-12)


def envelope(power: float, iterations: Ints) -> Floats:
    """`rate` as a function of k >= 2, without the constant of O(). ln k / sqrt(k) falls only from k = e^2 on."""
    known = rate(power)
    if known is None:
        raise InputError("power", power, "a number from 0.5 to 1; the paper has no rate below 0.5")
    k = iterations.astype(np.float64)
    return np.asarray(np.log(k) ** known.logarithms * k**-known.exponent)


class Slope(NamedTuple):
    """d ln(error) / d ln(k), with a 95 % interval from `low` to `high`."""

    value: float
    low: float
    high: float
    seeds: int


def fit_slope(iterations: Ints, errors: Floats) -> Slope:
    """Least-squares slope of ln(error) against ln(k): one per row of `errors` (seeds, points), then their mean.

    The interval is Student's t over the seeds. With one seed it is that of ordinary least squares, which takes the
    residuals as independent; those of one run are not, so it is too narrow.

    Points with k < 1, and points where the error of any seed is not positive and finite, are dropped for all seeds. Of
    the others, of which at least 3 are needed, at most `POINTS` are kept: those nearest to values of k that are evenly
    spaced in ln(k). Without this, late iterations would outweigh early ones.
    """
    rows = np.atleast_2d(errors)
    usable = np.flatnonzero((iterations >= 1) & np.all(np.isfinite(rows) & (rows > 0), axis=0))
    k, places = np.unique(iterations[usable], return_index=True)
    if k.size < 3:
        raise InputError("errors", f"{k.size} usable points", "at least 3 positive errors at different k >= 1")
    log_k = np.log(k.astype(np.float64))
    even = np.linspace(log_k[0], log_k[-1], POINTS)
    kept = usable[places[np.unique(np.abs(even[:, None] - log_k).argmin(axis=1))]]
    x, y = np.log(iterations[kept].astype(np.float64)), np.log(rows[:, kept].astype(np.float64))
    x, y = x - x.mean(), y - y.mean(axis=1, keepdims=True)
    slopes = y @ x / (x @ x)
    seeds, points = y.shape
    if seeds > 1:
        spread, freedom = np.std(slopes, ddof=1) / np.sqrt(seeds), seeds - 1
    else:
        freedom = points - 2
        spread = np.sqrt(np.sum((y - slopes[:, None] * x) ** 2) / freedom / (x @ x))
    value, half = float(slopes.mean()), float(stdtrit(freedom, (1 + CONFIDENCE) / 2) * spread)
    return Slope(value, value - half, value + half, seeds)


def envelope_slope(power: float, iterations: Ints) -> float:
    """The slope that `fit_slope` finds for `envelope` at those of the given k that are at least 2.

    At finite k it differs from -exponent because of the logarithms. For a fair comparison, give both the same k >= 2.
    """
    k = iterations[iterations >= 2]
    return fit_slope(k, envelope(power, k)).value
