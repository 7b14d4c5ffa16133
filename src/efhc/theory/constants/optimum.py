"""Finding the minimiser w* of a strongly convex F, with the certificate ||w - w*|| <= ||grad F(w)|| / mu."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from efhc.base.arrays import Floats
from efhc.base.errors import EfhcError
from efhc.theory.constants.problem import Optimum

CLOSE = 1e-10
"""The largest distance ||grad F(w)|| / mu at which w counts as the minimiser."""
NEWTON_STEPS, HALVINGS, CONJUGATE_STEPS = 50, 12, 1000
"""The largest numbers of Newton steps, of halvings of one step, and of conjugate-gradient steps for one step."""
LBFGS_GRADIENT = 1e-5
"""The largest entry of grad F at which L-BFGS ends and Newton's method takes over."""
FORCING = 1e-2
"""The residual at which a Newton system counts as solved, relative to ||grad F||."""

Function = Callable[[Floats], tuple[float, Floats]]
"""Returns F and grad F at a model, which may have any shape."""


def least_squares_optimum(value_and_gradient: Function, hessian: Floats, shape: tuple[int, int]) -> Optimum | None:
    """Return the minimiser of a quadratic F, or None if its Hessian is singular to within rounding.

    The model has the given `shape`; H = `hessian` is the Hessian with respect to each of its rows theta_c. One Newton
    step from 0 solves the normal equations H theta_c = -grad_c F(0); a second one removes most of its rounding error.
    Raises an `EfhcError` if the result is further than `CLOSE` from w*.
    """
    eigenvalues = np.linalg.eigvalsh(hessian)
    convexity, largest = float(eigenvalues[0]), float(eigenvalues[-1])
    if convexity <= len(hessian) * np.finfo(np.float64).eps * largest:
        return None
    factors = cho_factor(hessian)
    model: Floats = np.zeros(shape)
    for _ in range(2):
        model = model - cho_solve(factors, value_and_gradient(model)[1].T).T
    loss, gradient = value_and_gradient(model)
    norm = float(np.linalg.norm(gradient))
    if norm / convexity > CLOSE:
        raise _too_far(norm, convexity)
    return Optimum(model, loss, norm / convexity)


def _too_far(norm: float, convexity: float) -> EfhcError:
    return EfhcError(
        f"the minimiser of F is known to within {norm / convexity:.1e} only, not {CLOSE:.0e}: its gradient does not "
        f"get below {norm:.1e}, and its convexity is {convexity:g}; try a larger l2"
    )


def smooth_optimum(
    value_and_gradient: Function,
    hessian_product: Callable[[Floats], Callable[[Floats], Floats]],
    start: Floats,
    convexity: float,
) -> Optimum:
    """Return the minimiser of a smooth, strongly convex F: L-BFGS from `start`, then Newton's method.

    `convexity` is mu, and `hessian_product(w)(v)` is H v at w. A Newton step is halved until it shortens the gradient.
    A short enough step -H^-1 grad F always does: ||grad F||^2 / 2 has the slope -||grad F||^2 along it. Raises an
    `EfhcError` if no step brings the result within `CLOSE` of w*.
    """
    from scipy.optimize import minimize  # importing them takes longer than many a check that needs no w*
    from scipy.sparse.linalg import LinearOperator, cg

    model: Floats = minimize(
        value_and_gradient,
        start,
        method="L-BFGS-B",
        jac=True,
        options={"gtol": LBFGS_GRADIENT, "ftol": 0.0, "maxiter": 10_000, "maxfun": 20_000},
    ).x
    loss, gradient = value_and_gradient(model)
    norm = float(np.linalg.norm(gradient))
    for _ in range(NEWTON_STEPS):
        if norm / convexity <= CLOSE:
            return Optimum(model, loss, norm / convexity)
        H = LinearOperator((len(model), len(model)), matvec=hessian_product(model))
        step, _ = cg(H, -gradient, rtol=0.0, atol=FORCING * norm, maxiter=CONJUGATE_STEPS)
        for halving in range(HALVINGS):
            size = 0.5**halving
            there = model + size * step
            loss_there, gradient_there = value_and_gradient(there)
            norm_there = float(np.linalg.norm(gradient_there))
            if norm_there <= (1 - size / 4) * norm:
                break
        else:
            break  # no step helps: what is left of the gradient is rounding
        model, loss, gradient, norm = there, loss_there, gradient_there, norm_there
    raise _too_far(norm, convexity)
