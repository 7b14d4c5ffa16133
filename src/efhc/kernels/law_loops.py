"""Compiled loops of `core.law`: what `core.law_arithmetic` says, in few passes over memory.

    descend_rows   y = x - alpha (mu m + g - h)
    drift_known    (1/n)^(1/2) ||w_i - w_hat||, for each row of what is known
    pull_rows      x' = y + f,  m' = mu m + (1 - mu)(x - x') / alpha,  h' = h + sum_e correction_e f_e

Each loop works on a range of rows that depends on nothing outside of it, so that the bits are the same for any number
of threads. An array that is not used has no rows.
"""

from __future__ import annotations

import numpy as np

from efhc.base.compiling import compiled

TILE = 1024
"""Columns that stay in the fastest cache while the terms of a row are added up."""


@compiled
def descend_rows(models, gradients, momentum, correction, mu, alpha, low, high):
    """gradients[i] = x_i - alpha (mu m_i + g_i - h_i); `momentum` and `correction` may have no rows."""
    for i in range(low, high):
        x, g = models[i], gradients[i]
        if len(momentum) and len(correction):
            m, h = momentum[i], correction[i]
            for t in range(len(x)):
                g[t] = x[t] - alpha * (g[t] + mu * m[t] - h[t])
        elif len(momentum):
            m = momentum[i]
            for t in range(len(x)):
                g[t] = x[t] - alpha * (g[t] + mu * m[t])
        elif len(correction):
            h = correction[i]
            for t in range(len(x)):
                g[t] = x[t] - alpha * (g[t] - h[t])
        else:
            for t in range(len(x)):
                g[t] = x[t] - alpha * g[t]


@compiled
def drift_known(models, who, known, drifts, low, high):
    """drifts[r] = (1/n)^(1/2) ||models[who[r]] - known[r]||_2, summed in double precision."""
    for r in range(low, high):
        w, w_hat = models[who[r]], known[r]
        total = 0.0
        for t in range(len(w)):
            change = np.float64(w[t] - w_hat[t])
            total += change * change
        drifts[r] = np.sqrt(total / len(w))


@compiled
def copy_chosen(source, who, target, chosen, low, high):
    """target[r] = source[who[r]] where chosen[r]"""
    for r in range(low, high):
        if chosen[r]:
            row, out = source[who[r]], target[r]
            for t in range(len(row)):
                out[t] = row[t]


@compiled
def add_two_terms(weight1, p1, q1, weight2, p2, q2, f):
    """f += weight1 (p1 - q1) + weight2 (p2 - q2)"""
    for t in range(len(f)):
        f[t] += weight1 * (p1[t] - q1[t]) + weight2 * (p2[t] - q2[t])


@compiled
def add_term_and_learn(weight, scale, p, q, f, learned):
    """f += weight (p - q), learned += scale weight (p - q)"""
    for t in range(len(f)):
        term = weight * (p[t] - q[t])
        f[t] += term
        learned[t] += scale * term


@compiled
def pull_rows(
    pool, starts, mine, theirs, weights, scales, y, models, momentum, correction, next_m, next_h, mu, a, low, high
):
    """y[i] += f_i = sum_e weight_e (pool[theirs_e] - pool[mine_e]) over the links e = starts[i] .. starts[i + 1] of i.

    `scales` has one entry per directed link, or one for all: what the correction learns of each term.
    """
    parameters = y.shape[1]
    room, room_to_learn = np.empty(TILE, y.dtype), np.empty(TILE, y.dtype)
    one_for_all = len(scales) == 1
    inverse = y.dtype.type((1.0 - mu) / a)
    for i in range(low, high):
        for left in range(0, parameters, TILE):
            right = min(left + TILE, parameters)
            width = right - left
            f, learned, out = room[:width], room_to_learn[:width], y[i, left:right]
            for t in range(width):
                f[t] = 0
                learned[t] = 0
            e, end = starts[i], starts[i + 1]
            while e < end:
                p, q = pool[theirs[e], left:right], pool[mine[e], left:right]
                if not one_for_all:
                    if weights[e] != 0:
                        add_term_and_learn(weights[e], scales[e], p, q, f, learned)
                    e += 1
                else:  # two at a time: half the stores
                    d = min(e + 1, end - 1)
                    second = weights[d] if d > e else weights.dtype.type(0)
                    add_two_terms(weights[e], p, q, second, pool[theirs[d], left:right], pool[mine[d], left:right], f)
                    e += 2
            for t in range(width):
                out[t] += f[t]
            if len(correction):
                h, h_out = correction[i, left:right], next_h[i, left:right]
                learns, scale = (f, scales[0]) if one_for_all else (learned, y.dtype.type(1))
                for t in range(width):
                    h_out[t] = h[t] + scale * learns[t]
            if len(momentum):
                m, m_out, x = momentum[i, left:right], next_m[i, left:right], models[i, left:right]
                for t in range(width):
                    m_out[t] = mu * m[t] + inverse * (x[t] - out[t])
