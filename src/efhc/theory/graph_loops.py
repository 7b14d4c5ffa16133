"""Compiled loops of the theory.

    window_norms    ||P(k+B-1:k) - 11^T/m||                         used by contractions.py
    strongest_tree  the spanning forest of the most recent links    used by windows.py

Loops that call each other are in one file, because numba's cache on disk checks only that file for changes.
"""

from __future__ import annotations

import numpy as np

from efhc.base.compiling import compiled

# Which links connect which devices


@compiled
def root(parents, device):
    """Return the device that represents the part of the graph that `device` is in; the path to it is shortened."""
    while parents[device] != device:
        parents[device] = parents[parents[device]]
        device = parents[device]
    return device


@compiled
def strongest_tree(links, now, tree, size, next_tree, parents):
    """Write the spanning forest of the most recent links to `next_tree`, and return its size.

    Its rows are (i, j, iteration), the most recent first. `tree`, of `size` rows, is the forest of the iterations
    before `now`, and `links` are the links of iteration `now`. `parents` is working memory.
    """
    for device in range(len(parents)):
        parents[device] = device
    found = 0
    for row in range(len(links) + size):
        if row < len(links):
            i, j, seen = links[row, 0], links[row, 1], now
        else:
            i, j, seen = tree[row - len(links), 0], tree[row - len(links), 1], tree[row - len(links), 2]
        a, b = root(parents, i), root(parents, j)
        if a != b:
            parents[a] = b
            next_tree[found, 0], next_tree[found, 1], next_tree[found, 2] = i, j, seen
            found += 1
            if found == len(next_tree):
                break
    return found


# How much windows of mixings contract

LANES = 4
"""Numbers of double precision that are multiplied at once."""


@compiled
def joined(starts, columns, entries):
    """Return whether the links of all matrices together connect all devices. The rows of P_t are at starts[t]."""
    devices = starts.shape[1] - 1
    parent = np.arange(devices)
    parts = devices
    for t in range(len(starts)):
        for i in range(devices):
            for e in range(starts[t, i], starts[t, i + 1]):
                if columns[e] < i and entries[e] != 0.0:
                    a, b = root(parent, i), root(parent, columns[e])
                    if a != b:
                        parent[a] = b
                        parts -= 1
        if parts == 1:
            return True
    return parts == 1


@compiled
def mix_lanes(starts, columns, entries, x, y):
    """Y = P X for an X of four columns, which one processor instruction multiplies at once."""
    e, one = np.uint64(starts[0]), np.uint64(1)  # no place counts from the end
    for i in range(len(x)):
        end = np.uint64(starts[i + 1])
        y0, y1, y2, y3 = 0.0, 0.0, 0.0, 0.0
        while e < end:
            p, j = entries[e], columns[e]
            y0 += p * x[j, 0]
            y1 += p * x[j, 1]
            y2 += p * x[j, 2]
            y3 += p * x[j, 3]
            e += one
        y[i, 0], y[i, 1], y[i, 2], y[i, 3] = y0, y1, y2, y3


@compiled
def mix_window(starts, columns, entries, t, firsts, window, x, y):
    """Y = P_t X in the columns whose window contains t, and Y = X in the others."""
    mix_lanes(starts[t], columns, entries, x, y)
    for lane in range(LANES):
        if not firsts[lane] <= t < firsts[lane] + window:
            for i in range(len(x)):
                y[i, lane] = x[i, lane]


@compiled
def centre(x):
    """Subtract from each column of X its mean: X - J X."""
    for lane in range(LANES):
        total = 0.0
        for i in range(len(x)):
            total += x[i, lane]
        mean = total / len(x)
        for i in range(len(x)):
            x[i, lane] -= mean


@compiled
def there_and_back(starts, columns, entries, firsts, window, v, x, y, squares):
    """Return A^T A v, and write ||A v||^2 to `squares`. Each column has the A of its own window.

    The result is in one of the working arrays x and y, which is returned first.
    """
    first, end = firsts[0], firsts[LANES - 1] + window
    x[:] = v
    for t in range(first, end):
        mix_window(starts, columns, entries, t, firsts, window, x, y)
        x, y = y, x
    centre(x)
    squares[:] = 0.0
    for i in range(len(x)):
        for lane in range(LANES):
            squares[lane] += x[i, lane] * x[i, lane]
    for t in range(end - 1, first - 1, -1):
        mix_window(starts, columns, entries, t, firsts, window, x, y)
        x, y = y, x
    centre(x)
    return x, y


@compiled
def above_all(theta, diagonal, beside, count):
    """Return whether theta is above all eigenvalues of the tridiagonal T: all pivots of theta I - T are positive."""
    pivot = theta - diagonal[0]
    for i in range(1, count):
        if pivot <= 0.0:
            return False
        pivot = theta - diagonal[i] - beside[i - 1] * beside[i - 1] / pivot
    return pivot > 0.0


@compiled
def top_pair(diagonal, beside, count, low):
    """Return the largest eigenvalue of a tridiagonal matrix, and the last entry of its unit eigenvector.

    `low` is a lower bound of the eigenvalue, which is found by bisection to within rounding. The vector is computed
    from the downward and the upward pivots of theta I - T, joined where the vector is largest. This twisted
    factorisation gives small entries with small relative errors, too.
    """
    widest = 0.0
    for i in range(count):
        low = max(low, diagonal[i])
        if i < count - 1:
            widest = max(widest, beside[i])
    if widest == 0.0:
        return low, 1.0
    high = (low + 2.0 * widest) * (1.0 + 1e-15)
    middle = 0.5 * (low + high)
    while low < middle < high and high - low > 1e-16 * high:
        if above_all(middle, diagonal, beside, count):
            high = middle
        else:
            low = middle
        middle = 0.5 * (low + high)
    down, up = np.empty(count), np.empty(count)
    for i in range(count):
        n = count - 1 - i
        before = beside[i - 1] * beside[i - 1] / down[i - 1] if i else 0.0
        behind = beside[n] * beside[n] / up[n + 1] if i else 0.0
        down[i], up[n] = max(high - diagonal[i] - before, 1e-300), max(high - diagonal[n] - behind, 1e-300)
    twist, least = 0, np.inf
    for i in range(count):
        gamma = abs(down[i] + up[i] - (high - diagonal[i]))
        if gamma < least:
            twist, least = i, gamma
    squares, entry = 1.0, 1.0
    for i in range(twist - 1, -1, -1):
        entry *= beside[i] / down[i]
        squares += entry * entry
    entry = 1.0
    for i in range(twist + 1, count):
        entry *= beside[i - 1] / up[i]
        squares += entry * entry
    return high, entry / np.sqrt(squares)


@compiled
def window_norms(
    starts, columns, entries, firsts, groups, window, seed, most_steps, tolerance, rounding, norms, steps, low, high
):
    """norms[w] = ||A||_2 with A = P_{t+window-1} ... P_t - J and t = firsts[w].

    A norm is exactly 1 if the links of its window do not connect all devices. The method is Lanczos on A^T A from the
    vector `seed`, which is orthogonal to 1. It does without reorthogonalisation, which would not make the largest
    eigenvalue theta more exact (Paige). The matrices are symmetric, so A^T applies them in reverse order. The method
    ends when the residual is at most tolerance * theta, or small enough for an error of `rounding` in ||A||_2; steps[w]
    is the number of steps that it took.

    Group g holds the windows groups[g] .. groups[g + 1] - 1, at most four, in order. The windows of a group are
    computed side by side over the matrices that they share. This call computes the groups low .. high - 1.
    """
    devices = len(seed)
    v, previous = np.empty((devices, LANES)), np.empty((devices, LANES))
    x, y = np.empty((devices, LANES)), np.empty((devices, LANES))
    diagonal, beside = np.empty((LANES, most_steps)), np.empty((LANES, most_steps))
    length = np.sqrt(np.dot(seed, seed))
    for g in range(low, high):
        begin, count = groups[g], groups[g + 1] - groups[g]
        mine = np.full(LANES, firsts[begin + count - 1])
        mine[:count] = firsts[begin : begin + count]
        going, check = np.zeros(LANES, np.bool_), np.ones(LANES, np.int64)
        theta, known, back, a = np.zeros(LANES), np.zeros(LANES), np.zeros(LANES), np.zeros(LANES)
        v[:], previous[:] = 0.0, 0.0
        for lane in range(count):
            together = joined(starts[mine[lane] : mine[lane] + window], columns, entries)
            norms[begin + lane], steps[begin + lane] = 0.0 if together else 1.0, 0
            going[lane] = together and length > 0.0  # it is 0 for one device alone
            if going[lane]:
                v[:, lane] = seed / length
        for step in range(most_steps):
            if not going.any():
                break
            x, y = there_and_back(starts, columns, entries, mine, window, v, x, y, a)
            for lane in range(LANES):
                squares = 0.0
                for i in range(devices):
                    x[i, lane] -= a[lane] * v[i, lane] + back[lane] * previous[i, lane]
                    squares += x[i, lane] * x[i, lane]
                back[lane] = np.sqrt(squares)
            previous, v = v, previous
            for lane in range(LANES):
                if going[lane]:
                    r = back[lane]
                    diagonal[lane, step], beside[lane, step] = a[lane], r
                    known[lane] = max(known[lane], a[lane])
                    if step + 1 >= check[lane] or r <= tolerance * known[lane] or step + 1 == most_steps:
                        theta[lane], last = top_pair(diagonal[lane], beside[lane], step + 1, theta[lane])
                        norms[begin + lane], steps[begin + lane] = np.sqrt(theta[lane]), step + 1
                        going[lane] = r * last > max(tolerance * theta[lane], rounding * np.sqrt(theta[lane]))
                        check[lane] = step + 2 + step // 16
                scale = 1.0 / back[lane] if going[lane] else 0.0
                for i in range(devices):
                    v[i, lane] = x[i, lane] * scale
