"""Compiled loops: what the plain functions elsewhere say, in few passes over memory.

    drift_rows    (1/n)^(1/2) ||w_i - w_hat_i||          core.arithmetic.drift
    mix_rows      P W - alpha G                          core.mixing.mix_and_descend
    mix_picked    w_i + sum beta (u_j - u_i) - alpha g_i  core.device, for the devices that step
    spread_tiles  sum_i ||w_i - w_bar||^2                core.arithmetic.consensus_error
    copy_rows     w_hat_i = w_i where device i fired     core.arithmetic.replace_rows
    linear_rows   losses and gradients of linear models  learning.models.linear
    linear_picked the same, of rows that are picked      learning.models.linear
    stretch       iterations of Alg. 1 on one graph      core.iteration.iterate

Each loop works on a range of rows (or tiles of columns) that depends on nothing outside of it: the bits are the same
however the ranges are spread over threads. Loops that call each other share one file, because numba's cache on disk
looks at one file for changes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from efhc.base.compiling import compiled

SAMPLES = 64
"""Samples whose inputs are scaled and held at once."""
TILE = 1024
"""Columns that stay in the fastest cache while the rows of a mixing are added up."""
CACHE_LINE = 64
"""Bytes that come from memory together."""
MULTI_MARGIN, CROSS_ENTROPY, SQUARED = 0, 1, 2


class Buffers(NamedTuple):
    """The three arrays (m, n) that a run computes in. Loops and drivers write to them; `drivers.lockstep` owns them."""

    models: Any
    """W(k)"""
    last_broadcast: Any
    """w_hat"""
    spare: Any
    """Takes the gradients, and then W(k+1)."""

    def swapped(self) -> Buffers:
        """The same arrays after an iteration: W(k+1) is in what was spare."""
        return Buffers(self.spare, self.last_broadcast, self.models)


class Links(NamedTuple):
    """The links of one graph, device by device, and their weights; see `core.graph.Rows`."""

    order: Any
    starts: Any
    neighbours: Any
    link_of: Any
    ends: Any
    """(links, 2): the devices that each link joins."""
    beta: Any
    """beta_ij of each link, in the precision of the models."""


class Terms(NamedTuple):
    """What is added to the models of some devices; see `mix_picked`."""

    places: Any
    """(devices + 1, 4): the rows of each device's model, gradient and last broadcast, and where its terms begin."""
    partners: Any
    """Per term, the row that it adds."""
    weights: Any
    """Per term, in the precision of the models."""
    takes: Any
    """Per term, whether its weight is given away of the device's own model."""


class Inputs(NamedTuple):
    """Training samples; the input of a sample is scale * row + shift."""

    rows: Any
    scale: Any
    shift: Any
    labels: Any


class Loss(NamedTuple):
    """`MULTI_MARGIN`, `CROSS_ENTROPY` or `SQUARED`, and the l2 regularisation."""

    kind: Any
    l2: Any


class Batches(NamedTuple):
    """The training samples that devices look at: those of device i are samples[..., ends[i] : ends[i + 1]]."""

    samples: Any
    ends: Any


class Plan(NamedTuple):
    """What the iterations of a stretch are given."""

    new_links: Any
    """For each link, whether it is new at the first iteration."""
    thresholds: Any
    """(iterations, devices)"""
    step_sizes: Any


class Outcome(NamedTuple):
    """What the iterations of a stretch did, one row per iteration."""

    fired: Any
    losses: Any
    consensus_errors: Any


# Events 2 and 3


@compiled
def drift_row(w, w_hat):
    """(1/n)^(1/2) ||w - w_hat||_2"""
    total = 0.0
    for t in range(len(w)):
        change = np.float64(w[t] - w_hat[t])
        total += change * change
    return np.sqrt(total / len(w))


@compiled
def drift_rows(models, last_broadcast, drifts, low, high):
    """drifts[i] = (1/n)^(1/2) ||w_i - w_hat_i||_2, summed in double precision."""
    for i in range(low, high):
        drifts[i] = drift_row(models[i], last_broadcast[i])


@compiled
def mix_row(models, own, partners, weights, kept, alpha, row):
    """row = kept w + sum_c weights[c] models[partners[c]] - alpha row, where w = models[own]"""
    count, parameters = len(partners), models.shape[1]
    for left in range(0, parameters, TILE):
        right = min(left + TILE, parameters)
        w, out = models[own, left:right], row[left:right]
        for t in range(right - left):
            out[t] = kept * w[t] - alpha * out[t]
        for c in range(0, count - 1, 2):  # two at a time: half the stores
            w1, w2 = models[partners[c], left:right], models[partners[c + 1], left:right]
            p1, p2 = weights[c], weights[c + 1]
            for t in range(right - left):
                out[t] += p1 * w1[t] + p2 * w2[t]
        if count % 2:
            w1, p1 = models[partners[count - 1], left:right], weights[count - 1]
            for t in range(right - left):
                out[t] += p1 * w1[t]


@compiled
def mix_rows(links, used, models, gradients, alpha, low, high):
    """gradients[i] = w_i + sum_j v_ij beta_ij (w_j - w_i) - alpha g_i, for the devices links.order[low:high].

    `used` has v_ij of each link. The new model takes the gradient's place in memory, so no fourth array is needed.
    """
    order, starts, neighbours, link_of = links.order, links.starts, links.neighbours, links.link_of
    beta = links.beta
    partners = np.empty(len(order), np.int64)
    weights = np.empty(len(order), models.dtype)
    for position in range(low, high):
        i = order[position]
        count, given = 0, 0.0
        for e in range(starts[i], starts[i + 1]):
            if used[link_of[e]]:
                partners[count], weights[count] = neighbours[e], beta[link_of[e]]
                given += beta[link_of[e]]
                count += 1
        kept = models.dtype.type(1.0 - given)
        mix_row(models, i, partners[:count], weights[:count], kept, alpha, gradients[i])


@compiled
def drift_picked(pool, rows, others, drifts, low, high):
    """drifts[a] = (1/n)^(1/2) ||w - w_hat||, where w = pool[rows[a]] and w_hat = pool[others[a]]"""
    for a in range(low, high):
        drifts[a] = drift_row(pool[rows[a]], pool[others[a]])


@compiled
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
        mix_row(pool, own, terms.partners[first:end], terms.weights[first:end], kept, alphas[a], pool[place])
        drifts[a] = drift_row(pool[place], pool[last])


@compiled
def combine_rows(pool, rows, weights, place):
    """pool[place] = sum_c weights[c] pool[rows[c]], where `place` is not among `rows`"""
    for left in range(0, pool.shape[1], TILE):
        out = pool[place, left : left + TILE]
        for t in range(len(out)):
            out[t] = 0
        for c in range(len(rows)):
            w, weight = pool[rows[c], left : left + TILE], weights[c]
            for t in range(len(out)):
                out[t] += weight * w[t]


@compiled
def copy_rows(source, target, chosen, low, high):
    """target[i] = source[i] where chosen[i]"""
    for i in range(low, high):
        if chosen[i]:
            target[i] = source[i]


@compiled
def spread_tiles(models, spreads, low, high):
    """spreads[s] = sum_i ||w_i - w_bar||^2 over the columns of tile s, seen from w_0 so that little cancels."""
    devices, parameters = models.shape
    sums = np.empty(TILE)
    for tile in range(low, high):
        left = tile * TILE
        first = models[0, left : left + TILE]
        width = min(TILE, parameters - left)
        squares = 0.0
        for t in range(width):
            sums[t] = 0.0 * first[t]  # not 0 where it is not finite
        for i in range(1, devices):
            w = models[i, left : left + TILE]
            for t in range(width):
                distance = np.float64(w[t] - first[t])
                sums[t] += distance
                squares += distance * distance
        of_mean = 0.0
        for t in range(width):
            of_mean += sums[t] * sums[t]
        spread = squares - of_mean / devices
        spreads[tile] = 0.0 if spread < 0 else spread  # less than 0 by rounding only; NaN stays


# Event 4: linear models


@compiled
def dots(x1, x2, weights, c):
    """The scores of two samples for five classes: ten sums that fill the vector registers."""
    a, b, d, e, f = weights[c], weights[c + 1], weights[c + 2], weights[c + 3], weights[c + 4]
    zero = weights.dtype.type(0)
    a1 = b1 = d1 = e1 = f1 = a2 = b2 = d2 = e2 = f2 = zero
    for t in range(len(x1)):
        v1, v2 = x1[t], x2[t]
        a1 += v1 * a[t]
        b1 += v1 * b[t]
        d1 += v1 * d[t]
        e1 += v1 * e[t]
        f1 += v1 * f[t]
        a2 += v2 * a[t]
        b2 += v2 * b[t]
        d2 += v2 * d[t]
        e2 += v2 * e[t]
        f2 += v2 * f[t]
    return (a1, b1, d1, e1, f1), (a2, b2, d2, e2, f2)


@compiled
def dot(x, w):
    """sum_t x_t w_t"""
    total = w.dtype.type(0)
    for t in range(len(x)):
        total += x[t] * w[t]
    return total


@compiled
def score(x, weights, biases, scores):
    """scores = x weights^T + biases"""
    samples, classes = scores.shape
    whole = classes - classes % 5
    for s in range(0, samples, 2):
        partner = min(s + 1, samples - 1)  # an odd last sample is its own partner
        for c in range(0, whole, 5):
            first, second = dots(x[s], x[partner], weights, c)
            for q in range(5):
                scores[s, c + q] = first[q] + biases[c + q]
                scores[partner, c + q] = second[q] + biases[c + q]
        for c in range(whole, classes):
            scores[s, c] = dot(x[s], weights[c]) + biases[c]
            scores[partner, c] = dot(x[partner], weights[c]) + biases[c]


@compiled
def multi_margin(scores, y, share):
    """Losses (1/C) sum_{c != y} max(0, 1 - s_y + s_c) added up; the scores become `share` times their derivatives."""
    samples, classes = scores.shape
    one, zero = scores.dtype.type(1), scores.dtype.type(0)
    step = share / scores.dtype.type(classes)
    total = 0.0
    for s in range(samples):
        target = scores[s, y[s]]
        active = 0
        for c in range(classes):
            margin = one - target + scores[s, c]
            if c != y[s] and not margin <= zero:  # NaN counts as active, so that it shows
                total += margin
                scores[s, c] = step
                active += 1
            else:
                scores[s, c] = zero
        scores[s, y[s]] = -step * scores.dtype.type(active)
    return total / classes


@compiled
def cross_entropy(scores, y, share):
    """Losses log sum_c exp(s_c) - s_y added up; the scores become `share` times their derivatives."""
    samples, classes = scores.shape
    total = 0.0
    for s in range(samples):
        largest = scores[s, 0]
        for c in range(1, classes):
            largest = max(largest, scores[s, c])
        target = scores[s, y[s]] - largest
        exponentials = scores.dtype.type(0)
        for c in range(classes):
            scores[s, c] = np.exp(scores[s, c] - largest)
            exponentials += scores[s, c]
        total += np.log(exponentials) - target
        for c in range(classes):
            scores[s, c] *= share / exponentials
        scores[s, y[s]] -= share
    return total


@compiled
def squared(scores, y, share):
    """Losses (1/2) ||s - e_y||^2 added up; the scores become `share` times their derivatives."""
    samples, classes = scores.shape
    one = scores.dtype.type(1)
    total = 0.0
    for s in range(samples):
        scores[s, y[s]] -= one
        for c in range(classes):
            total += scores[s, c] * scores[s, c]
            scores[s, c] *= share
    return total / 2


@compiled
def add_outer(by_score, x, gradient):
    """gradient += by_score^T x, four samples and two classes at a time; where all of them are inactive, nothing."""
    samples, classes = by_score.shape
    fours = samples - samples % 4
    for c in range(0, classes - 1, 2):
        for s in range(0, fours, 4):
            add_four_by_two(by_score[s : s + 4, c : c + 2], x[s : s + 4], gradient[c : c + 2])
        for s in range(fours, samples):
            add_one(by_score[s, c], x[s], gradient[c])
            add_one(by_score[s, c + 1], x[s], gradient[c + 1])
    if classes % 2:
        for s in range(samples):
            add_one(by_score[s, classes - 1], x[s], gradient[classes - 1])


@compiled
def add_four_by_two(by_score, x, gradient):
    """Four samples' share of two classes' gradients."""
    a1, b1, d1, e1 = by_score[0, 0], by_score[1, 0], by_score[2, 0], by_score[3, 0]
    a2, b2, d2, e2 = by_score[0, 1], by_score[1, 1], by_score[2, 1], by_score[3, 1]
    if a1 == 0 and b1 == 0 and d1 == 0 and e1 == 0 and a2 == 0 and b2 == 0 and d2 == 0 and e2 == 0:
        return
    xa, xb, xd, xe, g1, g2 = x[0], x[1], x[2], x[3], gradient[0], gradient[1]
    for t in range(len(xa)):
        g1[t] += a1 * xa[t] + b1 * xb[t] + d1 * xd[t] + e1 * xe[t]
        g2[t] += a2 * xa[t] + b2 * xb[t] + d2 * xd[t] + e2 * xe[t]


@compiled
def add_one(by_score, x, gradient):
    """One sample's share of one class's gradient."""
    if by_score != 0:
        for t in range(len(x)):
            gradient[t] += by_score * x[t]


@compiled
def gather_rows(rows, scale, shift, samples, x):
    """x = scale * rows[samples] + shift, in one pass."""
    for s in range(len(samples)):
        row, scaled = rows[samples[s]], x[s]
        for t in range(len(row)):
            scaled[t] = row[t] * scale + shift


@compiled
def linear_row(w, inputs, samples, loss, x, scores, y, gradient):
    """The mean loss of one model on `samples`, and its gradient; `x`, `scores`, `y` are room for `SAMPLES` samples."""
    rows, scale, shift, labels = inputs.rows, inputs.scale, inputs.shift, inputs.labels
    l2 = loss.l2
    features = rows.shape[1]
    classes = len(w) // (features + 1)
    weights, biases = w[: classes * features].reshape(classes, features), w[classes * features :]
    by_weights, by_biases = gradient[: classes * features].reshape(classes, features), gradient[classes * features :]
    share = w.dtype.type(1.0 / len(samples))
    squares = 0.0
    if l2 > 0:
        for t in range(len(w)):
            gradient[t] = l2 * w[t]
            squares += np.float64(w[t]) * np.float64(w[t])
    else:
        for t in range(len(w)):
            gradient[t] = 0
    total = 0.0
    for start in range(0, len(samples), SAMPLES):
        held = min(SAMPLES, len(samples) - start)
        gather_rows(rows, scale, shift, samples[start : start + held], x)
        for s in range(held):
            y[s] = labels[samples[start + s]]
        score(x[:held], weights, biases, scores[:held])
        if loss.kind == MULTI_MARGIN:
            total += multi_margin(scores[:held], y, share)
        elif loss.kind == CROSS_ENTROPY:
            total += cross_entropy(scores[:held], y, share)
        else:
            total += squared(scores[:held], y, share)
        add_outer(scores[:held], x[:held], by_weights)
        for s in range(held):
            for c in range(classes):
                by_biases[c] += scores[s, c]
    return total / len(samples) + l2 / 2 * squares


@intrinsic
def fetch_line(typing_context, address):
    """Ask for the cache line at an address, and go on without waiting for it."""

    def emit(context, builder, signature, arguments):  # pragma: no cover - runs inside of numba, once
        byte_pointer, whole = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, whole, whole, whole])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        place = builder.inttoptr(arguments[0], byte_pointer)
        builder.call(prefetch, [place, whole(0), whole(3), whole(1)])
        return context.get_dummy_value()

    return types.void(types.uintp), emit


@compiled
def fetch(rows, samples):  # pragma: no cover - has no meaning in Python
    """Ask for the inputs of these samples: they lie far apart, and come while something else is computed."""
    start, width = rows.ctypes.data, rows.strides[0]
    for s in range(min(len(samples), SAMPLES)):
        for line in range(0, width, CACHE_LINE):
            fetch_line(np.uintp(start + samples[s] * width + line))


@compiled
def linear_picked(models, rows, inputs, samples, ends, loss, losses, gradients, places, low, high):
    """losses[a] and gradients[places[a]] of the linear model models[rows[a]] on `samples[ends[a] : ends[a + 1]]`."""
    features = inputs.rows.shape[1]
    x = np.empty((SAMPLES, features), models.dtype)
    scores = np.empty((SAMPLES, models.shape[1] // (features + 1)), models.dtype)
    y = np.empty(SAMPLES, np.int64)
    for a in range(low, high):
        if a == low:
            fetch(inputs.rows, samples[ends[a] : ends[a + 1]])
        if a + 1 < high:
            fetch(inputs.rows, samples[ends[a + 1] : ends[a + 2]])
        mine = samples[ends[a] : ends[a + 1]]
        losses[a] = linear_row(models[rows[a]], inputs, mine, loss, x, scores, y, gradients[places[a]])


@compiled
def linear_rows(models, inputs, samples, ends, loss, losses, gradients, low, high):
    """Loss and gradient of each linear model w_i on the training samples `samples[ends[i] : ends[i + 1]]`."""
    every = np.arange(high)
    linear_picked(models, every, inputs, samples, ends, loss, losses, gradients, every, low, high)


@compiled
def count_right(scores, labels, right):
    """Add to right[i] the number of samples whose largest score, (samples, models, classes), is at their label.

    Returns the first model that has a NaN among its scores, or a largest score that is not finite; -1 if none has.
    """
    samples, models, classes = scores.shape
    first_bad = models
    for s in range(samples):
        for i in range(models):
            best, has_nan = 0, np.isnan(scores[s, i, 0])
            for c in range(1, classes):
                has_nan |= np.isnan(scores[s, i, c])
                if scores[s, i, c] > scores[s, i, best]:
                    best = c
            right[i] += best == labels[s]
            if has_nan or not np.isfinite(scores[s, i, best]):
                first_bad = min(first_bad, i)
    return first_bad if first_bad < models else -1


# All events of many iterations, while everything is in the cache


@compiled
def stretch(buffers, inputs, loss, batches, links, plan, outcome):
    """Iterations 0 .. len(plan.step_sizes)-1 of linear models on one graph; returns how many were made.

    An iteration is made whole or not at all: where a loss or a model is not finite, it is not made and the stretch
    ends. The models are in `buffers.models` after an even number of iterations, else in `buffers.spare`.
    """
    models, spare, last_broadcast = buffers.models, buffers.spare, buffers.last_broadcast
    fired, losses, spreads = outcome.fired, outcome.losses, outcome.consensus_errors
    thresholds, used = plan.thresholds, plan.new_links.copy()
    iterations, devices = thresholds.shape
    tiles = np.empty((models.shape[1] + TILE - 1) // TILE)
    drifts = np.empty(devices)
    for k in range(iterations):
        drift_rows(models, last_broadcast, drifts, 0, devices)
        batch = batches.samples[k % len(batches.samples)]
        linear_rows(models, inputs, batch, batches.ends, loss, losses[k], spare, 0, devices)
        for i in range(devices):
            fired[k, i] = drifts[i] >= thresholds[k, i]
            if not np.isfinite(losses[k, i]):
                return k
        for e in range(len(used)):
            used[e] = used[e] or fired[k, links.ends[e, 0]] or fired[k, links.ends[e, 1]]
        mix_rows(links, used, models, spare, plan.step_sizes[k], 0, devices)
        spread_tiles(spare, tiles, 0, len(tiles))
        spreads[k] = tiles.sum()
        if not np.isfinite(spreads[k]):
            return k
        copy_rows(models, last_broadcast, fired[k], 0, devices)
        used[:] = False
        models, spare = spare, models
    return iterations
