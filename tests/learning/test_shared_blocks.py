"""Runs in several threads share blocks: each has the numbers that it would draw alone, and few are drawn twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock

import numpy as np
import pytest

from efhc.core.randomness import BlockReader, Randomness
from efhc.learning.batches import SHARED_BYTES, MiniBatches, SharedBlocks

PARTS = [np.arange(30), np.arange(30, 50), np.arange(50, 90)]


def batches() -> MiniBatches:
    return MiniBatches(PARTS, 4, Randomness(5))


def test_every_run_has_the_numbers_that_it_would_draw_alone():
    shared, readers, iterations = batches(), 8, 1100
    start = Barrier(readers)

    def read(run: int) -> list[np.ndarray]:
        reader = shared.reader()
        start.wait()
        return [reader(k).copy() for k in range(97 * run, iterations)]

    with ThreadPoolExecutor(readers) as pool:
        found = list(pool.map(read, range(readers)))
    alone = batches()
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
