"""The rate at which the error falls under alpha(k) = alpha0 / (1 + k/eta)^theta: the proved one and the measured one.

Arguments: alpha0 is `initial`, eta is `timescale`, theta is `power`. B is `window`, the number of iterations within
which the information flow graph is connected. s and k are `first` and `last`, which count windows. In all formulas
e = eta / B and v(x) = 1 + x/e.

Where a printed inequality or its proof does not hold, the docstring says so, and the function computes one that does.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from scipy.special import exprel, stdtrit

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import InputError

POINTS = 40
"""The largest number of points that a slope is fitted to."""

CONFIDENCE = 0.95
"""The confidence level of the interval around a slope."""


def product_bound(shares: Floats, power: float = 1.0) -> float:
    """1 / (p sum_r zeta_r) >= prod_r (1 - zeta_r)^p for 0 < zeta_r <= 1 and p >= 1 (`lemma:bernoulli`).

    zeta is `shares`, p is `power`. The proof gives the sharper 1 / (1 + p sum_r zeta_r), which is always below 1 and
    holds for all p > 0. The printed one, computed here, says nothing while p sum_r zeta_r <= 1.
    """
    if shares.size == 0 or not np.all((shares > 0) & (shares <= 1)):
        raise InputError("shares", shares, "at least one, each above 0 and at most 1")
    if not power >= 1:
        raise InputError("power", power, "a number of at least 1")
    return 1.0 / (power * float(np.sum(shares)))


def step_sum_bound(initial: float, timescale: float, power: float, window: int, first: int, last: int) -> float:
    """sum_{r=sB}^{(k+1)B-1} alpha(r) >= alpha0 eta (v(k+1)^(1-theta) - v(s)^(1-theta)) / (1 - theta), theta in [0, 1].

    The bound is the integral of alpha from sB to (k+1)B; for theta = 1 it is the limit alpha0 eta ln(v(k+1) / v(s)).
    It is part (a) of `lemma:summations` (theta = 0.5), `lemma:generalTheta` and `lemma:theta1`, which are printed
    without the factor eta. The printed ones are weaker than this for eta > 1, and false for eta < 1 as soon as the sum
    is close to its integral.
    """
    _check(initial, timescale, power, window, first, last, earliest=0)
    return _integral(initial, timescale, power, window, first, last)


def weighted_sum_bound(initial: float, timescale: float, power: float, window: int, first: int, last: int) -> float:
    """sum_{r=s}^k alpha((r-1)B)^2 / sum_{l=rB}^{(k+1)B-1} alpha(l) <= f(s) + f(k) + int_s^k f(x) dx, for s >= 1.

    f(x) = alpha0^2 c^(2 theta) v(x)^(-2 theta) / S(x) with c = v(s) / v(s-1), so that f(r) is at least the r-th
    summand, and S(x) the bound `step_sum_bound` from x to k. 1/f first rises, then falls, so f has one minimum. A term
    left of it is below the integral of f over the unit interval before it, and a term right of it below the integral
    over the interval after it, which leaves f(s) and f(k). With Q = theta / (1 - theta) and u = v^(1-theta), the
    integral is

        alpha0 c^(2 theta) / B  int_{u(s)}^{u(k)} du / (u^Q (u(k+1) - u))                     (theta < 1)
        alpha0 c^2 / (B v(k+1))  [li(v(k+1) / v(s)) - li(v(k+1) / v(k))]                      (theta = 1)

    The first has partial fractions for integer Q. With L = ln(v(k+1) / v(x)) both are, for every theta,

        alpha0 c^(2 theta) / (B v(k+1)^theta)  int_{L(k)}^{L(s)} exp(theta L) (1 - theta) / (exp((1 - theta) L) - 1) dL,

    which is what is computed. Departures from part (b) of `lemma:summations` (Q = 1), `lemma:generalTheta` (integer
    Q >= 2) and `lemma:theta1`:

    - The proofs bound the sum by f(s) + int f, as for a decreasing f. But f rises towards r = k, where its denominator
      is small, and the step is false; hence f(k) here.
    - S lacks the factor eta, as in part (a): every term is printed eta times as large as its proof gives. Only the
      proofs break by this; no counterexample to the printed inequalities is known.
    - `lemma:generalTheta` prints "- ln(1 / (...))" where its proof has "+ ln(1 / (...))". The printed formula is false,
      and can be negative. It needs theta = Q / (Q+1) with an integer Q; this function does not.
    - `lemma:theta1`'s proof has s for x in its first integrand.
    - c is printed as 1 + 1/e, its value at s = 1 and its largest, and the integral is rounded up; neither is here.
    """
    from scipy.integrate import quad  # no check needs this bound, and importing it takes long

    _check(initial, timescale, power, window, first, last, earliest=1)
    e, theta = timescale / window, power
    c = (e + first) / (e + first - 1)

    def at(r: int) -> float:
        alpha = initial / ((1 + r / e) / c) ** theta
        return float(alpha**2 / _integral(initial, timescale, theta, window, r, last))

    def integrand(log_L: float) -> float:  # dL = L d(ln L) keeps the integrand smooth where L is small
        L = np.exp(log_L)
        return float(np.exp(theta * L) / exprel((1 - theta) * L))

    if first == last:
        return at(first)
    L_s, L_k = (np.log1p((last + 1 - x) / (e + x)) for x in (first, last))
    area = quad(integrand, np.log(L_k), np.log(L_s), epsabs=0.0, epsrel=1e-10)[0]
    scale = initial * c ** (2 * theta) / (window * (1 + (last + 1) / e) ** theta)
    return float(at(first) + at(last) + scale * area)


Proof = Literal["theorem:diminishing", "lemma:generalTheta", "lemma:theta1"]
"""Where the paper proves a rate, as a label of its LaTeX source."""


class Rate(NamedTuple):
    """error(k) = O((ln k)^logarithms k^-exponent)."""

    exponent: float
    logarithms: int
    """The power of ln k: 1, 0 or -1."""
    proof: Proof | None
    """The statement whose proof covers this theta. None: the paper states the rate for it and does not prove it."""

    @property
    def proved(self) -> bool:
        """Whether the paper's proof covers this theta. The paper states its rates for all theta from 0.5 to 1."""
        return self.proof is not None

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

    The paper's proof needs theta = Q / (Q+1) for an integer Q. For other theta the rate holds as well: in the sum that
    `weighted_sum_bound` bounds, the terms up to k/2 together are at most sum_r alpha(r)^2 < inf over a sum of order
    k^(1-theta), and the others are of order k^-theta ln k, which is less as theta > 1 - theta.
    """
    theta = power
    if not 0 <= theta <= 1:
        raise InputError("power", power, "a number from 0 to 1")
    if theta < 0.5:
        return None
    if theta == 0.5:
        return Rate(0.5, 1, "theorem:diminishing")
    if theta == 1:
        return Rate(0.0, -1, "lemma:theta1")
    Q = round(theta / (1 - theta))
    return Rate(1 - theta, 0, "lemma:generalTheta" if abs(theta - Q / (Q + 1)) < 1e-12 else None)


def envelope(power: float, iterations: Floats | Ints) -> Floats:
    """`rate` as a function of k >= 2, without the constant of O(). ln k / sqrt(k) falls only from k = e^2 on."""
    known = rate(power)
    if known is None:
        raise InputError("power", power, "a number from 0.5 to 1; the paper has no rate below 0.5")
    if not np.all(iterations >= 2):
        raise InputError("iterations", iterations, "numbers of at least 2")
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
    the others at most `POINTS` are kept: those nearest to values of k that are evenly spaced in ln(k). Without this,
    late iterations would outweigh early ones.
    """
    rows = np.atleast_2d(errors)
    if rows.ndim != 2 or rows.shape != (rows.shape[0], *iterations.shape) or not rows.size:
        raise InputError("errors", f"shape {errors.shape}", f"shape (seeds, {iterations.size})")
    usable = (iterations >= 1) & np.all(np.isfinite(rows) & (rows > 0), axis=0)
    kept = _thinned(iterations, np.flatnonzero(usable))
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


def _thinned(iterations: Ints, usable: Ints) -> Ints:
    """The indices in `usable` that the fit uses."""
    k, places = np.unique(iterations[usable], return_index=True)
    if k.size < 3:
        raise InputError("errors", f"{k.size} usable points", "at least 3 positive errors at different k >= 1")
    x = np.log(k.astype(np.float64))
    even = np.linspace(x[0], x[-1], POINTS)
    nearest = np.abs(even[:, None] - x).argmin(axis=1)
    return np.asarray(usable[places[np.unique(nearest)]])


def _integral(initial: float, timescale: float, power: float, window: int, first: int, last: int) -> float:
    """int_{sB}^{(k+1)B} alpha(x) dx = alpha0 eta v(s)^(1-theta) L exprel((1-theta) L) with L = ln(v(k+1) / v(s)).

    exprel(y) = (exp(y) - 1) / y holds the limit for theta = 1, and loses no digits near it.
    """
    e, theta = timescale / window, power
    L = np.log1p((last + 1 - first) / (e + first))
    return float(initial * timescale * (1 + first / e) ** (1 - theta) * L * exprel((1 - theta) * L))


def _check(initial: float, timescale: float, power: float, window: int, first: int, last: int, earliest: int) -> None:
    for field, given in (("initial", initial), ("timescale", timescale)):
        if not 0 < given < np.inf:
            raise InputError(field, given, "a number above 0")
    if not 0 <= power <= 1:
        raise InputError("power", power, "a number from 0 to 1")
    if window < 1:
        raise InputError("window", window, "a whole number of at least 1")
    if first < earliest:
        raise InputError("first", first, f"a whole number of at least {earliest}")
    if last < first:
        raise InputError("last", last, f"a whole number of at least first, {first}")
