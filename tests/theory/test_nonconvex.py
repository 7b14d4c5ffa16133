from __future__ import annotations

import math

import independent_theory as own
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from efhc.core.schedules import Constant, Diminishing
from efhc.theory import bounds
from efhc.theory.bounds import Constants
from tests.theory.drawn import numbers, ours

RELATIVE = 1e-10
MODEST = Constants(4, smoothness=2.0, convexity=0.0, diversity=0.7, noise=0.3, window=3, contraction=0.6)


# Conformance: bounds.py against what was written from the paper alone.


@settings(max_examples=40)
@given(
    numbers(convex=False),
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
    found = bounds.running_mean_bound(ours(n), steps, loss_gap, start)
    assert found.shape == (21,)
    assert found[k] == pytest.approx(own.running_mean_bound(n, schedule, loss_gap, start, k), rel=RELATIVE)


@given(numbers(convex=False), st.floats(0.01, 1))
def test_printed_forms_agree_with_the_paper(n, share):
    alpha = share * own.nonconvex_limit(n)
    weights = bounds.printed_weights(ours(n), alpha)
    assert weights == pytest.approx(own.printed_weights(n, alpha), rel=RELATIVE, abs=0)


# Laws.


@given(numbers(convex=False))
def test_within_the_limit_the_consensus_errors_contract_for_every_strategy(n):
    limit = bounds.largest_nonconvex_step_size(ours(n))
    for dependent in (True, False):
        constants = ours(n)._replace(dependent=dependent)
        assert bounds.largest_nonconvex_step_size(constants) == limit
        assert limit <= bounds.largest_step_size(constants)
        assert bounds.block(constants, np.full(n.B, limit)).phi[1, 1] <= (3 + n.rho**2) / 4 * (1 + 1e-12)


@pytest.mark.parametrize("window", [1, 2000, 100_000])
def test_the_limit_for_large_windows(window):
    limit = bounds.largest_nonconvex_step_size(MODEST._replace(window=window))
    assert 0 < limit < 1 if window == 1 else 0 <= limit < 1e-300


@pytest.mark.parametrize("convexity", [0.0, 0.3, -1.0])
def test_running_mean_bound_needs_no_convexity(convexity):
    steps = np.full(30, bounds.largest_nonconvex_step_size(MODEST))
    found = bounds.running_mean_bound(MODEST._replace(convexity=convexity), steps, 1.0, 2.0)
    np.testing.assert_array_equal(found, bounds.running_mean_bound(MODEST, steps, 1.0, 2.0))


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_running_mean_bound_is_infinite_without_contraction(start):
    found = bounds.running_mean_bound(MODEST._replace(contraction=1.0), np.full(10, 0.01), 1.0, start)
    assert np.isfinite(found[:3]).all()
    assert np.isposinf(found[3:]).all()


@settings(max_examples=40)
@example(own.Numbers(m=2, L=1.0, mu=None, delta=0.0, sigma=1.0, rho=0.0, B=1), 0.01, 0.0, 0.0, 0)  # noise alone
@given(numbers(convex=False), st.floats(0.01, 1 / math.sqrt(2)), st.floats(0, 10), st.floats(0, 10), st.integers(0, 8))
def test_the_mended_bound_sums_the_appendix_own_lemmas(n, share, loss_gap, start, blocks):
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
    assert exact <= own.mended_bound(n, alpha, loss_gap, start, blocks) * (1 + 1e-12)


# The printed theorem is no bound: two devices with losses h_i log cosh(w - c_i), no noise, B = 1. Both gradients are
# bounded, so that delta is finite, as the theorem assumes. The numbers stand in docs/errata.md.

HEIGHTS, CENTRES, EXCHANGED = (1.0, 0.1), (0.0, 1.0), 0.25
DIVERSITY, STEP_SIZE, BLOCKS = 0.45, 0.0543, 100_000
COUNTEREXAMPLE = own.Numbers(m=2, L=1.0, mu=None, delta=DIVERSITY, sigma=0.0, rho=1 - 2 * EXCHANGED, B=1)


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
    assert bounds.largest_nonconvex_step_size(ours(COUNTEREXAMPLE)) == pytest.approx(0.0776, abs=5e-5)
    assert bounds.largest_nonconvex_step_size(ours(COUNTEREXAMPLE)) / math.sqrt(2) > STEP_SIZE


def test_the_printed_theorem_is_no_bound():
    measured, n, constants = counterexample(), COUNTEREXAMPLE, ours(COUNTEREXAMPLE)
    printed = own.printed_bound(n, STEP_SIZE, 0.0, 0.0, BLOCKS)
    assert measured[-1] == pytest.approx(1.377e-5, abs=5e-9)
    assert printed == pytest.approx(1.097e-5, abs=5e-9)
    # The printed bound falls like 1/K to 0, while the gradient at the mean model does not.
    assert own.printed_bound(n, STEP_SIZE, 0.0, 0.0, 2 * BLOCKS) == pytest.approx(printed / 2, rel=1e-4)
    assert measured[-1] > measured[BLOCKS // 2]
    # What is computed in its place is a bound.
    promised = bounds.running_mean_bound(constants, np.full(10_000, STEP_SIZE), 0.0, 0.0)
    assert (measured[:10_000] <= promised).all()
    for blocks in (0, 1, 10, 1000, BLOCKS):
        assert measured[blocks] <= own.mended_bound(n, STEP_SIZE, 0.0, 0.0, blocks)


def test_the_discussion_of_the_printed_theorem_falls_with_its_last_term():
    """For alpha proportional to 1/sqrt(KB) the gap falls like 1/sqrt(K), not 1/K; for constant alpha it is O(alpha)."""

    def gap(alpha, blocks, sigma=1.0):
        n = own.Numbers(m=2, L=1.0, mu=None, delta=0.1, sigma=sigma, rho=0.5, B=2, dependent=True)
        return own.mended_bound(n, alpha, 0.0, 0.0, blocks)

    few, many = (gap(1e-3 * math.sqrt(10**9 / K), K) for K in (10**17, 10**19))
    assert few / many == pytest.approx(10, rel=0.05)
    assert gap(1e-6, 10**20) / gap(1e-7, 10**20) == pytest.approx(10, rel=0.05)
    assert gap(1e-6, 10**20, 0.0) / gap(1e-7, 10**20, 0.0) == pytest.approx(100, rel=0.05)


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

    alpha = 0.7 * bounds.largest_nonconvex_step_size(constants)
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
    assert (measured <= bounds.running_mean_bound(constants, steps, loss_gap, consensus)).all()


def test_running_mean_bound_without_curvature():
    flat = MODEST._replace(smoothness=0.0)
    assert not np.isnan(bounds.running_mean_bound(flat, np.full(7, 0.1), 1.0, 2.0)).any()
    # where losses are alike too: 2 (F(w_bar(0)) - F*) / (alpha (k+1))
    found = bounds.running_mean_bound(flat._replace(diversity=0.0), np.full(7, 0.1), 1.0, 2.0)
    np.testing.assert_allclose(found, 20 / np.arange(1, 8), rtol=1e-12)
