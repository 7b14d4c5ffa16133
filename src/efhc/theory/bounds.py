"""What the theorems promise: bounds on Xi(k) = (E ||w_bar(k) - w*||^2, E ||W(k) - 1 w_bar(k)||^2), number by number.

Nothing here is asymptotic: every constant that the paper's proofs give is kept, so that a bound can be drawn above a
measured curve. Where text and proof differ, the proof is followed (docs/errata.md).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Floats


class Constants(NamedTuple):
    """What the bounds are made of."""

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

    a_22 and c_2 need no convexity.
    """
    m, L, mu, delta, sigma2, _, _ = constants
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
    """B iterations at once; `step_sizes` are alpha(k) .. alpha(k+B-1).

    The first row is that of A(k+B-1:k), `eqn:phiValues`, and of Psi = sum_r A(k+B-1:r) C(r-1) + C(k+B-1).
    (`eqn:psiValues` prints 2 sigma^2 where this sum has sigma^2 / 2.) The second is `lemma:kplusB`:

    phi_22 = (1 + rho^2)/2 + 16 B L^2 / (1 - rho^2) sum_{r=k+1}^{k+B} alpha(r-1)^2 a_22(r-2:k)
    psi_2  = 2 B sum_r alpha(r-1)^2 { 2/(1 - rho^2) [m delta^2 + 4 L^2 y(r-1)] + m sigma^2 }

    where y(r-1) = sum_{l=k+1}^{r-2} a_22(r-2:l) c_2(l-1) + c_2(r-2) is what one-step bounds let the consensus error
    grow by since k; y(k) = 0. (The text's term c_2(r-2) would reach back before k for r = k+1; the proof has no use for
    it.)
    """
    m, L, _, delta, sigma2, B, rho = constants
    gap = 1 - rho**2
    phi11, phi12, psi1 = 1.0, 0.0, 0.0  # of w_bar, by way of the consensus error `grown` times that at k, plus `added`
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
    if gap <= 0:
        return Block(np.array([[phi11, phi12], [0.0, math.inf]]), np.array([psi1, math.inf]))
    phi22 = (1 + rho**2) / 2 + 16 * B * L**2 / gap * squares_grown
    grown_by = 4 * L**2 * squares_added if L else 0.0
    psi2 = 2 * B * (2 / gap * (m * delta**2 * squares + grown_by) + m * sigma2 * squares)
    return Block(np.array([[phi11, phi12], [0.0, phi22]]), np.array([psi1, psi2]))


def error_bound(constants: Constants, step_sizes: Floats, initial: Floats) -> Floats:
    """The bound on Xi(k) for k = 0 .. K, (K+1, 2), from Xi(0) = `initial` and alpha(0) .. alpha(K-1) = `step_sizes`.

    At k = 0, B, 2B, ... by `eqn:PhikPsikRecursive`, in between by `eqn:AkCkRecursive`. After a step size that is not
    below 2 / (mu + L) nothing bounds the first column.
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


# Step sizes


def largest_step_size(constants: Constants) -> float:
    """`proposition:nonIncreasing`, `theorem:constant`: alpha(0) <= (1 - rho^2) / (8 B L (1 + Gamma_1)^(B-1)).

    Gamma_1 = (1 - rho^2) / (2 sqrt2 B). Then phi_22 <= (3 + rho^2)/4, and rho(Phi(k)) < 1. 0 if rho is not below 1.
    """
    return _limit(_least_gap(constants), 8 * _slowdown(constants))


def largest_diminishing_step_size(constants: Constants) -> float:
    """`theorem:diminishing`: alpha(0) <= (1 - rho^2) / (4 sqrt2 sqrt(5 - 3 rho^2) B L (1 + Gamma_1)^(B-1)).

    As printed, and stricter than its proof, which needs no more than `largest_step_size`.
    """
    gap = _least_gap(constants)
    return _limit(gap, 4 * math.sqrt(2) * math.sqrt(2 + 3 * gap) * _slowdown(constants))


def _limit(gap: float, slowdown: float) -> float:
    """gap / slowdown; without curvature any step size will do, without a gap none."""
    return 0.0 if gap == 0 else gap / slowdown if slowdown > 0 else math.inf


def _least_gap(constants: Constants) -> float:
    return max(0.0, 1 - constants.contraction**2)


def _slowdown(constants: Constants) -> float:
    """B L (1 + Gamma_1)^(B-1)"""
    B, L = constants.window, constants.smoothness
    return B * L * (1 + gamma_1(constants)) ** (B - 1)


def gamma_1(constants: Constants) -> float:
    """Gamma_1 = (1 - rho^2) / (2 sqrt2 B)"""
    return _least_gap(constants) / (2 * math.sqrt(2) * constants.window)


# In the long run


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


def psi_ceiling(constants: Constants, step_size: float) -> Floats:
    """`eqn:matEntriesPsiDiminishing`: an upper bound on Psi(k) in closed form, alpha = alpha(kB), (2,).

    alpha^2 B ( sigma^2/m + nu,  2 m B {2 (delta^2 + 2 mu alpha nu) / (1 - rho^2) + sigma^2} ),
    nu = (2/mu) (B-1) L^2 (1 + Gamma_1)^(2(B-1)) ((1 + Gamma_1) delta^2 / (sqrt2 L) + alpha sigma^2)

    for step sizes up to `largest_step_size`.
    """
    m, L, mu, delta, sigma2, B, _ = constants
    alpha, Gamma = step_size, gamma_1(constants)
    if mu <= 0 or not _least_gap(constants):
        return np.full(2, math.inf)
    nu = 2 / mu * (B - 1) * L**2 * (1 + Gamma) ** (2 * (B - 1))
    nu *= (1 + Gamma) * delta**2 / (math.sqrt(2) * L) + alpha * sigma2
    consensus = 2 * (delta**2 + 2 * mu * alpha * nu) / _least_gap(constants) + sigma2
    return alpha**2 * B * np.array([sigma2 / m + nu, 2 * m * B * consensus])
