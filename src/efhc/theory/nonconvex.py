"""Losses that are only smooth: a bound on the running mean of E ||grad F(w_bar)||^2, Theorem `theorem:nonconvex`.

The printed theorem is not a bound. Its third term, w_2 w_3 B^3 alpha / (KB+1), is one block's share of a sum over K
blocks, and its last, w_4 alpha^2, should be (KB+1) c_1 / (alpha (KB+1)) = w_4 alpha: where devices' losses differ,
grad F(w_bar) does not vanish as K grows, and the printed bound does. The proof also takes the consensus error at kB for
that of the whole block, and in `lemma:B` takes the gradients after an iteration for independent of its noise. So
`running_mean_bound` sums `lemma:nonconvex_lossdec` over k with the consensus errors of `lemma:kplus1` and
`lemma:kplusB`, which need no convexity; the printed forms are here to be compared with.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Floats
from efhc.theory.bounds import Constants, error_bound


def running_mean_bound(
    constants: Constants, step_sizes: Floats, initial_loss_gap: float, initial_consensus_error: float
) -> Floats:
    """For k = 0 .. K-1 a bound on (1/(k+1)) sum_{r<=k} E ||grad F(w_bar(r))||^2, (K,).

    `lemma:nonconvex_lossdec`: a_11 ||grad F(w_bar(k))||^2 <= F(w_bar(k)) - F(w_bar(k+1)) + a_12 e(k) + c_1, in
    expectation, with e(k) the consensus error and

    a_11 = alpha (1/2 - L alpha),  a_12 = L^2/(2m) alpha (1 + 2 L alpha),  c_1 = L/2 alpha^2 sigma^2 / m.

    Summed over r <= k, with F(w_bar(k+1)) >= F*: `initial_loss_gap` is F(w_bar(0)) - F*.
    """
    m, L, _, _, sigma2, _, _ = constants
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
    """
    _, L, _, _, _, B, rho = constants
    gap = max(0.0, 1 - rho**2)
    if not L:
        return math.inf if gap else 0.0
    power = _power(2 * (1 + _gamma_1(constants)), B / 2)
    return gap / (4 * math.sqrt(2) * B * L * power * math.sqrt(1 + rho**2))


def _power(base: float, exponent: float) -> float:
    """Infinite where Python's own power would raise."""
    with np.errstate(over="ignore"):
        return float(np.float64(base) ** exponent)


def _gamma_1(constants: Constants) -> float:
    B, rho = constants.window, constants.contraction
    return max(0.0, 1 - rho**2) / (2 * math.sqrt(2) * B * math.sqrt(1 + rho**2)) * 2 ** (-B / 2)


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
    m, L, _, delta, sigma2, B, rho = constants
    gap, Gamma = 1 - rho**2, _gamma_1(constants)
    if gap <= 0:
        return Weights(0.5, math.inf, math.inf, L * sigma2 / (2 * m))
    grown = L**2 * (16 * delta**2 + sigma2) * step_size**2 * (B - 1) * _power(2 * (1 + Gamma**2), B - 2)
    return Weights(
        w1=(1 - Gamma) / 2,
        w2=2 * L**2 * (1 + Gamma) / (m * gap),
        w3=m * (8 * (1 + rho**2) / gap * (delta**2 + grown) + sigma2),
        w4=L * sigma2 / (2 * m),
    )


def printed_bound(
    constants: Constants, step_size: float, blocks: int, initial_loss_gap: float, initial_consensus_error: float
) -> float:
    """`theorem:nonconvex` as printed, of iterations 0 .. KB, K = `blocks`; not a bound (see above)."""
    w1, w2, w3, w4 = printed_weights(constants, step_size)
    alpha, B = step_size, constants.window
    iterations = blocks * B + 1
    start = initial_loss_gap / (alpha * iterations) + B * w2 * initial_consensus_error / iterations
    return (start + w2 * w3 * B**3 * alpha / iterations + w4 * alpha**2) / w1


def corrected_bound(
    constants: Constants, step_size: float, blocks: int, initial_loss_gap: float, initial_consensus_error: float
) -> float:
    """The same closed form with what its proof leaves out, for step sizes below `largest_step_size` / sqrt2.

    w_3 with 16 for 8 (1+rho^2) and 2 sigma^2 for sigma^2, since noise and later gradients are not independent; the sum
    over all blocks; growth by G = [2 (1 + 2 Gamma_1^2)]^(B-1) within a block (w_3's base too is 2 (1 + 2 Gamma_1^2) by
    the appendix's own a_22); w_4 alpha:

    1/w_1 [ (F(w_bar(0)) - F*) / (alpha T) + (G B w_2 / T) (e(0) + K B^2 w_3 alpha^2 + (K+1) (B-1) c_2) + w_4 alpha ]

    T = KB + 1, e(0) the consensus error, c_2 = m alpha^2 (16 delta^2 + sigma^2).
    """
    m, L, _, delta, sigma2, B, rho = constants
    w1, w2, _, w4 = printed_weights(constants, step_size)
    gap, Gamma, alpha = 1 - rho**2, _gamma_1(constants), step_size
    if gap <= 0:
        return math.inf
    growth = _power(2 * (1 + 2 * Gamma**2), B - 1)
    c2 = m * alpha**2 * (16 * delta**2 + sigma2)
    w3 = m * (16 / gap * (delta**2 + L**2 * (16 * delta**2 + sigma2) * alpha**2 * (B - 1) * growth) + 2 * sigma2)
    iterations = blocks * B + 1
    spread = initial_consensus_error + blocks * B**2 * w3 * alpha**2 + (blocks + 1) * (B - 1) * c2
    return (initial_loss_gap / (alpha * iterations) + growth * B * w2 / iterations * spread + w4 * alpha) / w1
