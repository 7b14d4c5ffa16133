"""Fixed graphs of the literature: exponential, random regular, small world, dumbbell. All take time of order m log m.

A torus is a `grid` with `torus = true`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from efhc.base.arrays import Ints
from efhc.base.errors import InputError
from efhc.core.graph import Graph
from efhc.core.randomness import Randomness
from efhc.network.topologies import DrawnTopology, Topology, check_memory, most_neighbours


class Exponential(Topology):
    """Devices i and j are linked if j = i + 2^t or j = i - 2^t modulo m, t = 0, 1, ..., 2^t < m.

    The exponential graph (Ying, Yuan, Chen, Hu, Pan and Yin, "Exponential Graph is Provably Efficient for Decentralized
    Deep Training", NeurIPS 2021) sends from i to i + 2^t only. This is its undirected version: m = 2^tau devices have
    2 tau - 1 neighbours each.
    """

    kind: Literal["exponential"] = "exponential"

    def graph(self, devices: int, randomness: Randomness) -> Graph:
        here, hops = np.arange(devices), [1 << t for t in range((devices - 1).bit_length())]
        pairs = [np.column_stack([here, (here + hop) % devices]) for hop in hops]
        return Graph.of(devices, np.concatenate([np.empty((0, 2), dtype=np.int64), *pairs]))


class RandomRegular(DrawnTopology):
    """Every device has `degree` neighbours, drawn at random.

    The pairing model (Bollobas, "A Probabilistic Proof of an Asymptotic Formula for the Number of Labelled Regular
    Graphs", European Journal of Combinatorics 1980): every device has `degree` ends, and all ends are paired at random.
    A pair that joins a device to itself, or two devices that are linked already, swaps ends with another pair (McKay
    and Wormald, "Uniform Generation of Random Regular Graphs of Moderate Degree", Journal of Algorithms 1990).
    """

    kind: Literal["random-regular"] = "random-regular"
    degree: int = Field(default=4, ge=1)
    """Number of neighbours of every device. It is below the number of devices, and their product is even."""
    ROUNDS: ClassVar[int] = 100
    """Number of rounds of swaps after which all ends are paired anew."""

    def draw(self, devices: int, stream: np.random.Generator) -> Graph:
        if self.degree >= devices:
            raise InputError("degree", self.degree, most_neighbours(devices))
        if devices * self.degree % 2:
            raise InputError(
                "degree", self.degree, f"an even number, because there are {devices} devices, an odd number"
            )
        rest = devices - 1 - self.degree
        if rest >= self.degree:
            return Graph.of(devices, self._pairs(devices, self.degree, stream))
        check_memory(devices)  # dense: all links but those of a sparse one
        all_pairs, drawn = Graph.of(devices, np.column_stack(np.tril_indices(devices, -1))), None
        if rest:
            drawn = Graph.of(devices, self._pairs(devices, rest, stream))
        return all_pairs if drawn is None else Graph.of(devices, all_pairs.links[all_pairs.new_since(drawn)])

    def _pairs(self, devices: int, degree: int, stream: np.random.Generator) -> Ints:
        while True:
            pairs: Ints = stream.permutation(np.repeat(np.arange(devices), degree)).reshape(-1, 2)
            for _ in range(self.ROUNDS):
                bad = np.flatnonzero(_is_repeated(codes := _codes(pairs, devices)) | (pairs[:, 0] == pairs[:, 1]))
                if not len(bad):
                    return pairs
                other = stream.choice(len(pairs), len(bad), replace=False)
                turned = np.where(stream.random((len(bad), 1)) < 0.5, pairs[other], pairs[other, ::-1])
                swapped = np.stack([pairs[bad], turned], axis=2)  # (a, b), (c, d) become (a, c), (b, d)
                found = _codes(swapped.reshape(-1, 2), devices)
                fits = (swapped[..., 0] != swapped[..., 1]).ravel() & ~_is_repeated(found) & ~np.isin(found, codes)
                taken = fits.reshape(-1, 2).all(axis=1) & ~np.isin(other, bad)
                pairs[bad[taken]], pairs[other[taken]] = swapped[taken, 0], swapped[taken, 1]


def _codes(pairs: Ints, devices: int) -> Ints:
    """Return one number per pair, whatever its direction."""
    codes: Ints = pairs.max(axis=1) * devices + pairs.min(axis=1)
    return codes


def _is_repeated(codes: Ints) -> np.ndarray:
    """Return which of the numbers have come before."""
    first = np.unique(codes, return_index=True)[1]
    repeated = np.ones(len(codes), dtype=bool)
    repeated[first] = False
    return repeated


class SmallWorld(DrawnTopology):
    """Every device is linked to the nearest `neighbours` on a ring; then each link gets another end, at random.

    Watts and Strogatz, "Collective Dynamics of 'Small-World' Networks", Nature 1998: with probability `rewiring`, the
    link from i to i + 1, ..., i + neighbours / 2 leads from i to any other device instead. Here all links are rewired
    at once, not one after the other.
    """

    kind: Literal["small-world"] = "small-world"
    neighbours: int = Field(default=4, ge=2, multiple_of=2)
    """Number of neighbours on the ring, half of them on each side. It is below the number of devices."""
    rewiring: float = Field(default=0.1, ge=0, le=1)
    """Probability that a link is rewired."""
    DENSER: ClassVar[tuple[str, ...]] = ("neighbours",)
    ROUNDS: ClassVar[int] = 100
    """Number of draws after which a link stays as it was: its device may be linked to nearly all others."""

    def draw(self, devices: int, stream: np.random.Generator) -> Graph:
        if self.neighbours >= devices:
            allowed = f"an even number below {devices}, the number of devices"
            raise InputError("neighbours", self.neighbours, allowed if devices > 2 else "3 devices or more")
        here = np.tile(np.arange(devices), self.neighbours // 2)
        hops = np.repeat(np.arange(1, self.neighbours // 2 + 1), devices)
        pairs: Ints = np.column_stack([here, (here + hops) % devices])
        left = np.flatnonzero(stream.random(len(pairs)) < self.rewiring)
        for _ in range(self.ROUNDS):
            if not len(left):
                break
            drawn = np.column_stack([here[left], stream.integers(devices, size=len(left))])
            found = _codes(drawn, devices)
            fits = (drawn[:, 0] != drawn[:, 1]) & ~_is_repeated(found) & ~np.isin(found, _codes(pairs, devices))
            pairs[left[fits]] = drawn[fits]
            left = left[~fits]
        return Graph.of(devices, pairs)


class Dumbbell(Topology):
    """Two cliques of equal size, joined by a path: the classic graph on which averaging is slow.

    With c devices in a clique and no device between, the spectral gap is at most 2 / (c (c + 1)). Also called barbell
    (Aldous and Fill, "Reversible Markov Chains and Random Walks on Graphs", 2002). The first clique has one device more
    if the number is odd.
    """

    kind: Literal["dumbbell"] = "dumbbell"
    between: int = Field(default=0, ge=0)
    """Number of devices on the path between the cliques. Default: one link joins the cliques."""

    def graph(self, devices: int, randomness: Randomness) -> Graph:
        if devices < self.between + 2:
            allowed = f"at most {devices - 2}, so that each clique has a device" if devices > 1 else "2 devices or more"
            raise InputError("between", f"{self.between} with {devices} devices", allowed)
        check_memory((devices - self.between + 1) // 2)
        first = (devices - self.between + 1) // 2
        second = first + self.between
        path = np.arange(first - 1, second)
        cliques = [
            start + np.column_stack(np.tril_indices(size, -1))
            for start, size in ((0, first), (second, devices - second))
        ]
        return Graph.of(devices, np.concatenate([*cliques, np.column_stack([path, path + 1])]))
