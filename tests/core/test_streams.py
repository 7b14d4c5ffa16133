"""The stream law at its edges: beyond one block of iterations, and beyond 32 bits of a seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from efhc.core.randomness import Coins, Purpose, Randomness


def four_coins() -> Callable[[int], np.ndarray]:
    coins = Coins(Randomness(3), 4)
    return coins.reader() if hasattr(coins, "reader") else coins


def test_coins_never_repeat():
    coins = four_coins()
    tossed = np.array([coins(k) for k in range(3 * Coins.BLOCK)])
    assert len(np.unique(tossed)) == tossed.size  # neither over blocks nor over devices


def test_coins_are_uniform_and_independent_of_the_order_in_which_they_are_asked_for():
    coins = four_coins()
    tossed = np.array([coins(k) for k in range(2000)])
    assert abs(tossed.mean() - 0.5) < 0.02
    assert abs((tossed < 0.1).mean() - 0.1) < 0.02
    for k in (1999, 0, 256, 255):
        assert np.array_equal(coins(k), tossed[k])


def test_every_bit_of_a_seed_counts():
    drawn = {Randomness(seed).stream(Purpose.BATCHES).random() for seed in (5, 5 + 2**32, 5 + 2**40, 5 + 2**62)}
    assert len(drawn) == 4


def test_streams_of_purposes_and_places_differ():
    randomness = Randomness(0)
    drawn = {randomness.stream(purpose, *where).random() for purpose in Purpose for where in ((), (0,), (1,), (0, 1))}
    assert len(drawn) == 4 * len(Purpose)
