"""Checks of `assump:weights`, `assump:conn`, `proposition:conn` and `lemma:harnessing:spectral`."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from efhc.base.arrays import Ints
from efhc.theory.check.outcome import Certainty, Check, Value, finding, worst_checks
from efhc.theory.check.promises import SeedCheck, observed_window
from efhc.theory.check.weight_checks import broken_weights
from efhc.theory.connectivity.flow import Flow
from efhc.theory.connectivity.windows import ChosenWindow, Connectivity, Length, Window, observed_is_known


def check_flow(flow: Flow) -> list[Check]:
    """Check `assump:weights` for every P(k) of a run, and that the links used are those of Alg. 1."""
    return [_weights_check(flow), _rule_check(flow)]


def _weights_check(flow: Flow) -> Check:
    sound: object = None
    sound_links: Ints = np.zeros(0, np.int64)
    for k in range(flow.iterations):
        matrix, links = flow.matrix(k), flow.used_links(k)
        if matrix is sound and np.array_equal(links, sound_links):
            continue
        if broken := broken_weights(matrix, links, k):
            return broken
        sound, sound_links = matrix, links
    return finding("weights", "sound", {"iterations": flow.iterations})


def _rule_check(flow: Flow) -> Check:
    for k in range(flow.iterations):
        if len(stray := flow.stray_links(k)):
            i, j = stray[0].tolist()
            return finding("links-used", "stray", {"i": i, "j": j}, k, i)
    return finding("links-used", "by-rule")


def check_connectivity(
    found: Connectivity, iterations: int, certainty: Certainty, promised: Length | None = None
) -> list[Check]:
    """Check `assump:conn` and `proposition:conn` over the `iterations` of a run.

    `promised` is the promised B if `found` holds the largest windows of several runs. Default: the B of `found`.
    """
    promised = found.promised if promised is None else promised
    return [
        _physical_check(found.physical, iterations, certainty),
        _broadcast_check(found.broadcast, iterations, certainty),
        _promise_check(found, iterations, certainty, promised),
    ]


def _physical_check(physical: Window, iterations: int, certainty: Certainty) -> Check:
    values = {"B1": physical.length, "iterations": iterations}
    if math.isinf(physical.length):
        return finding("physical-graph", "never-connected", device=physical.device)
    if physical.is_censored(iterations):
        return finding("physical-graph", "censored", values | {"since": physical.witness})
    return finding("physical-graph", "window" if certainty.links else "chance", values)


def _broadcast_check(broadcast: Window, iterations: int, certainty: Certainty) -> Check:
    values: dict[str, Value] = {"B2": broadcast.length, "iterations": iterations}
    if math.isinf(broadcast.length):
        return finding("broadcasts", "never-fires", device=broadcast.device)
    if broadcast.is_censored(iterations):
        return finding("broadcasts", "censored", values | {"since": broadcast.witness, "silent": broadcast.device})
    return finding("broadcasts", "window" if certainty.firing else "coins", values)


def _promise_check(found: Connectivity, iterations: int, certainty: Certainty, promised: Length) -> Check:
    observed = found.observed
    values: dict[str, Value] = {"promised": promised, "observed": observed.length, "iterations": iterations}
    values["observed_censored"] = observed.is_censored(iterations)
    if not certainty.flow:
        values["expected"] = True
    if math.isinf(promised):
        return finding("information-flow", "no-windows", values)
    if found.physical.is_censored(iterations) or found.broadcast.is_censored(iterations):
        return finding("information-flow", "censored", values)
    if promised > iterations:
        return finding("information-flow", "vacuous", values)
    if observed.length <= promised:
        return finding("information-flow", "window", values, certain=certainty.flow)
    return finding("information-flow", "longer", values, observed.witness)


def check_windows(found: Mapping[int, Connectivity], iterations: int, certainty: Certainty) -> list[Check]:
    """Check `assump:conn` and `proposition:conn` over all seeds; see `check_connectivity`.

    Where all seeds hold, the windows shown are the largest of all seeds; else those of the worst seed.
    """
    each = list(found.values())
    largest = Connectivity(*(max(windows, key=lambda window: window.length) for windows in zip(*each, strict=True)))
    of_largest = check_connectivity(largest, iterations, certainty, max(one.promised for one in each))
    by_seed = [check_connectivity(one, iterations, certainty) for one in each]
    together = []
    for worst, over_all, *of_seeds in zip(worst_checks(list(found), by_seed), of_largest, *by_seed, strict=True):
        differ = any(check.values != of_seeds[0].values for check in of_seeds)
        at_most = over_all._replace(values={**over_all.values, "at_most": differ})
        together.append(at_most if worst.verdict in ("held", "held where looked") else worst)
    return together


def check_contraction(seeds: Mapping[int, SeedCheck], chosen: ChosenWindow | None, certainty: Certainty) -> Check:
    """Check `lemma:harnessing:spectral`: every window of B iterations contracts."""
    found = [seed.contractions for seed in seeds.values() if seed.contractions]
    observed = observed_window(seeds)
    if chosen is None or not found:
        return finding("contraction", "no-window", {"observed": observed})
    worst = max(found, key=lambda contractions: contractions.largest)
    looked, of = sum(len(each.starts) for each in found), sum(each.of for each in found)
    values: dict[str, Value] = {"rho": worst.largest, "B": chosen.length, "kind": chosen.kind}
    values |= {"looked": looked, "of": of, "observed": observed}
    if chosen.length < observed:
        return finding("contraction", "short", values)
    # If used links are cut when the run ends, a later window of B iterations may not contract, unless B1 and B2 say so.
    iterations = found[0].of + chosen.length - 1
    known = observed_is_known([seed.connectivity for seed in seeds.values()], iterations)
    if not known and chosen.kind in ("observed", "given"):
        return finding("contraction", "no-window", values)
    if worst.largest >= 1:
        return finding("contraction", "does-not", values, worst.largest_at)
    return finding("contraction", "contracts", values, certain=looked == of and known and certainty.flow)
