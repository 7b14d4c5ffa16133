from __future__ import annotations

import math

import independent_theory as own
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from efhc.core.schedules import Constant, Diminishing
from efhc.theory.bounds import nonconvex, recursion
from efhc.theory.bounds.recursion import Constants, error_bound

RELATIVE = 1e-10
MODEST = Constants(4, smoothness=2.0, convexity=0.0, diversity=0.7, noise=0.3, window=3, contraction=0.6)


def zero_or(least, most):
    return st.one_of(st.just(0.0), st.floats(least, most))


@st.composite
def numbers(draw):
    return own.Numbers(
        m=draw(st.integers(2, 30)),
        L=draw(st.floats(0.1, 20)),
        mu=None,
        delta=draw(zero_or(1e-3, 5)),
        sigma=draw(zero_or(1e-3, 5)),
        rho=draw(zero_or(1e-3, 0.97)),
        B=draw(st.integers(1, 8)),
        dependent=draw(st.booleans()),
    )


def ours(n):
    return Constants(n.m, n.L, 0.0, n.delta, n.sigma**2, n.B, n.rho, n.dependent)


# Conformance: nonconvex.py against what was written from the paper alone.


@settings(max_examples=40)
@given(
    numbers(),
    st.floats(0.01, 0.45),
    st.sampled_from([0, 0.5, 0.75, 1]),
    st.floats(0, 10),
    st.floats(0, 10),
    st.integers(0, 20),
)
def test_running_mean_bound_agrees_with_the_paper(n, share, power, loss_gap, start, k):
    first = share / n.L
    schedule = Diminishing(initial=first, timescale=5.0, power=power) if power else Constant(value=first)
    steps = np.array([schedule(r) for r in range(21)])
    found = nonconvex.running_mean_bound(ours(n), steps, loss_gap, start)
    assert found.shape == (21,)
    assert found[k] == pytest.approx(own.running_mean_bound(n, schedule, loss_gap, start, k), rel=RELATIVE)


@given(numbers(), st.floats(0.01, 1), st.floats(0, 10), st.floats(0, 10), st.integers(0, 1000))
def test_printed_forms_agree_with_the_paper(n, share, loss_gap, start, blocks):
    assert nonconvex.largest_step_size(ours(n)) == pytest.approx(own.nonconvex_limit(n), rel=RELATIVE)
    alpha = share * own.nonconvex_limit(n)
    weights = nonconvex.printed_weights(ours(n), alpha)
    assert weights == pytest.approx(own.printed_weights(n, alpha), rel=RELATIVE, abs=0)
    found = nonconvex.printed_bound(ours(n), alpha, blocks, loss_gap, start)
    assert found == pytest.approx(own.printed_bound(n, alpha, loss_gap, start, blocks), rel=RELATIVE, abs=0)


@given(numbers(), st.floats(0.01, 0.7), st.floats(0, 10), st.floats(0, 10), st.integers(0, 50))
def test_corrected_bound_has_the_factors_of_the_recursion_used(n, share, loss_gap, start, blocks):
    alpha = share * own.nonconvex_limit(n)
    found = nonconvex.corrected_bound(ours(n), alpha, blocks, loss_gap, start)
    assert found == pytest.approx(own.mended_bound(n, alpha, loss_gap, start, blocks), rel=RELATIVE, abs=0)


def test_running_mean_bound_by_hand():
    constants = Constants(2, smoothness=1.0, convexity=0.0, diversity=0.0, noise=2.0, window=1, contraction=0.0)
    # a11 = 0.1 * 0.4, a12 = 0.25 * 0.1 * 1.2, c1 = 0.5 * 0.01; e(1) = 0.66 * 3 + 2 * 0.01 * 2 * 2
    expected = [(5 + 0.03 * 3 + 0.005) / 0.04, (5 + 0.03 * (3 + 2.06) + 0.01) / 0.08]
    found = nonconvex.running_mean_bound(constants, np.full(2, 0.1), 5.0, 3.0)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


# Laws.


@given(numbers())
def test_the_limit_falls_with_window_smoothness_and_contraction(n):
    largest, constants = nonconvex.largest_step_size, ours(n)
    limit = largest(constants)
    assert 0 < limit < 1 / (2 * n.L)
    assert largest(constants._replace(window=n.B + 1)) < limit
    assert largest(constants._replace(smoothness=n.L * 1.01)) < limit
    assert largest(constants._replace(contraction=n.rho + 0.01)) < limit


@given(numbers())
def test_within_the_limit_the_consensus_errors_contract_for_every_strategy(n):
    limit = nonconvex.largest_step_size(ours(n))
    for dependent in (True, False):
        constants = ours(n)._replace(dependent=dependent)
        assert nonconvex.largest_step_size(constants) == limit
        assert limit <= recursion.largest_step_size(constants)
        assert recursion.block(constants, np.full(n.B, limit)).phi[1, 1] <= (3 + n.rho**2) / 4 * (1 + 1e-12)


@pytest.mark.parametrize("window", [1, 2000, 100_000])
def test_the_limit_for_large_windows_and_without_contraction(window):
    assert nonconvex.largest_step_size(MODEST._replace(contraction=1.0, window=window)) == 0
    limit = nonconvex.largest_step_size(MODEST._replace(window=window))
    assert 0 < limit < 1 if window == 1 else 0 <= limit < 1e-300


@given(numbers(), st.floats(0.01, 1))
def test_printed_weights_are_positive(n, share):
    w1, w2, w3, w4 = nonconvex.printed_weights(ours(n), share * nonconvex.largest_step_size(ours(n)))
    assert 3 / 8 <= w1 < 1 / 2
    assert w2 > 0
    assert (w3 > 0) == (n.delta > 0 or n.sigma > 0)
    assert (w4 > 0) == (n.sigma > 0)


@given(numbers(), st.floats(0, 10), st.floats(0, 10), st.floats(0.5, 2))
def test_running_mean_bound_grows_with_where_it_starts(n, loss_gap, start, more):
    steps = np.full(2 * n.B + 1, nonconvex.largest_step_size(ours(n)))
    least = nonconvex.running_mean_bound(ours(n), steps, loss_gap, start)
    assert np.isfinite(least).all()
    assert (least < nonconvex.running_mean_bound(ours(n), steps, loss_gap + more, start)).all()
    assert (least < nonconvex.running_mean_bound(ours(n), steps, loss_gap, start + more)).all()


@pytest.mark.parametrize("convexity", [0.0, 0.3, -1.0])
def test_running_mean_bound_needs_no_convexity(convexity):
    steps = np.full(30, nonconvex.largest_step_size(MODEST))
    found = nonconvex.running_mean_bound(MODEST._replace(convexity=convexity), steps, 1.0, 2.0)
    np.testing.assert_array_equal(found, nonconvex.running_mean_bound(MODEST, steps, 1.0, 2.0))


def test_running_mean_bound_is_infinite_after_too_large_a_step():
    steps = np.full(12, 0.001)
    steps[4] = 1 / (2 * MODEST.smoothness)
    found = nonconvex.running_mean_bound(MODEST, steps, 1.0, 1.0)
    assert np.isfinite(found[:4]).all()
    assert np.isposinf(found[4:]).all()


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_running_mean_bound_is_infinite_without_contraction(start):
    found = nonconvex.running_mean_bound(MODEST._replace(contraction=1.0), np.full(10, 0.01), 1.0, start)
    assert np.isfinite(found[:3]).all()
    assert np.isposinf(found[3:]).all()


def test_running_mean_bound_overflows_to_infinity():
    found = nonconvex.running_mean_bound(MODEST, np.full(3000, 0.2), 1.0, 1.0)
    assert not np.isnan(found).any()
    assert found[-1] == math.inf


@given(numbers(), st.floats(0.01, 1 / math.sqrt(2)), st.floats(0, 10), st.floats(0, 10), st.integers(0, 1000))
def test_corrected_bound_is_above_the_printed_one_after_many_blocks(n, share, loss_gap, start, more):
    alpha = min(1.0, share * nonconvex.largest_step_size(ours(n)))
    blocks = math.ceil(1 / alpha) + more
    corrected = nonconvex.corrected_bound(ours(n), alpha, blocks, loss_gap, start)
    assert corrected < math.inf
    assert corrected >= nonconvex.printed_bound(ours(n), alpha, blocks, loss_gap, start) * (1 - 1e-12)


@settings(max_examples=40)
@example(own.Numbers(m=2, L=1.0, mu=None, delta=0.0, sigma=1.0, rho=0.0, B=1), 0.01, 0.0, 0.0, 0)  # noise alone
@given(numbers(), st.floats(0.01, 1 / math.sqrt(2)), st.floats(0, 10), st.floats(0, 10), st.integers(0, 8))
def test_corrected_bound_sums_the_appendix_own_lemmas(n, share, loss_gap, start, blocks):
    """lemma:conconvex_consensus within blocks, lemma:B with the factors of lemma:kplusB over them: never above it."""
    _, on_gradients, on_noise = own.young(n)
    alpha = share * own.nonconvex_limit(n)
    a22, c2 = 2 * (1 + 8 * alpha**2 * n.L**2), n.m * alpha**2 * (16 * n.delta**2 + n.sigma**2)
    total, at_start = 0.0, start
    for b in range(blocks + 1):
        within, errors = [1.0, 0.0], []
        phi22, psi2 = (1 + n.rho**2) / 2, on_noise * n.m * n.B**2 * n.sigma**2 * alpha**2
        for _ in range(n.B):
            errors.append(within[0] * at_start + within[1])
            phi22 += 8 * on_gradients * n.B * n.L**2 * alpha**2 * within[0]
            psi2 += 8 * on_gradients * n.B * alpha**2 * (n.m * n.delta**2 + n.L**2 * within[1])
            within = [a22 * within[0], a22 * within[1] + c2]
        assert phi22 <= (3 + n.rho**2) / 4 * (1 + 1e-12)
        total += sum(errors if b < blocks else errors[:1])
        at_start = phi22 * at_start + psi2
    iterations = blocks * n.B + 1
    summed = loss_gap + own.loss_a12(n, alpha) * total + iterations * own.loss_c1(n, alpha)
    exact = summed / (iterations * own.loss_a11(n, alpha))
    assert exact <= nonconvex.corrected_bound(ours(n), alpha, blocks, loss_gap, start) * (1 + 1e-12)


# The printed theorem is no bound: two devices with losses h_i log cosh(w - c_i), no noise, B = 1. Both gradients are
# bounded, so that delta is finite, as the theorem assumes. The numbers stand in docs/errata.md.

HEIGHTS, CENTRES, EXCHANGED = (1.0, 0.1), (0.0, 1.0), 0.25
DIVERSITY, STEP_SIZE, BLOCKS = 0.45, 0.0543, 100_000


def local_gradients(w):
    return tuple(h * math.tanh(w - c) for h, c in zip(HEIGHTS, CENTRES, strict=True))


def counterexample():
    """The running means of ||grad F(w_bar(k))||^2 for k = 0 .. K, from w* on both devices."""
    first = second = brentq(lambda w: sum(local_gradients(w)), 0.0, 1.0, xtol=1e-15)
    squares = np.empty(BLOCKS + 1)
    for k in range(BLOCKS + 1):
        squares[k] = (sum(local_gradients((first + second) / 2)) / 2) ** 2
        exchanged = EXCHANGED * (second - first)
        pull = local_gradients(first)[0], local_gradients(second)[1]
        first, second = first + exchanged - STEP_SIZE * pull[0], second - exchanged - STEP_SIZE * pull[1]
    return squares.cumsum() / np.arange(1, BLOCKS + 2)


def test_the_counterexample_meets_the_assumptions_of_the_theorem():
    w = np.concatenate([np.linspace(-5, 5, 100_001), [-1e3, 1e3]])
    one, other = (h * np.tanh(w - c) for h, c in zip(HEIGHTS, CENTRES, strict=True))
    apart = np.abs(one - other) / 2  # of each device's gradient from their mean
    assert apart.max() == pytest.approx(DIVERSITY, rel=1e-12)
    curvature = [np.diff(g[:-2]) / np.diff(w[:-2]) for g in (one, other)]
    assert np.max(curvature) == pytest.approx(1, abs=1e-6)  # L = max_i h_i
    constants = Constants(2, 1.0, 0.0, DIVERSITY, 0.0, window=1, contraction=1 - 2 * EXCHANGED)
    assert nonconvex.largest_step_size(constants) == pytest.approx(0.0776, abs=5e-5)
    assert nonconvex.largest_step_size(constants) / math.sqrt(2) > STEP_SIZE


def test_the_printed_theorem_is_no_bound():
    constants = Constants(2, 1.0, 0.0, DIVERSITY, 0.0, window=1, contraction=1 - 2 * EXCHANGED)
    measured = counterexample()
    printed = nonconvex.printed_bound(constants, STEP_SIZE, BLOCKS, 0.0, 0.0)
    assert measured[-1] == pytest.approx(1.377e-5, abs=5e-9)
    assert printed == pytest.approx(1.097e-5, abs=5e-9)
    # The printed bound falls like 1/K to 0, while the gradient at the mean model does not.
    assert nonconvex.printed_bound(constants, STEP_SIZE, 2 * BLOCKS, 0.0, 0.0) == pytest.approx(printed / 2, rel=1e-4)
    assert measured[-1] > measured[BLOCKS // 2]
    # What is computed in its place is a bound.
    promised = nonconvex.running_mean_bound(constants, np.full(10_000, STEP_SIZE), 0.0, 0.0)
    assert (measured[:10_000] <= promised).all()
    for blocks in (0, 1, 10, 1000, BLOCKS):
        assert measured[blocks] <= nonconvex.corrected_bound(constants, STEP_SIZE, blocks, 0.0, 0.0)


def test_the_discussion_of_the_printed_theorem_falls_with_its_last_term():
    """For alpha proportional to 1/sqrt(KB) the gap falls like 1/sqrt(K), not 1/K; for constant alpha it is O(alpha)."""
    constants = Constants(2, 1.0, 0.0, 0.1, 1.0, window=2, contraction=0.5)
    largest = nonconvex.largest_step_size(constants) / math.sqrt(2)

    def gap(alpha, blocks):
        return nonconvex.corrected_bound(constants, alpha, blocks, 0.0, 0.0)

    few, many = (gap(largest * math.sqrt(10**9 / K), K) for K in (10**17, 10**19))
    assert few / many == pytest.approx(10, rel=0.05)
    assert gap(1e-6, 10**20) / gap(1e-7, 10**20) == pytest.approx(10, rel=0.05)
    silent = constants._replace(noise=0.0)
    without_noise = [nonconvex.corrected_bound(silent, alpha, 10**20, 0.0, 0.0) for alpha in (1e-6, 1e-7)]
    assert without_noise[0] / without_noise[1] == pytest.approx(100, rel=0.05)


# The others are: F_i(w) = a_i sum_j cos(w_j - c_ij), three devices whose two links are used in turn, with noise.


@pytest.mark.parametrize(("noise", "schedule"), [(0.5, "constant"), (0.0, "constant"), (0.5, "diminishing")])
def test_the_bounds_are_bounds(noise, schedule):
    random, repetitions, n, B = np.random.default_rng(5), 200, 2, 2
    heights, centres, start = np.array([1.0, 0.4, 0.7]), random.normal(size=(3, n)), random.normal(size=(3, n))
    first, second = np.eye(3), np.eye(3)
    first[:2, :2] = second[1:, 1:] = 0.5
    rho = max(np.linalg.norm(product - 1 / 3, 2) for product in (second @ first, first @ second))
    # coordinates are alike and apart: delta_i^2 is a sum over them of what is largest on one period
    waves = heights[:, None] * np.exp(-1j * centres)
    apart = np.abs(waves - waves.mean(axis=0))
    depth = np.abs(waves.mean(axis=0)).sum()
    delta = float(np.linalg.norm(apart, axis=1).max())
    constants = Constants(3, 1.0, 0.0, delta, noise, window=B, contraction=float(rho))
    assert 0.4 < rho < 0.9

    alpha = 0.7 * nonconvex.largest_step_size(constants)
    steps = np.full(1001, alpha)
    if schedule == "diminishing":
        steps = alpha / np.sqrt(1 + np.arange(1001) / 50)
    models = np.broadcast_to(start, (repetitions, 3, n))
    squares = []
    for k, step in enumerate(steps):
        mean = models.mean(axis=1)
        at_mean = -(heights[:, None] * np.sin(mean[:, None] - centres)).mean(axis=1)
        squares.append((at_mean**2).sum(axis=1).mean())
        gradients = -heights[:, None] * np.sin(models - centres)
        gradients = gradients + random.normal(scale=math.sqrt(noise / n), size=models.shape)
        models = (first, second)[k % B] @ models - step * gradients
    measured = np.cumsum(squares) / np.arange(1, len(steps) + 1)

    at_start = start.mean(axis=0)
    loss_gap = float((heights[:, None] * np.cos(at_start - centres)).sum(axis=1).mean() + depth)
    consensus = float(((start - at_start) ** 2).sum())
    assert (measured <= nonconvex.running_mean_bound(constants, steps, loss_gap, consensus)).all()
    if schedule == "constant":
        blocks = np.arange(len(steps) // B + 1)
        corrected = [nonconvex.corrected_bound(constants, alpha, int(K), loss_gap, consensus) for K in blocks]
        assert (measured[blocks * B] <= corrected).all()
        assert np.isfinite(corrected).all()


def test_running_mean_bound_takes_the_consensus_errors_of_the_convex_part():
    steps = np.full(9, 0.01)
    m, L, sigma2 = MODEST.devices, MODEST.smoothness, MODEST.noise
    errors = error_bound(MODEST, steps, np.array([0.0, 2.0]))[:-1, 1]
    sums = np.cumsum(L**2 / (2 * m) * 0.01 * (1 + 2 * L * 0.01) * errors + L / 2 * 0.01**2 * sigma2 / m)
    expected = (1.0 + sums) / (np.arange(1, 10) * 0.01 * (0.5 - L * 0.01))
    np.testing.assert_allclose(nonconvex.running_mean_bound(MODEST, steps, 1.0, 2.0), expected, rtol=1e-12)


def test_without_curvature_every_step_is_small_enough():
    flat = MODEST._replace(smoothness=0.0)
    assert nonconvex.largest_step_size(flat) == math.inf
    assert not np.isnan(nonconvex.running_mean_bound(flat, np.full(7, 0.1), 1.0, 2.0)).any()
    # where losses are alike too: 2 (F(w_bar(0)) - F*) / (alpha (k+1))
    found = nonconvex.running_mean_bound(flat._replace(diversity=0.0), np.full(7, 0.1), 1.0, 2.0)
    np.testing.assert_allclose(found, 20 / np.arange(1, 8), rtol=1e-12)
