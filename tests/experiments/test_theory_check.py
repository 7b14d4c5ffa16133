"""`check_run` on small real runs: every number against plain NumPy on what the run directory holds."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import polars as pl
import pytest
import safetensors.numpy

import efhc
from efhc.experiments.runs.directory import RunDirectory
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.experiments.studies import theory_check
from efhc.experiments.studies.theory_check import check_run, fitting_window, spread
from efhc.report.theory_data import as_dict
from efhc.report.theory_figure import theory_figure
from efhc.theory import judgement
from efhc.theory.bounds import error_bound
from efhc.theory.checks import StrategyCheck
from efhc.theory.connectivity import Window
from efhc.theory.findings import Finding
from efhc.theory.network import Connectivity
from efhc.theory.nonconvex import running_mean_bound
from efhc.theory.spectral import window_contractions

L2, K, DEVICES, SEEDS = 0.5, 40, 5, (0, 3)
RING = {"kind": "ring"}
NETWORKS: dict[str, dict[str, Any]] = {
    "static": RING,
    "random links": {"kind": "random-links", "up_probability": 0.5, "topology": {"kind": "complete"}},
    "rotating": {"kind": "rotating", "period": 3, "topology": RING},
}
SOFTMAX = {"kind": "softmax", "l2": L2}
TINY = {"kind": "constant", "value": 1e-6}
"""A step size that every theorem allows."""
BOUNDED = ("optimisation error", "consensus error", "gradient norms")
ZT = {"ZT": {"kind": "zt"}}
PAIR = {"EF-HC": {"kind": "ef-hc", "r": 2000.0}, **ZT}


def settings(**fields: Any) -> dict[str, Any]:
    return {
        "devices": DEVICES,
        "iterations": K,
        "seeds": (0,),
        "evaluate_every": 100,
        "precision": "float64",
        "model": SOFTMAX,
        "network": RING,
        "step_size": TINY,
        "strategies": PAIR,
        **fields,
    }


def checked(out: Path, points: int = 9, **fields: Any) -> list[StrategyCheck]:
    efhc.simulate(**settings(**fields), out=out)
    return check_run(out, points)


def named(check: StrategyCheck) -> dict[str, Finding]:
    """Its findings by what they are about."""
    found = {finding.what: finding for finding in check.findings}
    assert len(found) == len(check.findings)
    return found


def broken(check: StrategyCheck) -> set[str]:
    return {finding.what for finding in check.findings if finding.verdict == "broken"}


def assert_all_can_be_told(checks: list[StrategyCheck]) -> None:
    """As JSON without NaN and the like."""
    json.dumps([as_dict(check) for check in checks], allow_nan=False)


@pytest.fixture(scope="module", autouse=True)
def no_comparison() -> Iterator[None]:
    """The picture that every run draws takes longer than the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(efhc.Result, "plot", lambda self, path=None: None)
        yield


@pytest.fixture(scope="module", params=NETWORKS)
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    """A sound run on each kind of network, and what was found of it."""
    out = tmp_path_factory.mktemp("sound") / "run"
    return request.param, out, checked(out, network=NETWORKS[request.param], seeds=SEEDS)


# What a sound run shows

EXPECTED = {
    "transition weights": "assump:weights",
    "links used": "alg:efhc",
    "the run once more": "alg:efhc",
    "physical graph": "assump:conn-(a)",
    "broadcasts": "assump:conn-(b)",
    "information flow": "proposition:conn",
    "contraction": "lemma:harnessing:spectral",
    "smoothness": "assump:smooth_convex_graddiv-(a)",
    "strong convexity": "assump:smooth_convex_graddiv-(b)",
    "gradient diversity": "assump:smooth_convex_graddiv-(c)",
    "gradient noise": "assump:graderror",
    "step sizes": "assump:stepsizes-(a)",
    "step-size limit": "theorem:constant",
    "optimisation error under bound": "eqn:PhikPsikRecursive",
    "consensus error under bound": "eqn:PhikPsikRecursive",
    "gradient norms under bound": "lemma:nonconvex_lossdec",
}
GROWS = "optimisation error under bound"
"""Such small steps forget the start more slowly than the bound grows: it says nothing."""


def test_every_assumption_and_promise_is_there_and_held(sound):
    _, _, checks = sound
    assert [check.strategy for check in checks] == ["EF-HC", "ZT"]
    for check in checks:
        assert {what: finding.label for what, finding in named(check).items()} == EXPECTED
        assert {what: finding.verdict for what, finding in named(check).items()} == {
            what: "not checkable" if what == GROWS else "held" for what in EXPECTED
        }
        assert all(finding.iteration is None and finding.device is None for finding in check.findings)
        assert named(check)["the run once more"].detail == "fires as recorded, and ends with the same models"
        assert list(check.seeds) == list(SEEDS)
        assert check.promises is not None
        assert check.promises.gap is not None
        assert check.slope is None


def test_bounds_are_told_with_what_was_measured_in_the_end(sound):
    for check in sound[2]:
        assert check.promises is not None
        measured = {
            "optimisation error": check.of_seeds("optimisation_error").mean(axis=0),
            "consensus error": check.of_seeds("consensus_error").mean(axis=0),
            "gradient norms": check.running_gradient_norm,
        }
        bounds = (*check.promises.bound.T, check.promises.gradient_bound)
        for (what, values), bound in zip(measured.items(), bounds, strict=True):
            assert (values <= bound * (1 + 1e-6)).all()
            grows = f"{what} under bound" == GROWS
            assert (bound[-1] > bound[0]) == grows
            words = f"in the end {values[-1]:.2g} under {bound[-1]:.2g}"
            detail = words + (": a bound that grows says nothing" if grows else "")
            assert named(check)[f"{what} under bound"].detail == detail


def test_the_gradient_bound_at_the_end_is_of_one_more_term(sound):
    """The mean over k = 0 .. K has K + 1."""
    for check in sound[2]:
        assert check.promises is not None
        starts = [seed.measured.loss[0] - seed.optimum.loss for seed in check.seeds.values()]
        error = check.of_seeds("consensus_error")[:, 0].mean()
        of = check.promises.constants, np.full(K + 1, 1e-6), np.mean(starts), error
        assert check.promises.gradient_bound == pytest.approx(running_mean_bound(*of)[check.iterations], rel=1e-9)


def test_iterations_looked_at_reach_from_0_to_the_end(sound):
    for check in sound[2]:
        assert check.iterations[0] == 0
        assert check.iterations[-1] == K
        assert (np.diff(check.iterations) > 0).all()
        assert len(check.iterations) <= 9


@pytest.mark.parametrize(("iterations", "points"), [(1, 3), (1, 64), (2, 3), (7, 64), (100, 3), (100_000, 64)])
def test_spread_is_increasing_with_both_ends(iterations, points):
    ks = spread(iterations, points)
    assert ks[0] == 0
    assert ks[-1] == iterations
    assert (np.diff(ks) > 0).all()
    assert len(ks) <= points


def test_consensus_errors_are_those_of_the_metrics(sound):
    """Row k - 1 of the metrics tells of W(k)."""
    _, out, checks = sound
    metrics = pl.read_parquet(out / "metrics.parquet")
    for check in checks:
        for seed, found in check.seeds.items():
            errors = metrics.filter(strategy=check.strategy, seed=seed)["consensus_error"].to_numpy()
            later = check.iterations[1:]
            assert found.measured.consensus_error[1:] == pytest.approx(errors[later - 1], rel=1e-9)


def gradients(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Loss and gradient of each sample, the L2 term included; plain softmax regression."""
    weights, biases = w[:640].reshape(10, 64), w[640:]
    scores = x @ weights.T + biases
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    p = shifted / shifted.sum(axis=1, keepdims=True)
    losses = -np.log(p[np.arange(len(y)), y]) + L2 / 2 * w @ w
    by_score = p - np.eye(10)[y]
    return losses, np.hstack([(by_score[:, :, None] * x[:, None, :]).reshape(len(y), -1), by_score]) + L2 * w


def test_what_was_measured_at_the_end_is_what_the_final_models_give(sound):
    _, out, checks = sound
    result = efhc.Result.load(out)
    experiment = result.experiment
    data = load_data(experiment)
    for check in checks:
        for seed, found in check.seeds.items():
            parts = draw_scenario(experiment, data, seed).learner.parts
            models, measured = result.models[check.strategy, seed], found.measured
            mean_model = models.mean(axis=0)
            at_mean = [gradients(mean_model, data.x_train[part], data.y_train[part]) for part in parts]
            local = np.array([each.mean(axis=0) for _, each in at_mean])
            loss = np.mean([each.mean() for each, _ in at_mean])
            assert measured.loss[-1] == pytest.approx(loss, rel=1e-12)
            assert measured.gradient_norm[-1] == pytest.approx(np.square(local.mean(axis=0)).sum(), rel=1e-10)
            diversity = np.linalg.norm(local - local.mean(axis=0), axis=1).max()
            assert measured.diversity[-1] == pytest.approx(diversity, rel=1e-10)
            assert measured.consensus_error[-1] == pytest.approx(np.square(models - mean_model).sum(), rel=1e-9)
            noises = []
            for w, part in zip(models, parts, strict=True):
                _, each = gradients(w, data.x_train[part], data.y_train[part])
                n, b = len(part), experiment.batch_size
                noises.append(np.square(each - each.mean(axis=0)).sum(axis=1).mean() * (n - b) / (b * (n - 1)))
            assert measured.noise[-1] == pytest.approx(max(noises), rel=1e-9)
            assert (measured.noise_error == 0).all()

            best = found.optimum
            assert best is not None
            at_best = [gradients(best.model, data.x_train[part], data.y_train[part]) for part in parts]
            gradient = np.mean([each.mean(axis=0) for _, each in at_best], axis=0)
            assert np.linalg.norm(gradient) / L2 <= 2e-10
            assert best.loss == pytest.approx(np.mean([each.mean() for each, _ in at_best]), rel=1e-12)
            assert measured.optimisation_error[-1] == pytest.approx(np.square(mean_model - best.model).sum(), rel=1e-9)
            assert measured.loss_gap[-1] == pytest.approx(loss - best.loss, rel=1e-9)


def test_curvature_is_that_of_the_samples(sound):
    _, out, checks = sound
    experiment = efhc.Result.load(out).experiment
    data = load_data(experiment)
    largest = 0.0
    for seed in SEEDS:
        for part in draw_scenario(experiment, data, seed).learner.parts:
            x = np.column_stack([data.x_train[part], np.ones(len(part))])
            largest = max(largest, np.linalg.eigvalsh(x.T @ x / len(part))[-1])
    for check in checks:
        smoothness = check.curvature.L
        assert smoothness == pytest.approx(largest / 2 + L2, rel=1e-9)
        assert check.curvature.mu == L2
        assert named(check)["smoothness"].detail == f"L = {largest / 2 + L2:.4g} at most"
        assert named(check)["strong convexity"].detail == "mu = 0.5 at least"


def links_of(table: pl.DataFrame) -> list[list[tuple[int, int]]]:
    return [
        list(zip(*ends, strict=True))
        for ends in zip(table["link_from"].to_list(), table["link_to"].to_list(), strict=True)
    ]


def physical_links(out: Path, seed: int, iterations: int) -> list[list[tuple[int, int]]]:
    """E(0) .. E(K-1), as network.parquet has them."""
    rows = pl.read_parquet(out / "network.parquet").filter(seed=seed)
    changes = dict(zip(rows["iteration"].to_list(), links_of(rows), strict=True))
    links = []
    for k in range(iterations):
        links.append(changes.get(k, links[-1] if links else []))
    return links


def are_connected(links: list[list[tuple[int, int]]], devices: int) -> bool:
    graph = nx.empty_graph(devices)
    for now in links:
        graph.add_edges_from(now)
    return nx.is_connected(graph)


def least_window(items: list[Any], holds: Any) -> float:
    """By trying all."""
    for length in range(1, len(items) + 1):
        if all(holds(items[k : k + length]) for k in range(len(items) - length + 1)):
            return length
    return math.inf


def test_windows_by_trying_all(sound):
    network, out, checks = sound
    events = pl.read_parquet(out / "events.parquet")
    for check in checks:
        for seed, found in check.seeds.items():
            rows = events.filter(strategy=check.strategy, seed=seed)
            windows = found.connectivity
            physical = least_window(physical_links(out, seed, K), lambda some: are_connected(some, DEVICES))
            assert windows.physical.length == physical
            fired = rows["fired"].to_list()
            assert windows.broadcast.length == least_window(fired, lambda some: len(set().union(*some)) == DEVICES)
            assert windows.observed.length == least_window(links_of(rows), lambda some: are_connected(some, DEVICES))
            assert windows.observed.length <= windows.sufficient <= windows.promised
            if network == "static":
                assert physical == 1
            if network == "rotating":
                assert physical == 3
            if check.strategy == "ZT":
                assert windows.broadcast.length == 1
                assert windows.observed.length == physical
                assert windows.promised == (3 if physical == 1 else 2 * physical)
            else:
                assert windows.broadcast.length > 1
    assert named(checks[1])["broadcasts"].detail == "B2 = 1"


def test_contractions_are_norms_of_products(sound):
    _, out, checks = sound
    events = pl.read_parquet(out / "events.parquet")
    for check in checks:
        worst = 0.0
        for seed, found in check.seeds.items():
            matrices = []
            used = links_of(events.filter(strategy=check.strategy, seed=seed))
            for physical, now in zip(physical_links(out, seed, K), used, strict=True):
                degrees = np.bincount(np.ravel(physical).astype(int), minlength=DEVICES)
                P = np.eye(DEVICES)
                for i, j in now:
                    beta = 1 / (1 + max(degrees[i], degrees[j]))
                    P[i, j] = P[j, i] = beta
                    P[i, i] -= beta
                    P[j, j] -= beta
                matrices.append(P)
            norms = []
            for k in range(K - check.window + 1):
                product = np.eye(DEVICES)
                for P in matrices[k : k + check.window]:
                    product = P @ product
                norms.append(np.linalg.norm(product - 1 / DEVICES, 2))
            assert found.contractions.starts.tolist() == list(range(len(norms)))
            assert found.contractions.values == pytest.approx(norms, abs=1e-12)
            worst = max(worst, *norms)
        assert check.promises.constants.contraction == pytest.approx(worst, abs=1e-12)
        assert worst < 1
        count = len(SEEDS) * (K - check.window + 1)
        detail = f"rho = {worst:.6g} over {count} of {count} windows of B = {check.window}"
        assert named(check)["contraction"].detail == detail


def test_constants_are_the_worst_of_all_seeds(sound):
    for check in sound[2]:
        constants = check.promises.constants
        assert constants.devices == DEVICES
        assert constants.window == check.window
        assert constants.diversity == check.of_seeds("diversity").max()
        assert constants.noise == check.of_seeds("noise").max()
        points, found = len(check.iterations), named(check)
        assert found["gradient diversity"].detail == (
            f"delta = {constants.diversity:.4g} at the {points} mean models visited; elsewhere unknown"
        )
        assert found["gradient noise"].detail == (
            f"sigma^2 = {constants.noise:.4g}, exactly, at the models of {points} iterations; elsewhere unknown"
        )
        assert check.promises.bound[0].tolist() == pytest.approx(
            [check.of_seeds(name)[:, 0].mean() for name in ("optimisation_error", "consensus_error")]
        )


def test_looking_changes_nothing_and_gives_the_same_again(sound):
    _, out, checks = sound
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    told: list[str] = []
    again = check_run(out, 9, tell=told.append)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert [as_dict(check) for check in again] == [as_dict(check) for check in checks]
    assert told[0] == "the learning problem"
    assert "EF-HC: the run once more" in told
    assert "ZT: transition weights" in told


# The window to compute with


def windows(physical: float, broadcast: float, observed: float) -> Connectivity:
    return Connectivity(Window(physical), Window(broadcast), Window(observed))


def test_window_is_the_promised_one_if_it_fits_into_the_run():
    assert fitting_window([windows(1, 1, 1)], 40) == 3
    assert fitting_window([windows(1, 1, 1), windows(2, 5, 4)], 40) == 8
    assert fitting_window([windows(1, 1, 1), windows(1, 39, 7)], 40) == 7
    assert fitting_window([windows(1, math.inf, 7)], 40) == 7
    assert fitting_window([windows(1, math.inf, math.inf)], 40) is None
    assert fitting_window([windows(1, 1, 1), windows(1, 1, math.inf)], 2) is None


# Other models


def test_svm_has_kinks_and_is_promised_nothing(tmp_path):
    (check,) = checks = checked(tmp_path / "run", model={"kind": "svm"}, strategies=ZT)
    assert broken(check) == {"smoothness", "strong convexity"}
    assert check.promises is None
    found = named(check)
    assert found["step-size limit"].verdict == "not checkable"
    assert found["step-size limit"].detail == "no theorem applies: L is infinite"
    assert set(EXPECTED) - set(found) == {
        "optimisation error under bound",
        "consensus error under bound",
        "gradient norms under bound",
    }
    assert found["contraction"].verdict == "held"
    assert np.isnan(check.of_seeds("optimisation_error")).all()
    assert (check.of_seeds("consensus_error") > 0).all()
    numbers = as_dict(check)
    assert numbers["curvature"] == {"L": "infinite", "mu": 0, "known": "exact"}
    assert numbers["error_bound"] is None
    assert numbers["measured"]["optimisation_error"] == [None] * len(check.iterations)
    assert_all_can_be_told(checks)
    theory_figure(checks).draw_without_rendering()


def test_a_network_has_estimates_that_are_called_so(tmp_path):
    pytest.importorskip("torch")
    (check,) = checks = checked(
        tmp_path / "run",
        points=4,
        model={"kind": "mlp", "hidden": (4,)},
        strategies=ZT,
        iterations=6,
        devices=3,
        seeds=SEEDS,
    )
    found = named(check)
    assert check.curvature.known == "estimate"
    assert found["smoothness"].verdict == "not checkable"
    assert found["smoothness"].detail == f"L = {check.curvature.L:.4g}, estimated, if there is one"
    assert found["strong convexity"].verdict == "not checkable"
    assert found["strong convexity"].detail.endswith(", estimated")
    assert "(standard error)" in found["gradient noise"].detail
    assert found["the run once more"].verdict == "held"
    assert found["step-size limit"].label == "theorem:nonconvex"
    assert check.promises is not None
    assert np.isinf(check.promises.bound[:, 0]).all()
    assert np.isfinite(check.promises.bound[:, 1]).all()
    for what in ("step-size limit", *(f"{what} under bound" for what in BOUNDED)):
        assert found[what].verdict == "not checkable"
        assert found[what].detail.endswith(" (L is an estimate)")
        assert found[what].iteration is None
    assert found["optimisation error under bound"].detail.startswith("no w*: ")
    assert (check.of_seeds("noise_error") > 0).all()
    assert_all_can_be_told(checks)


def test_a_limit_from_an_estimate_is_not_broken_either(tmp_path):
    pytest.importorskip("torch")
    fields = {"model": {"kind": "mlp", "hidden": (4,)}, "step_size": {"kind": "constant", "value": 0.1}}
    (check,) = checked(tmp_path / "run", points=3, strategies=ZT, iterations=4, devices=3, **fields)
    limit = named(check)["step-size limit"]
    assert (limit.verdict, limit.iteration) == ("not checkable", None)
    assert limit.detail.endswith("times too large (L is an estimate)")
    assert broken(check) == set()


def test_least_squares_is_known_exactly(tmp_path):
    (check,) = checks = checked(tmp_path / "run", model={"kind": "least-squares", "l2": L2}, strategies=ZT)
    assert broken(check) == set()
    assert check.curvature.known == "exact"
    assert named(check)["strong convexity"].detail == "mu = 0.5"  # digits have pixels that are always 0
    assert named(check)["smoothness"].detail == f"L = {check.curvature.L:.4g}"
    assert_all_can_be_told(checks)


def test_least_squares_without_l2_is_not_strongly_convex(tmp_path):
    (check,) = checks = checked(tmp_path / "run", model={"kind": "least-squares", "l2": 0.0}, strategies=ZT)
    found = named(check)
    assert found["strong convexity"].verdict == "broken"
    assert found["strong convexity"].device is not None
    assert found["step-size limit"].label == "theorem:nonconvex"
    assert check.promises is not None
    assert np.isinf(check.promises.bound[:, 0]).all()
    assert np.isfinite(check.promises.bound[:, 1]).all()
    assert check.promises.gap is None
    assert found["optimisation error under bound"].verdict == "not checkable"
    assert found["optimisation error under bound"].detail.startswith("no w*: ")
    assert found["consensus error under bound"].verdict == "held"
    assert_all_can_be_told(checks)


# Step sizes


def test_diminishing_step_sizes_have_a_rate(tmp_path):
    step_size = {"kind": "diminishing", "initial": 1e-6, "power": 0.75}
    (check,) = checks = checked(tmp_path / "run", step_size=step_size, strategies=ZT, points=20)
    found = named(check)
    assert found["step sizes"].label == "assump:stepsizes-(b)"
    assert found["step sizes"].verdict == "held"
    assert found["step-size limit"].label == "theorem:diminishing"
    assert check.slope is not None
    assert check.slope.seeds == 1
    assert check.promised_slope == pytest.approx(-0.25)
    assert found["rate"].label == "appendix:generalTheta"
    assert found["rate"].verdict == "not checkable"
    assert found["rate"].detail.endswith(", that of the paper's rate over these k -0.250; one seed is too few")
    assert check.promises is not None
    assert check.promises.gap is None
    assert_all_can_be_told(checks)


@pytest.mark.parametrize(("power", "label"), [(0.5, "theorem:diminishing"), (0.75, "appendix:generalTheta")])
def test_a_rate_that_is_not_reached_is_not_broken(tmp_path, power, label):
    step_size = {"kind": "diminishing", "initial": 1e-6, "power": power}
    (check,) = checked(tmp_path / "run", step_size=step_size, strategies=ZT, points=20, seeds=SEEDS)
    assert check.slope is not None
    assert check.promised_slope is not None
    assert check.slope.high > check.promised_slope  # such steps move nothing
    rate = named(check)["rate"]
    assert (rate.label, rate.verdict) == (label, "not checkable")
    words = f", that of the paper's rate over these k {check.promised_slope:.3f}"
    assert rate.detail.endswith(f"{words}; not reached yet")


@pytest.mark.parametrize(
    ("power", "seeds", "why"),
    [
        (0.5, SEEDS, ""),
        (0.5, (0,), "; one seed is too few"),
        (0.75, range(5), ""),
        (0.75, SEEDS, "; not reached yet"),
    ],
)
def test_a_rate_is_held_where_all_of_the_interval_is_below(tmp_path, power, seeds, why):
    """The slope itself is below in all of these."""
    step_size = {"kind": "diminishing", "initial": 0.05, "power": power}
    fields = {"step_size": step_size, "strategies": ZT, "points": 20, "batch_size": "full", "iterations": 300}
    (check,) = checked(tmp_path / "run", seeds=tuple(seeds), **fields)
    assert check.slope is not None
    assert check.promised_slope is not None
    assert check.slope.value < check.promised_slope
    assert (check.slope.high <= check.promised_slope) == (why != "; not reached yet")
    rate = named(check)["rate"]
    assert rate.verdict == ("not checkable" if why else "held")
    assert rate.label == ("theorem:diminishing" if power == 0.5 else "appendix:generalTheta")
    assert rate.detail.endswith(f", that of the paper's rate over these k {check.promised_slope:.3f}{why}")


def test_slowly_diminishing_step_sizes_have_none(tmp_path):
    step_size = {"kind": "diminishing", "initial": 1e-6, "power": 0.25}
    (check,) = checked(tmp_path / "run", step_size=step_size, strategies=ZT, points=20)
    found = named(check)
    assert broken(check) == {"step sizes"}
    assert found["step-size limit"].label == "proposition:nonIncreasing"
    assert found["rate"].verdict == "not checkable"
    assert "no rate for theta < 0.5" in found["rate"].detail


@pytest.mark.parametrize("iterations", [1, 2, 3, 60])
def test_step_sizes_over_the_limit(tmp_path, iterations):
    step_size = {"kind": "constant", "value": 0.1}
    (check,) = checks = checked(tmp_path / "run", step_size=step_size, strategies=ZT, iterations=iterations, points=64)
    if check.promises is None:
        assert iterations < 3
        assert check.window is None
    else:
        assert broken(check) == {"step-size limit"}
        found = named(check)
        assert found["step-size limit"].detail.endswith("times too large")
        assert found["step-size limit"].iteration == 0
        for what in BOUNDED:
            if (bounded := found.get(f"{what} under bound")) is None:
                assert (what, iterations) == ("gradient norms", 1)  # two points are no mean
            else:
                assert bounded.verdict == "not checkable"
        detail = found["optimisation error under bound"].detail
        assert detail == "the bound is infinite: the step size is too large"
        assert found["consensus error under bound"].detail.endswith(": a bound that grows says nothing")
    assert_all_can_be_told(checks)


def test_bounds_near_the_largest_number_are_drawn(tmp_path):
    """They are finite up to 1e308 and then infinite: the ends of a logarithmic axis must not be."""
    step_size = {"kind": "constant", "value": 0.1}
    fields = {"step_size": step_size, "strategies": ZT, "iterations": 150, "seeds": (0,)}
    (check,) = checks = checked(tmp_path / "run", points=200, **fields)
    assert check.promises is not None
    bound = check.promises.bound[:, 1]
    assert bound[np.isfinite(bound)].max() > 1e290
    assert_all_can_be_told(checks)
    theory_figure(checks).draw_without_rendering()


# Without making the run again, and with other windows


def test_not_made_again_only_both_ends_are_looked_at(sound):
    for check, again in zip(check_run(sound[1], replay=False), sound[2], strict=True):
        assert check.iterations.tolist() == [0, K]
        found = named(check)
        assert set(EXPECTED) - set(found) == {"gradient norms under bound"}
        unchecked = {what for what, finding in found.items() if finding.verdict == "not checkable"}
        assert unchecked == {"the run once more", GROWS}
        assert broken(check) == set()
        for name in ("optimisation_error", "consensus_error", "loss", "gradient_norm", "diversity", "noise"):
            assert check.of_seeds(name).tolist() == again.of_seeds(name)[:, [0, -1]].tolist()


def test_a_run_that_takes_long_is_not_made_again_unasked(run, monkeypatch):
    assert named(check_run(run, 3)[1])["the run once more"].verdict == "held"
    monkeypatch.setattr(theory_check, "PATIENCE", 1)
    for replay, verdict in ((None, "not checkable"), (False, "not checkable"), (True, "held")):
        check = check_run(run, 3, replay)[1]
        assert named(check)["the run once more"].verdict == verdict


def test_neither_made_again_nor_kept_only_the_beginning_is_looked_at(run):
    (run / "models.safetensors").unlink()
    checks = check_run(run, replay=False)
    for check in checks:
        assert check.iterations.tolist() == [0]
    assert_all_can_be_told(checks)


def test_other_windows(sound):
    network, out, checks = sound
    for check, wide in zip(check_run(out, 3, window="observed"), checks, strict=True):
        assert check.window == max(seed.connectivity.observed.length for seed in check.seeds.values())
        assert check.window <= wide.window
        assert named(check)["contraction"].verdict == "held"
        other = f"windows of B = {check.window}, not the promised one"
        assert named(check)["contraction"].detail.endswith(other) == (check.window < wide.window)
    if network == "rotating":
        (_, check) = narrow = check_run(out, 3, window=2)
        assert broken(check) == set()
        contraction = named(check)["contraction"]
        assert (contraction.verdict, contraction.iteration) == ("not checkable", None)
        count = len(SEEDS) * (K - 1)
        assert contraction.detail == (
            f"rho = 1 over {count} of {count} windows of B = 2, not the promised one: B must be at least the observed 3"
        )
        assert named(check)["step-size limit"].detail == "B must be at least the observed 3"
        for what in BOUNDED:
            bounded = named(check)[f"{what} under bound"]
            assert bounded.verdict == "not checkable"
            assert bounded.detail == "the bound is infinite: rho is 1"
        assert_all_can_be_told(narrow)


def test_a_window_must_fit_into_the_run(run):
    assert {check.window for check in check_run(run, 3, window=K)} == {K}
    with pytest.raises(efhc.InputError, match=rf"^--window: got {K + 1}; allowed: at most {K}, the iterations of the"):
        check_run(run, 3, window=K + 1)


def test_of_windows_that_were_not_all_looked_at_rho_is_at_least_that(run, monkeypatch):
    def some(*arguments: Any, **options: Any) -> Any:
        found = window_contractions(*arguments, **options)
        return found._replace(starts=found.starts[::2], values=found.values[::2])

    monkeypatch.setattr(theory_check, "window_contractions", some)
    check = check_run(run, 3)[1]
    assert check.promises is not None
    of = len(SEEDS) * (K - 2)
    looked = of // 2
    rho = check.promises.constants.contraction
    assert named(check)["contraction"].detail == f"rho at least {rho:.6g} over {looked} of {of} windows of B = 3"


# Means above their bounds


@pytest.mark.parametrize(("seeds", "verdict"), [(4, "not checkable"), (5, "broken")])
def test_above_a_bound_only_many_seeds_break_it(tmp_path, monkeypatch, seeds, verdict):
    def too_low(*arguments: Any) -> np.ndarray:
        bound = error_bound(*arguments)
        bound[3:] /= 1e6
        return bound

    monkeypatch.setattr(judgement, "error_bound", too_low)
    fields = {"strategies": ZT, "devices": 3, "iterations": 5, "seeds": tuple(range(seeds))}
    (check,) = checked(tmp_path / "run", points=20, **fields)
    assert check.promises is not None
    place = int(np.argmax(check.iterations >= 3))
    finding = named(check)["optimisation error under bound"]
    detail = (
        f"{check.of_seeds('optimisation_error').mean(axis=0)[place]:.3g} measured, "
        f"{check.promises.bound[place, 0]:.3g} promised"
    )
    assert finding.verdict == verdict
    if verdict == "broken":
        assert (finding.detail, finding.iteration) == (detail, 3)
    else:
        assert finding.iteration is None
        assert finding.detail == f"{detail} at k = 3; of a mean, and 4 seeds are few"


# Networks and strategies that do not connect


def test_nobody_ever_fires(tmp_path):
    (check,) = checks = checked(tmp_path / "run", strategies={"never": {"kind": "never"}})
    assert broken(check) == {"broadcasts"}
    found = named(check)
    assert found["broadcasts"][:6] == (
        "assump:conn-(b)",
        "broadcasts",
        "broken",
        "device 0 never fires, B2 is infinite",
        None,
        0,
    )
    assert found["information flow"].verdict == "not checkable"
    assert found["information flow"].detail.endswith("never connected")
    assert found["contraction"].verdict == "not checkable"
    assert found["step-size limit"].verdict == "not checkable"
    assert found["step-size limit"].detail == "no theorem applies: no B: used links are not connected"
    assert check.promises is None
    assert check.window is None
    of_seed = as_dict(check)["seeds"]["0"]
    assert (of_seed["B1"], of_seed["B2"], of_seed["B_promised"], of_seed["B_observed"], of_seed["rho"]) == (
        1,
        "infinite",
        "infinite",
        "infinite",
        None,
    )
    assert_all_can_be_told(checks)


def test_one_device_never_fires_and_its_neighbours_do(tmp_path):
    bandwidths = {"kind": "list", "values": [5000.0, 5000.0, 1e-9, 5000.0, 5000.0]}
    strategies = {"EF-HC": {"kind": "ef-hc", "r": 2000.0}}
    (check,) = checks = checked(tmp_path / "run", bandwidths=bandwidths, strategies=strategies)
    found = named(check)
    assert broken(check) == {"broadcasts"}
    assert found["broadcasts"].device == 2
    assert "device 2 never fires" in found["broadcasts"].detail
    observed = max(seed.connectivity.observed.length for seed in check.seeds.values())
    assert check.window == observed  # the links of 2 are used when 1 and 3 fire
    assert check.promises is not None
    assert_all_can_be_told(checks)


def test_a_network_in_two_parts(tmp_path):
    (tmp_path / "links.txt").write_text("0 1\n1 2\n0 2\n3 4\n")
    network = {"kind": "edge-list", "path": str(tmp_path / "links.txt")}
    (check,) = checks = checked(tmp_path / "run", network=network, strategies=ZT)
    assert broken(check) == {"physical graph"}
    found = named(check)["physical graph"]
    assert found.device == 3  # of the smaller part
    assert found.detail == "the part of device 3 is never connected to the rest"
    assert named(check)["broadcasts"].detail == "B2 = 1"
    assert check.promises is None
    assert_all_can_be_told(checks)


def test_a_silence_that_lasts_to_the_end_is_so_far_only(tmp_path):
    """The threshold stays and the steps do not: devices fire at first, and then no more."""
    fields = {
        "step_size": {"kind": "diminishing", "initial": 0.05, "power": 1.0},
        "threshold_decay": {"kind": "constant", "value": 1.0},
        "strategies": {"EF-HC": {"kind": "ef-hc", "r": 100.0}},
        "bandwidths": {"kind": "constant"},
        "iterations": 400,
        "devices": 4,
    }
    (check,) = checked(tmp_path / "run", 3, **fields)
    fired = pl.read_parquet(tmp_path / "run" / "events.parquet").sort("iteration")["fired"].to_list()
    last = [max(k for k, now in enumerate(fired) if i in now) for i in range(4)]
    since = min(last) + 1
    found = named(check)["broadcasts"]
    assert (found.verdict, found.device) == ("held", None)
    assert found.detail == (
        f"B2 = {400 - since + 1}, so far: device {last.index(since - 1)} is silent from iteration {since} to the end"
    )
    assert check.seeds[0].connectivity.broadcast == (400 - since + 1, since, last.index(since - 1))


def test_randomized_gossip_over_seeds_that_differ(tmp_path):
    """What is said to be "at most" so many is so for every seed."""
    strategies = {"RG": {"kind": "rg", "probability": 0.4}}
    (check,) = checked(tmp_path / "run", 3, strategies=strategies, seeds=tuple(range(6)))
    assert broken(check) == set()
    found = [seed.connectivity for seed in check.seeds.values()]
    longest = max(each.broadcast.length for each in found)
    assert longest > min(each.broadcast.length for each in found)
    promised, observed = max(each.promised for each in found), max(each.observed.length for each in found)
    for what, numbers in (
        ("broadcasts", [f"B2 = {longest:.0f}"]),
        ("information flow", [f"B = {promised:.0f} promised", f"B = {observed:.0f} observed"]),
    ):
        detail = named(check)[what].detail
        assert "at most" in detail
        assert all(number in detail for number in numbers), detail


@pytest.mark.parametrize("devices", [1, 2])
def test_few_devices(tmp_path, devices):
    (check,) = checks = checked(tmp_path / "run", devices=devices, strategies=ZT)
    assert broken(check) == set()
    seed = check.seeds[0]
    assert (seed.connectivity.physical.length, seed.connectivity.observed.length) == (1, 1)
    assert check.promises is not None
    assert check.promises.constants.contraction == pytest.approx(0, abs=1e-12)
    assert_all_can_be_told(checks)


def test_one_device_on_all_of_its_samples(tmp_path):
    """Nothing to agree on, nothing that varies: the consensus error and its bound are both 0."""
    (check,) = checks = checked(tmp_path / "run", devices=1, batch_size="full", strategies=ZT)
    found = named(check)["consensus error under bound"]
    assert found.verdict == "held"
    assert found.detail == "in the end 0 under 0"
    assert named(check)["optimisation error under bound"].verdict == "held"
    assert_all_can_be_told(checks)


def test_one_device_that_never_fires_is_connected_all_the_same(tmp_path):
    (check,) = checks = checked(tmp_path / "run", devices=1, strategies={"never": {"kind": "never"}})
    assert broken(check) == {"broadcasts"}
    assert check.window == 1
    assert_all_can_be_told(checks)


def test_all_samples_at_once_are_no_noise(tmp_path):
    (check,) = checks = checked(tmp_path / "run", batch_size="full", strategies=ZT, devices=3)
    assert (check.of_seeds("noise") == 0).all()
    detail = named(check)["gradient noise"].detail
    assert detail == "sigma^2 = 0, exactly, at the models of 9 iterations; elsewhere unknown"
    assert broken(check) == set()
    assert_all_can_be_told(checks)


def test_an_exchange_at_the_start_is_by_the_rules(tmp_path):
    strategies = {"never": {"kind": "never"}}
    (check,) = checked(tmp_path / "run", exchange_at_start=True, strategies=strategies)
    assert named(check)["links used"].verdict == "held"
    events = pl.read_parquet(tmp_path / "run" / "events.parquet")
    assert [len(links) > 0 for links in events.filter(seed=0)["link_from"].to_list()] == [True] + [False] * (K - 1)
    assert check.seeds[0].connectivity.observed.length == K  # only all of it has the first iteration in it
    assert check.window == K


def test_a_run_that_is_shorter_than_its_window(tmp_path):
    checks = checked(tmp_path / "run", iterations=2)
    for check in checks:
        assert check.window in {None, 1, 2}
    assert_all_can_be_told(checks)


def test_single_precision_runs_too(tmp_path):
    (check,) = checked(tmp_path / "run", precision="float32", strategies=ZT, step_size={"kind": "constant"})
    assert named(check)["the run once more"].detail == "fires as recorded, and ends with the same models"
    metrics = pl.read_parquet(tmp_path / "run" / "metrics.parquet")
    assert check.seeds[0].measured.consensus_error[-1] == pytest.approx(metrics["consensus_error"][-1], rel=1e-4)


# What was tampered with


@pytest.fixture
def run(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a sound run, to spoil."""
    original = tmp_path_factory.getbasetemp() / "to-spoil"
    if not original.exists():
        efhc.simulate(**settings(network={"kind": "star"}, seeds=SEEDS), out=original)
    shutil.copytree(original, tmp_path / "run")
    return tmp_path / "run"


def rewrite(run: Path, name: str, table: pl.DataFrame) -> None:
    """Write a table as if it had always been so."""
    table.write_parquet(run / f"{name}.parquet")
    meta = json.loads((run / "meta.json").read_text())
    del meta["table_sha256"]
    (run / "meta.json").write_text(json.dumps(meta))


def changed(run: Path, strategy: str, seed: int, iteration: int, **lists: list[int]) -> pl.DataFrame:
    """The events, with other lists in one row."""
    here = (pl.col("strategy") == strategy) & (pl.col("seed") == seed) & (pl.col("iteration") == iteration)
    events = pl.read_parquet(run / "events.parquet")
    assert events.filter(here).height == 1
    return events.with_columns(
        pl.when(here).then(pl.lit(pl.Series([values], dtype=pl.List(pl.Int32)))).otherwise(pl.col(name)).alias(name)
        for name, values in lists.items()
    )


def test_a_link_that_is_not_there(run):
    # All links of the star are 0-j; 2-4 is not among them.
    rewrite(run, "events", changed(run, "ZT", 3, 17, link_from=[0, 0, 2, 0, 0], link_to=[1, 2, 4, 3, 4]))
    untouched, check = check_run(run, 3)
    assert broken(untouched) == set()
    found = named(check)
    assert broken(check) == {"transition weights", "links used"}
    weights, links = found["transition weights"], found["links used"]
    assert (weights.label, weights.iteration, weights.device) == ("assump:weights-(a)", 17, 2)
    assert weights.detail == "seed 3: device 2 gives no weight to a model that it received"
    assert (links.iteration, links.device) == (17, 2)
    assert links.detail.startswith("seed 3: link 2-4 is recorded otherwise")


def test_a_link_that_is_not_used_though_it_should_be(run):
    rewrite(run, "events", changed(run, "ZT", 0, 5, link_from=[0, 0, 0], link_to=[1, 2, 4]))
    found = named(check_run(run, 3)[1])
    assert found["transition weights"].verdict == "held"
    links = found["links used"]
    assert (links.verdict, links.iteration, links.device) == ("broken", 5, 0)
    assert "link 0-3" in links.detail


def test_other_devices_fire(run):
    rewrite(run, "events", changed(run, "ZT", 3, 8, fired=[0, 1, 3, 4]))
    (untouched, check) = check_run(run, 3)
    assert named(untouched)["the run once more"].verdict == "held"
    again = named(check)["the run once more"]
    assert (again.verdict, again.iteration, again.device) == ("broken", 8, 2)
    assert again.detail.startswith("seed 3: fires otherwise than recorded")


def test_several_spoilt_seeds_the_first_is_named(run):
    events = changed(run, "ZT", 3, 8, fired=[0, 1, 3, 4])
    rewrite(run, "events", events)
    rewrite_again = changed(run, "ZT", 0, 20, fired=[])
    rewrite_again.write_parquet(run / "events.parquet")
    again = named(check_run(run, 3)[1])["the run once more"]
    assert again.detail.startswith("seed 0")
    assert (again.iteration, again.device) == (20, 0)


def test_a_device_that_does_not_exist_is_one_line(run):
    rewrite(run, "events", changed(run, "ZT", 3, 8, fired=[0, 1, 2, 3, 5]))
    with pytest.raises(efhc.EfhcError, match="events"):
        check_run(run, 3)


def test_iterations_that_are_missing_are_one_line(run):
    events = pl.read_parquet(run / "events.parquet")
    rewrite(run, "events", events.filter((pl.col("strategy") != "ZT") | (pl.col("iteration") != 11)))
    with pytest.raises(efhc.EfhcError, match="events"):
        check_run(run, 3)


@pytest.mark.parametrize("content", [b"", b"PAR1 and more"])
def test_a_damaged_table_is_one_line(run, content):
    (run / "events.parquet").write_bytes(content)
    with pytest.raises(efhc.EfhcError, match=r"events.parquet is missing or corrupt") as caught:
        check_run(run, 3)
    assert "\n" not in str(caught.value)


def test_a_missing_table_is_one_line(run):
    (run / "network.parquet").unlink()
    with pytest.raises(efhc.EfhcError, match=r"network.parquet is missing or corrupt"):
        check_run(run, 3)


def test_final_models_that_are_not_kept_are_not_compared(run):
    (run / "models.safetensors").unlink()
    assert named(check_run(run, 3)[1])["the run once more"].detail == "fires as recorded"


def spoil_models(run: Path, seeds: tuple[int, ...]) -> None:
    models = RunDirectory(run).load_models()
    for seed in seeds:
        models["ZT", seed][2, 0] += 1e-3
    tensors = {f"{strategy}/{seed}": w for (strategy, seed), w in models.items()}
    safetensors.numpy.save_file(tensors, run / "models.safetensors")


@pytest.mark.parametrize("seeds", [(0,), (3,), (0, 3)], ids=str)
def test_other_final_models_are_noticed(run, seeds):
    spoil_models(run, seeds)
    untouched, check = check_run(run, 3)
    assert named(untouched)["the run once more"].detail == "fires as recorded, and ends with the same models"
    again = named(check)["the run once more"]
    assert "same models" not in again.detail


# What cannot be checked


NOT_FINISHED = (
    r"^run directory: got .*; allowed: the directory of a run that has finished "
    r"\(before a run: efhc theory plan CONFIG\)$"
)


def test_a_run_that_is_not_there_or_not_finished(tmp_path, run):
    (tmp_path / "empty").mkdir()
    meta = json.loads((run / "meta.json").read_text())
    (run / "meta.json").write_text(json.dumps(meta | {"status": "running"}))
    for directory in (run, tmp_path / "empty", tmp_path / "absent", run / "meta.json"):
        with pytest.raises(efhc.InputError, match=NOT_FINISHED):
            check_run(directory)


@pytest.mark.parametrize("content", ["{}", "[]", "null", '{"status": "complete"}'])
def test_a_directory_of_another_kind_is_one_line(tmp_path, content):
    (tmp_path / "meta.json").write_text(content)
    with pytest.raises(efhc.EfhcError):
        check_run(tmp_path)


def npz(path: Path, shift: float = 0.0) -> Path:
    stream = np.random.default_rng(0)
    x, y = stream.random((60, 4)) + shift, np.arange(60) % 3
    np.savez(path, x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    return path


def test_changed_data_is_one_line(tmp_path):
    data = {"kind": "npz", "path": str(npz(tmp_path / "data.npz"))}
    fields = {"data": data, "devices": 3, "batch_size": 4, "strategies": ZT, "iterations": 5}
    checks = checked(tmp_path / "run", **fields)
    assert named(checks[0])["the run once more"].verdict == "held"
    npz(tmp_path / "data.npz", 1.0)
    with pytest.raises(efhc.InputError, match=r"^data: got a changed .*; allowed: the file with SHA-256 "):
        check_run(tmp_path / "run")
    (tmp_path / "data.npz").unlink()
    with pytest.raises(efhc.EfhcError, match=r"data\.npz"):
        check_run(tmp_path / "run")


def test_a_changed_network_file_is_one_line(tmp_path):
    """ZT fires all the same, whatever the network: only the file's SHA-256 tells."""
    links = tmp_path / "links.txt"
    links.write_text("0 1\n1 2\n")
    fields = {"network": {"kind": "edge-list", "path": str(links)}, "devices": 3, "strategies": ZT, "iterations": 5}
    checked(tmp_path / "run", **fields)
    links.write_text("0 1\n1 2\n2 0\n")
    with pytest.raises(efhc.InputError, match=r"network.path: got a changed network.path"):
        check_run(tmp_path / "run")


def test_a_small_l2_does_not_keep_a_run_from_being_checked(tmp_path):
    (check,) = checked(tmp_path / "run", model={"kind": "softmax", "l2": 1e-9}, strategies=ZT, devices=3, iterations=5)
    found = named(check)
    assert found["physical graph"].verdict == "held"
    assert found["optimisation error under bound"].verdict == "not checkable"
    assert found["optimisation error under bound"].detail == "no w*: not the only minimiser, or not found to 1e-10"
    assert found["consensus error under bound"].verdict == "held"
    assert check.promises is not None
    assert np.isinf(check.promises.bound[:, 0]).all()
