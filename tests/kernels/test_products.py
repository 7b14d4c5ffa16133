"""Sums of products of any shape are what plain loops make of the same numbers."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from efhc.kernels import products
from efhc.kernels.products import Cross, Product, SumTerms


def whole_numbers(seed: int, size: int, precision: type) -> np.ndarray:
    """Small ones: nothing is rounded."""
    return np.random.default_rng(seed).integers(-3, 4, size).astype(precision)


@pytest.mark.parametrize("precision", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (6, 16), (7, 19), (13, 3), (5, 40)])
@pytest.mark.parametrize("start", ["zero", "bias", "add"])
def test_products_of_any_shape(precision, rows: int, columns: int, start):
    """Whole tiles and what is left of them; loops that are unrolled and loops that are not."""
    terms = SumTerms(2, 11, 3 * columns), SumTerms(3, 2, columns)
    compute = products.product(Product(rows, columns, terms, 25, columns + 1, start))

    @numba.njit
    def call(a, x, out):
        compute(a, 1, a, 3, x, 2, out, 4)

    a, x = whole_numbers(0, 25 * rows + 40, precision), whole_numbers(1, 6 * columns + 40, precision)
    before = whole_numbers(2, (columns + 1) * rows + 9, precision)
    call(a, x, out := before.copy())
    for i in range(rows):
        place = slice(4 + i * (columns + 1), 4 + i * (columns + 1) + columns)
        want = {"zero": 0, "bias": a[3 + i], "add": before[place]}[start]
        for s, t in np.ndindex(2, 3):
            want = want + a[1 + 25 * i + 11 * s + 2 * t] * x[2 + (3 * s + t) * columns :][:columns]
        assert np.array_equal(out[place], want)
        before[place] = out[place]
    assert np.array_equal(before, out)  # nothing else was written


@pytest.mark.parametrize("precision", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 5), (3, 7), (13, 3)])
def test_sums_of_whole_vectors(precision, rows: int, columns: int):
    lanes = 32 // np.dtype(precision).itemsize
    terms = SumTerms(2, 2 * lanes, lanes), SumTerms(9, lanes, lanes)
    compute = products.cross(Cross(rows, columns, terms, 3 * lanes, 2 * lanes, lanes * (columns + 1)))

    @numba.njit
    def call(g, x, out):
        compute(g, 0, x, 4, out, 8)

    g, x, before = (whole_numbers(seed, 800, precision) for seed in range(3))
    call(g, x, out := before.copy())
    for i, j in np.ndindex(rows, columns):
        want = before[8 + lanes * (i * (columns + 1) + j) :][:lanes]
        for s, t in np.ndindex(2, 9):
            want += g[lanes * (3 * i + 2 * s + t) :][:lanes] * x[4 + lanes * (2 * j + s + t) :][:lanes]
    assert np.array_equal(out, before)


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_a_square_is_transposed(precision):
    lanes = 32 // np.dtype(precision).itemsize
    tile = products.transposed_tile(20, 10)

    @numba.njit
    def call(x, out):
        tile(x, 3, out, 5)

    x, want = np.arange(200, dtype=precision), np.zeros(200, precision)
    call(x, out := want.copy())
    for i, j in np.ndindex(lanes, lanes):
        want[5 + 10 * j + i] = x[3 + 20 * i + j]
    assert np.array_equal(out, want)
