"""The paper's bounds once more, in plain loops, from the paper alone. Nothing here comes from efhc.

Written to be read next to the proofs (App. D to F, and the appendix on non-convex losses): sums and products over r
and l as they are printed there, and A and C as matrices. `k` counts iterations, `b` blocks of B of them: what the
paper calls phi^(k) with sums from kB on is phi(b) here.

Where the print cannot be followed, the proof is: psi_2's inner term for r = kB+1 has no c_2, as the gradient at W(kB)
is bounded directly, and psi_1 is the first entry of sum_r A(last:r) C(r-1) + C(last), not eqn:psiValues.

With `dependent`, P may depend on the noise. Then App. E's inner product of D(k) with the noise does not vanish, and the
Young step that ends in factors (1 + H3), (2 + 1/H3) and 2 is replaced by one without expectations:
|d - g - e|^2 <= (1 + H3) |d|^2 + 2 (1 + 1/H3) |g|^2 + 2 (1 + 1/H3) |e|^2. A block of one iteration has no later P.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
Steps = Callable[[int], float]


@dataclass(frozen=True)
class Numbers:
    """The constants of the assumptions. mu is None where the loss need not be convex."""

    m: int
    L: float
    mu: float | None
    delta: float
    sigma: float
    rho: float
    B: int
    dependent: bool = False


def young(n: Numbers) -> tuple[float, float, float]:
    """The factors of App. E on |d|^2 (times rho^2), B sum |g|^2 and B sum |e|^2; H3 = (1 - rho^2)/(2 rho^2)."""
    inverse = 2 * n.rho**2 / (1 - n.rho**2)
    on_d = n.rho**2 + (1 - n.rho**2) / 2
    if n.dependent and n.B > 1:
        return on_d, 2 * (1 + inverse), 2 * (1 + inverse)
    return on_d, 2 + inverse, 2.0


# Lemma kplus1: one iteration.


def a11(n: Numbers, alpha: float) -> float:
    return 1 - n.mu * alpha


def a12(n: Numbers, alpha: float) -> float:
    return (1 + n.mu * alpha) * alpha * n.L**2 / (n.mu * n.m)


def a22(n: Numbers, alpha: float) -> float:
    return (1 + 2 * math.sqrt(2) * alpha * n.L) ** 2


def c1(n: Numbers, alpha: float) -> float:
    return alpha**2 * n.sigma**2 / n.m


def c2(n: Numbers, alpha: float) -> float:
    s = 2 * math.sqrt(2) * alpha * n.L
    return n.m * alpha**2 * (2 * (1 + s) * n.delta**2 / s + n.sigma**2)


def matrix(n: Numbers, alpha: float) -> Array:
    return np.array([[a11(n, alpha), a12(n, alpha)], [0.0, a22(n, alpha)]])


def offset(n: Numbers, alpha: float) -> Array:
    return np.array([c1(n, alpha), c2(n, alpha)])


# eqn:AkCkExplicit, eqn:a_ks_Vals: products from iteration s to iteration k, the empty one where k < s.


def a11_product(n: Numbers, steps: Steps, k: int, s: int) -> float:
    product = 1.0
    for r in range(s, k + 1):
        product *= a11(n, steps(r))
    return product


def a22_product(n: Numbers, steps: Steps, k: int, s: int) -> float:
    product = 1.0
    for r in range(s, k + 1):
        product *= a22(n, steps(r))
    return product


def matrix_product(n: Numbers, steps: Steps, k: int, s: int) -> Array:
    product = np.eye(2)
    for r in range(s, k + 1):
        product = matrix(n, steps(r)) @ product
    return product


# Lemma kplusB, eqn:phiValues and the proof of proposition nonIncreasing: block b, iterations b B to (b+1) B - 1.


def phi11(n: Numbers, steps: Steps, b: int) -> float:
    return a11_product(n, steps, (b + 1) * n.B - 1, b * n.B)


def phi12(n: Numbers, steps: Steps, b: int) -> float:
    k, total = b * n.B, 0.0
    for r in range(k + 1, k + n.B + 1):
        total += a11_product(n, steps, k + n.B - 1, r) * a12(n, steps(r - 1)) * a22_product(n, steps, r - 2, k)
    return total


def phi22(n: Numbers, steps: Steps, b: int) -> float:
    k, total = b * n.B, 0.0
    for r in range(k + 1, k + n.B + 1):
        total += steps(r - 1) ** 2 * a22_product(n, steps, r - 2, k)
    on_d, on_g, _ = young(n)
    return on_d + on_g * n.B * 8 * n.L**2 * total


def psi1(n: Numbers, steps: Steps, b: int) -> float:
    last = (b + 1) * n.B - 1
    total = np.zeros(2)
    for r in range(b * n.B + 1, last + 1):
        total = total + matrix_product(n, steps, last, r) @ offset(n, steps(r - 1))
    return float((total + offset(n, steps(last)))[0])


def psi2(n: Numbers, steps: Steps, b: int) -> float:
    k, gradients, noise = b * n.B, 0.0, 0.0
    for r in range(k + 1, k + n.B + 1):
        gathered = 0.0
        for index in range(k + 1, r - 1):
            gathered += a22_product(n, steps, r - 2, index) * c2(n, steps(index - 1))
        if r > k + 1:
            gathered += c2(n, steps(r - 2))
        gradients += steps(r - 1) ** 2 * (2 * n.m * n.delta**2 + 8 * n.L**2 * gathered)
        noise += steps(r - 1) ** 2 * n.m * n.sigma**2
    _, on_g, on_e = young(n)
    return on_g * n.B * gradients + on_e * n.B * noise


def block(n: Numbers, steps: Steps, b: int) -> tuple[Array, Array]:
    phi = np.array([[phi11(n, steps, b), phi12(n, steps, b)], [0.0, phi22(n, steps, b)]])
    return phi, np.array([psi1(n, steps, b), psi2(n, steps, b)])


def xi(n: Numbers, steps: Steps, start: tuple[float, float], k: int) -> Array:
    """The bound on Xi(k): whole blocks (eqn:PhikPsikRecursive), then single iterations (eqn:AkCkRecursive)."""
    value = np.array(start, dtype=float)
    for b in range(k // n.B):
        phi, psi = block(n, steps, b)
        value = phi @ value + psi
    for r in range(k // n.B * n.B, k):
        value = matrix(n, steps(r)) @ value + offset(n, steps(r))
    return value


def spectral_radius(n: Numbers, steps: Steps, b: int) -> float:
    phi, _ = block(n, steps, b)
    return float(np.abs(np.linalg.eigvals(phi)).max())


def limit(n: Numbers, alpha: float) -> Array:
    phi, psi = block(n, lambda k: alpha, 0)
    return np.linalg.inv(np.eye(2) - phi) @ psi


# Step-size limits and the ceiling on psi.


def allowed_sum(n: Numbers) -> float:
    """App. F (i): sum_r alpha(r-1)^2 a22(r-2:k) up to which phi_22 <= (3 + rho^2)/4."""
    on_d, on_g, _ = young(n)
    return ((3 + n.rho**2) / 4 - on_d) / (on_g * n.B * 8 * n.L**2)


def gamma1(n: Numbers) -> float:
    """App. F (i): the Gamma of alpha = Gamma / (2 sqrt2 L) with B alpha^2 = allowed_sum, the power left out."""
    return 2 * math.sqrt(2) * n.L * math.sqrt(allowed_sum(n) / n.B)


def constant_limit(n: Numbers) -> float:
    return math.sqrt(allowed_sum(n) / n.B) / (1 + gamma1(n)) ** (n.B - 1)


def diminishing_limit(n: Numbers) -> float:
    """Printed with 4 sqrt2 sqrt(5 - 3 rho^2) where constant_limit has 8."""
    return constant_limit(n) * 8 / (4 * math.sqrt(2) * math.sqrt(5 - 3 * n.rho**2))


def printed_constant_limit(n: Numbers) -> float:
    gamma = (1 - n.rho**2) / (2 * math.sqrt(2) * n.B)
    return (1 - n.rho**2) / (8 * n.B * n.L * (1 + gamma) ** (n.B - 1))


def printed_diminishing_limit(n: Numbers) -> float:
    gamma = (1 - n.rho**2) / (2 * math.sqrt(2) * n.B)
    root = 4 * math.sqrt(2) * math.sqrt(5 - 3 * n.rho**2)
    return (1 - n.rho**2) / (root * n.B * n.L * (1 + gamma) ** (n.B - 1))


# The appendix on non-convex losses.


def loss_a11(n: Numbers, alpha: float) -> float:
    return alpha * (1 / 2 - n.L * alpha)


def loss_a12(n: Numbers, alpha: float) -> float:
    return n.L**2 / (2 * n.m) * alpha * (1 + 2 * n.L * alpha)


def loss_c1(n: Numbers, alpha: float) -> float:
    return n.L / 2 * alpha**2 * n.sigma**2 / n.m


def consensus(n: Numbers, steps: Steps, start: float, k: int) -> float:
    """The bound on E||W(k) - 1 w_bar(k)||^2: lemma kplusB for whole blocks, then lemma kplus1-(c)."""
    value = start
    for b in range(k // n.B):
        value = phi22(n, steps, b) * value + psi2(n, steps, b)
    for r in range(k // n.B * n.B, k):
        value = a22(n, steps(r)) * value + c2(n, steps(r))
    return value


def running_mean_bound(n: Numbers, steps: Steps, loss_gap: float, start: float, k: int) -> float:
    """The bound on the mean of E||grad F(w_bar(r))||^2 over r = 0..k: lemma nonconvex_lossdec summed up."""
    total, least = loss_gap, math.inf
    for r in range(k + 1):
        total += loss_a12(n, steps(r)) * consensus(n, steps, start, r) + loss_c1(n, steps(r))
        least = min(least, loss_a11(n, steps(r)))
    return total / ((k + 1) * least) if least > 0 else math.inf


def nonconvex_gamma1(n: Numbers) -> float:
    return (1 - n.rho**2) / (2 * math.sqrt(2) * n.B * 2 ** (n.B / 2) * math.sqrt(1 + n.rho**2))


def nonconvex_limit(n: Numbers) -> float:
    shrink = 1 / (2 * (1 + nonconvex_gamma1(n))) ** (n.B / 2)
    return 1 / (4 * math.sqrt(2) * n.B * n.L) * shrink * (1 - n.rho**2) / math.sqrt(1 + n.rho**2)


def printed_weights(n: Numbers, alpha: float) -> tuple[float, float, float, float]:
    """w_1 to w_4 of theorem nonconvex, with Gamma_1 for the Gamma_2 it does not define."""
    gamma = nonconvex_gamma1(n)
    gathered = n.L**2 * (16 * n.delta**2 + n.sigma**2) * alpha**2 * (n.B - 1) * (2 * (1 + gamma**2)) ** (n.B - 2)
    w1 = (1 - gamma) / 2
    w2 = 2 * n.L**2 * (1 + gamma) / (n.m * (1 - n.rho**2))
    w3 = n.m * (8 * (1 + n.rho**2) / (1 - n.rho**2) * (n.delta**2 + gathered) + n.sigma**2)
    w4 = n.L * n.sigma**2 / (2 * n.m)
    return w1, w2, w3, w4


def printed_bound(n: Numbers, alpha: float, loss_gap: float, start: float, blocks: int) -> float:
    """The right-hand side of theorem nonconvex, K = blocks, as printed."""
    w1, w2, w3, w4 = printed_weights(n, alpha)
    last = blocks * n.B + 1
    return (loss_gap / (alpha * last) + n.B * w2 * start / last + w2 * w3 * n.B**3 * alpha / last + w4 * alpha**2) / w1


def mended_bound(n: Numbers, alpha: float, loss_gap: float, start: float, blocks: int) -> float:
    """The same with lemma kplusB's factors in the place of lemma B's, every block counted, and growth within blocks."""
    w1, w2, _, w4 = printed_weights(n, alpha)
    _, on_g, on_e = young(n)
    growth = (2 * (1 + 2 * nonconvex_gamma1(n) ** 2)) ** (n.B - 1)
    c = n.m * alpha**2 * (16 * n.delta**2 + n.sigma**2)
    psi = 8 * on_g * (n.m * n.delta**2 + n.L**2 * (n.B - 1) * growth * c) + on_e * n.m * n.sigma**2
    errors = start + (blocks + 1) * (n.B - 1) * c + blocks * n.B**2 * alpha**2 * psi
    last = blocks * n.B + 1
    return (loss_gap / (alpha * last) + growth * n.B * w2 * errors / last + w4 * alpha) / w1
