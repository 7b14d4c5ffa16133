"""Compiled loops of the theory.

    window_norms    ||P(k+B-1:k) - 11^T/m||                         used by contractions.py
    strongest_tree  the spanning forest of the most recent links    used by connectivity.py

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
def mix(starts, columns, entries, x, y):
    """y = P x"""
    for i in range(len(x)):
        total = 0.0
        for e in range(starts[i], starts[i + 1]):
            total += entries[e] * x[columns[e]]
        y[i] = total


@compiled
def centre(x):
    """Subtract from x its mean: x - J x."""
    total = 0.0
    for i in range(len(x)):
        total += x[i]
    mean = total / len(x)
    for i in range(len(x)):
        x[i] -= mean


@compiled
def there_and_back(starts, columns, entries, first, window, v, x, y):
    """Return A^T A v in one of the working arrays x and y, the other one, and ||A v||^2."""
    x[:] = v
    for t in range(first, first + window):
        mix(starts[t], columns, entries, x, y)
        x, y = y, x
    centre(x)
    square = 0.0
    for i in range(len(x)):
        square += x[i] * x[i]
    for t in range(first + window - 1, first - 1, -1):
        mix(starts[t], columns, entries, x, y)
        x, y = y, x
    centre(x)
    return x, y, square


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
    starts, columns, entries, firsts, window, seed, most_steps, tolerance, rounding, norms, steps, low, high
):
    """norms[w] = ||A||_2 with A = P_{t+window-1} ... P_t - J and t = firsts[w], for w = low .. high - 1.

    A norm is exactly 1 if the links of its window do not connect all devices. The method is Lanczos on A^T A from the
    vector `seed`, which is orthogonal to 1. It does without reorthogonalisation, which would not make the largest
    eigenvalue theta more exact (Paige). The matrices are symmetric, so A^T applies them in reverse order. The method
    ends when the residual is at most tolerance * theta, or small enough for an error of `rounding` in ||A||_2; steps[w]
    is the number of steps that it took.
    """
    devices = len(seed)
    v, previous, x, y = np.empty(devices), np.empty(devices), np.empty(devices), np.empty(devices)
    diagonal, beside = np.empty(most_steps), np.empty(most_steps)
    length = np.sqrt(np.dot(seed, seed))
    for w in range(low, high):
        together = joined(starts[firsts[w] : firsts[w] + window], columns, entries)
        norms[w], steps[w] = 0.0 if together else 1.0, 0
        if not together or length == 0.0:  # it is 0 for one device alone
            continue
        v[:], previous[:] = seed / length, 0.0
        back, theta, known, check = 0.0, 0.0, 0.0, 1
        for step in range(most_steps):
            x, y, a = there_and_back(starts, columns, entries, firsts[w], window, v, x, y)
            square = 0.0
            for i in range(devices):
                x[i] -= a * v[i] + back * previous[i]
                square += x[i] * x[i]
            back = np.sqrt(square)
            previous, v = v, previous
            diagonal[step], beside[step] = a, back
            known = max(known, a)
            if step + 1 >= check or back <= tolerance * known or step + 1 == most_steps:
                theta, last = top_pair(diagonal, beside, step + 1, theta)
                norms[w], steps[w] = np.sqrt(theta), step + 1
                if back * last <= max(tolerance * theta, rounding * np.sqrt(theta)):
                    break
                check = step + 2 + step // 16
            scale = 1.0 / back
            for i in range(devices):
                v[i] = x[i] * scale
