from __future__ import annotations

import math

import independent_theory as own
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efhc.core.schedules import Constant, Diminishing
from efhc.theory import bounds
from efhc.theory.bounds import Constants
from tests.theory.drawn import numbers, ours

RELATIVE = 1e-10
MODEST = Constants(
    4, smoothness=2.0, convexity=0.5, diversity=0.7, noise=0.3, window=3, contraction=0.6, dependent=False
)


def schedule_from(initial, power, timescale):
    return Constant(value=initial) if power == 0 else Diminishing(initial=initial, timescale=timescale, power=power)


schedules = st.builds(
    schedule_from, st.floats(0.1, 1), st.sampled_from([0, 0.5, 0.75, 1]), st.sampled_from([0.5, 1.0, 10.0])
)
"""alpha(0) = 0.1 .. 1, to be multiplied with a limit."""


def scaled(schedule, factor):
    return lambda k: factor * schedule(k)


def array(steps, count, first=0):
    return np.array([steps(k) for k in range(first, first + count)])


# Conformance: bounds.py against what was written from the paper alone.


@given(numbers(), st.floats(1e-4, 0.99))
def test_one_step_agrees_with_the_paper(n, share):
    alpha = share / n.L
    step = bounds.one_step(ours(n), alpha)
    expected = [f(n, alpha) for f in (own.a11, own.a12, own.a22, own.c1, own.c2)]
    assert step == pytest.approx(expected, rel=RELATIVE, abs=0)


@settings(max_examples=60)
@given(numbers(), schedules, st.sampled_from(["within", "beyond"]), st.integers(0, 5))
def test_block_agrees_with_the_paper(n, schedule, where, b):
    steps = scaled(schedule, own.constant_limit(n) if where == "within" else 0.9 / n.L)
    found = bounds.block(ours(n), array(steps, n.B, b * n.B))
    phi, psi = own.block(n, steps, b)
    np.testing.assert_allclose(found.phi, phi, rtol=RELATIVE, atol=0)
    np.testing.assert_allclose(found.psi, psi, rtol=RELATIVE, atol=0)
    assert found.spectral_radius == pytest.approx(own.spectral_radius(n, steps, b), rel=RELATIVE)


@settings(max_examples=40)
@given(numbers(), schedules, st.sampled_from(["within", "beyond"]), st.floats(0, 10), st.floats(0, 10))
def test_error_bound_agrees_with_the_paper(n, schedule, where, optimisation, consensus):
    steps = scaled(schedule, own.constant_limit(n) if where == "within" else 0.9 / n.L)
    found = bounds.error_bound(ours(n), array(steps, 3 * n.B), np.array([optimisation, consensus]))
    assert found.shape == (3 * n.B + 1, 2)
    for k in {0, 1, n.B - 1, n.B, n.B + 1, 2 * n.B - 1, 2 * n.B, 2 * n.B + 1, 3 * n.B - 1, 3 * n.B}:
        expected = own.xi(n, steps, (optimisation, consensus), k)
        np.testing.assert_allclose(found[k], expected, rtol=RELATIVE, atol=1e-300)


@given(numbers(), st.floats(0.3, 1))
def test_asymptotic_gap_agrees_with_the_paper(n, share):
    alpha = share * own.constant_limit(n)
    np.testing.assert_allclose(bounds.asymptotic_gap(ours(n), alpha), own.limit(n, alpha), rtol=RELATIVE, atol=0)


# Laws.


@given(numbers())
def test_at_the_limit_a_block_contracts(n):
    over_block = bounds.block(ours(n), np.full(n.B, bounds.largest_step_size(ours(n))))
    assert over_block.phi[1, 1] <= (3 + n.rho**2) / 4 * (1 + 1e-12)
    if n.B == 1:
        assert over_block.phi[1, 1] == pytest.approx((3 + n.rho**2) / 4, rel=1e-12)
    assert over_block.spectral_radius < 1


@pytest.mark.parametrize("window", [1, 3])
def test_asymptotic_gap_is_where_the_recursion_ends(window):
    constants = MODEST._replace(window=window)
    alpha = 0.8 * bounds.largest_step_size(constants)
    gap = bounds.asymptotic_gap(constants, alpha)
    reached = bounds.error_bound(constants, np.full(3000 * window, alpha), np.array([5.0, 7.0]))[-1]
    np.testing.assert_allclose(reached, gap, rtol=1e-6)
    over_block = bounds.block(constants, np.full(window, alpha))
    np.testing.assert_allclose(over_block.phi @ gap + over_block.psi, gap, rtol=1e-12)


def test_asymptotic_gap_is_infinite_without_contraction():
    for alpha in (0.2, 1.0, 2 / (MODEST.convexity + MODEST.smoothness), 10.0):
        assert bounds.block(MODEST, np.full(3, alpha)).spectral_radius >= 1
        assert np.isposinf(bounds.asymptotic_gap(MODEST, alpha)).all()
    assert np.isposinf(bounds.asymptotic_gap(MODEST._replace(contraction=1.0), 1e-3)).all()
    assert np.isposinf(bounds.asymptotic_gap(MODEST._replace(convexity=0.0), 1e-3)).all()


@pytest.mark.parametrize("start", [(1.0, 2.0), (0.0, 0.0)])
@pytest.mark.parametrize("window", [1, 3])
def test_error_bound_is_infinite_without_contraction(window, start):
    constants = MODEST._replace(contraction=1.0, window=window)
    found = bounds.error_bound(constants, np.full(10, 0.01), np.array(start))
    assert not np.isnan(found).any()
    assert np.isfinite(found[:window]).all()
    assert np.isposinf(found[window:, 1]).all()
    assert np.isfinite(found[window, 0])  # from what the consensus error was before
    assert np.isposinf(found[window + 1 :, 0]).all()
    assert bounds.block(constants, np.full(window, 0.01)).spectral_radius == math.inf


def test_error_bound_without_convexity_speaks_of_the_consensus_error_only():
    steps = np.full(20, 0.5 * bounds.largest_step_size(MODEST))
    flat = bounds.error_bound(MODEST._replace(convexity=0.0), steps, np.array([1.0, 2.0]))
    np.testing.assert_array_equal(flat[:, 1], bounds.error_bound(MODEST, steps, np.array([1.0, 2.0]))[:, 1])
    assert np.isposinf(flat[1:, 0]).all()


# The norm of Phi is not its spectral radius (docs/errata.md).


def test_the_norm_of_a_block_may_exceed_one_where_its_radius_does_not():
    constants = Constants(2, 10.0, 0.1, 0.0, 0.0, window=2, contraction=0.5, dependent=False)
    over_block = bounds.block(constants, np.full(2, bounds.largest_step_size(constants)))
    assert over_block.spectral_radius == pytest.approx(0.9992, abs=5e-5)
    assert np.linalg.norm(over_block.phi, 2) == pytest.approx(4.82, abs=5e-3)


# P that depends on the noise.


def test_dependent_blocks_by_hand():
    printed = Constants(2, smoothness=1.0, convexity=1.0, diversity=1.0, noise=0.5, window=2, contraction=0.5)
    printed = printed._replace(dependent=False)
    grown, c2 = 1.08 + 0.4 * math.sqrt(2), 0.05 + 0.1 * math.sqrt(2)
    # 2/(1 - rho^2) = 8/3 becomes 2 (1 + rho^2)/(1 - rho^2) = 10/3, and 2 B becomes 2 B 5/3
    for constants, on_gradients, on_noise in ((printed, 8 / 3, 1.0), (printed._replace(dependent=True), 10 / 3, 5 / 3)):
        two = bounds.block(constants, np.full(2, 0.1))
        assert two.phi[1, 1] == pytest.approx(0.625 + 8 * on_gradients * 2 * 0.01 * (1 + grown), rel=1e-13)
        gradients = 0.01 * (2 + 2 + 4 * c2)
        assert two.psi[1] == pytest.approx(
            2 * 2 * (on_gradients * gradients + on_noise * 2 * 0.01 * 0.5 * 2), rel=1e-13
        )


@given(numbers(), st.floats(0.05, 1))
def test_what_changes_if_the_mixing_depends_on_the_noise(n, share):
    loose, tight = (ours(n)._replace(dependent=dependent) for dependent in (True, False))
    alpha = share * bounds.largest_step_size(loose)
    dependent, independent = (bounds.block(constants, np.full(n.B, alpha)) for constants in (loose, tight))
    np.testing.assert_array_equal(dependent.phi[0], independent.phi[0])
    assert dependent.psi[0] == independent.psi[0]
    assert dependent.phi[1, 1] >= independent.phi[1, 1] * (1 - 1e-12)
    assert dependent.psi[1] >= independent.psi[1] * (1 - 1e-12)
    for largest in (bounds.largest_step_size, bounds.largest_diminishing_step_size):
        assert largest(tight) / math.sqrt(2) <= largest(loose) * (1 + 1e-12) <= largest(tight) * (1 + 1e-11)
    if n.B == 1:  # no P after the noise that it could depend on
        np.testing.assert_array_equal(dependent.phi, independent.phi)
        np.testing.assert_array_equal(dependent.psi, independent.psi)
        assert bounds.largest_step_size(loose) == bounds.largest_step_size(tight)


def link(i, j, m, weight=0.5):
    P = np.eye(m)
    P[np.ix_([i, j], [i, j])] = [[1 - weight, weight], [weight, 1 - weight]]
    return P


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(1, 6), st.floats(0.01, 10))
def test_the_dependent_step_holds_for_every_outcome(seed, m, B, size):
    """Whatever the noise, even chosen after the P: ||D - G - N||^2 under its bound, which holds no expectation."""
    random = np.random.default_rng(seed)
    Ps = [link(*random.choice(m, 2, replace=False), m) for _ in range(B)]
    product = np.eye(m)
    for P in Ps:
        product = P @ product
    rho = min(float(np.linalg.norm(product - 1 / m, 2)), 1.0)
    if rho > 0.999:
        return
    W, alphas = random.normal(size=(m, 2)), random.uniform(0.1, 1, B)
    gradients, noise = (size * random.normal(size=(B, m, 2)) for _ in range(2))
    noise[0] = -size * (product @ W) * random.uniform(0, 2)  # along D, where it hurts most
    after = W
    for P, alpha, g, e in zip(Ps, alphas, gradients, noise, strict=True):
        after = P @ after - alpha * (g + e)

    def spread(X):
        return float(((X - X.mean(axis=0)) ** 2).sum())

    sums = sum(a**2 * (spread(g) + spread(e)) for a, g, e in zip(alphas, gradients, noise, strict=True))
    factor = 2 * (1 + rho**2) / (1 - rho**2)
    assert spread(after) <= ((1 + rho**2) / 2 * spread(W) + factor * B * sums) * (1 + 1e-9)


# Without curvature: L = 0.

FLAT = MODEST._replace(smoothness=0.0, convexity=0.0)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("diversity", [0.0, 0.7])
@pytest.mark.parametrize("start", [(1.0, 2.0), (0.0, 0.0)])
def test_error_bound_without_curvature(start, diversity, window):
    constants = FLAT._replace(diversity=diversity, window=window)
    found = bounds.error_bound(constants, np.full(7, 0.1), np.array(start))
    assert found[0].tolist() == list(start)
    assert not np.isnan(found).any()
    assert np.isposinf(found[1:, 0]).all()  # there is no single w*
    assert np.isposinf(bounds.asymptotic_gap(constants, 0.1)).all()
    if diversity and window > 1:
        assert np.isposinf(found[1:window, 1]).all()
        return
    # (1 + rho^2)/2, and 2 B sum alpha^2 m (2 delta^2 / (1 - rho^2) + sigma^2), at every B; else 1 and m alpha^2 sigma^2
    expected = at_block = start[1]
    for k in range(1, 8):
        expected += 4 * 0.01 * 0.3
        if k % window == 0:
            added = 2 * window * window * 0.01 * 4 * (2 * diversity**2 / 0.64 + 0.3)
            expected = at_block = 0.68 * at_block + added
        assert found[k, 1] == pytest.approx(expected, rel=1e-12)


# It is a bound.

REPETITIONS = 200
PAIRS = ([(0, 1), (2, 3)], [(1, 2)])
"""A path of 4 devices whose links are used in turn: B = 2."""


def averaging(pairs):
    P = np.eye(4)
    for i, j in pairs:
        P[np.ix_([i, j], [i, j])] = 0.5
    return P


def descend(centres, steepness, noise, steps, start, seed):
    """Mean Xi(k) over repetitions of W <- P W - alpha (grad + noise), F_i(w) = steepness/2 ||w - c_i||^2."""
    random = np.random.default_rng(seed)
    transitions = [averaging(pairs) for pairs in PAIRS]
    m, n = centres.shape
    models = np.broadcast_to(start, (REPETITIONS, m, n))
    errors = []
    for k in range(len(steps) + 1):
        mean = models.mean(axis=1)
        optimisation = ((mean - centres.mean(axis=0)) ** 2).sum(axis=1)
        consensus = ((models - mean[:, None]) ** 2).sum(axis=(1, 2))
        errors.append([optimisation.mean(), consensus.mean()])
        if k < len(steps):
            gradients = steepness * (models - centres) + random.normal(scale=math.sqrt(noise / n), size=models.shape)
            models = transitions[k % 2] @ models - steps[k] * gradients
    return np.array(errors)


@pytest.mark.parametrize("power", [0, 0.5, 0.75, 1])
@pytest.mark.parametrize(("spread", "noise"), [(1.0, 1.0), (0.0, 2.0), (3.0, 0.0), (0.0, 0.0)])
def test_the_bound_is_a_bound(power, spread, noise):
    random = np.random.default_rng(3)
    centres, start, steepness = spread * random.normal(size=(4, 3)), random.normal(size=(4, 3)) + 2, 1.5
    first, second = (averaging(pairs) for pairs in PAIRS)
    both_ways = (second @ first - 0.25, first @ second - 0.25)
    constants = Constants(
        devices=4,
        smoothness=steepness,
        convexity=steepness,
        diversity=steepness * float(np.linalg.norm(centres - centres.mean(axis=0), axis=1).max()),
        noise=noise,
        window=2,
        contraction=float(max(np.linalg.norm(product, 2) for product in both_ways)),
    )
    assert 0.5 < constants.contraction < 0.95
    steps = array(schedule_from(bounds.largest_step_size(constants), power, 20.0), 400)
    measured = descend(centres, steepness, noise, steps, start, seed=1)
    promised = bounds.error_bound(constants, steps, measured[0])
    assert (measured <= promised * (1 + 1e-12)).all()
    assert (measured[-1] < measured[0]).all()
    if power == 0 and (spread or noise):
        assert (measured[-1] <= bounds.asymptotic_gap(constants, steps[0])).all()


# It is a bound where P depends on the noise: two devices, which average at every other iteration. At the iterations
# between, an adversary makes their models equal if the noise has just moved their models together, and not if it has
# moved them apart. Every two iterations average once: B = 2.

AVERAGE, TOGETHER, APART = link(0, 1, 2, 0.1), link(0, 1, 2, 0.5), np.eye(2)


def adversary(models, before):
    """P of an iteration between two averages; `before` are the models at the iteration before."""
    return APART if spread_of(models) > spread_of(AVERAGE @ before) else TOGETHER


def indifferent(models, before):
    return APART


def spread_of(models):
    return ((models - models.mean(axis=0)) ** 2).sum()


def run_against(choose, repetitions, steps, noise):
    """(mean Xi(k), <D, N> of every block and repetition) for F_i(w) = w^2 / 2."""
    random = np.random.default_rng(11)
    errors, products = np.zeros((len(steps) + 1, 2)), []
    for _ in range(repetitions):
        models = np.array([[0.4], [-0.2]])
        for k, alpha in enumerate(steps):
            errors[k] += models.mean() ** 2, spread_of(models)
            drawn = random.normal(scale=math.sqrt(noise), size=(2, 1))
            if k % 2 == 0:
                before, first = models, drawn
                models = AVERAGE @ models - alpha * (models + drawn)
            else:
                P = choose(models, before)
                D, N = P @ AVERAGE @ before, -alpha * (P @ first + drawn)
                products.append(float(((D - D.mean()) * (N - N.mean())).sum()))
                models = P @ models - alpha * (models + drawn)
        errors[-1] += models.mean() ** 2, spread_of(models)
    return errors / repetitions, np.array(products)


@pytest.mark.parametrize("choose", [adversary, indifferent])
def test_the_dependent_bound_is_a_bound_against_an_adversary(choose):
    noise, rho = 4.0, 0.8  # 1 - 2 * 0.1: one average
    constants = Constants(2, 1.0, 1.0, 0.0, noise, 2, rho, dependent=choose is adversary)
    steps = np.full(60, bounds.largest_step_size(constants))
    measured, products = run_against(choose, 200, steps, noise)
    assert (measured <= bounds.error_bound(constants, steps, measured[0]) * (1 + 1e-12)).all()
    # The paper's proof drops E<D, N> as 0. It is 0 only where P does not depend on the noise.
    deviations = products.mean() / (products.std() / math.sqrt(len(products)))
    assert deviations > 10 if choose is adversary else abs(deviations) < 3


# Where there is no bound, of both kinds.


def errors_and_running_mean(steps):
    """The bounds on the optimisation error, on the consensus error and on the running mean of squared gradients."""
    errors = bounds.error_bound(MODEST, steps, np.ones(2))
    return errors[1:, 0], errors[1:, 1], bounds.running_mean_bound(MODEST, steps, 1.0, 1.0)


def test_bounds_overflow_to_infinity():
    for found in errors_and_running_mean(np.full(3000, 0.7)):
        assert not np.isnan(found).any()
        assert np.isposinf(found[-1])


@pytest.mark.parametrize(
    ("which", "edge"), [(0, 2 / (MODEST.convexity + MODEST.smoothness)), (2, 1 / (2 * MODEST.smoothness))]
)
def test_bounds_are_infinite_after_too_large_a_step(which, edge):
    steps = np.full(12, 0.001)
    steps[4] = edge
    found = errors_and_running_mean(steps)
    assert np.isfinite(found[which][:4]).all()
    assert np.isposinf(found[which][4:]).all()
    assert np.isfinite(found[1]).all()  # which needs no convexity
    steps[4] = np.nextafter(edge, 0)
    assert np.isfinite(errors_and_running_mean(steps)[which]).all()
