"""Bounds on the errors of a run, with every constant of the proofs, the step sizes they allow, and the paper's rates.

Xi(k) = (E ||w_bar(k) - w*||^2, E ||W(k) - 1 w_bar(k)||^2). Nothing here is asymptotic but the rates, so that a bound
can be drawn above a measured curve. Where the paper's text and its proofs differ, this module follows the proofs
(docs/errata.md).

The bound holds for event-triggered strategies too
--------------------------------------------------
The proof of `lemma:kplusB` takes the mixing matrices P(k) as independent of the gradient noise. That is true of
strategies that do not look at the models (ZT, RG, never firing). It is false of EF-HC and GT: who fires depends on the
models, hence on earlier noise. `Constants.dependent` selects between the printed recursion and this one, which needs
no independence. Write Q_r = P(k+B-1:r) - 11^T/m, all sums over r = k+1 .. k+B, and

    W(k+B) - 1 w_bar(k+B) = D - G - N,    D = Q_k W(k),
    G = sum_r alpha(r-1) Q_r grad(r-1),   N = sum_r alpha(r-1) Q_r noise(r-1).

The printed proof drops E<D, N> as zero and applies Young's inequality to the rest. If P depends on the noise, E<D, N>
need not be zero. Young's inequality with H = (1 - rho^2) / (2 rho^2) bounds the whole for every outcome of the noise:

    ||D - G - N||^2 <= (1 + H) ||D||^2 + (1 + 1/H) ||G + N||^2
                    <= (1 + rho^2)/2 ||W(k) - 1 w_bar(k)||^2 + 2 (1 + rho^2)/(1 - rho^2) (||G||^2 + ||N||^2),

as ||D|| <= rho ||W(k) - 1 w_bar(k)|| and 1 + 1/H = (1 + rho^2)/(1 - rho^2). By Cauchy-Schwarz and ||Q_r|| <= 1,
||G||^2 <= B sum_r alpha(r-1)^2 ||grad(r-1) - 1 grad_bar(r-1)||^2, and likewise ||N||^2. The printed proof goes on from
here unchanged: 2 / (1 - rho^2) becomes 2 (1 + rho^2) / (1 - rho^2) in both gradient terms, and 2 B becomes
2 B (1 + rho^2) / (1 - rho^2) in the noise term. Nothing else uses the independence, and for B = 1 nothing changes,
because D, G and N hold no later P. Both recursions take rho as a bound on every outcome, while a run shows only the
windows that occurred.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import InputError

CONFIDENCE = 0.95
"""The confidence level of intervals over seeds."""
POINTS = 40
"""The largest number of points that a slope is fitted to."""


class Constants(NamedTuple):
    """The constants that the bounds are computed from."""

    devices: int
    """m"""
    smoothness: float
    """L = max_i L_i"""
    convexity: float
    """mu = min_i mu_i"""
    diversity: float
    """delta = max_i delta_i"""
    noise: float
    """sigma^2 = max_i sigma_i^2"""
    window: int
    """B: the used links of every B iterations are connected."""
    contraction: float
    """rho = sup_k ||P(k+B-1:k) - 11^T/m||"""
    dependent: bool = True
    """Whether P(k) may depend on the noise before k, as under EF-HC, GT and triggers that efhc does not know.

    False for ZT, RG and strategies that never fire. Default: True, which is valid for every strategy.
    """

    @property
    def gap(self) -> float:
        """1 - rho^2, or 0 if rho is above 1."""
        return max(0.0, 1 - self.contraction**2)

    @property
    def coupling(self) -> float:
        """The factor by which a P(k) that depends on the noise enlarges the gradient terms of `lemma:kplusB`.

        1 + rho^2, and 1 where P(k) is independent of the noise or B = 1.
        """
        return 1 + self.contraction**2 if self.dependent and self.window > 1 else 1.0

    @property
    def noise_coupling(self) -> float:
        """The same factor for the noise term: (1 + rho^2) / (1 - rho^2), and 1 as above."""
        if not (self.dependent and self.window > 1):
            return 1.0
        return self.coupling / self.gap if self.gap else math.inf


class OneStep(NamedTuple):
    """`lemma:kplus1`: Xi(k+1) <= A(k) Xi(k) + C(k), a_21 = 0."""

    a11: float
    a12: float
    a22: float
    c1: float
    c2: float


def one_step(constants: Constants, step_size: float) -> OneStep:
    """`lemma:kplus1`-(b), (c), with alpha(k) = `step_size` < 2 / (mu + L):

    a_11 = 1 - mu alpha,  a_12 = (1 + mu alpha) alpha L^2 / (mu m),  a_22 = (1 + 2 sqrt2 alpha L)^2
    c_1 = alpha^2 sigma^2 / m
    c_2 = m alpha^2 (2 (1 + 2 sqrt2 alpha L) delta^2 / (2 sqrt2 alpha L) + sigma^2)

    a_22 and c_2 need no convexity, and no independence of P from earlier noise.
    """
    m, L, mu, delta, sigma2, *_ = constants
    alpha, growth = step_size, 2 * math.sqrt(2) * step_size * L
    from_diversity = alpha * (1 + growth) * delta**2 / (math.sqrt(2) * L) if L > 0 else math.inf if delta else 0.0
    return OneStep(
        a11=1 - mu * alpha,
        a12=(1 + mu * alpha) * alpha * L**2 / (mu * m) if mu > 0 else math.inf,
        a22=(1 + growth) ** 2,
        c1=alpha**2 * sigma2 / m,
        c2=m * (from_diversity + alpha**2 * sigma2),
    )


class Block(NamedTuple):
    """`eqn:PhikPsikRecursive`: Xi(k+B) <= Phi Xi(k) + Psi, phi_21 = 0."""

    phi: Floats
    """Phi, (2, 2)"""
    psi: Floats
    """Psi, (2,)"""

    @property
    def spectral_radius(self) -> float:
        """rho(Phi) = max(phi_11, phi_22)"""
        return float(max(self.phi[0, 0], self.phi[1, 1]))


def block(constants: Constants, step_sizes: Floats) -> Block:
    """Phi and Psi over B iterations; `step_sizes` are alpha(k) .. alpha(k+B-1).

    The first row is that of A(k+B-1:k) (`eqn:phiValues`) and of Psi = sum_r A(k+B-1:r) C(r-1) + C(k+B-1).
    (`eqn:psiValues` prints 2 sigma^2 where this sum has sigma^2 / 2.) The second row is `lemma:kplusB`:

    phi_22 = (1 + rho^2)/2 + kappa 16 B L^2 / (1 - rho^2) sum_{r=k+1}^{k+B} alpha(r-1)^2 a_22(r-2:k)
    psi_2  = 2 B sum_r alpha(r-1)^2 { kappa 2/(1 - rho^2) [m delta^2 + 4 L^2 y(r-1)] + lambda m sigma^2 }

    y(r-1) = sum_{l=k+1}^{r-2} a_22(r-2:l) c_2(l-1) + c_2(r-2) is the growth of the consensus error since k that the
    one-step bounds allow; y(k) = 0. (The printed term c_2(r-2) reaches back before k for r = k+1; the proof does not
    need it.) kappa = lambda = 1 as printed if P is independent of the noise; if not, they are `Constants.coupling` and
    `Constants.noise_coupling`.
    """
    m, L, _, delta, sigma2, B, rho, _ = constants
    phi11, phi12, psi1 = 1.0, 0.0, 0.0  # the consensus error at an iteration is `grown` times that at k, plus `added`
    grown, added = 1.0, 0.0
    squares_grown, squares_added, squares = 0.0, 0.0, 0.0
    for alpha in step_sizes.tolist():
        step = one_step(constants, alpha)
        squares_grown += alpha**2 * grown
        squares_added += alpha**2 * added
        squares += alpha**2
        phi11, phi12, psi1 = step.a11 * phi11, step.a11 * phi12 + step.a12 * grown, step.a11 * psi1 + step.a12 * added
        psi1 += step.c1
        grown, added = step.a22 * grown, step.a22 * added + step.c2
    if not constants.gap:
        return Block(np.array([[phi11, phi12], [0.0, math.inf]]), np.array([psi1, math.inf]))
    gradients = constants.coupling / constants.gap
    phi22 = (1 + rho**2) / 2 + 16 * B * L**2 * gradients * squares_grown
    grown_by = 4 * L**2 * squares_added if L else 0.0
    noise = constants.noise_coupling * m * sigma2 * squares
    psi2 = 2 * B * (2 * gradients * (m * delta**2 * squares + grown_by) + noise)
    return Block(np.array([[phi11, phi12], [0.0, phi22]]), np.array([psi1, psi2]))


def error_bound(constants: Constants, step_sizes: Floats, initial: Floats) -> Floats:
    """The bound on Xi(k) for k = 0 .. K, (K+1, 2), from Xi(0) = `initial` and alpha(0) .. alpha(K-1) = `step_sizes`.

    The bound follows `eqn:PhikPsikRecursive` at k = 0, B, 2B, ..., and `eqn:AkCkRecursive` in between. The first column
    is infinite after a step size that is not below 2 / (mu + L).
    """
    B = constants.window
    bounds = np.empty((len(step_sizes) + 1, 2))
    bounds[0] = optimisation, consensus = float(initial[0]), float(initial[1])
    too_large = step_sizes * (constants.convexity + constants.smoothness) >= 2
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, len(step_sizes), B):
            steps = step_sizes[first : first + B]
            at_start = consensus
            for k, alpha in enumerate(steps.tolist(), first):
                step = one_step(constants, alpha)
                optimisation = step.a11 * optimisation + step.a12 * consensus + step.c1
                consensus = step.a22 * consensus + step.c2
                bounds[k + 1] = math.inf if too_large[k] else optimisation, consensus
            if len(steps) == B:
                over_block = block(constants, steps)
                consensus = float(over_block.phi[1, 1] * at_start + over_block.psi[1])
                bounds[first + B, 1] = consensus
    if too_large.any():
        bounds[np.argmax(too_large) + 1 :, 0] = math.inf
    bounds[np.isnan(bounds)] = math.inf
    return bounds


def asymptotic_gap(constants: Constants, step_size: float) -> Floats:
    """`theorem:constant`: limsup_k Xi(kB) <= (I - Phi)^-1 Psi for a constant step size; infinite if rho(Phi) >= 1.

    `eqn:optimality_gap` writes alpha^2 B / O(1 - rho(Phi)) (...): the O hides phi_12, by which the consensus error
    enters the optimisation error. Here nothing is hidden:

    consensus    = psi_2 / (1 - phi_22)
    optimisation = (psi_1 + phi_12 consensus) / (1 - phi_11)
    """
    over_block = block(constants, np.full(constants.window, step_size))
    if not over_block.spectral_radius < 1:
        return np.full(2, math.inf)
    ((phi11, phi12), (_, phi22)), (psi1, psi2) = over_block.phi.tolist(), over_block.psi.tolist()
    consensus = psi2 / (1 - phi22)
    return np.array([(psi1 + phi12 * consensus) / (1 - phi11), consensus])


# Losses that need only be smooth: a bound on the running mean of E ||grad F(w_bar)||^2.
#
# The printed `theorem:nonconvex` is not a bound. Its third term, w_2 w_3 B^3 alpha / (KB+1), is one block's share of a
# sum over K blocks, and its last, w_4 alpha^2, should be (KB+1) c_1 / (alpha (KB+1)) = w_4 alpha. Where the devices'
# losses differ, grad F(w_bar) does not vanish as K grows, and the printed bound does. The proof also takes the
# consensus error at kB for that of the whole block, and in `lemma:B` takes the gradients after an iteration as
# independent of its noise.
#
# `running_mean_bound` therefore sums `lemma:nonconvex_lossdec` over k with the consensus errors of `lemma:kplus1` and
# `lemma:kplusB`, which need no convexity. The weights of the printed theorem are reported for comparison.


def running_mean_bound(
    constants: Constants, step_sizes: Floats, initial_loss_gap: float, initial_consensus_error: float
) -> Floats:
    """A bound, for every k = 0 .. K-1, on (1/(k+1)) sum_{r<=k} E ||grad F(w_bar(r))||^2, (K,).

    `lemma:nonconvex_lossdec`: a_11 ||grad F(w_bar(k))||^2 <= F(w_bar(k)) - F(w_bar(k+1)) + a_12 e(k) + c_1, in
    expectation, with e(k) the consensus error and

    a_11 = alpha (1/2 - L alpha),  a_12 = L^2/(2m) alpha (1 + 2 L alpha),  c_1 = L/2 alpha^2 sigma^2 / m.

    The bound is the sum over r <= k, with F(w_bar(k+1)) >= F*. `initial_loss_gap` is F(w_bar(0)) - F*. The lemma speaks
    of w_bar alone, which does not depend on P; `constants.dependent` enters through e(k).
    """
    m, L, _, _, sigma2, *_ = constants
    alpha = np.asarray(step_sizes, dtype=np.float64)
    errors = error_bound(constants, alpha, np.array([0.0, initial_consensus_error]))[:-1, 1]
    a11 = alpha * (0.5 - L * alpha)
    a12 = L**2 / (2 * m) * alpha * (1 + 2 * L * alpha)
    c1 = L / 2 * alpha**2 * sigma2 / m
    least = np.minimum.accumulate(a11)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        sums = initial_loss_gap + np.cumsum((a12 * errors if L else 0.0) + c1)
        bounds = sums / (np.arange(1, len(alpha) + 1) * least)
    bounds[(least <= 0) | np.isnan(bounds)] = math.inf
    return bounds


class Weights(NamedTuple):
    """w_1 .. w_4 of `theorem:nonconvex`."""

    w1: float
    w2: float
    w3: float
    w4: float


def printed_weights(constants: Constants, step_size: float) -> Weights:
    """w_1 = (1 - Gamma_1)/2,  w_2 = 2 L^2 (1 + Gamma_2) / (m (1 - rho^2)),  w_4 = L sigma^2 / (2m),

    w_3 = m (8 (1+rho^2)/(1-rho^2) (delta^2 + grown) + sigma^2),
    grown = L^2 (16 delta^2 + sigma^2) alpha^2 (B-1) [2 (1+Gamma_1^2)]^(B-2)

    Gamma_2 is not defined in the paper; its proof needs 1 + 2 L alpha < 1 + Gamma_2, which Gamma_1 does.
    """
    m, L, _, delta, sigma2, B, rho, _ = constants
    gap, Gamma = constants.gap, _nonconvex_gamma_1(constants)
    if not gap:
        return Weights(0.5, math.inf, math.inf, L * sigma2 / (2 * m))
    grown = L**2 * (16 * delta**2 + sigma2) * step_size**2 * (B - 1) * _power(2 * (1 + Gamma**2), B - 2)
    return Weights(
        w1=(1 - Gamma) / 2,
        w2=2 * L**2 * (1 + Gamma) / (m * gap),
        w3=m * (8 * (1 + rho**2) / gap * (delta**2 + grown) + sigma2),
        w4=L * sigma2 / (2 * m),
    )


# Step sizes


def largest_step_size(constants: Constants) -> float:
    """`proposition:nonIncreasing`, `theorem:constant`: the largest alpha(0) for which every block contracts.

    alpha(0) <= (1 - rho^2) / (8 sqrt(kappa) B L (1 + Gamma_1)^(B-1)),  Gamma_1 = (1 - rho^2) / (2 sqrt2 sqrt(kappa) B)

    kappa = `Constants.coupling` is 1 as printed if P is independent of the noise, and 1 + rho^2 if not: the proof asks
    for kappa 16 B^2 L^2 alpha^2 (1 + Gamma)^(2(B-1)) / (1 - rho^2) <= (1 - rho^2)/4 and alpha <= Gamma / (2 sqrt2 L),
    and Gamma_1 is where the first of these is the stricter. Then phi_22 <= (3 + rho^2)/4, and rho(Phi(k)) < 1.
    Returns 0 if rho is not below 1.
    """
    return _limit(constants.gap, 8 * _slowdown(constants))


def largest_diminishing_step_size(constants: Constants) -> float:
    """`theorem:diminishing`: alpha(0) <= (1 - rho^2) / (4 sqrt2 sqrt(5 - 3 rho^2) sqrt(kappa) B L (1 + Gamma_1)^(B-1)).

    As printed for kappa = 1. It is sqrt(2 / (5 - 3 rho^2)) <= 1 times `largest_step_size`, which is all that its proof
    needs, whatever kappa is.
    """
    gap = constants.gap
    return _limit(gap, 4 * math.sqrt(2) * math.sqrt(2 + 3 * gap) * _slowdown(constants))


def largest_nonconvex_step_size(constants: Constants) -> float:
    """`theorem:nonconvex`: alpha < (1 - rho^2) / (4 sqrt2 B L [2 (1 + Gamma_1)]^(B/2) sqrt(1 + rho^2)), as printed.

    Gamma_1 = (1 - rho^2) / (2 sqrt2 B 2^(B/2) sqrt(1 + rho^2)). (Its proof has [2 (1 + 2 Gamma_1^2)]^B under a root,
    which is less for Gamma_1 < 1/2: the printed limit is the stricter one. Gamma_1 is at most 1/4.)

    The limit is at most `largest_step_size`, whether or not P depends on the noise, as 2^(B/2) sqrt(1 + rho^2)
    outweighs all that differs. So within it the consensus errors of `running_mean_bound` contract for every strategy.
    """
    L, B, rho = constants.smoothness, constants.window, constants.contraction
    power = _power(2 * (1 + _nonconvex_gamma_1(constants)), B / 2)
    return _limit(constants.gap, 4 * math.sqrt(2) * B * L * power * math.sqrt(1 + rho**2))


def _limit(gap: float, slowdown: float) -> float:
    """gap / slowdown. Without curvature every step size is allowed, without a gap none is."""
    return 0.0 if gap == 0 else gap / slowdown if slowdown > 0 else math.inf


def _slowdown(constants: Constants) -> float:
    """sqrt(kappa) B L (1 + Gamma_1)^(B-1), with Gamma_1 = (1 - rho^2) / (2 sqrt2 sqrt(kappa) B)."""
    B, L, root = constants.window, constants.smoothness, math.sqrt(constants.coupling)
    return root * B * L * (1 + constants.gap / (2 * math.sqrt(2) * root * B)) ** (B - 1)


def _power(base: float, exponent: float) -> float:
    """base^exponent, infinite where Python's own power raises."""
    with np.errstate(over="ignore"):
        return float(np.float64(base) ** exponent)


def _nonconvex_gamma_1(constants: Constants) -> float:
    B, rho = constants.window, constants.contraction
    return constants.gap / (2 * math.sqrt(2) * B * math.sqrt(1 + rho**2)) * 2 ** (-B / 2)


class StepSizeLimits(NamedTuple):
    """The largest alpha(0) that each theorem allows, or 0 if it allows none; `LIMIT_LABELS` has the theorems."""

    non_increasing: float
    constant: float
    diminishing: float
    nonconvex: float


LIMIT_LABELS = {
    "non_increasing": "proposition:nonIncreasing",
    "constant": "theorem:constant",
    "diminishing": "theorem:diminishing",
    "nonconvex": "theorem:nonconvex",
}


def step_size_limits(constants: Constants) -> StepSizeLimits:
    """Return the limits of all theorems, which follow from the recursion that `constants.dependent` selects."""
    any_schedule = largest_step_size(constants)
    return StepSizeLimits(
        any_schedule,
        any_schedule,
        largest_diminishing_step_size(constants),
        largest_nonconvex_step_size(constants),
    )


# The rate at which the error falls under alpha(k) = alpha0 / (1 + k/eta)^theta: the proved one and the measured one.
# theta is `power`. What the printed lemmas on sums of step sizes get wrong is in docs/errata.md; no rate depends on it.


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
