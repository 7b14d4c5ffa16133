"""Partitions give every device some of the training samples, none to two devices, as unevenly as the settings say."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efhc.base.errors import InputError
from efhc.core.randomness import Purpose, Randomness
from efhc.learning.data import Dataset
from efhc.learning.partition import (
    IID,
    Dirichlet,
    Groups,
    IndexFile,
    LabelsPerDevice,
    Quantities,
    Shards,
    Writers,
    set_aside,
)

SEED = Randomness(5)
TEN = np.random.default_rng(0).permutation(np.arange(1000) % 10)


def labelled(labels: np.ndarray, groups: np.ndarray | None = None) -> Dataset:
    """Training samples with these labels."""
    return Dataset(np.zeros((len(labels), 1)), labels, np.zeros((1, 1)), np.array([0]), groups=groups)


def disjoint(parts: list[np.ndarray]) -> np.ndarray:
    """All samples that were given, each once."""
    given_out = np.concatenate(parts)
    assert len(set(given_out.tolist())) == len(given_out)
    return np.sort(given_out)


DRAWN = [IID(), LabelsPerDevice(labels_per_device=3), Dirichlet(), Groups(), Shards(), Quantities()]


@pytest.mark.parametrize("policy", DRAWN, ids=repr)
def test_same_seed_same_parts_other_seed_other_parts(policy: IID):
    data = labelled(TEN, groups=np.arange(1000) % 20)
    first, again, other = (policy.split(data, 7, Randomness(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@given(samples=st.integers(1, 200), devices=st.integers(1, 30), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_iid_gives_all_in_equal_parts(samples: int, devices: int, seed: int):
    labels = np.arange(samples) % 3
    if devices > samples:
        with pytest.raises(InputError, match=f"device {samples} without samples"):
            IID().split(labelled(labels), devices, Randomness(seed))
        return
    parts = IID().split(labelled(labels), devices, Randomness(seed))
    assert len(parts) == devices
    assert np.array_equal(disjoint(parts), np.arange(samples))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(classes=st.integers(1, 12), devices=st.integers(1, 25), seed=st.integers(0, 99), data=st.data())
@settings(max_examples=40, deadline=None)
def test_labels_are_dealt_fairly_and_samples_to_one_device_only(
    classes: int, devices: int, seed: int, data: st.DataObject
):
    k = data.draw(st.integers(1, classes))
    labels = np.random.default_rng(seed).permutation(np.arange(classes * 30) % classes)
    parts = LabelsPerDevice(labels_per_device=k).split(labelled(labels), devices, Randomness(seed))
    held = [set(labels[part].tolist()) for part in parts]
    assert [len(its) for its in held] == [k] * devices
    holders = np.bincount([label for its in held for label in its], minlength=classes)
    assert holders.max() - holders.min() <= 1
    # Every sample of a label that somebody holds is given out, in shares equal to within one.
    assert np.array_equal(disjoint(parts), np.flatnonzero(holders[labels] > 0))
    for label in np.flatnonzero(holders):
        shares = [size for part in parts if (size := int((labels[part] == label).sum()))]
        assert max(shares) - min(shares) <= 1


def test_labels_are_dealt_in_an_order_of_the_seed():
    """With one label each, the order in which ten devices get the ten labels is another for another seed."""
    data = labelled(TEN)
    orders = {tuple(TEN[part[0]] for part in LabelsPerDevice().split(data, 10, Randomness(seed))) for seed in range(8)}
    assert len(orders) == 8
    assert all(sorted(order) == list(range(10)) for order in orders)


@pytest.mark.parametrize("labels", [np.array([0, 1, 1, 1]), np.array([1, 1, 1, 1])])
def test_labels_that_leave_a_device_empty_handed(labels: np.ndarray):
    with pytest.raises(
        InputError, match=r"^labels_per_device: cannot use 1: 2 devices hold label 0, with [01] samples"
    ):
        LabelsPerDevice().split(labelled(labels), 4, SEED)


@given(devices=st.integers(1, 12), concentration=st.floats(0.05, 100), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_dirichlet_gives_all_and_leaves_nobody_out(devices: int, concentration: float, seed: int):
    parts = Dirichlet(concentration=concentration).split(labelled(TEN), devices, Randomness(seed))
    assert len(parts) == devices
    assert min(map(len, parts)) > 0
    assert np.array_equal(disjoint(parts), np.arange(1000))


def test_dirichlet_nears_iid_as_its_concentration_grows():
    def unevenness(concentration: float) -> float:
        parts = Dirichlet(concentration=concentration).split(labelled(TEN), 5, SEED)
        counts = np.array([np.bincount(TEN[part], minlength=10) for part in parts])
        return float(abs(counts - 20).mean())

    assert unevenness(0.1) > 2 * unevenness(5) > 4 * unevenness(10_000)
    assert unevenness(10_000) < 1


def test_dirichlet_cuts_each_label_at_the_nearest_sample():
    """After device i, sum_{j <= i} share_j of the label's samples are given away, to within half a sample."""
    devices, errors = 5, []
    parts = Dirichlet(concentration=10.0).split(labelled(TEN), devices, Randomness(1))
    stream = Randomness(1).stream(Purpose.PARTITION, 0)
    for label in range(10):
        samples = stream.permutation(np.flatnonzero(label == TEN))
        shares = stream.dirichlet(np.full(devices, 10.0))
        counts = [np.sum(TEN[part] == label) for part in parts]
        errors.append(np.cumsum(counts) - np.cumsum(shares) * len(samples))
    assert np.abs(errors).max() <= 0.5
    assert np.max(errors) > 0.1  # up as well as down
    assert np.min(errors) < -0.1


# Groups


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30), devices=st.integers(1, 30), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_groups_are_dealt_whole_and_equally_many(sizes: list[int], devices: int, seed: int):
    groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)) * 3, sizes))  # numbers may skip
    data = labelled(np.zeros(len(groups), int), groups)
    if len(sizes) < devices:
        with pytest.raises(InputError, match=f"^kind: cannot use {len(sizes)} groups for {devices} devices"):
            Groups().split(data, devices, Randomness(seed))
        return
    parts = Groups().split(data, devices, Randomness(seed))
    assert len(parts) == devices
    assert np.array_equal(disjoint(parts), np.arange(len(groups)))
    held = [set(groups[part].tolist()) for part in parts]
    assert sum(map(len, held)) == len(sizes)  # no group is on two devices
    assert max(map(len, held)) - min(map(len, held)) <= 1
    dealt = np.array_split(Randomness(seed).stream(Purpose.PARTITION).permutation(np.unique(groups)), devices)
    assert held == [set(hand.tolist()) for hand in dealt]  # the draw that runs have had from the first version on
    assert all((np.diff(part) > 0).all() for part in parts)


def test_writers_are_groups_and_data_must_tell_groups_apart():
    data = labelled(TEN, np.arange(1000) % 20)
    both = zip(Groups().split(data, 6, SEED), Writers().split(data, 6, SEED), strict=True)
    assert all(np.array_equal(a, b) for a, b in both)
    for policy in (Groups(), Writers()):
        with pytest.raises(InputError, match=f"^kind: cannot use {policy.kind}, because your arrays has no groups"):
            policy.split(labelled(TEN), 5, SEED)


# Shards


@given(
    classes=st.integers(1, 12),
    each=st.integers(1, 40),
    devices=st.integers(1, 20),
    shards=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_shards_are_consecutive_pieces_of_the_samples_sorted_by_label(
    classes: int, each: int, devices: int, shards: int, seed: int
):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), each))
    policy, pieces = Shards(shards_per_device=shards), devices * shards
    if pieces > len(labels):
        with pytest.raises(
            InputError, match=f"^shards_per_device: cannot use {shards}: {pieces} shards of {len(labels)}"
        ):
            policy.split(labelled(labels), devices, Randomness(seed))
        return
    parts = policy.split(labelled(labels), devices, Randomness(seed))
    assert len(parts) == devices
    assert np.array_equal(disjoint(parts), np.arange(len(labels)))
    sizes = list(map(len, parts))
    assert max(sizes) - min(sizes) <= shards
    if len(labels) % pieces == 0:
        size = len(labels) // pieces
        of_pieces = sorted(labels[piece].tolist() for part in parts for piece in part.reshape(shards, size))
        assert of_pieces == [piece.tolist() for piece in np.sort(labels).reshape(pieces, size)]
        if size <= each:
            assert max(len(np.unique(labels[part])) for part in parts) <= 2 * shards


# Quantities


@given(
    samples=st.integers(1, 300),
    devices=st.integers(1, 20),
    minimum=st.integers(1, 20),
    concentration=st.floats(1e-3, 100),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_quantities_give_all_samples_and_the_minimum_to_each(
    samples: int, devices: int, minimum: int, concentration: float, seed: int
):
    policy = Quantities(minimum=minimum, concentration=concentration)
    data = labelled(np.arange(samples) % 3)
    if devices * minimum > samples:
        with pytest.raises(
            InputError, match=f"^minimum: cannot use {minimum} for each of {devices} devices, with {samples}"
        ):
            policy.split(data, devices, Randomness(seed))
        return
    parts = policy.split(data, devices, Randomness(seed))
    assert len(parts) == devices
    assert np.array_equal(disjoint(parts), np.arange(samples))
    assert min(map(len, parts)) >= minimum


def test_quantities_differ_by_the_law_of_dirichlet():
    """The variance of a share q_i is (1/m)(1 - 1/m) / (m a + 1)."""
    m, data = 10, labelled(np.arange(10_000) % 10)
    for a in (0.5, 5.0):
        policy = Quantities(concentration=a, minimum=100)
        sizes = np.array([[len(part) for part in policy.split(data, m, Randomness(seed))] for seed in range(200)])
        shares = (sizes - 100) / 9000
        assert np.var(shares) == pytest.approx((1 / m) * (1 - 1 / m) / (m * a + 1), rel=0.15)


# Files


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def put(content: str) -> Path:
        (tmp_path / "parts.json").write_text(content)
        return tmp_path / "parts.json"

    return put


def test_index_file_is_used_as_it_stands(write: Callable[[str], Path]):
    parts = IndexFile(path=write("[[4, 0, 9], [1], [2, 3]]")).split(labelled(TEN[:10]), 3, SEED)
    assert [part.tolist() for part in parts] == [[4, 0, 9], [1], [2, 3]]
    assert all(part.dtype == np.int64 for part in parts)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("[[0], [1]", "line 1"),
        ("[[0], [1]]", "2 entries"),
        ('{"0": [0], "1": [1], "2": [2]}', "dict"),
        ("[[0], [], [2]]", "device 1"),
        ("[[0], [1], [10]]", "sample 10 for device 2"),
        ("[[0], [1.0], [2]]", "sample 1.0 for device 1"),
        ("[[0], [true], [2]]", "sample True for device 1"),
        ("[[0], [1, 1], [2]]", "a sample twice for device 1"),
    ],
)
def test_index_file_refusals(write: Callable[[str], Path], content: str, what: str):
    path = write(content)
    with pytest.raises(InputError) as caught:
        IndexFile(path=path).split(labelled(TEN[:10]), 3, SEED)
    assert caught.value.field == "path"
    assert what in str(caught.value)
    assert str(path) in str(caught.value)


# Validation


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.floats(0.01, 0.99), st.integers(0, 9))
def test_every_device_sets_aside_a_share_of_its_own(sizes: list[int], share: float, seed: int):
    shuffled = np.random.default_rng(seed).permutation(sum(sizes))
    parts = np.split(shuffled, np.cumsum(sizes)[:-1])
    if max(sizes) == 1:
        with pytest.raises(InputError) as caught:
            set_aside(parts, share, Randomness(seed))
        assert caught.value.field == "validation"
        return
    kept, aside = set_aside(parts, share, Randomness(seed))
    for part, rest, out in zip(parts, kept, aside, strict=True):
        assert disjoint([rest, out]).tolist() == sorted(part.tolist())
        assert len(out) == min(max(np.floor(share * len(part) + 0.5), 1), len(part) - 1)
    again = set_aside([part[::-1] for part in parts], share, Randomness(seed))[1]
    assert [one.tolist() for one in again] == [one.tolist() for one in aside]


def test_what_one_device_sets_aside_no_other_trains_on():
    everything = np.arange(20)
    kept, aside = set_aside([everything, everything, everything], 0.2, SEED)
    assert len(disjoint(aside)) == 12
    assert all(not set(part) & set(np.concatenate(aside)) for part in kept)
    with pytest.raises(InputError, match="device 1"):
        set_aside([everything, everything[:2]], 0.9, SEED)
