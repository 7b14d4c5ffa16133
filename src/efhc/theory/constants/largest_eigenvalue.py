"""The largest eigenvalue of a matrix that is known only by its products with vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from efhc.base.arrays import Floats

RESIDUAL = 1e-9
"""The residual ||A v - theta v|| / theta at which theta counts as found. Its square, over the relative gap between the
two largest eigenvalues, is the error that remains in theta: in general less than rounding."""


def largest_eigenvalue(product: Callable[[Floats], Floats], size: int) -> float:
    """Return lambda_max(A) of a symmetric, positive semidefinite A of `size` rows, where `product` is v -> A v.

    Lanczos' method from a random vector, which is the same in every call, with full reorthogonalisation. It ends when
    the residual of its largest Ritz value is below `RESIDUAL`, or when the vectors span the whole space. With `size`
    or fewer products this replaces the eigenvalues of the whole matrix, which would have to be formed first.
    """
    direction: Floats = np.random.default_rng(0).standard_normal(size)
    direction /= np.linalg.norm(direction)
    basis = np.empty((0, size))
    diagonal: list[float] = []
    beside: list[float] = []
    theta = 0.0
    while len(diagonal) < size:
        basis = np.vstack([basis, direction])
        image = product(direction)
        diagonal.append(float(direction @ image))
        for _ in range(2):  # what rounding leaves of the first time, the second removes
            image = image - (basis @ image) @ basis
        length = float(np.linalg.norm(image))
        values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
        theta = float(values[-1])
        if length * abs(vectors[-1, -1]) <= RESIDUAL * theta:
            break
        beside.append(length)
        direction = image / length
    return max(0.0, theta)
