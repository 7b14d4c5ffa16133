"""The largest eigenvalue from products agrees with that of the whole matrix."""

from __future__ import annotations

import numpy as np
import pytest

from efhc.theory.constants.largest_eigenvalue import largest_eigenvalue


def spectrum(values: list[float], size: int) -> np.ndarray:
    """A symmetric matrix with these eigenvalues, and zeros for the others."""
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(size, size)))
    return rotation[:, : len(values)] * values @ rotation[:, : len(values)].T


@pytest.mark.parametrize(
    ("values", "size"),
    [
        ([3.0], 1),
        ([2.0], 5),
        ([5.0, 5.0, 1.0], 40),  # twice the largest
        ([1.0, 1.0 - 1e-7, 0.5], 40),  # all but twice
        (list(np.linspace(1, 2, 60)), 60),
        ([1e6, 1.0, 1e-3], 30),
        ([1e-9, 9e-10], 30),
    ],
)
def test_agrees_with_the_eigenvalues_of_the_matrix(values, size):
    matrix = spectrum(values, size)
    found = largest_eigenvalue(lambda v: matrix @ v, size)
    assert found == pytest.approx(np.linalg.eigvalsh(matrix)[-1], rel=1e-13)


def test_the_zero_matrix():
    assert largest_eigenvalue(lambda v: 0 * v, 4) == 0


def test_few_products_are_enough_where_one_eigenvalue_stands_out():
    products = []
    matrix = spectrum([4.0, *np.linspace(0, 1, 199)], 200)

    def product(v: np.ndarray) -> np.ndarray:
        products.append(v)
        return matrix @ v

    assert largest_eigenvalue(product, 200) == pytest.approx(4, rel=1e-13)
    assert len(products) < 15
