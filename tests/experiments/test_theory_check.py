"""`check_run` on small real runs: every number against plain NumPy on what the run directory holds."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import safetensors.numpy

import efhc
from efhc.experiments.config.files import build_experiment
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.experiments.runs.folder import RunFolder
from efhc.experiments.studies import theory_check
from efhc.experiments.studies.theory_check import Effort, check_run, spread
from efhc.report.theory import as_dict, theory_figure
from efhc.theory.checks import StrategyCheck
from efhc.theory.connectivity import Connectivity, Window, fitting_window
from efhc.theory.findings import Check
from efhc.theory.promises import firing_of

pytestmark = pytest.mark.usefixtures("no_comparison")

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
BOUNDED = ("optimisation-bound", "consensus-bound", "gradient-bound")
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


def named(check: StrategyCheck) -> dict[str, Check]:
    """Its checks by what they are about."""
    found: dict[str, Check] = {each.subject: each for each in check.checks}
    assert len(found) == len(check.checks)
    return found


def broken(check: StrategyCheck) -> set[str]:
    return {each.subject for each in check.checks if each.verdict == "broken"}


def assert_all_have_sentences(checks: list[StrategyCheck]) -> None:
    """As JSON without NaN and the like."""
    json.dumps([as_dict(check) for check in checks], allow_nan=False)


@pytest.fixture(scope="module", params=NETWORKS)
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    """A sound run on each kind of network, and what was found of it."""
    out = tmp_path_factory.mktemp("sound") / "run"
    return request.param, out, checked(out, network=NETWORKS[request.param], seeds=SEEDS)


# What a sound run shows

EXPECTED = {
    "weights": "held",
    "links-used": "held",
    "same-run": "held",
    "physical-graph": "held",
    "broadcasts": "held",
    "information-flow": "held",
    "contraction": "held",
    "smoothness": "held",
    "convexity": "held",
    "diversity": "held where looked",
    "noise": "held where looked",
    "step-sizes": "held",
    "step-size-limit": "held",
    "optimisation-bound": "not checkable",  # so small steps forget the start more slowly than the bound grows
    "consensus-bound": "undecided",  # of two seeds
    "gradient-bound": "undecided",
}

RESTS_ON_LINKS = ("physical-graph", "information-flow", "contraction", "step-size-limit")


def test_every_assumption_and_promise_is_judged(sound):
    network, _, checks = sound
    assert [check.strategy for check in checks] == ["EF-HC", "ZT"]
    where_looked = dict.fromkeys(RESTS_ON_LINKS, "held where looked") if network == "random links" else {}
    for check in checks:
        assert {subject: found.verdict for subject, found in named(check).items()} == EXPECTED | where_looked
        assert all(found.iteration is None and found.device is None for found in check.checks)
        assert named(check)["same-run"].reason == "same"
        assert named(check)["optimisation-bound"].reason == "grows"
        assert list(check.seeds) == list(SEEDS)
        assert check.promises is not None
        assert check.promises.gap is not None
        assert check.slope is None


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
    metrics = efhc.Result.load(out).metrics
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
        assert named(check)["smoothness"].reason == named(check)["convexity"].reason == "bound"


def links_of(table: pl.DataFrame) -> list[list[tuple[int, int]]]:
    return [
        list(zip(*ends, strict=True))
        for ends in zip(table["link_from"].to_list(), table["link_to"].to_list(), strict=True)
    ]


def physical_links(out: Path, seed: int, iterations: int) -> list[list[tuple[int, int]]]:
    """E(0) .. E(K-1), as network.parquet has them."""
    rows = efhc.Result.load(out).network.filter(seed=seed)
    changes = dict(zip(rows["iteration"].to_list(), links_of(rows), strict=True))
    links = []
    for k in range(iterations):
        links.append(changes.get(k, links[-1] if links else []))
    return links


def test_windows_of_networks_that_are_known(sound):
    network, _, checks = sound
    for check in checks:
        for seed in check.seeds.values():
            found = seed.connectivity
            physical = found.physical.length
            assert physical == {"static": 1, "rotating": 3}.get(network, physical)
            assert found.observed.length <= found.sufficient <= found.promised
            if check.strategy == "ZT":
                assert (found.broadcast.length, found.observed.length) == (1, physical)
                assert found.promised == (3 if physical == 1 else 2 * physical)
            else:
                assert found.broadcast.length > 1


def test_contractions_are_norms_of_products(sound):
    network, out, checks = sound
    kind = "expected" if network == "random links" else "promised"
    events = efhc.Result.load(out).events
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
        found = named(check)["contraction"].values
        assert (found["looked"], found["of"], found["B"], found["kind"]) == (count, count, check.window, kind)


def test_looking_changes_nothing_and_gives_the_same_again(sound):
    _, out, checks = sound
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    told: list[tuple[str, float]] = []
    again = check_run(out, 9, progress=lambda what, share: told.append((what, share)))
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert [as_dict(check) for check in again] == [as_dict(check) for check in checks]
    assert told[0] == ("the learning problem", 0.0)
    assert "EF-HC: replay" in {what for what, _ in told}
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


# The window to compute with


def windows(physical: float, broadcast: float, observed: float) -> Connectivity:
    return Connectivity(Window(physical), Window(broadcast), Window(observed))


def test_window_is_the_promised_one_if_it_fits_into_the_run():
    assert fitting_window([windows(1, 1, 1)], 40) == (3, "promised")
    assert fitting_window([windows(1, 1, 1), windows(2, 5, 4)], 40) == (8, "promised")
    assert fitting_window([windows(1, 1, 1), windows(1, 39, 7)], 40) == (7, "observed")
    assert fitting_window([windows(1, math.inf, 7)], 40) == (7, "observed")
    assert fitting_window([windows(1, math.inf, math.inf)], 40) is None
    assert fitting_window([windows(1, 1, 1), windows(1, 1, math.inf)], 2) is None
    assert fitting_window([windows(1, 1, 1)], 40, "observed") == (1, "observed")
    assert fitting_window([windows(1, 1, 1)], 40, 5) == (5, "given")
    assert fitting_window([windows(1, 1, 1)], 40, by_chance=True) == (3, "expected")


def test_a_window_that_the_end_of_the_run_cuts_off_is_none_to_compute_with():
    cut, sound = Window(31, witness=10), Window(1)
    assert cut.is_censored(40)
    assert fitting_window([Connectivity(sound, cut, Window(2))], 40) == (2, "observed")
    assert fitting_window([Connectivity(cut, sound, cut)], 40) is None
    assert fitting_window([Connectivity(sound, sound, cut)], 40, "observed") is None
    assert fitting_window([Connectivity(sound, sound, cut)], 40) == (3, "promised")
    assert fitting_window([windows(1, 1, 1), Connectivity(cut, sound, cut)], 40) is None


def test_by_what_devices_fire():
    from efhc.strategies import paper as triggers

    assert firing_of(triggers.EventTriggered(r=1.0), 4) == firing_of(triggers.GlobalThreshold(r=1.0), 4) == "drift"
    assert firing_of(triggers.ZeroThreshold(), 4) == "fixed"
    assert firing_of(triggers.Never(), 4) == firing_of(triggers.RandomizedGossip(probability=0.0), 4) == "never"
    assert firing_of(triggers.RandomizedGossip(), 4) == "coins"
    assert (
        firing_of(triggers.RandomizedGossip(probability=1.0), 4) == firing_of(triggers.RandomizedGossip(), 1) == "fixed"
    )


# Other models


def test_svm_has_kinks_and_its_models_are_not_looked_at(tmp_path):
    (check,) = checks = checked(tmp_path / "run", model={"kind": "svm"}, strategies=ZT)
    assert broken(check) == {"smoothness", "convexity"}
    assert check.promises is None
    found = named(check)
    assert found["convexity"].device is None
    assert found["step-size-limit"].reason == "no-smoothness"
    assert found["same-run"].reason == "no-theorem"
    assert set(EXPECTED) - set(found) == set(BOUNDED)
    assert found["contraction"].verdict == "held"
    metrics = efhc.Result.load(tmp_path / "run").metrics["consensus_error"].to_numpy()
    assert check.of_seeds("consensus_error")[0, 1:].tolist() == metrics[check.iterations[1:] - 1].tolist()
    assert np.isnan(check.of_seeds("gradient_norm")).all()
    numbers = as_dict(check)
    assert numbers["curvature"] == {"L": "infinite", "mu": 0, "known": "exact"}
    assert numbers["error_bound"] is None
    assert numbers["measured"]["optimisation_error"] == [None] * len(check.iterations)
    assert_all_have_sentences(checks)
    theory_figure(checks).draw_without_rendering()
    (asked,) = check_run(tmp_path / "run", 3, replay=True)
    assert named(asked)["same-run"].reason == "same"
    assert (asked.of_seeds("gradient_norm") > 0).all()


def test_a_network_has_estimates_that_are_called_so(tmp_path):
    pytest.importorskip("torch")
    (check,) = checks = checked(
        tmp_path / "run",
        points=4,
        model={"kind": "mlp", "hidden": (4,)},
        backend="stacked",  # nothing has to be compiled
        strategies=ZT,
        iterations=6,
        devices=3,
        seeds=SEEDS,
    )
    found = named(check)
    assert check.curvature.known == "estimate"
    assert found["same-run"].verdict == "held"
    assert found["noise"].reason == "estimate"
    assert found["step-size-limit"].label == "theorem:nonconvex"
    assert check.promises is not None
    assert np.isinf(check.promises.bound[:, 0]).all()
    assert np.isfinite(check.promises.bound[:, 1]).all()
    for subject in ("smoothness", "convexity", "step-size-limit", *BOUNDED):
        assert (found[subject].verdict, found[subject].iteration) == ("not checkable", None)
    assert (check.of_seeds("noise_error") > 0).all()
    assert_all_have_sentences(checks)


def test_least_squares_without_l2_is_not_strongly_convex(tmp_path):
    (check,) = checks = checked(tmp_path / "run", model={"kind": "least-squares", "l2": 0.0}, strategies=ZT)
    found = named(check)
    assert check.curvature.known == "exact"
    assert found["diversity"].reason == "unbounded"
    assert found["convexity"].verdict == "broken"
    assert found["step-size-limit"].label == "theorem:nonconvex"
    assert check.promises is not None
    assert np.isinf(check.promises.bound[:, 0]).all()
    assert np.isfinite(check.promises.bound[:, 1]).all()
    assert found["optimisation-bound"].reason == "no-optimum"
    assert_all_have_sentences(checks)


# Step sizes


def test_diminishing_step_sizes_have_a_rate(tmp_path):
    step_size = {"kind": "diminishing", "initial": 1e-6, "power": 0.75}
    (check,) = checks = checked(tmp_path / "run", step_size=step_size, strategies=ZT, points=20)
    assert check.slope is not None
    assert check.slope.seeds == 1
    assert check.promised_slope == pytest.approx(-0.25)
    assert (named(check)["rate"].label, named(check)["rate"].reason) == ("appendix:generalTheta", "one-seed")
    assert check.promises is not None
    assert check.promises.gap is None
    assert_all_have_sentences(checks)


# How much is looked at


def test_not_made_again_only_both_ends_are_looked_at(sound):
    for check, again in zip(check_run(sound[1], replay=False), sound[2], strict=True):
        assert check.iterations.tolist() == [0, K]
        found = named(check)
        assert set(EXPECTED) - set(found) == {"gradient-bound"}
        assert (found["same-run"].verdict, found["same-run"].reason) == ("not checkable", "not-made-again")
        assert broken(check) == set()
        for name in ("optimisation_error", "consensus_error", "loss", "gradient_norm", "diversity", "noise"):
            # models looked at together are summed in another order than one at a time
            assert check.of_seeds(name) == pytest.approx(again.of_seeds(name)[:, [0, -1]], rel=1e-12)


def test_models_that_the_run_kept_are_looked_at_instead_of_making_it_again(tmp_path, monkeypatch):
    """They show bit for bit what making it again shows."""
    efhc.simulate(**settings(keep_models_every=10, seeds=SEEDS), out=tmp_path / "run")
    again = {check.strategy: check for check in check_run(tmp_path / "run", 200, replay=True)}
    made: list[str] = []
    monkeypatch.setattr(theory_check, "replay_run", lambda *arguments: made.append("again"))
    for check in check_run(tmp_path / "run"):
        assert check.iterations.tolist() == [0, 10, 20, 30, K]
        assert (named(check)["same-run"].verdict, named(check)["same-run"].reason) == ("not checkable", "kept")
        places = np.searchsorted(again[check.strategy].iterations, check.iterations)
        for name in ("optimisation_error", "consensus_error", "gradient_norm", "noise"):
            assert check.of_seeds(name).tolist() == again[check.strategy].of_seeds(name)[:, places].tolist()
    assert check_run(tmp_path / "run", 4)[0].iterations.tolist() == [0, 10, K]
    assert made == []


def effort(replay: bool | None = None, kept: bool = False, **fields: Any) -> Effort:
    experiment = build_experiment(settings(**fields))
    return Effort.of(experiment, load_data(experiment), 40, replay, kept=kept)


def test_only_what_is_quick_is_done_unasked():
    assert effort() == (True, True, None)
    assert effort(replay=False) == (False, True, None)
    assert effort(kept=True) == (False, True, None)
    long = effort(iterations=10**7)
    assert not long.replay
    assert long.optimum
    assert effort(replay=True, iterations=10**7) == (True, True, None)


def test_much_data_is_not_looked_at_in_full_unasked(monkeypatch):
    """As Fashion-MNIST: w* is not looked for, the noise is estimated, the run is not made again."""
    monkeypatch.setattr(theory_check, "LOOK", 1e-5)
    assert effort() == (False, False, theory_check.NOISE_SAMPLES)
    assert effort(replay=True) == (True, True, None)


def test_the_noise_of_much_data_is_estimated_and_says_so(run, monkeypatch):
    exact = check_run(run, replay=False)[1]
    monkeypatch.setattr(theory_check, "LOOK", 1e-5)
    monkeypatch.setattr(theory_check, "NOISE_SAMPLES", 100)
    check = check_run(run)[1]
    noise = named(check)["noise"]
    assert (noise.reason, noise.values["draws"], noise.values["of"]) == ("estimate", 100, "samples")
    assert "from 100 samples per device" in noise.sentence
    assert "draws" not in named(exact)["noise"].values
    assert named(check)["optimisation-bound"].reason == "optimum-not-sought"
    estimate, error = check.of_seeds("noise"), check.of_seeds("noise_error")
    assert (np.abs(estimate - exact.of_seeds("noise")) < 4 * error).all()


def test_other_windows(sound):
    network, out, checks = sound
    for check, wide in zip(check_run(out, 3, window="observed"), checks, strict=True):
        assert check.window == max(seed.connectivity.observed.length for seed in check.seeds.values())
        assert check.window <= wide.window
        assert named(check)["contraction"].values["kind"] == "observed"
    if network == "rotating":
        (_, check) = narrow = check_run(out, 3, window=2)
        assert broken(check) == set()
        contraction = named(check)["contraction"]
        assert (contraction.verdict, contraction.reason) == ("not checkable", "short")
        assert (contraction.values["kind"], contraction.values["observed"]) == ("given", 3)
        for subject in BOUNDED:
            assert named(check)[subject].reason == "infinite-rho"
        assert_all_have_sentences(narrow)


# Networks and strategies that do not connect


def test_randomized_gossip_over_seeds_that_differ(tmp_path):
    """What is said to be "at most" so many is so for every seed; and no B2 holds for ever."""
    strategies = {"RG": {"kind": "rg", "probability": 0.4}}
    (check,) = checked(tmp_path / "run", 3, strategies=strategies, seeds=tuple(range(6)))
    found = [seed.connectivity for seed in check.seeds.values()]
    longest = max(each.broadcast.length for each in found)
    assert longest > min(each.broadcast.length for each in found)
    broadcasts = named(check)["broadcasts"]
    if broadcasts.reason == "coins":
        assert broadcasts.verdict == "held where looked"
        assert (broadcasts.values["B2"], broadcasts.values["at_most"]) == (longest, True)
    else:
        assert broadcasts.reason == "censored"


def test_an_exchange_at_the_start_is_by_the_rules(tmp_path):
    strategies = {"never": {"kind": "never"}}
    (check,) = checked(tmp_path / "run", exchange_at_start=True, strategies=strategies)
    assert named(check)["links-used"].verdict == "held"
    events = efhc.Result.load(tmp_path / "run").events
    assert [len(links) > 0 for links in events.filter(seed=0)["link_from"].to_list()] == [True] + [False] * (K - 1)
    assert check.seeds[0].connectivity.observed.length == K  # only all of it has the first iteration in it
    assert (check.window, check.promises) == (None, None)  # nobody knows whether there is another


def test_single_precision_runs_too(tmp_path):
    (check,) = checked(tmp_path / "run", precision="float32", strategies=ZT, step_size={"kind": "constant"})
    assert named(check)["same-run"].reason == "same"
    metrics = efhc.Result.load(tmp_path / "run").metrics
    assert check.seeds[0].measured.consensus_error[-1] == pytest.approx(metrics["consensus_error"][-1], rel=1e-4)


# What was tampered with


@pytest.fixture
def run(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a sound run, to spoil."""
    original = tmp_path_factory.getbasetemp() / "to-spoil"
    if not original.exists():
        efhc.simulate(**settings(network={"kind": "star"}, seeds=SEEDS)).save(original)  # all runs in the same tables
    shutil.copytree(original, tmp_path / "run")
    return tmp_path / "run"


def rewrite(run: Path, name: str, table: pl.DataFrame) -> None:
    """Write a table as if it had always been so."""
    table.write_parquet(run / f"{name}.parquet")
    forget_checksums(run)


def forget_checksums(run: Path) -> None:
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
    assert broken(check) == {"weights", "links-used"}
    weights, links = found["weights"], found["links-used"]
    assert (weights.label, weights.iteration, weights.device) == ("assump:weights-(a)", 17, 2)
    assert (weights.reason, weights.seed, links.seed) == ("ignored", 3, 3)
    assert (links.iteration, links.device) == (17, 2)
    assert links.values == {"i": 2, "j": 4}


def test_other_devices_fire(run):
    rewrite(run, "events", changed(run, "ZT", 3, 8, fired=[0, 1, 3, 4]))
    (untouched, check) = check_run(run, 3)
    assert named(untouched)["same-run"].verdict == "held"
    again = named(check)["same-run"]
    assert (again.verdict, again.iteration, again.device) == ("broken", 8, 2)
    assert (again.seed, again.reason) == (3, "fires-otherwise")


def test_a_device_that_does_not_exist_is_one_line(run):
    rewrite(run, "events", changed(run, "ZT", 3, 8, fired=[0, 1, 2, 3, 5]))
    with pytest.raises(efhc.EfhcError, match="events"):
        check_run(run, 3)


def test_a_link_from_a_device_to_itself_is_one_line(run):
    network = pl.read_parquet(run / "network.parquet")
    rewrite(run, "network", network.with_columns(pl.col("link_from").alias("link_to")))
    with pytest.raises(efhc.EfhcError, match=r"network\.parquet: a link joins a device to itself"):
        check_run(run, 3)


def spoil_models(run: Path, seeds: tuple[int, ...]) -> None:
    models = RunFolder(run).models()
    for seed in seeds:
        models["ZT", seed][2, 0] += 1e-3
    tensors = {f"{strategy}/{seed}": w for (strategy, seed), w in models.items()}
    safetensors.numpy.save_file(tensors, run / "models.safetensors")
    forget_checksums(run)


@pytest.mark.parametrize("seeds", [(0,), (3,), (0, 3)], ids=str)
def test_other_final_models_are_noticed(run, seeds):
    spoil_models(run, seeds)
    untouched, check = check_run(run, 3)
    assert named(untouched)["same-run"].reason == "same"
    again = named(check)["same-run"]
    assert (again.verdict, again.reason) == ("broken", "ends-otherwise")


# What cannot be checked


def test_a_strategy_of_which_a_run_failed_is_skipped_and_the_others_are_checked(run):
    def fail(*strategies: str) -> None:
        meta = json.loads((run / "meta.json").read_text())
        failed = [{"strategy": name, "seed": 3, "reason": "it diverged"} for name in strategies]
        (run / "meta.json").write_text(json.dumps(meta | {"failed": failed}))

    every = [check.strategy for check in check_run(run, 3)]
    fail(every[0])
    skipped: dict[str, str] = {}
    left = [check.strategy for check in check_run(run, 3, skipped=skipped.__setitem__)]
    assert left == every[1:]
    assert skipped == {every[0]: "seed 3 failed (it diverged)"}
    fail(*every)
    with pytest.raises(efhc.EfhcError, match=r"seed 3 failed \(it diverged\)"):
        check_run(run, 3)


def npz(path: Path, shift: float = 0.0) -> Path:
    stream = np.random.default_rng(0)
    x, y = stream.random((60, 4)) + shift, np.arange(60) % 3
    np.savez(path, x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    return path


def test_changed_data_is_one_line(tmp_path):
    data = {"kind": "npz", "path": str(npz(tmp_path / "data.npz"))}
    fields = {"data": data, "devices": 3, "batch_size": 4, "strategies": ZT, "iterations": 5}
    checks = checked(tmp_path / "run", **fields)
    assert named(checks[0])["same-run"].verdict == "held"
    npz(tmp_path / "data.npz", 1.0)
    with pytest.raises(efhc.InputError, match=r"^data: cannot use a changed .*. Use the file .*SHA-256 "):
        check_run(tmp_path / "run")
    (tmp_path / "data.npz").unlink()
    with pytest.raises(efhc.EfhcError, match=r"data\.npz"):
        check_run(tmp_path / "run")
