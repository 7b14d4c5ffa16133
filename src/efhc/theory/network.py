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


def check_connectivity(found: Connectivity, iterations: int, promised: Length | None = None) -> list[Finding]:
    """`assump:conn` and `proposition:conn`, in words; `promised` is given where windows are those of several runs."""
    physical, broadcast, observed = found
    return [
        _physical_finding(physical),
        _broadcast_finding(broadcast, iterations),
        _promise_finding(found.promised if promised is None else promised, observed, iterations),
    ]


def _physical_finding(physical: Window) -> Finding:
    label, what, device = "assump:conn-(a)", "physical graph", physical.device
    if math.isinf(physical.length):
        return Finding(
            label, what, "broken", f"the part of device {device} is never connected to the rest", None, device
        )
    return Finding(label, what, "held", f"B1 = {physical.length:.0f}")


def _broadcast_finding(broadcast: Window, iterations: int) -> Finding:
    label, what, device = "assump:conn-(b)", "broadcasts", broadcast.device
    if math.isinf(broadcast.length):
        return Finding(label, what, "broken", f"device {device} never fires, B2 is infinite", None, device)
    detail = f"B2 = {broadcast.length:.0f}"
    if broadcast.length > 1 and broadcast.witness + broadcast.length - 1 == iterations:
        detail += f", so far: device {device} is silent from iteration {broadcast.witness} to the end"
    return Finding(label, what, "held", detail)


def _promise_finding(promised: Length, observed: Window, iterations: int) -> Finding:
    label, what = "proposition:conn", "information flow"
    seen = "never connected" if math.isinf(observed.length) else f"B = {observed.length:.0f} observed"
    if math.isinf(promised):
        return Finding(label, what, "not checkable", f"promises nothing without B1 and B2; {seen}")
    detail = f"B = {promised:.0f} promised, {seen}"
    if observed.length <= promised:
        return Finding(label, what, "held", detail)
    if promised > iterations:
        return Finding(label, what, "not checkable", f"{detail}; the run has no {promised:.0f} iterations")
    return Finding(label, what, "broken", detail, observed.witness)
