"""Numbers side by side are what NumPy makes of the same numbers, in both precisions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from efhc.kernels.lanes import (
    block_width,
    fetch,
    filled,
    filled_block,
    fma,
    larger,
    load,
    load_as,
    load_some,
    load_some_block,
    repeated,
    store,
    store_some,
    total,
    where_equal,
    width,
)

GUARD = -7.0
"""What stands where nothing may be written."""


@pytest.fixture(params=["float32", "float64"])
def numbers(request: pytest.FixtureRequest) -> np.ndarray:
    """More than a block, none of them alike."""
    stream = np.random.default_rng(0)
    return stream.normal(size=150).astype(request.param)


def written(write: Callable[..., None], *arguments: Any) -> np.ndarray:
    """What a compiled function writes to its last argument, which is as large as its first."""
    precision = next(each.dtype for each in reversed(arguments) if isinstance(each, np.ndarray))
    out = np.full(arguments[0].size, GUARD, precision)
    numba.njit(write)(*arguments, out)
    return out


@pytest.mark.parametrize("shape", [(150,), (15, 10)])
def test_numbers_are_copied_from_anywhere_to_anywhere(numbers: np.ndarray, shape: tuple[int, ...]):
    """A matrix is one long row."""

    def write(x, out):
        fetch(x, 13)
        store(out, width(x) - 3, load(x, 13))

    wide, out = width(numbers), written(write, numbers.reshape(shape))
    assert wide == 32 // numbers.itemsize
    assert np.array_equal(out[wide - 3 : 2 * wide - 3], numbers[13 : 13 + wide])
    assert (np.delete(out, np.s_[wide - 3 : 2 * wide - 3]) == GUARD).all()


def test_only_the_first_are_read_and_written(numbers: np.ndarray):
    def write(x, count, out):
        store(out, 1, load_some(x, 2, count))

    def write_some(x, count, out):
        store_some(out, 1, count, load(x, 2))

    wide = width(numbers)
    for count in (0, 1, wide - 1, wide, wide + 3):
        read, kept = min(count, wide), numbers[2 : 2 + min(count, wide)]
        out = written(write, numbers, count)
        assert np.array_equal(out[1 : 1 + read], kept)
        assert (out[1 + read : 1 + wide] == 0).all()
        out = written(write_some, numbers, count)
        assert np.array_equal(out[1 : 1 + read], kept)
        assert (np.delete(out, np.s_[1 : 1 + read]) == GUARD).all()


def test_blocks(numbers: np.ndarray):
    def write(x, count, out):
        a = load_some_block(x, 2, count)
        store_some(out, 1, count, fma(a, filled_block(x, 2), filled_block(x, 1) - a))

    wide = block_width(numbers)
    for count in (0, 5, wide // 2, wide - 1, wide, wide + 9):
        kept = min(count, wide)
        out = written(write, np.round(numbers * 8), count)  # whole numbers: nothing is rounded
        assert np.array_equal(out[1 : 1 + kept], np.round(numbers * 8)[2 : 2 + kept] + 1)
        assert (np.delete(out, np.s_[1 : 1 + kept]) == GUARD).all()


def test_a_block_ends_where_its_array_does(numbers: np.ndarray):
    """What lies behind is neither read nor written: it may be nobody's memory."""

    def write(x, out):
        store_some(out, len(out) - 3, 3, load_some_block(x, len(x) - 3, 3))

    assert np.array_equal(written(write, numbers)[-3:], numbers[-3:])


def test_sources_are_bytes_or_numbers_of_the_same_precision(numbers: np.ndarray):
    def write(source, x, out):
        store(out, 0, load_as(source, 3, x))

    pixels = (np.arange(150) * 5 % 256).astype(np.uint8)
    for source in (pixels, numbers):
        out = written(write, source, numbers)
        assert np.array_equal(out[: width(numbers)], source[3 : 3 + width(numbers)].astype(numbers.dtype))
    assert pixels[3 : 3 + 40].max() > 127  # bytes have no sign
    with pytest.raises(numba.TypingError):
        numba.njit(write)(np.arange(150), numbers, numbers.copy())


def test_arithmetic(numbers: np.ndarray):
    def write(x, out):
        a, b, wide = load(x, 0), load(x, 40), width(x)
        for place, sums in enumerate((a + b, a - b, a * b, filled(x, 3) + repeated(x, 7))):
            store(out, place * wide, sums)

    wide = width(numbers)
    a, b, three = numbers[:wide], numbers[40 : 40 + wide], np.full(wide, 3, numbers.dtype)
    want = [a + b, a - b, a * b, three + numbers[7]]
    assert np.array_equal(written(write, numbers)[: 4 * wide].reshape(4, wide), want)


def test_a_product_and_a_sum_are_rounded_once(numbers: np.ndarray):
    """(1 + e)(1 - e) - 1 = -e^2, of which nothing is left if the product is rounded."""

    @numba.njit
    def compute(x, out):
        store(out, 0, fma(filled(x, x[0]), filled(x, x[1]), filled(x, -1)))

    e = np.finfo(numbers.dtype).eps
    numbers[:2], out = (1 + e, 1 - e), np.zeros_like(numbers)
    compute(numbers, out)
    assert (out[: width(numbers)] == -(e**2)).all()


def test_the_larger_number_or_nan_from_either_side(numbers: np.ndarray):
    def write(x, out):
        store(out, 0, larger(load(x, 0), load(x, 20)))

    numbers[:4], numbers[20:24] = (np.nan, 1, 2, -np.inf), (5, np.nan, 3, -4)
    out = written(write, numbers)
    assert np.isnan(out[:2]).all()
    assert out[2:4].tolist() == [3, -4]


def test_numbers_where_others_are_equal(numbers: np.ndarray):
    def write(x, out):
        store(out, 0, where_equal(load(x, 0), load(x, 20), load(x, 40)))

    numbers[:4], numbers[20:24], numbers[40:44] = (1, np.nan, 0, 3), (1, np.nan, -0.0, 4), (7, 8, 9, 10)
    assert written(write, numbers)[:4].tolist() == [7, 0, 9, 0]


def test_halves_are_added_until_one_number_is_left(numbers: np.ndarray):
    def write(x, out):
        out[0] = total(load(x, 0))

    wide, large = width(numbers), 4 / np.finfo(numbers.dtype).eps
    numbers[:wide] = 0
    numbers[[0, 1, wide // 2]] = large, 1, -large  # the halves cancel, and 1 is left
    left_to_right = numbers.dtype.type(0)
    for number in numbers[:wide]:
        left_to_right += number
    assert written(write, numbers)[0] == 1
    assert left_to_right == 0


def test_the_registers_of_a_block_are_added_before_their_numbers(numbers: np.ndarray):
    def write(x, out):
        out[0] = total(load_some_block(x, 0, block_width(x)))

    out = written(write, numbers)
    summed = numbers[: block_width(numbers)].copy()
    while len(summed) > 1:
        summed = summed[: len(summed) // 2] + summed[len(summed) // 2 :]
    assert out[0] == summed[0]


def test_arrays_in_another_order_are_refused(numbers: np.ndarray):
    with pytest.raises(numba.TypingError):
        numba.njit(lambda x: total(load(x, 0)))(numbers[::2])


BITS = """
import hashlib
import numpy as np
from efhc.core.randomness import Randomness
from efhc.kernels.compiled_arithmetic import consensus_error, drift
from efhc.learning.backends import backend_for
from efhc.learning.backends.backend import Batch
from efhc.learning.data.dataset import Dataset
from efhc.learning.models import MLP, SVM

stream = np.random.default_rng(0)
x, y = stream.integers(0, 256, (60, 5, 7), dtype=np.uint8), np.arange(60) % 3
samples = [stream.integers(0, 60, length) for length in (1, 17, 40)]
for precision in ("float32", "float64"):
    data = Dataset(x, y, x, y).prepared(False, precision)
    for model in (SVM(), MLP(hidden=(9,))):
        backend = backend_for(model, data, Randomness(0))
        models = stream.normal(size=(3, backend.parameters)).astype(precision)
        losses, _ = backend.grads(models, Batch(0, samples), {}, gradients := np.empty_like(models))
        distances = drift(models, gradients, 1), consensus_error(models, 1)
        results = losses, gradients, *distances, backend.accuracies(models, {})
        hashes = [hashlib.sha256(np.asarray(each).tobytes()).hexdigest()[:12] for each in results]
        print(type(backend).__name__, *hashes)
"""


@pytest.mark.slow
def test_the_bits_are_the_same_on_other_processors(tmp_path: Path):
    """One of 2013 with fused multiply-add, and one with nothing that not every x86 processor has."""

    def bits(processor: str | None) -> list[str]:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / str(processor))}
        if processor is not None:
            environment |= {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": ""}
        command = [sys.executable, "-c", BITS]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return done.stdout.splitlines()

    with ThreadPoolExecutor(3) as pool:
        here, with_fma, with_nothing = pool.map(bits, (None, "haswell", "x86-64"))
    assert [line.split()[0] for line in here] == 2 * ["LinearBackend", "CompiledBackend"]
    assert here == with_fma == with_nothing
