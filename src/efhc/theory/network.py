"""What the iterations of a run, or given matrices, say of `assump:weights`, `assump:conn` and `proposition:conn`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from efhc.base.arrays import Floats
from efhc.theory.connectivity import (
    Length,
    Window,
    least_broadcast_window,
    least_connected_window,
    promised_window,
    sufficient_window,
)
from efhc.theory.flow import Flow
from efhc.theory.outcome import Check, Subject, Value
from efhc.theory.weights import Breach, weights_breach


class Connectivity(NamedTuple):
    """The windows of a run."""

    physical: Window
    """B1"""
    broadcast: Window
    """B2"""
    observed: Window
    """The least B such that every B iterations of used links are connected."""

    @property
    def promised(self) -> Length:
        """The B of `proposition:conn`."""
        return promised_window(self.physical.length, self.broadcast.length)

    @property
    def sufficient(self) -> Length:
        """The B that follows from B1 and B2 without its blocks."""
        return sufficient_window(self.physical.length, self.broadcast.length)


def connectivity(flow: Flow) -> Connectivity:
    """B1, B2 and the observed B."""
    return Connectivity(
        least_connected_window(flow.physical_links, flow.iterations, flow.devices),
        least_broadcast_window(flow.fired),
        least_connected_window(flow.used_links, flow.iterations, flow.devices),
    )


def check_weights(matrices: Iterable[csr_array | Floats]) -> Check:
    """`assump:weights` for given matrices P(0), P(1), ..."""
    return _weights_check((matrix, None) for matrix in matrices)


def check_flow(flow: Flow) -> list[Check]:
    """`assump:weights` for every P(k) of a run, and whether the links used are those that Alg. 1 uses."""
    pairs = ((flow.matrix(k), flow.used_links(k)) for k in range(flow.iterations))
    return [_weights_check(pairs), _rule_check(flow)]


def _weights_check(matrices: Iterable[tuple[csr_array | Floats, np.ndarray | None]]) -> Check:
    count = 0
    for k, (matrix, links) in enumerate(matrices):
        count += 1
        if breach := weights_breach(matrix, links):
            return weights_broken(breach, k)
    return Check("weights", "assump:weights", "held", "sound", {"iterations": count})


def weights_broken(breach: Breach, iteration: int) -> Check:
    """The check of weights that are not sound."""
    label = f"assump:weights-{breach.condition}"
    return Check("weights", label, "broken", breach.reason, {"off": breach.off}, iteration, breach.device)


def _rule_check(flow: Flow) -> Check:
    for k in range(flow.iterations):
        if len(stray := flow.stray_links(k)):
            i, j = stray[0].tolist()
            return Check("links-used", "alg:efhc", "broken", "stray", {"i": i, "j": j}, k, i)
    return Check("links-used", "alg:efhc", "held", "by-rule")


def check_connectivity(
    found: Connectivity, iterations: int, promised: Length | None = None, coins: bool = False
) -> list[Check]:
    """`assump:conn` and `proposition:conn` over the `iterations` of a run.

    `promised` is given where the windows are the largest of several runs. `coins` says that devices fire by independent
    coins: then no B2 holds for ever, whatever a run shows.
    """
    known = not (found.physical.is_censored(iterations) or found.broadcast.is_censored(iterations))
    return [
        _physical_check(found.physical, iterations),
        _broadcast_check(found.broadcast, iterations, coins),
        _promise_check(found.promised if promised is None else promised, found.observed, iterations, known),
    ]


def _physical_check(physical: Window, iterations: int) -> Check:
    subject: Subject = "physical-graph"
    label, values = "assump:conn-(a)", {"B1": physical.length, "iterations": iterations}
    if math.isinf(physical.length):
        return Check(subject, label, "broken", "never-connected", {}, None, physical.device)
    if physical.is_censored(iterations):
        return Check(subject, label, "not checkable", "censored", values | {"since": physical.witness})
    return Check(subject, label, "held", "window", values)


def _broadcast_check(broadcast: Window, iterations: int, coins: bool) -> Check:
    subject: Subject = "broadcasts"
    label = "assump:conn-(b)"
    values: dict[str, Value] = {"B2": broadcast.length, "iterations": iterations}
    if math.isinf(broadcast.length):
        return Check(subject, label, "broken", "never-fires", {}, None, broadcast.device)
    if broadcast.is_censored(iterations):
        values |= {"since": broadcast.witness, "silent": broadcast.device}
        return Check(subject, label, "not checkable", "censored", values)
    if coins:
        return Check(subject, label, "held where looked", "coins", values)
    return Check(subject, label, "held", "window", values)


def _promise_check(promised: Length, observed: Window, iterations: int, windows_known: bool) -> Check:
    subject: Subject = "information-flow"
    label = "proposition:conn"
    values = {"promised": promised, "observed": observed.length, "iterations": iterations}
    values["observed_censored"] = observed.is_censored(iterations)
    if math.isinf(promised):
        return Check(subject, label, "not checkable", "no-windows", values)
    if not windows_known:
        return Check(subject, label, "not checkable", "censored", values)
    if promised > iterations:
        return Check(subject, label, "not checkable", "vacuous", values)
    if observed.length <= promised:
        return Check(subject, label, "held", "window", values)
    return Check(subject, label, "broken", "longer", values, observed.witness)
