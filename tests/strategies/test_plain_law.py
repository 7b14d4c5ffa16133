"""The plain law itself: its exchange is Alg. 1, and its codecs do what their names say."""

from __future__ import annotations

import numpy as np
import plain_law as plain
from hypothesis import given
from hypothesis import strategies as st

from efhc.core.reference import reference_iteration

NUMBERS = st.floats(-10, 10).map(lambda number: round(number, 3))
VECTORS = st.lists(NUMBERS, min_size=1, max_size=12)


@st.composite
def neighbours(draw: st.DrawFn, m: int) -> list[set[int]]:
    sets: list[set[int]] = [set() for _ in range(m)]
    for i in range(m):
        for j in range(i):
            if draw(st.booleans()):
                sets[i].add(j)
                sets[j].add(i)
    return sets


@given(
    st.integers(1, 6).flatmap(lambda m: st.tuples(neighbours(m), neighbours(m))), st.integers(0, 99), st.floats(0, 2)
)
def test_an_exchange_is_the_iteration_of_the_paper(graphs, seed, threshold):
    before, now = graphs
    stream = np.random.default_rng(seed)
    models, broadcast, gradients = stream.normal(size=(3, len(now), 5))
    thresholds = (threshold * stream.random(len(now))).tolist()
    wanted = reference_iteration(list(models), list(broadcast), now, before, thresholds, lambda i, w: gradients[i], 0.3)
    devices = plain.begin(plain.Strategy(), models.tolist(), before, is_shared=False)
    devices.known = {(i, i): row.tolist() for i, row in enumerate(broadcast)}
    given_now = plain.Given(0, 0.3, now, before, gradients.tolist(), thresholds=thresholds)
    devices, done = plain.iterate(plain.Strategy(), devices, given_now)
    assert np.allclose(devices.models, wanted[0], rtol=0, atol=1e-12)
    assert np.allclose([devices.known[i, i] for i in range(len(now))], wanted[1], rtol=0, atol=0)
    assert (done.fired, done.used) == wanted[2:]


def test_a_hand_worked_iteration_with_estimates():
    """Two devices, one coordinate, alpha = 1/2, gamma = 1/2, w = 1/2: all numbers can be worked out on paper."""
    strategy = plain.Strategy("estimates", rate=0.5, momentum=0.5, correction=0.25, when="always")
    devices = plain.begin(strategy, [[1.0], [1.0]], [{1}, {0}], is_shared=True)
    both = [{1}, {0}]
    devices, done = plain.iterate(strategy, devices, plain.Given(0, 0.5, both, both, [[2.0], [-4.0]], fires={0}))
    # y = (0, 3); only device 0 sends, so x_hat = (0, 1) and f = 1/2 * 1/2 * (1, -1).
    assert devices.models == [[0.25], [2.75]]
    assert devices.known == {(0, 0): [0.0], (1, 1): [1.0]}
    assert devices.corrections == [[0.125], [-0.125]]  # theta f / alpha
    assert devices.momenta == [[0.75], [-1.75]]  # (1 - mu) (x before - x) / alpha
    assert done.bits == {(0, 1): 40, (1, 0): 0}
    devices, done = plain.iterate(strategy, devices, plain.Given(0, 0.5, both, both, [[0.0], [0.0]], fires=set()))
    # y = x - (mu m - h) / 2 = (0.25 - 0.125, 2.75 + 0.375); nothing is sent, and f is as before.
    assert devices.models == [[0.375], [2.875]]
    assert not any(done.bits.values())


def test_hand_worked_iterations_with_half_steps():
    """The same devices. A message of i is a step c (x_hat_j before - x_hat_i after), c = 1/2 * 1/2, and -c of j."""
    strategy = plain.Strategy("half-steps", rate=0.5, momentum=0.5, correction=0.25)
    both, nobody = [{1}, {0}], [set(), set()]
    devices = plain.begin(strategy, [[1.0], [1.0]], both, is_shared=True)
    devices, done = plain.iterate(strategy, devices, plain.Given(0, 0.5, both, both, [[2.0], [-4.0]], fires={0}))
    # y = (0, 3); only device 0 sends, so x_hat = (0, 1), and its step is 1/4 (1 - 0).
    assert devices.models == [[0.25], [2.75]]
    assert devices.known == {(0, 1): [0.0], (1, 0): [1.0]}
    assert devices.corrections == [[0.125], [-0.125]]  # theta d / alpha
    assert devices.momenta == [[0.75], [-1.75]]
    assert (devices.steps, done.used, done.bits) == ([1, 1], {(0, 1)}, {(0, 1): 40, (1, 0): 0})
    devices, _ = plain.iterate(strategy, devices, plain.Given(1, 0.5, both, both, [[0.0], [0.0]], fires={0, 1}))
    # y = (1/8, 25/8); f_0 = 1/4 ((1 - 1/8) + (25/8 - 0)) = 1. Device 1 has not sent for two steps: its l is half.
    assert devices.models == [[1.125], [2.125]]
    assert devices.corrections[0] == [0.125 + 0.25 * (0.21875 / 0.5 + 0.78125 / 1.0)]
    assert devices.corrections[1] == [-devices.corrections[0][0]]
    assert (devices.momenta, devices.steps) == ([[-0.5], [-0.25]], [2, 2])
    silent, done = plain.iterate(strategy, devices, plain.Given(2, 0.5, both, both, [[0.0], [0.0]], fires=set()))
    h = devices.corrections[0][0]
    assert (done.used, silent.steps) == (set(), [0, 0])
    assert silent.models == [[1.125 + 0.5 * (0.25 + h)], [2.125 + 0.5 * (0.125 - h)]]
    later, _ = plain.iterate(strategy, silent, plain.Given(3, 0.5, both, both, [[0.0], [0.0]], fires=set()))
    assert later.models[0] == [silent.models[0][0] + 0.5 * h]  # links were silent, so momentum does not count
    apart, _ = plain.iterate(strategy, devices, plain.Given(2, 0.5, nobody, both, [[0.0], [0.0]], fires={0, 1}))
    assert apart.corrections == [[0.0], [0.0]]  # the link has gone, and with it what it taught
    assert apart.models == [[1.25], [2.1875]]


def test_a_hand_worked_budget():
    """n = 1: a message has 40 bits, and a share of 1/2 earns 16 in each iteration."""
    strategy = plain.Strategy("estimates", budget=0.5)
    both = [{1}, {0}]
    devices = plain.begin(strategy, [[0.0], [0.0]], both, is_shared=True)
    fired = []
    for _ in range(6):
        devices, done = plain.iterate(strategy, devices, plain.Given(0, 0.1, both, both, [[1.0], [-1.0]], fires={0}))
        fired.append(bool(done.fired))
    assert fired == [False, False, True, False, True, False]  # 16, 32, 48 - 40 = 8, 24, 40 - 40 = 0, 16
    assert devices.credit == [16.0, 96.0]
