# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Compiled loops of `core.law`: what `core.arithmetic` and `core.local_steps` say, in few passes over memory.

    descend_rows   u - h of `SGD` and `QuasiGlobalMomentum`
    pull_rows      x' = y + f,  h' = h + sum_t l_t d_t,  m' = m - (1 - mu) f / alpha,  where f = sum_t d_t

Every operation is made as it is written, in the precision of the models, so the bits are those of NumPy, whatever the
loop is called with. An array that is not used has no rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from efhc.base.compiling import as_written
from efhc.kernels.model_loops import drift_of

TILE = 1024
"""Columns that stay in the fastest cache while the terms of a row are added up."""


class Held(NamedTuple):
    """What devices hold, (rows, n); arrays without rows where there is none."""

    models: Any
    momentum: Any
    correction: Any


class LoopTerms(NamedTuple):
    """`core.arithmetic.Places` and `Terms` in the form that the loops take."""

    device: Any
    plus: Any
    minus: Any
    is_newer: Any
    message: Any
    link: Any
    starts: Any
    weights: Any
    learning: Any


@as_written
def descend_rows(held, gradients, next_m, mus, mu, rest, low, high):
    """gradients[i] = u_i - h_i; next_m = mu m + (1 - mu)(u - h), rest: 1 - mu."""
    has_m, has_h = len(held.momentum) > 0, len(held.correction) > 0
    for i in range(low, high):
        g = gradients[i]
        if has_m:
            m, m_out, mu_i = held.momentum[i], next_m[i], mus[i]
            for t in range(len(g)):
                g[t] = g[t] + mu_i * m[t]
        if has_h:
            h = held.correction[i]
            for t in range(len(g)):
                g[t] = g[t] - h[t]
        if has_m:
            for t in range(len(g)):
                m_out[t] = mu * m[t] + rest * g[t]


@as_written
def drift_known(models, who, known, drifts, low, high):
    """drifts[r] = (1/n)^(1/2) ||models[who[r]] - known[r]||_2"""
    for r in range(low, high):
        drifts[r] = drift_of(models, who[r], known, r)


@as_written
def copy_chosen(source, target, chosen, low, high):
    """target[r] = source[r] where chosen[r]"""
    for r in range(low, high):
        if chosen[r]:
            row, out = source[r], target[r]
            for t in range(len(row)):
                out[t] = row[t]


@as_written
def add_step(weight, plus, minus, pull):
    """pull += weight (plus - minus)"""
    for t in range(len(pull)):
        pull[t] += weight * (plus[t] - minus[t])


@as_written
def add_step_and_learn(weight, learning, plus, minus, pull, learned):
    """d = weight (plus - minus); pull += d, learned += learning d"""
    for t in range(len(pull)):
        step = weight * (plus[t] - minus[t])
        pull[t] += step
        learned[t] += learning * step


@as_written
def learn(weight, learning, plus, minus, taught):
    """taught += learning weight (plus - minus)"""
    for t in range(len(taught)):
        step = weight * (plus[t] - minus[t])
        taught[t] += learning * step


@as_written
def add_terms(before, after, terms, i, left, right, has_h, pull, learned, taught):
    """pull = sum_t d_t, learned = sum_t l_t d_t over the terms of device i, in columns left .. right."""
    for t in range(right - left):
        pull[t] = 0
        learned[t] = 0
    for e in range(terms.starts[i], terms.starts[i + 1]):
        if terms.is_newer[e]:
            plus, minus = after[terms.plus[e], left:right], before[terms.minus[e], left:right]
        else:
            plus, minus = before[terms.plus[e], left:right], after[terms.minus[e], left:right]
        if has_h:
            add_step_and_learn(terms.weights[e], terms.learning[e], plus, minus, pull, learned)
        else:
            add_step(terms.weights[e], plus, minus, pull)
        if len(taught) > 0:
            learn(terms.weights[e], terms.learning[e], plus, minus, taught[terms.link[e], left:right])


@as_written
def pull_rows(before, after, terms, y, held, next_m, next_h, taught, shares, room, low, high):
    """y[i] += f_i; next_m = m - share_i f; next_h = h + what it learns; taught[link] += what the link teaches.

    `room` has two rows of a tile. `held` are momentum and correction after the local step.
    """
    parameters = y.shape[1]
    has_m, has_h = len(held.momentum) > 0, len(held.correction) > 0
    for i in range(low, high):
        for left in range(0, parameters, TILE):
            right = min(left + TILE, parameters)
            pull, learned = room[0, : right - left], room[1, : right - left]
            add_terms(before, after, terms, i, left, right, has_h, pull, learned, taught)
            out = y[i, left:right]
            for t in range(right - left):
                out[t] += pull[t]
            if has_h:
                h, h_out = held.correction[i, left:right], next_h[i, left:right]
                for t in range(right - left):
                    h_out[t] = h[t] + learned[t]
            if has_m:
                m, m_out, share = held.momentum[i, left:right], next_m[i, left:right], shares[i]
                for t in range(right - left):
                    m_out[t] = m[t] - share * pull[t]
