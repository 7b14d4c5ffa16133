"""Bounds on Xi(k) = (E ||w_bar(k) - w*||^2, E ||W(k) - 1 w_bar(k)||^2), with every constant of the proofs.

Nothing here is asymptotic, so that a bound can be drawn above a measured curve. Where the paper's text and its proofs
differ, this module follows the proofs (docs/errata.md).

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
here unchanged. The result is `lemma:kplusB` with two factors replaced:

    2 / (1 - rho^2)  becomes  2 (1 + rho^2) / (1 - rho^2)     in both gradient terms,
    2 B              becomes  2 B (1 + rho^2) / (1 - rho^2)   in the noise term.

Nothing else uses the independence. `lemma:kplus1` needs only that P(k) does not depend on the noise of iteration k
itself, and w_bar does not depend on P at all. For the same reason the printed recursion is proved as it stands for
B = 1, where D, G and N hold no later P; there `dependent` changes nothing.

Both recursions take rho as a bound on every outcome, while a run shows only the windows that occurred.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Floats


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


# Step sizes


def largest_step_size(constants: Constants) -> float:
    """`proposition:nonIncreasing`, `theorem:constant`: the largest alpha(0) for which every block contracts.

    alpha(0) <= (1 - rho^2) / (8 sqrt(kappa) B L (1 + Gamma_1)^(B-1)),  Gamma_1 = (1 - rho^2) / (2 sqrt2 sqrt(kappa) B)

    kappa = `Constants.coupling` is 1 as printed if P is independent of the noise, and 1 + rho^2 if not: the proof asks
    for kappa 16 B^2 L^2 alpha^2 (1 + Gamma)^(2(B-1)) / (1 - rho^2) <= (1 - rho^2)/4 and alpha <= Gamma / (2 sqrt2 L),
    and Gamma_1 is where the first of these is the stricter. Then phi_22 <= (3 + rho^2)/4, and rho(Phi(k)) < 1.
    Returns 0 if rho is not below 1.
    """
    return limit(constants.gap, 8 * _slowdown(constants))


def largest_diminishing_step_size(constants: Constants) -> float:
    """`theorem:diminishing`: alpha(0) <= (1 - rho^2) / (4 sqrt2 sqrt(5 - 3 rho^2) sqrt(kappa) B L (1 + Gamma_1)^(B-1)).

    As printed for kappa = 1. It is sqrt(2 / (5 - 3 rho^2)) <= 1 times `largest_step_size`, which is all that its proof
    needs, whatever kappa is.
    """
    gap = constants.gap
    return limit(gap, 4 * math.sqrt(2) * math.sqrt(2 + 3 * gap) * _slowdown(constants))


def limit(gap: float, slowdown: float) -> float:
    """gap / slowdown. Without curvature every step size is allowed, without a gap none is."""
    return 0.0 if gap == 0 else gap / slowdown if slowdown > 0 else math.inf


def _slowdown(constants: Constants) -> float:
    """sqrt(kappa) B L (1 + Gamma_1)^(B-1)"""
    B, L = constants.window, constants.smoothness
    return math.sqrt(constants.coupling) * B * L * (1 + gamma_1(constants)) ** (B - 1)


def gamma_1(constants: Constants) -> float:
    """Gamma_1 = (1 - rho^2) / (2 sqrt2 sqrt(kappa) B)"""
    return constants.gap / (2 * math.sqrt(2) * math.sqrt(constants.coupling) * constants.window)


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
