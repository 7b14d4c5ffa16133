from __future__ import annotations

import numpy as np
import pytest

from efhc.core.randomness import BlockReader, Coins, Purpose, Randomness


def test_a_stream_is_a_function_of_seed_purpose_and_place():
    def numbers(seed, purpose, *where):
        return Randomness(seed).stream(purpose, *where).random(4).tolist()

    one = numbers(1, Purpose.BATCHES, 2, 3)
    assert numbers(1, Purpose.BATCHES, 2, 3) == one
    for other in [
        (2, Purpose.BATCHES, 2, 3),
        (1, Purpose.GOSSIP, 2, 3),
        (1, Purpose.BATCHES, 3, 2),
        (1, Purpose.BATCHES, 2),
    ]:
        assert numbers(*other) != one


def test_streams_are_numpys_own_spawned_seed_sequences():
    child = np.random.SeedSequence(7).spawn(int(Purpose.GOSSIP) + 1)[Purpose.GOSSIP]
    assert np.random.default_rng(child).random() == Randomness(7).stream(Purpose.GOSSIP).random()


def test_a_device_more_leaves_the_coins_of_the_others_alone():
    few, more = Coins(Randomness(5), 3).reader(), Coins(Randomness(5), 4).reader()
    for k in (0, 1, 255, 256, 1000, 2):
        assert np.array_equal(few(k), more(k)[:3])


def test_coins_do_not_depend_on_the_order_of_asking():
    coins = Coins(Randomness(5), 2).reader()
    forward = [coins(k).tolist() for k in range(600)]
    assert [coins(k).tolist() for k in reversed(range(600))] == forward[::-1]


def test_coins_are_uniform_and_never_repeat():
    coins = Coins(Randomness(5), 4).reader()
    tossed = np.array([coins(k) for k in range(6 * Coins.BLOCK)])
    assert len(np.unique(tossed)) == tossed.size  # neither over blocks nor over devices
    assert abs(tossed.mean() - 0.5) < 0.02
    assert abs((tossed < 0.1).mean() - 0.1) < 0.02
    rows = {coins(block * Coins.BLOCK).tobytes() for block in (0, 1, 255, 256, 257, 65536)}
    assert len(rows) == 6


def test_streams_of_purposes_and_places_differ():
    randomness = Randomness(0)
    drawn = {randomness.stream(purpose, *where).random() for purpose in Purpose for where in ((), (0,), (1,), (0, 1))}
    assert len(drawn) == 4 * len(Purpose)


@pytest.mark.parametrize("seed", [2**32, 2**40 + 5, 2**62 + 5, 2**32 + 7, 2**64 + 7, 2**128 + 7])
def test_large_seeds_are_seeds_of_their_own(seed):
    for purpose in Purpose:
        own, small = (Randomness(s).stream(purpose, 0).random(4).tolist() for s in (seed, seed % 2**32))
        assert own != small
    assert not np.array_equal(Coins(Randomness(seed), 2).block(0), Coins(Randomness(seed % 2**32), 2).block(0))


def test_one_devices_coins_are_its_own_among_those_of_all():
    coins = Coins(Randomness(5), 3)
    all_devices, readers = coins.reader(), [coins.of_device(i) for i in range(3)]
    for k in (0, 255, 256, 1000, 2):
        own = [reader(k) for reader in readers]
        assert all(isinstance(coin, float) for coin in own)
        assert own == all_devices(k).tolist()


class Counted:
    """Blocks of two rows, and the numbers of those that were drawn."""

    def __init__(self) -> None:
        self.drawn: list[int] = []

    def __call__(self, number: int) -> np.ndarray:
        self.drawn.append(number)
        return np.array([2 * number, 2 * number + 1])


@pytest.mark.parametrize(
    ("keep", "drawn"), [(1, [0, 1, 0, 2, 1, 0]), (2, [0, 1, 2, 1, 0]), (3, [0, 1, 2]), (9, [0, 1, 2])]
)
def test_a_reader_draws_again_what_it_has_not_read_for_longest(keep: int, drawn: list[int]):
    blocks = Counted()
    reader = BlockReader(blocks, 2, keep)
    asked = [0, 1, 2, 0, 1, 4, 5, 3, 2, 1]
    assert [int(reader(k)) for k in asked] == asked
    assert blocks.drawn == drawn
    assert reader.rows(0, 9).tolist() == [0, 1]


def test_a_reader_whose_block_could_not_be_drawn_reads_on():
    def draw(number: int) -> np.ndarray:
        if number == 1:
            raise MemoryError
        return np.arange(2 * number, 2 * number + 2)

    reader = BlockReader(draw, 2)
    for _ in range(2):
        assert reader(1) == 1
        with pytest.raises(MemoryError):
            reader(2)
    assert reader(5) == 5
