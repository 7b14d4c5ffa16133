"""EF-HC once more, in plain NumPy, from the paper alone (Sec. II, Alg. 1). Nothing here comes from efhc.

Written to be read next to Alg. 1: devices are visited one by one, links are sets of pairs, weights a dense m x m
matrix. Besides what the algorithm does, a run keeps how close its yes-or-no decisions were, so that a test can tell
a wrong decision from one that rounding may turn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray
Links = frozenset[tuple[int, int]]
Trigger = Callable[[int, int, float], bool]
"""(device, iteration, drift) -> does it broadcast?"""


def links(pairs: Sequence[Sequence[int]]) -> Links:
    return frozenset((min(i, j), max(i, j)) for i, j in pairs)


def static(pairs: Sequence[Sequence[int]]) -> Callable[[int], Links]:
    graph = links(pairs)
    return lambda k: graph


def sequence(lists: Sequence[Sequence[Sequence[int]]], at_end: str) -> Callable[[int], Links]:
    graphs = [links(pairs) for pairs in lists]
    if at_end == "repeat":
        return lambda k: graphs[k % len(graphs)]
    return lambda k: graphs[min(k, len(graphs) - 1)]


def constant(value: float) -> Callable[[int], float]:
    return lambda k: value


def diminishing(initial: float, timescale: float, power: float) -> Callable[[int], float]:
    return lambda k: initial / (1 + k / timescale) ** power


@dataclass
class Problem:
    """All that the algorithm is given. Row i of `start` is the initial model of device i."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array
    parts: list[list[int]]
    start: Array
    graph: Callable[[int], Links]
    bandwidths: Array
    nominal: float
    alpha: Callable[[int], float]
    gamma: Callable[[int], float]
    iterations: int
    model: str = "svm"
    l2: float = 0.0
    dtype: type = np.float64
    exchange_at_start: bool = False

    @property
    def classes(self) -> int:
        return int(max(self.y.max(), self.y_test.max())) + 1


@dataclass
class History:
    fired: list[list[int]] = field(default_factory=list)
    used: list[list[tuple[int, int]]] = field(default_factory=list)
    time: list[float] = field(default_factory=list)
    train_loss: list[float] = field(default_factory=list)
    consensus_error: list[float] = field(default_factory=list)
    models: list[Array] = field(default_factory=list)
    """models[k] is W(k), and so one more than there are iterations."""
    drift: list[list[float]] = field(default_factory=list)
    smallest_hinge: float = np.inf
    """The least |1 - s_y + s_c| met: the distance to a kink of the SVM's loss."""


# Who broadcasts


def ef_hc(problem: Problem, r: float) -> Trigger:
    return lambda i, k, drift: drift >= r * (1 / problem.bandwidths[i]) * problem.gamma(k)


def global_threshold(problem: Problem, r: float, rho: str) -> Trigger:
    common = 1 / problem.nominal if rho == "nominal" else float(np.mean(1 / problem.bandwidths))
    return lambda i, k, drift: drift >= r * common * problem.gamma(k)


def zero_threshold(i: int, k: int, drift: float) -> bool:
    return True


def never(i: int, k: int, drift: float) -> bool:
    return False


def as_told(fired: Sequence[Sequence[int]]) -> Trigger:
    return lambda i, k, drift: i in fired[k]


# A linear classifier: w is the (classes x features) matrix row by row, then the biases


def scores(w: Array, x: Array, classes: int) -> Array:
    features = x.shape[1]
    weights = w[: classes * features].reshape(classes, features)
    biases = w[classes * features :]
    return x @ weights.T + biases


def hinges(s: Array, y: Array) -> Array:
    """1 - s_y + s_c for every sample and class; nan at c = y."""
    rows = np.arange(len(y))
    z = 1 - s[rows, y][:, None] + s
    z[rows, y] = np.nan
    return z


def loss_and_gradient(w: Array, x: Array, y: Array, problem: Problem) -> tuple[float, Array, float]:
    """Mean loss over the samples, its (sub)gradient, and the least distance to a kink."""
    count, classes = len(y), problem.classes
    rows = np.arange(count)
    s = scores(w, x, classes)
    if problem.model == "svm":
        z = hinges(s, y)
        active = np.nan_to_num(z, nan=-1) > 0
        loss = float(np.where(active, z, 0).sum(dtype=np.float64)) / classes / count
        by_score = active.astype(w.dtype)
        by_score[rows, y] = -active.sum(axis=1)
        by_score /= classes
        kink = float(np.nanmin(np.abs(z)))
    else:
        shifted = s - s.max(axis=1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        loss = -float(log_p[rows, y].sum(dtype=np.float64)) / count
        by_score = np.exp(log_p)
        by_score[rows, y] -= 1
        kink = np.inf
    gradient = np.concatenate([(by_score.T @ x).reshape(-1), by_score.sum(axis=0)]) / w.dtype.type(count)
    if problem.l2:
        loss += problem.l2 / 2 * float(np.sum(w.astype(np.float64) ** 2))
        gradient = gradient + w.dtype.type(problem.l2) * w
    return loss, gradient, kink


# Alg. 1


def run(problem: Problem, trigger: Trigger) -> History:
    dtype, m = problem.dtype, len(problem.parts)
    x, w = problem.x.astype(dtype), problem.start.astype(dtype)
    n = w.shape[1]
    announced = w.copy()  # the w-hat of each device
    history = History(models=[w])
    before: Links = frozenset() if problem.exchange_at_start else problem.graph(0)
    for k in range(problem.iterations):
        now = problem.graph(k)
        degree = [sum(i in link for link in now) for i in range(m)]
        # Event 1
        new = now - before
        # Event 2
        drift = [float(np.sqrt(1 / n) * np.linalg.norm(w[i] - announced[i])) for i in range(m)]
        fired = [i for i in range(m) if trigger(i, k, drift[i])]
        for i in fired:
            announced[i] = w[i]
        # Event 3
        used = sorted(link for link in now if link in new or link[0] in fired or link[1] in fired)
        p = np.eye(m)
        for i, j in used:
            beta = min(1 / (1 + degree[i]), 1 / (1 + degree[j]))
            p[i, j] += beta
            p[j, i] += beta
            p[i, i] -= beta
            p[j, j] -= beta
        # Event 4, at the models from before the mixing
        losses, gradients = [], []
        for i, part in enumerate(problem.parts):
            loss, gradient, kink = loss_and_gradient(w[i], x[part], problem.y[part], problem)
            losses.append(loss)
            gradients.append(gradient)
            history.smallest_hinge = min(history.smallest_hinge, kink)
        w = p.astype(dtype) @ w - dtype(problem.alpha(k)) * np.array(gradients)

        history.drift.append(drift)
        history.fired.append(fired)
        history.used.append(used)
        history.time.append(transmission_time(used, degree, problem.bandwidths, n))
        history.train_loss.append(sum(losses) / m)
        history.consensus_error.append(consensus_error(w))
        history.models.append(w)
        before = now
    return history


def transmission_time(used: Sequence[tuple[int, int]], degree: Sequence[int], bandwidths: Array, n: int) -> float:
    """(1/m) sum_i (sum_j v_ij / d_i) n / b_i"""
    total = 0.0
    for i, b in enumerate(bandwidths):
        share = sum(i in link for link in used)
        if share:
            total += share / degree[i] * n / b
    return total / len(bandwidths)


def consensus_error(w: Array) -> float:
    """sum_i ||w_i - mean||^2"""
    exact = w.astype(np.float64)
    return float(sum(np.sum((row - exact.mean(axis=0)) ** 2) for row in exact))


def accuracy_bounds(w: Array, problem: Problem, slack: float) -> tuple[float, float]:
    """Test accuracy of one model with every tie (up to `slack` in the scores) lost, and with every tie won."""
    s = scores(w.astype(np.float64), problem.x_test.astype(np.float64), problem.classes)
    rows = np.arange(len(s))
    own = s[rows, problem.y_test].copy()
    s[rows, problem.y_test] = -np.inf
    lead = own - s.max(axis=1)
    return float(np.mean(lead > slack)), float(np.mean(lead >= -slack))
