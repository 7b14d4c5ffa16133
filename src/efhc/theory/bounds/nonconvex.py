"""A bound on the running mean of E ||grad F(w_bar)||^2 for losses that need only be smooth (`theorem:nonconvex`).

The printed theorem is not a bound. Its third term, w_2 w_3 B^3 alpha / (KB+1), is one block's share of a sum over K
blocks, and its last, w_4 alpha^2, should be (KB+1) c_1 / (alpha (KB+1)) = w_4 alpha. Where the devices' losses differ,
grad F(w_bar) does not vanish as K grows, and the printed bound does. The proof also takes the consensus error at kB for
that of the whole block, and in `lemma:B` takes the gradients after an iteration as independent of its noise.

`running_mean_bound` therefore sums `lemma:nonconvex_lossdec` over k with the consensus errors of `lemma:kplus1` and
`lemma:kplusB`, which need no convexity. The weights of the printed theorem are reported for comparison.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Floats
from efhc.theory.bounds.recursion import Constants, error_bound, limit


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


def largest_step_size(constants: Constants) -> float:
    """`theorem:nonconvex`: alpha < (1 - rho^2) / (4 sqrt2 B L [2 (1 + Gamma_1)]^(B/2) sqrt(1 + rho^2)), as printed.

    Gamma_1 = (1 - rho^2) / (2 sqrt2 B 2^(B/2) sqrt(1 + rho^2)). (Its proof has [2 (1 + 2 Gamma_1^2)]^B under a root,
    which is less for Gamma_1 < 1/2: the printed limit is the stricter one. Gamma_1 is at most 1/4.)

    The limit is at most `bounds.largest_step_size`, whether or not P depends on the noise, as 2^(B/2) sqrt(1 + rho^2)
    outweighs all that differs. So within it the consensus errors of `running_mean_bound` contract for every strategy.
    """
    L, B, rho = constants.smoothness, constants.window, constants.contraction
    power = _power(2 * (1 + _gamma_1(constants)), B / 2)
    return limit(constants.gap, 4 * math.sqrt(2) * B * L * power * math.sqrt(1 + rho**2))


def _power(base: float, exponent: float) -> float:
    """base^exponent, infinite where Python's own power raises."""
    with np.errstate(over="ignore"):
        return float(np.float64(base) ** exponent)


def _gamma_1(constants: Constants) -> float:
    B, rho = constants.window, constants.contraction
    return constants.gap / (2 * math.sqrt(2) * B * math.sqrt(1 + rho**2)) * 2 ** (-B / 2)


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
    gap, Gamma = constants.gap, _gamma_1(constants)
    if not gap:
        return Weights(0.5, math.inf, math.inf, L * sigma2 / (2 * m))
    grown = L**2 * (16 * delta**2 + sigma2) * step_size**2 * (B - 1) * _power(2 * (1 + Gamma**2), B - 2)
    return Weights(
        w1=(1 - Gamma) / 2,
        w2=2 * L**2 * (1 + Gamma) / (m * gap),
        w3=m * (8 * (1 + rho**2) / gap * (delta**2 + grown) + sigma2),
        w4=L * sigma2 / (2 * m),
    )
