"""What the iterations of a run, or given matrices, say of `assump:weights`, `assump:conn` and `proposition:conn`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from efhc.core.arrays import Floats
from efhc.theory.connectivity import (
    Length,
    Window,
    least_broadcast_window,
    least_connected_window,
    promised_window,
    sufficient_window,
)
from efhc.theory.findings import Finding
from efhc.theory.flow import Flow
from efhc.theory.weights import weights_breach


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


def check_weights(matrices: Iterable[csr_array | Floats]) -> Finding:
    """`assump:weights` for given matrices P(0), P(1), ..."""
    return _weights_finding((matrix, None) for matrix in matrices)


def check_flow(flow: Flow) -> list[Finding]:
    """`assump:weights` for every P(k) of a run, and whether the links used are those that Alg. 1 uses."""
    pairs = ((flow.matrix(k), flow.used_links(k)) for k in range(flow.iterations))
    return [_weights_finding(pairs), _rule_finding(flow)]


def _weights_finding(matrices: Iterable[tuple[csr_array | Floats, np.ndarray | None]]) -> Finding:
    label, what, count = "assump:weights", "transition weights", 0
    for k, (matrix, links) in enumerate(matrices):
        count += 1
        if breach := weights_breach(matrix, links):
            return Finding(f"{label}-{breach.condition}", what, "broken", breach.detail, k, breach.device)
    return Finding(label, what, "held", f"positive, doubly stochastic and symmetric in all {count} iterations")


def _rule_finding(flow: Flow) -> Finding:
    label, what = "alg:efhc", "links used"
    for k in range(flow.iterations):
        if len(stray := flow.stray_links(k)):
            i, j = stray[0].tolist()
            detail = f"link {i}-{j} is recorded otherwise than Events 1 and 2 use it"
            return Finding(label, what, "broken", detail, k, i)
    return Finding(label, what, "held", "those of Events 1 and 2 in every iteration")


def check_connectivity(found: Connectivity, iterations: int) -> list[Finding]:
    """`assump:conn` and `proposition:conn`, in words."""
    physical, broadcast, observed = found
    return [
        _window_finding(physical, "assump:conn-(a)", "physical graph", "B1", "is cut off in all iterations together"),
        _window_finding(broadcast, "assump:conn-(b)", "broadcasts", "B2", "never fires, B2 is infinite"),
        _promise_finding(found, observed, iterations),
    ]


def _window_finding(window: Window, label: str, what: str, letter: str, broken: str) -> Finding:
    if math.isinf(window.length):
        return Finding(label, what, "broken", f"device {window.device} {broken}", None, window.device)
    return Finding(label, what, "held", f"{letter} = {window.length:.0f}")


def _promise_finding(found: Connectivity, observed: Window, iterations: int) -> Finding:
    label, what = "proposition:conn", "information flow"
    seen = "never connected" if math.isinf(observed.length) else f"B = {observed.length:.0f} observed"
    if math.isinf(found.promised):
        return Finding(label, what, "not checkable", f"promises nothing without B1 and B2; {seen}")
    detail = f"B = {found.promised:.0f} promised, {seen}"
    if observed.length <= found.promised:
        return Finding(label, what, "held", detail)
    if found.promised > iterations:
        return Finding(label, what, "not checkable", f"{detail}; the run has no {found.promised:.0f} iterations")
    return Finding(label, what, "broken", detail, observed.witness)
