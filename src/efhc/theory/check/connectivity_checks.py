"""Checks of `assump:weights`, `assump:conn`, `proposition:conn` and `lemma:harnessing:spectral`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from scipy.sparse import csr_array

from efhc.base.arrays import Floats
from efhc.theory.check.chosen_window import ChosenWindow, observed_is_known
from efhc.theory.check.outcome import Check, Subject, Value, worst_checks
from efhc.theory.check.strategy_check import SeedCheck, observed_window
from efhc.theory.connectivity.flow import Flow
from efhc.theory.connectivity.weights import Breach, weights_breach
from efhc.theory.connectivity.windows import Connectivity, Length, Window


def check_weights(matrices: Iterable[csr_array | Floats]) -> Check:
    """Check `assump:weights` for the given matrices P(0), P(1), ..."""
    return _weights_check((matrix, None) for matrix in matrices)


def check_flow(flow: Flow) -> list[Check]:
    """Check `assump:weights` for every P(k) of a run, and that the links used are those of Alg. 1."""
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
    """Return the check of weights that break `assump:weights`."""
    label = f"assump:weights-{breach.condition}"
    return Check("weights", label, "broken", breach.reason, {"off": breach.off}, iteration, breach.device)


def _rule_check(flow: Flow) -> Check:
    for k in range(flow.iterations):
        if len(stray := flow.stray_links(k)):
            i, j = stray[0].tolist()
            return Check("links-used", "alg:efhc", "broken", "stray", {"i": i, "j": j}, k, i)
    return Check("links-used", "alg:efhc", "held", "by-rule")


def check_connectivity(
    found: Connectivity,
    iterations: int,
    promised: Length | None = None,
    *,
    coins: bool = False,
    links_by_chance: bool = False,
) -> list[Check]:
    """Check `assump:conn` and `proposition:conn` over the `iterations` of a run.

    `promised` is the promised B if `found` holds the largest windows of several runs. Default: the B of `found`.
    `coins` says that devices fire by independent coins: then no B2 holds for ever, whatever a run shows.
    `links_by_chance` says the same of the physical links, and B1.
    """
    known = not (found.physical.is_censored(iterations) or found.broadcast.is_censored(iterations))
    return [
        _physical_check(found.physical, iterations, links_by_chance),
        _broadcast_check(found.broadcast, iterations, coins),
        _promise_check(
            found.promised if promised is None else promised,
            found.observed,
            iterations,
            known,
            by_chance=coins or links_by_chance,
        ),
    ]


def _physical_check(physical: Window, iterations: int, by_chance: bool) -> Check:
    subject: Subject = "physical-graph"
    label, values = "assump:conn-(a)", {"B1": physical.length, "iterations": iterations}
    if math.isinf(physical.length):
        return Check(subject, label, "broken", "never-connected", {}, None, physical.device)
    if physical.is_censored(iterations):
        return Check(subject, label, "not checkable", "censored", values | {"since": physical.witness})
    if by_chance:
        return Check(subject, label, "held where looked", "chance", values)
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


def _promise_check(
    promised: Length, observed: Window, iterations: int, windows_known: bool, *, by_chance: bool
) -> Check:
    subject: Subject = "information-flow"
    label = "proposition:conn"
    values: dict[str, Value] = {"promised": promised, "observed": observed.length, "iterations": iterations}
    values["observed_censored"] = observed.is_censored(iterations)
    if by_chance:
        values["expected"] = True
    if math.isinf(promised):
        return Check(subject, label, "not checkable", "no-windows", values)
    if not windows_known:
        return Check(subject, label, "not checkable", "censored", values)
    if promised > iterations:
        return Check(subject, label, "not checkable", "vacuous", values)
    if observed.length <= promised:
        return Check(subject, label, "held where looked" if by_chance else "held", "window", values)
    return Check(subject, label, "broken", "longer", values, observed.witness)


def check_windows(
    found: Mapping[int, Connectivity], iterations: int, *, coins: bool, links_by_chance: bool = False
) -> list[Check]:
    """Check `assump:conn` and `proposition:conn` over all seeds; see `check_connectivity`.

    Where all seeds hold, the windows shown are the largest of all seeds; else those of the worst seed.
    """
    each = list(found.values())
    largest = Connectivity(*(max(windows, key=lambda window: window.length) for windows in zip(*each, strict=True)))
    promised = max(one.promised for one in each)
    of_largest = check_connectivity(largest, iterations, promised, coins=coins, links_by_chance=links_by_chance)
    by_seed = [check_connectivity(one, iterations, coins=coins, links_by_chance=links_by_chance) for one in each]
    together = []
    for worst, over_all, of_seeds_ in zip(
        worst_checks(list(found), by_seed), of_largest, zip(*by_seed, strict=True), strict=True
    ):
        differ = len({tuple(check.values.items()) for check in of_seeds_}) > 1
        at_most = over_all._replace(values={**over_all.values, "at_most": differ})
        together.append(at_most if worst.verdict in ("held", "held where looked") else worst)
    return together


def check_contraction(seeds: Mapping[int, SeedCheck], chosen: ChosenWindow | None, *, by_chance: bool = False) -> Check:
    """Check `lemma:harnessing:spectral`: every window of B iterations contracts.

    `by_chance` says that devices fire, or links come and go, by chance: then a later window may not contract.
    """
    subject: Subject = "contraction"
    label, found = "lemma:harnessing:spectral", [seed.contractions for seed in seeds.values() if seed.contractions]
    if chosen is None or not found:
        return Check(subject, label, "not checkable", "no-window", {"observed": observed_window(seeds)})
    worst = max(found, key=lambda contractions: contractions.largest)
    looked, of = sum(len(each.starts) for each in found), sum(each.of for each in found)
    values: dict[str, Value] = {
        "rho": worst.largest,
        "B": chosen.length,
        "kind": chosen.kind,
        "looked": looked,
        "of": of,
        "observed": observed_window(seeds),
    }
    if chosen.length < observed_window(seeds):
        return Check(subject, label, "not checkable", "short", values)
    # Where used links are cut when the run ends, nobody knows whether a later window of B iterations would contract,
    # unless B1 and B2 tell.
    iterations = found[0].of + chosen.length - 1
    cut = not observed_is_known([seed.connectivity for seed in seeds.values()], iterations)
    if cut and chosen.kind in ("observed", "given"):
        return Check(subject, label, "not checkable", "no-window", values)
    if worst.largest >= 1:
        return Check(subject, label, "broken", "does-not", values, worst.largest_at)
    certain = looked == of and not cut and not by_chance
    return Check(subject, label, "held" if certain else "held where looked", "contracts", values)
