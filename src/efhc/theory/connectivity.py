"""The information flow of a run, and the number of iterations within which it reaches every device.

    Flow               the links that carried models at each iteration, and their weights P(k)
    Connectivity       B1, B2 (`assump:conn`), the promised B (`proposition:conn`) and the observed one
    predicted_firing   who fires when, before a run, from a rehearsal of its first iterations

Only windows that lie within the given iterations 0 .. K-1 count: what a run of K iterations shows. A condition that is
not met once in the run needs a B of at least K + 1; no finite run shows that B is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from efhc.base.arrays import Flags, Floats, Ints
from efhc.core.graph import Graph
from efhc.core.mixing import mixing_matrix
from efhc.network.changing import RandomLinks
from efhc.network.topologies import GraphList, GraphsOverTime, Network, StaticGraph
from efhc.theory import graph_loops

KEPT_GRAPHS, KEPT_LINKS = 16, 5_000_000
"""Matrices are kept of the latest `KEPT_GRAPHS` graphs of which all links were used, and of the first iterations until
their graphs have `KEPT_LINKS` links together."""
LATEST = 5
"""The number of latest broadcasts that count for a device's speed: nearer to the optimum devices drift more slowly."""

Length = float
"""A whole number of iterations, or infinity."""


class Flow:
    """G'(k) of one strategy and seed, for iterations 0 .. K-1.

    `graph(k)` is the physical graph G(k), if possible the same object for the same links. `fired` is v_i(k),
    (iterations, devices). `recorded(k)` holds the links that were used, (links, 2). Default: the links that Alg. 1
    uses.
    """

    def __init__(
        self,
        graph: Callable[[int], Graph],
        fired: Flags,
        recorded: Callable[[int], Ints] | None = None,
        *,
        exchange_at_start: bool = False,
    ) -> None:
        self.graph, self.fired, self._exchange_at_start = lru_cache(2)(graph), fired, exchange_at_start
        self.iterations, self.devices = fired.shape
        self.used_links = recorded or self.links_by_rule
        self._whole_matrix = lru_cache(KEPT_GRAPHS)(lambda graph: mixing_matrix(graph, graph.all_links))
        self._kept: dict[int, csr_array] = {}
        self._room = KEPT_LINKS

    def physical_links(self, k: int) -> Ints:
        """Return E(k), (links, 2)."""
        return self.graph(k).links

    def links_by_rule(self, k: int) -> Ints:
        """Return the links that Events 1 and 2 use at iteration k, (links, 2)."""
        links: Ints = self.graph(k).links[self._rule(k)]
        return links

    def _rule(self, k: int) -> Flags:
        """Return for each link of E(k) whether one of its ends fired, or the link was not in E(k-1)."""
        graph, fired = self.graph(k), self.fired[k]
        i, j = graph.links.T
        new = graph.new_since(self.graph(k - 1)) if k else self._exchange_at_start
        used: Flags = fired[i] | fired[j] | new
        return used

    def _used(self, k: int) -> tuple[Flags, Ints]:
        """Return for each link of E(k) whether it was used, and the codes of used links that are not in E(k)."""
        physical, ends = self.graph(k).codes, np.asarray(self.used_links(k), dtype=np.int64)
        codes = ends.max(axis=1) * self.devices + ends.min(axis=1)
        return np.isin(physical, codes), codes[~np.isin(codes, physical)]

    def matrix(self, k: int) -> csr_array:
        """Return P(k): the same object for all iterations that use all links of the same graph."""
        if k not in self._kept:
            graph, (used, _) = self.graph(k), self._used(k)
            matrix = self._whole_matrix(graph) if used.all() else mixing_matrix(graph, used)
            self._room -= len(used)
            if self._room < 0:
                return matrix
            self._kept[k] = matrix
        return self._kept[k]

    def stray_links(self, k: int) -> Ints:
        """Return the links at which the recorded use differs from that of Alg. 1 on E(k), (links, 2)."""
        used, not_there = self._used(k)
        stray = np.concatenate([self.graph(k).codes[used != self._rule(k)], not_there])
        return np.column_stack([stray % self.devices, stray // self.devices])


class Window(NamedTuple):
    """The least B such that a condition holds in every window of B iterations."""

    length: Length
    """B; K + 1 if the condition does not even hold over all K iterations together; infinite if that is certain."""
    witness: int = 0
    """The start of a window of B-1 iterations in which the condition does not hold; 0 if B is 1 or infinite."""
    device: int | None = None
    """The device that needs this B: it is silent for B-1 iterations, or is in a part that is cut off in all of them."""

    def is_censored(self, iterations: int) -> bool:
        """Return whether the only windows of B-1 iterations that break the condition reach the end of the run.

        Then the run ended before the window did: B is at least `length`, and may be infinite.
        """
        return 1 < self.length < math.inf and self.witness + self.length - 1 == iterations

    def is_known(self, iterations: int) -> bool:
        """Return whether B is finite and the run shows all of it."""
        return math.isfinite(self.length) and not self.is_censored(iterations)


def least_connected_window(links: Callable[[int], Ints], iterations: int, devices: int) -> Window:
    """`assump:conn`-(a): the least B1 such that E(k) u ... u E(k+B1-1) is connected for every k.

    `links(k)` are the links of iteration k, (links, 2): physical ones for B1, used ones for the observed B.
    """
    recent = RecentLinks(devices)
    window = _least(np.array([recent.add(k, links(k)) for k in range(iterations)], dtype=np.int64))
    return window._replace(device=int(recent.cut_off()[0])) if window.length > iterations else window


class RecentLinks:
    """Since when the links of the iterations so far are connected.

    A link is as strong as it is recent: the weakest link of the strongest spanning tree tells since when the graph is
    connected. The tree of k is among the links of k and the tree of k-1, so nothing else has to be remembered.
    """

    def __init__(self, devices: int) -> None:
        self._devices, self._size = devices, 0
        self._tree, self._spare = (np.empty((max(devices - 1, 0), 3), dtype=np.int64) for _ in range(2))
        self._parents = np.empty(devices, dtype=np.int64)

    def add(self, k: int, links: Ints) -> int:
        """Return the latest s such that E(s) u ... u E(k) is connected, where `links` are E(k); -1 if there is none."""
        now = np.asarray(links, dtype=np.int64).reshape(-1, 2)
        self._size = graph_loops.strongest_tree(now, k, self._tree, self._size, self._spare, self._parents)
        self._tree, self._spare = self._spare, self._tree
        if self._size < self._devices - 1:
            return -1
        return int(self._tree[self._size - 1, 2]) if self._size else k

    def cut_off(self) -> Ints:
        """Return the devices of the smallest part of the graph of all links so far; none if it is connected."""
        part_of = Graph(self._devices, self._tree[: self._size, :2]).parts
        names, sizes = np.unique(part_of, return_counts=True)
        smallest: Ints = np.flatnonzero(part_of == names[sizes.argmin()])
        return smallest if len(names) > 1 else smallest[:0]


def least_broadcast_window(fired: Flags) -> Window:
    """`assump:conn`-(b): the least B2 such that every device fires in every B2 iterations.

    `fired` is v_i(k), (iterations, devices). The device that is named is the one that needs the longest window.
    """
    last = np.maximum.accumulate(np.where(fired, np.arange(len(fired))[:, None], -1), axis=0)
    return _least(last.min(axis=1))._replace(device=int(np.argmax(_least_lengths(last))))


def _least(since: Ints) -> Window:
    """`since[e]` is the latest k for which it holds in iterations k .. e, or -1."""
    length = float(_least_lengths(since[:, None])[0])
    if length == 1:
        return Window(length)
    too_short = int(length) - 1
    ends = np.arange(len(since))
    broken = (ends - since >= too_short) & (ends >= too_short - 1)
    return Window(length, int(np.argmax(broken)) - too_short + 1)


def _least_lengths(since: Ints) -> Floats:
    """Column by column: the least B that is enough for every end e >= B - 1, or K + 1."""
    ends = np.arange(len(since))[:, None]
    needed = np.maximum.accumulate((ends + 1 - since)[::-1], axis=0)[::-1]
    enough = needed <= ends + 1
    lengths: Floats = np.where(enough.any(axis=0), np.argmax(enough, axis=0) + 1.0, len(since) + 1.0)
    return lengths


class Connectivity(NamedTuple):
    """The windows of one run."""

    physical: Window
    """B1"""
    broadcast: Window
    """B2"""
    observed: Window
    """The least B such that every B iterations of used links are connected."""

    @property
    def promised(self) -> Length:
        """`proposition:conn`: B = (l + 2) B1, where l B1 <= B2 <= (l + 1) B1 - 1, connects the used links."""
        physical, broadcast = self.physical.length, self.broadcast.length
        return math.inf if math.isinf(broadcast) else (broadcast // physical + 2) * physical

    @property
    def sufficient(self) -> Length:
        """The least B that follows from B1 and B2: B = B1 + B2 - 1, at most that of `proposition:conn`.

        The links of the last B1 of these iterations are connected. Each of them was there all the time since the first
        one, for at least B2 iterations, in which both of its ends fired; or it was not, then it came anew, and Event 1
        used it. Less is not enough: a link between two devices that comes, is used once, stays B2 - 1 iterations
        without a broadcast and goes for B1 - 1 needs all of them.
        """
        return self.physical.length + self.broadcast.length - 1


def connectivity(flow: Flow, *, never_fires: bool = False, cut_off: int | None = None) -> Connectivity:
    """Return B1, B2 and the observed B of a run.

    `never_fires` says that no device will ever fire, and `cut_off` names a device that is cut off from the rest for
    good: then windows are infinite for certain, which no run shows by itself.
    """
    found = Connectivity(
        least_connected_window(flow.physical_links, flow.iterations, flow.devices),
        least_broadcast_window(flow.fired),
        least_connected_window(flow.used_links, flow.iterations, flow.devices),
    )
    if never_fires:
        found = found._replace(broadcast=Window(math.inf))
    if cut_off is not None:
        found = found._replace(physical=Window(math.inf, device=cut_off), observed=Window(math.inf, device=cut_off))
    return found


class FutureLinks(NamedTuple):
    """The physical links of all iterations to come."""

    by_chance: bool
    """Whether nothing is known of them: they are drawn at random, devices move, or the network is one of your own."""
    cut_off: int | None = None
    """A device that is cut off from the rest for good."""


def future_links(network: GraphsOverTime, policy: Network, iterations: int) -> FutureLinks:
    """Return what is known of the links after a run of `iterations`.

    `network` holds the graphs that `policy` made.
    """
    if isinstance(policy, RandomLinks) and policy.up_probability in (0, 1):
        network = StaticGraph(network.graph(0))
    if not isinstance(network, GraphList):
        return FutureLinks(by_chance=True)
    recurring = network.recurring
    together = RecentLinks(recurring[0].devices)
    for graph in recurring:
        together.add(0, graph.links)
    cut_off = together.cut_off()
    # A list whose last graph is held may still be before its end: then the run saw nothing of the cut.
    reached = any(network.graph(iterations - 1) is graph for graph in recurring)
    return FutureLinks(by_chance=False, cut_off=int(cut_off[0]) if len(cut_off) and reached else None)


WindowKind = Literal["promised", "expected", "observed", "given"]
WantedWindow = int | Literal["promised", "observed"]


class ChosenWindow(NamedTuple):
    """The B with which rho, the limits and the bounds are computed."""

    length: int
    kind: WindowKind
    """Where B comes from.

    promised   `proposition:conn`, from B1 and B2
    expected   the same, but B1 or B2 were only seen: they come about by chance, or belong to a run yet to be made
    observed   the least B in which the run's used links are connected
    given      the user
    """


def fitting_window(
    found: Sequence[Connectivity], iterations: int, wanted: WantedWindow = "promised", *, by_chance: bool = False
) -> ChosenWindow | None:
    """Return the wanted B or, if it is promised and not known or longer than the run, the observed one.

    `found` holds the windows of every seed; the largest count. None if the end of the run cuts the observed B off, too:
    a B that may be longer than the run shows is none to compute with. `by_chance` says that B1 or B2 were only seen.
    """
    if isinstance(wanted, int):
        return ChosenWindow(wanted, "given")
    promised, observed = max(each.promised for each in found), max(each.observed.length for each in found)
    known = all(each.physical.is_known(iterations) and each.broadcast.is_known(iterations) for each in found)
    if wanted == "promised" and known and promised <= iterations:
        return ChosenWindow(int(promised), "expected" if by_chance else "promised")
    return ChosenWindow(int(observed), "observed") if observed_is_known(found, iterations) else None


def observed_is_known(found: Sequence[Connectivity], iterations: int) -> bool:
    """Return whether every seed shows how long its used links need to connect all devices."""
    return all(each.observed.is_known(iterations) for each in found)


def drift_speeds(drifts: Floats, fired: Flags, step_sizes: Floats) -> Floats:
    """Return v_i, the speed at which each device drifts from its last broadcast, per unit of step size.

    `drifts` and `fired`, (iterations, devices), and `step_sizes`, alpha(k), are those of a rehearsal. A device that
    broadcasts at iteration t and next at k has drifted by v_i (alpha(t) + ... + alpha(k-1)); the result is the median
    of v_i over the `LATEST` broadcasts. For a device that was silent in the second half of the rehearsal, v_i is the
    speed at which its drift grew in that half, since it may have come to a stop.
    """
    travelled = np.concatenate([[0.0], np.cumsum(step_sizes)])
    since = np.zeros(drifts.shape[1])  # travelled at the last broadcast; at k = 0 all start from their last broadcast
    speeds: list[list[float]] = [[] for _ in since]
    for k, (drift, now) in enumerate(zip(drifts, fired, strict=True)):
        for device in np.flatnonzero(now & (travelled[k] > since)):
            speeds[device].append(float(drift[device] / (travelled[k] - since[device])))
        since[now] = travelled[k]
    half, last = len(drifts) // 2, len(drifts) - 1
    distance = travelled[last] - travelled[half]
    gained = (drifts[last] - drifts[half]) / distance if distance > 0 else drifts[last] / max(travelled[last], 1e-300)
    lively: Flags = np.logical_or.reduce(fired[half:], axis=0)
    return np.array(
        [
            np.median(seen[-LATEST:]) if seen and fires else max(late, 0.0)
            for seen, fires, late in zip(speeds, lively, gained, strict=True)
        ]
    )


def predicted_firing(speeds: Floats, step_sizes: Floats, thresholds: Floats, drifted: Floats | None = None) -> Flags:
    """Return who fires at the iterations of `step_sizes`, (iterations, devices).

    A device fires when its drift reaches its threshold; `thresholds` is (iterations, devices). A drift grows by
    v_i alpha(k), where v_i is `speeds`, and starts from 0 after a broadcast. `drifted` is the drift at the first of
    these iterations. Default: 0.
    """
    drift = np.zeros_like(speeds) if drifted is None else drifted.astype(np.float64)
    fired = np.empty(thresholds.shape, dtype=bool)
    for k, alpha in enumerate(step_sizes.tolist()):
        fired[k] = drift >= thresholds[k]
        drift = np.where(fired[k], 0.0, drift) + speeds * alpha
    return fired
