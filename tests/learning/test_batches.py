"""Mini-batches: distinct members, all subsets equally likely, a function of seed, device and k alone."""

from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from threading import Barrier, Lock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from efhc.base.errors import InputError
from efhc.core.randomness import BlockReader, Randomness
from efhc.learning.batches import SHARED_BYTES, MiniBatches, SharedBlocks, draw_subsets

SEED = Randomness(2)


def parts(*sizes: int) -> list[np.ndarray]:
    """Every device's samples are numbered from 0, so that samples are positions."""
    return [np.arange(size) for size in sizes]


def test_samples_are_the_devices_own_and_come_in_runs_of_a_block():
    mine = [np.array([7, 3, 9, 1]), np.array([2, 4, 6, 8])]
    batches, positions = MiniBatches(mine, 2, SEED).reader(), MiniBatches(parts(4, 4), 2, SEED).reader()
    for k in (0, 255, 256, 600):
        for device in range(2):
            assert np.array_equal(batches(k)[device], mine[device][positions(k)[device]])
    several = batches.rows(252, 10)
    assert len(several) == 4  # to the end of the block
    assert np.array_equal(several[3], batches(255))


@given(population=st.integers(1, 60), seed=st.integers(0, 1000), data=st.data())
@settings(max_examples=50, deadline=None)
def test_members_are_distinct_and_in_range(population: int, seed: int, data: st.DataObject):
    size = data.draw(st.integers(1, population))
    subsets = draw_subsets(population, size, 20, np.random.default_rng(seed))
    assert subsets.shape == (20, size)
    assert subsets.min() >= 0
    assert subsets.max() < population
    assert all(len(set(row)) == size for row in subsets.tolist())


@pytest.mark.parametrize(("population", "size"), [(6, 2), (7, 3), (8, 4), (5, 3), (4, 1), (6, 5)])
def test_all_subsets_are_equally_likely(population: int, size: int):
    drawn = np.sort(draw_subsets(population, size, 100_000, np.random.default_rng(1)), axis=1)
    every = list(combinations(range(population), size))
    found, counts = np.unique(drawn, axis=0, return_counts=True)
    assert list(map(tuple, found.tolist())) == every
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("size", [1, 3, 12])
def test_over_time_every_sample_is_drawn_as_often(size: int):
    batches = MiniBatches(parts(20, 20), size, SEED).reader()
    drawn = np.stack([batches(k) for k in range(3000)])
    for device in range(2):
        counts = np.bincount(drawn[:, device].ravel(), minlength=20)
        expected = 3000 * size / 20
        assert (abs(counts - expected) < 4.5 * np.sqrt(expected * (1 - size / 20))).all()
    assert not np.array_equal(drawn[:, 0], drawn[:, 1])  # each device draws its own


@given(order=st.lists(st.integers(0, 900), min_size=1, max_size=15))
@settings(max_examples=25, deadline=None)
def test_is_a_function_of_k_in_whatever_order(order: list[int]):
    batches = MiniBatches(parts(9, 30, 14), 4, SEED).reader()
    for k in order:
        assert np.array_equal(batches(k), MiniBatches(parts(9, 30, 14), 4, SEED).reader()(k))


def test_a_further_device_leaves_the_others_batches_alone():
    small, large = MiniBatches(parts(9, 30), 4, SEED).reader(), MiniBatches(parts(9, 30, 14, 8), 4, SEED).reader()
    for k in (0, 1, 255, 256, 700):
        assert np.array_equal(small(k), large(k)[:2])


def test_a_batch_may_be_all_that_a_device_has_and_no_more():
    assert sorted(MiniBatches(parts(5), 5, SEED).reader()(0)[0]) == [0, 1, 2, 3, 4]
    with pytest.raises(
        InputError, match=r"^batch_size: cannot use 6. Use at most 5, the samples of device 1"
    ) as caught:
        MiniBatches(parts(9, 5), 6, SEED)
    assert caught.value.field == "batch_size"


def test_blocks_do_not_repeat():
    batches = MiniBatches(parts(1000), 5, SEED)
    blocks = [batches.block(number).tobytes() for number in (0, 1, 2, 256)]
    assert len(set(blocks)) == 4


@pytest.mark.parametrize("size", [1, 4, 9])
def test_one_devices_batches_are_its_own_among_those_of_all(size: int):
    batches = MiniBatches([np.arange(9), np.arange(100, 130), np.arange(50, 64)], size, SEED)
    all_devices, readers = batches.reader(), [batches.of_device(i) for i in range(3)]
    for k in (0, 255, 256, 700, 3):
        for device, reader in enumerate(readers):
            own = reader(k)
            assert own.dtype == all_devices(k).dtype == np.int32
            assert np.array_equal(own, all_devices(k)[device])


def test_devices_at_different_iterations_draw_each_block_once(monkeypatch: pytest.MonkeyPatch):
    batches = MiniBatches(parts(9, 30, 14), 4, SEED)
    drawn: list[tuple[int, int]] = []
    original = MiniBatches.block_of
    monkeypatch.setattr(MiniBatches, "block_of", lambda self, *which: (drawn.append(which), original(self, *which))[1])
    readers = [batches.of_device(i) for i in range(3)]
    for k in range(200, 300):
        for device, reader in enumerate(readers):
            reader(k + 300 * device)
    assert sorted(drawn) == [(0, 0), (0, 1), (1, 1), (1, 2), (2, 3)]


# Runs in several threads share blocks: each has the numbers that it would draw alone, and few are drawn twice


def test_every_run_has_the_numbers_that_it_would_draw_alone():
    mine, readers, iterations = parts(30, 20, 40), 8, 1100
    shared = MiniBatches(mine, 4, SEED)
    start = Barrier(readers)

    def read(run: int) -> list[np.ndarray]:
        reader = shared.reader()
        start.wait()
        return [reader(k).copy() for k in range(97 * run, iterations)]

    with ThreadPoolExecutor(readers) as pool:
        found = list(pool.map(read, range(readers)))
    alone = MiniBatches(mine, 4, SEED)
    reader = BlockReader(alone.block, alone.BLOCK)
    want = [reader(k) for k in range(iterations)]
    for run, rows in enumerate(found):
        assert np.array_equal(rows, want[97 * run :])


def test_a_block_is_drawn_once_however_many_ask_for_it():
    drawn, noting, start = [], Lock(), Barrier(6)

    def draw(number: int) -> np.ndarray:
        with noting:
            drawn.append(number)
        return np.full(2, number)

    blocks = SharedBlocks(draw, SHARED_BYTES // 10)

    def ask(_: int) -> list[float]:
        start.wait()
        return [blocks(number)[0] for number in range(10)]

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(6))) == [list(range(10))] * 6
    assert sorted(drawn) == list(range(10))
    with pytest.raises(ValueError, match="read-only"):
        blocks(3)[0] = 1


def test_only_as_many_blocks_are_kept_as_there_is_room_for():
    drawn = []

    def draw(number: int) -> np.ndarray:
        drawn.append(number)
        return np.zeros(1)

    blocks = SharedBlocks(draw, SHARED_BYTES // 2)
    for number in (0, 1, 0, 2, 0, 1):  # 2 takes the place of 1, which was asked for longer ago than 0
        blocks(number)
    assert drawn == [0, 1, 2, 1]
    large = SharedBlocks(draw, 2 * SHARED_BYTES)
    large(7)
    large(7)
    assert drawn[4:] == [7]
