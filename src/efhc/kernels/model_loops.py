# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Compiled passes over models: what `core` says in NumPy, in few passes over memory.

    drift_rows    (1/n)^(1/2) ||w - w_hat||               core.arithmetic.drift
    mix_rows      P W - alpha G                           core.mixing.mix_and_descend
    mix_picked    w_i + sum beta (u_j - u_i) - alpha g_i  core.device, for the devices that step
    spread_tiles  sum_i ||w_i - w_bar||^2                 core.arithmetic.consensus_error
    copy_rows     w_hat_i = w_i where device i fired      LawArithmetic.replaced
    descend_rows  u - h, of momentum and correction       core.local_steps
    pull_rows     y + f, with f = sum_t d_t               core.arithmetic.sums_of, and core.local_steps

Each loop works on a range of rows (or tiles of columns) that depends on nothing outside of it: the bits are the same
however the ranges are spread over threads. A sum over a tile is made in the precision of the models, block by block;
the sums of tiles are added up in double precision. So every driver gets the same bits.

`array` and `start` together say where numbers lie: `start` counts from the first number of the array.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from efhc.base.compiling import as_written, part
from efhc.kernels.lanes import (
    block_width,
    filled_block,
    fma,
    load_some_block,
    store,
    store_some,
    total,
)

TILE = 1024
"""Columns that are added up in the precision of the models, and stay in the fastest cache meanwhile."""
ROWS = 16
"""Rows that are added up in the precision of the models."""


class GraphLinks(NamedTuple):
    """The links of one graph, device by device, and their weights; see `core.graph.Rows`."""

    order: Any
    starts: Any
    neighbours: Any
    link_of: Any
    ends: Any
    """(links, 2): the devices that each link joins."""
    beta: Any
    """beta_ij of each link, in the precision of the models."""
    partners: Any
    """Room for the neighbours over used links; those of device i are from starts[i] on."""
    weights: Any
    """Room for their weights, in the same places."""


class Mixture(NamedTuple):
    """kept w + sum_c weights[c] models[partners[c]] - alpha g, where w = models[own] and c = first .. end-1."""

    own: Any
    kept: Any
    partners: Any
    weights: Any
    first: Any
    end: Any
    alpha: Any
    place: Any
    """The row of the gradient g, which the result replaces."""


class TileRoom(NamedTuple):
    """Memory for the columns of a tile; see `spread_tiles`."""

    sums: Any
    means: Any
    of_all: Any
    between: Any


def tile_room(precision: Any) -> TileRoom:
    """Memory for one tile after the other."""
    return TileRoom(np.empty(TILE, precision), *np.empty((3, TILE)))


class AddedTerms(NamedTuple):
    """What is added to the models of some devices; see `mix_picked`."""

    places: Any
    """(devices + 1, 4): the rows of each device's model, gradient and last broadcast, and where its terms begin."""
    partners: Any
    """Per term, the row that it adds."""
    weights: Any
    """Per term, in the precision of the models."""
    takes: Any
    """Per term, whether its weight is given away of the device's own model."""


# Sums of squares


@part
def add_squares(a, start, b, other, minus, some, sums):
    """sums + (a + minus b)^2, for the first `some` numbers of a block."""
    change = fma(minus, load_some_block(b, other, some), load_some_block(a, start, some))
    return fma(change, change, sums)


@as_written
def squares_of_tile(a, start, b, other, share, count):
    """sum_t (a_t - share b_t)^2 over `count` numbers from `start` and `other` on."""
    step, minus, sums = block_width(a), filled_block(a, -share), filled_block(a, 0)
    whole = count - count % step
    for t in range(0, whole, step):
        sums = add_squares(a, start + t, b, other + t, minus, step, sums)
    if whole < count:
        sums = add_squares(a, start + whole, b, other + whole, minus, count - whole, sums)
    found = np.float64(total(sums))
    if is_exact(found, a):
        return found
    in_double, numbers, others = 0.0, a.reshape(a.size), b.reshape(b.size)
    for t in range(count):
        change = np.float64(numbers[start + t]) - share * np.float64(others[other + t])
        in_double += change * change
    return in_double


@part
def is_exact(found, like):
    """Whether no square was too large or too small for the precision of an array."""
    return np.finfo(like.dtype).tiny * 1e10 < found < np.inf


@as_written
def squares(a, start, b, other, share, count):
    """sum_t (a_t - share b_t)^2, tile by tile."""
    found = 0.0
    for left in range(0, count, TILE):
        found += squares_of_tile(a, start + left, b, other + left, share, min(TILE, count - left))
    return found


# Event 2


@as_written
def drift_of(a, row, b, other):
    """(1/n)^(1/2) ||a[row] - b[other]||_2"""
    n = a.shape[1]
    return np.sqrt(squares(a, row * n, b, other * n, 1, n) / n)


@as_written
def drift_rows(models, rows, known, others, drifts, low, high):
    """drifts[a] = (1/n)^(1/2) ||w - w_hat||_2, where w = models[rows[a]] and w_hat = known[others[a]]"""
    for a in range(low, high):
        drifts[a] = drift_of(models, rows[a], known, others[a])


# Events 3 and 4


@part
def mix_block(models, mixture, out, t, some):
    """`mix_tile`, for the first `some` numbers of the block at column t."""
    n, partners, weights = models.shape[1], mixture.partners, mixture.weights
    place = mixture.place * n + t
    w, g = load_some_block(models, mixture.own * n + t, some), load_some_block(out, place, some)
    sums = fma(filled_block(models, -mixture.alpha), g, filled_block(models, mixture.kept) * w)
    for c in range(mixture.first, mixture.end):
        w = load_some_block(models, partners[c] * n + t, some)
        sums = fma(filled_block(models, weights[c]), w, sums)
    store_some(out, place, some, sums)


@as_written
def mix_tile(models, mixture, out, left, right):
    """The gradient of a mixture becomes what the mixture says, from column `left` to column `right`."""
    step = block_width(models)
    whole = right - (right - left) % step
    for t in range(left, whole, step):
        mix_block(models, mixture, out, t, step)
    if whole < right:
        mix_block(models, mixture, out, whole, right - whole)


@as_written
def mix_row_and_drift(models, mixture, out, last_broadcast, last):
    """The same for all columns; returns the drift (1/n)^(1/2) ||out[place] - last_broadcast[last]||."""
    n, found = models.shape[1], 0.0
    start, other = mixture.place * n, last * n
    for left in range(0, n, TILE):
        right = min(left + TILE, n)
        mix_tile(models, mixture, out, left, right)
        found += squares_of_tile(out, start + left, last_broadcast, other + left, 1, right - left)
    return np.sqrt(found / n)


@as_written
def find_mixture(links, used, i, alpha):
    """What is mixed into the model of device i. Its partners over used links are written to `links`."""
    end, given = links.starts[i], 0.0
    for e in range(links.starts[i], links.starts[i + 1]):
        if used[links.link_of[e]]:
            beta = links.beta[links.link_of[e]]
            links.partners[end], links.weights[end] = links.neighbours[e], beta
            given += beta
            end += 1
    kept = links.weights.dtype.type(1.0 - given)
    return Mixture(i, kept, links.partners, links.weights, links.starts[i], end, alpha, i)


@as_written
def mix_rows(links, used, models, gradients, alpha, low, high):
    """gradients[i] = w_i + sum_j v_ij beta_ij (w_j - w_i) - alpha g_i, for the devices links.order[low:high].

    `used` has v_ij of each link. The new model takes the gradient's place in memory, so no fourth array is needed.
    """
    for position in range(low, high):
        i = links.order[position]
        mix_tile(models, find_mixture(links, used, i, alpha), gradients, 0, models.shape[1])


@as_written
def mix_picked(pool, terms, alphas, drifts, low, high):
    """g = w + sum of its terms - alpha g, in the rows of each device; drifts[a] = (1/n)^(1/2) ||g - w_hat||.

    A term adds weight * pool[partner]. One that `takes` gives its weight of w away for it, as `mix_rows` does. The new
    model takes the gradient's place in memory.
    """
    for a in range(low, high):
        own, place, last, first = terms.places[a]
        end = terms.places[a + 1, 3]
        given = 0.0
        for c in range(first, end):
            if terms.takes[c]:
                given += terms.weights[c]
        kept = pool.dtype.type(1.0 - given)
        mixture = Mixture(own, kept, terms.partners, terms.weights, first, end, alphas[a], place)
        drifts[a] = mix_row_and_drift(pool, mixture, pool, pool, last)


@as_written
def combine_rows(pool, rows, weights, place):
    """pool[place] = sum_c weights[c] pool[rows[c]], where `place` is not among `rows`"""
    n, step = pool.shape[1], block_width(pool)
    for t in range(0, n, step):
        sums = filled_block(pool, 0)
        for c in range(len(rows)):
            w = load_some_block(pool, rows[c] * n + t, n - t)
            sums = fma(filled_block(pool, weights[c]), w, sums)
        store_some(pool, place * n + t, n - t, sums)


@as_written
def copy_rows(source, target, chosen, low, high):
    """target[i] = source[i] where chosen[i]"""
    n, step = source.shape[1], block_width(source)
    whole = n - n % step
    for i in range(low, high):
        if chosen[i]:
            for t in range(i * n, i * n + whole, step):
                store(target, t, load_some_block(source, t, step))
            store_some(target, i * n + whole, n - whole, load_some_block(source, i * n + whole, n - whole))


# The spread of the models


@part
def add_spread(models, start, rows, some, place, sums, of_all, of_mean):
    """`spread_of_rows`, for the first `some` numbers of the block at `start`."""
    n = models.shape[1]
    origin = load_some_block(models, start, some)
    of_column = origin - origin  # not 0 where it is not finite
    for i in range(1, rows):
        change = load_some_block(models, start + i * n, some) - origin
        of_column = of_column + change
        of_all = fma(change, change, of_all)
    store(sums, place, of_column)
    return of_all, fma(of_column, of_column, of_mean)


@as_written
def spread_of_rows(models, first, rows, left, count, sums):
    """sum_i ||w_i - w_bar||^2 of a few rows, over `count` columns from `left` on; sums = sum_i (w_i - w_first).

    It is sum_i ||w_i - w_first||^2 - rows ||w_bar - w_first||^2, which is not less than 1 / rows of what it is taken
    from: little cancels.
    """
    step, start = block_width(models), first * models.shape[1] + left
    of_all = of_mean = filled_block(models, 0)
    whole = count - count % step
    for t in range(0, whole, step):
        of_all, of_mean = add_spread(models, start + t, rows, step, t, sums, of_all, of_mean)
    if whole < count:
        of_all, of_mean = add_spread(models, start + whole, rows, count - whole, whole, sums, of_all, of_mean)
    return np.float64(total(of_all)) - np.float64(total(of_mean)) / rows


@as_written
def spread_in_double(models, first, rows, left, count, means):
    """The same in double precision, for numbers whose squares are too large or too small; means = w_bar."""
    found = 0.0
    for t in range(count):
        mean = 0.0
        for i in range(rows):
            mean += np.float64(models[first + i, left + t] - models[first, left + t])
        mean /= rows
        for i in range(rows):
            change = np.float64(models[first + i, left + t] - models[first, left + t]) - mean
            found += change * change
        means[t] = np.float64(models[first, left + t]) + mean
    return found


@as_written
def added_up(spreads):
    """sum_s spreads[s], one after the other."""
    found = 0.0
    for s in range(len(spreads)):
        found += spreads[s]
    return found


@as_written
def spread_tiles(room, models, spreads, low, high):
    """spreads[s] = sum_i ||w_i - w_bar||^2 over the columns of tile s.

    It is the spread within groups of `ROWS` rows, and that of the means of the groups about the mean of all.
    """
    devices, n = models.shape
    sums, means, of_all, between = room
    for tile in range(low, high):
        left = tile * TILE
        count, found = min(TILE, n - left), 0.0
        for first in range(0, devices, ROWS):
            rows = min(ROWS, devices - first)
            within = spread_of_rows(models, first, rows, left, count, sums)
            exact = is_exact(within, models)
            found += within if exact else spread_in_double(models, first, rows, left, count, means)
            if devices <= ROWS:
                continue
            if exact:
                for t in range(count):
                    means[t] = np.float64(models[first, left + t]) + np.float64(sums[t]) / rows
            share = rows / (first + rows)
            for t in range(count):
                if first == 0:
                    of_all[t], between[t] = means[t], 0.0
                change = means[t] - of_all[t]
                of_all[t] += share * change
                between[t] += first * share * change * change
        if devices > ROWS:
            for t in range(count):
                found += between[t]
        spreads[tile] = found


# Strategies beyond the paper. Every operation is made as it is written, in the precision of the models, so the bits are
# those of NumPy, whatever the loop is called with. An array that is not used has no rows.


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
def add_step(weight, learning, plus, minus, pull, learned, link_correction):
    """d = weight (plus - minus); pull += d; learned and link_correction += learning d. Empty rows are left out."""
    if len(learned) > 0:
        for t in range(len(pull)):
            step = weight * (plus[t] - minus[t])
            pull[t] += step
            learned[t] += learning * step
    else:
        for t in range(len(pull)):
            pull[t] += weight * (plus[t] - minus[t])
    for t in range(len(link_correction)):
        link_correction[t] += learning * (weight * (plus[t] - minus[t]))


@as_written
def add_terms(before, after, terms, i, left, right, pull, learned, link_correction):
    """pull = sum_t d_t, learned = sum_t l_t d_t over the terms of device i, in columns left .. right."""
    for t in range(len(pull)):
        pull[t] = 0
    for t in range(len(learned)):
        learned[t] = 0
    for e in range(terms.starts[i], terms.starts[i + 1]):
        if terms.is_newer[e]:
            plus, minus = after[terms.plus[e], left:right], before[terms.minus[e], left:right]
        else:
            plus, minus = before[terms.plus[e], left:right], after[terms.minus[e], left:right]
        of_link = link_correction[terms.link[e], left:right] if len(link_correction) > 0 else pull[:0]
        add_step(terms.weights[e], terms.learning[e], plus, minus, pull, learned, of_link)


@as_written
def pull_rows(before, after, terms, y, held, next_m, next_h, link_correction, shares, room, low, high):
    """y[i] += f_i; next_m = m - share_i f; next_h = h + the sum of learning d; link_correction[link] += its terms.

    `room` has two rows of a tile. `held` are momentum and correction after the local step.
    """
    parameters = y.shape[1]
    has_m, has_h = len(held.momentum) > 0, len(held.correction) > 0
    for i in range(low, high):
        for left in range(0, parameters, TILE):
            right = min(left + TILE, parameters)
            pull, learned = room[0, : right - left], room[1, : right - left if has_h else 0]
            add_terms(before, after, terms, i, left, right, pull, learned, link_correction)
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
