"""What is compiled for networks does what its Python text says: every layer of small networks, side by side."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from efhc.kernels import products
from efhc.kernels.linear_loops import TrainingInputs
from efhc.kernels.network_layers import CompiledNetwork, Convolution, Linear, Pooling, ReLU
from efhc.kernels.network_loops import Kernels, kernels
from efhc.kernels.products import Cross, Product, SumTerms

CONVOLUTIONS = (
    Convolution(7, (3, 2), (1, 0), True),
    ReLU(),
    Pooling("max", (2, 2)),
    Pooling("mean", (1, 2)),
    Linear(3, True),
)
NETWORKS = {
    "convolution": CompiledNetwork((2, 4, 5), CONVOLUTIONS, "cross-entropy", "float64"),
    "no bias": CompiledNetwork(
        (1, 3, 4), (Convolution(2, (2, 2), (0, 0), False), Convolution(2, (1, 2), (0, 1), False), Linear(3, False)),
        "multi-margin", "float64",
    ),
}  # fmt: skip
SAMPLES = 11


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.allclose(a, b, rtol=1e-10, atol=1e-12))


class Problem:
    """Models, inputs and room of a network."""

    def __init__(self, network: CompiledNetwork, vectors: int) -> None:
        stream = np.random.default_rng(0)
        self.kernels: Kernels = kernels(network, vectors)
        self.models = stream.normal(size=(2, network.parameters))
        rows = stream.integers(0, 256, (20, int(np.prod(network.shape))), dtype=np.uint8)
        self.inputs = TrainingInputs(rows, np.float64(0.01), np.float64(-1), np.arange(20) % 3)

    def room(self) -> np.ndarray:
        return np.zeros(self.kernels.layout.size)

    def gradients(self, picked) -> tuple[np.ndarray, np.ndarray]:
        samples, ends = np.arange(2 * SAMPLES, dtype=np.int32) % 20, np.array([0, SAMPLES, 2 * SAMPLES])
        losses, out, rows = np.empty(2), np.full_like(self.models, np.nan), np.array([1, 0])
        picked(self.models, rows, self.inputs, samples, ends, losses, out, np.arange(2), self.room(), 0, 2)
        return losses, out

    def answers(self, answers) -> tuple[np.ndarray, np.ndarray]:
        right, bad = np.zeros((2, 1), np.int64), np.zeros((2, 1), bool)
        answers(self.models, self.inputs, right, bad, self.room(), 0, 2)
        return right, bad


@pytest.mark.parametrize("vectors", [1, 2])
@pytest.mark.parametrize("case", NETWORKS)
def test_whole_networks(case: str, vectors: int):
    problem = Problem(NETWORKS[case], vectors)
    picked, answers = problem.kernels.picked, problem.kernels.answers
    for one, other in zip(problem.gradients(picked), problem.gradients(picked.py_func), strict=True):
        assert close(one, other)
    right, bad = problem.answers(answers)
    assert np.array_equal(right, problem.answers(answers.py_func)[0])
    assert right.any()
    assert not bad.any()
    problem.models[1] = np.nan
    assert problem.answers(answers)[1].tolist() == [[False], [True]]


@pytest.mark.parametrize("case", NETWORKS)
def test_every_layer(case: str):
    """Python calls the text of a layer; a loop that calls it is compiled."""
    problem = Problem(NETWORKS[case], 1)
    w = problem.models[0]
    for forward, backward in problem.kernels.layout.layers:

        def both(w, room, gradient, forward=forward, backward=backward):
            forward(w, room)
            backward(w, room, gradient)

        room = np.random.default_rng(1).normal(size=problem.kernels.layout.size).round(1)  # some are equal
        rooms, gradients = [room.copy(), room.copy()], [np.zeros_like(w), np.zeros_like(w)]
        for layer, own, gradient in zip((numba.njit(both), both), rooms, gradients, strict=True):
            layer(w, own, gradient)
        assert close(*rooms)
        assert close(*gradients)
        assert not np.array_equal(rooms[0], room)


@pytest.mark.parametrize("precision", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (6, 16), (7, 19), (13, 3), (5, 40)])
@pytest.mark.parametrize("start", ["zero", "bias", "add"])
def test_products_of_any_shape(precision, rows: int, columns: int, start):
    """Whole tiles and what is left of them; loops that are unrolled and loops that are not."""
    terms = SumTerms(2, 11, 3 * columns), SumTerms(3, 2, columns)
    compute = products.product(Product(rows, columns, terms, 25, columns + 1, start))

    @numba.njit
    def call(a, x, out):
        compute(a, 1, 3, x, 2, out, 4)

    stream = np.random.default_rng(0)
    a, x = (stream.integers(-3, 4, size).astype(precision) for size in (25 * rows + 40, 6 * columns + 40))
    out = stream.integers(-3, 4, (columns + 1) * rows + 9).astype(precision)
    compiled, interpreted = out.copy(), out.copy()
    call(a, x, compiled)
    compute(a, 1, 3, x, 2, interpreted, 4)
    assert np.array_equal(compiled, interpreted)  # small whole numbers: nothing is rounded
    plain = np.zeros((rows, columns))
    for i in range(rows):
        plain[i] = {"zero": 0, "bias": a[3 + i], "add": out[4 + i * (columns + 1) :][:columns]}[start]
        for s, t in np.ndindex(2, 3):
            plain[i] += a[1 + 25 * i + 11 * s + 2 * t] * x[2 + (3 * s + t) * columns :][:columns]
    got = np.stack([compiled[4 + i * (columns + 1) :][:columns] for i in range(rows)])
    assert np.array_equal(got, plain)
    untouched = np.ones(len(out), bool)
    for i in range(rows):
        untouched[4 + i * (columns + 1) :][:columns] = False
    assert np.array_equal(compiled[untouched], out[untouched])


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 5), (3, 7), (13, 3)])
def test_sums_of_whole_vectors(rows: int, columns: int):
    compute = products.cross(Cross(rows, columns, (SumTerms(2, 8, 4), SumTerms(9, 4, 4)), 12, 8, 4 * columns + 4))

    @numba.njit
    def call(g, x, out):
        compute(g, 0, x, 4, out, 8)

    stream = np.random.default_rng(0)
    g, x, out = (stream.integers(-3, 4, 400).astype(np.float64) for _ in range(3))
    compiled, interpreted = out.copy(), out.copy()
    call(g, x, compiled)
    compute(g, 0, x, 4, interpreted, 8)
    assert np.array_equal(compiled, interpreted)
    assert not np.array_equal(compiled, out)


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_a_square_is_transposed(precision):
    lanes = 32 // np.dtype(precision).itemsize
    tile = products.transposed_tile(20, 10)

    @numba.njit
    def call(x, out):
        tile(x, 3, out, 5)

    x, out = np.arange(200, dtype=precision), np.zeros(200, precision)
    expected = out.copy()
    call(x, out)
    tile(x, 3, expected, 5)
    assert np.array_equal(out, expected)
    assert out[5 + 10 * (lanes - 1) + 2] == x[3 + 20 * 2 + lanes - 1]
