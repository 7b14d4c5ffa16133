"""How fast this machine can multiply matrices and copy memory, and how long an iteration would take at that pace."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from efhc.base.threads import in_ranges
from efhc.benchmarks.measure import by_turns
from efhc.benchmarks.workloads import CORES, OURS, WORKLOADS

SIZE = 2048
COPIED = 64 * 2**20
"""Numbers in an array that no cache holds."""


BESIDE = ("svm-b1", "svm-b16", "svm-b64", "svm-m1000", "svm-m10000")
"""Workloads whose arithmetic and traffic are easily counted."""


class Limits(NamedTuple):
    """Of this machine, now."""

    flops: dict[int, float]
    """Multiplications and additions a second in a product of matrices, in single precision, by number of threads."""
    bandwidth: dict[int, float]
    """Bytes read and written a second, by number of threads."""


def limits(rounds: int) -> Limits:
    """Measure both, with one thread and with all cores."""
    a, b = (np.random.default_rng(0).random((SIZE, SIZE), dtype=np.float32) for _ in range(2))
    source, target = np.ones(COPIED, np.float32), np.zeros(COPIED, np.float32)

    def multiply(threads: int) -> Callable[[], int]:
        def work() -> int:
            with threadpool_limits(threads):
                np.dot(a, b)
            return 1

        return work

    def copy(threads: int) -> Callable[[], int]:
        def one(low: int, high: int) -> None:
            target[low:high] = source[low:high]

        def work() -> int:
            in_ranges(one, (), COPIED, threads)
            return 1

        return work

    counts = sorted({1, CORES})
    sides = {f"multiply {t}": multiply(t) for t in counts} | {f"copy {t}": copy(t) for t in counts}
    times = by_turns(sides, rounds)
    return Limits(
        {t: 2 * SIZE**3 / times[f"multiply {t}"].median for t in counts},
        {t: 2 * source.nbytes / times[f"copy {t}"].median for t in counts},
    )


def beside_ours(found: Limits, rounds: int) -> list[dict[str, object]]:
    """For each workload with an SVM: the least time its arithmetic and its memory traffic need, and ours."""
    rows: list[dict[str, object]] = []
    for name in BESIDE:
        workload = WORKLOADS[name]
        devices, batch = workload.fields.get("devices", 10), workload.fields["batch_size"]
        data = workload.dataset()
        features, classes = data.features, data.classes
        weights = features * classes
        arithmetic = 4 * devices * batch * weights / found.flops[workload.threads]  # scores, and gradients from them
        # Each array once at least: W and w_hat are read, W(k+1) is written; those of ten devices stay in the cache.
        moved = devices * (batch * features + (3 * 4 * (weights + classes) if devices > 100 else 0))
        memory = moved / found.bandwidth[workload.threads]
        ours = by_turns({OURS: workload.ours()}, rounds)[OURS].median
        rows.append({"workload": name, "arithmetic": arithmetic, "memory": memory, "ours": ours})
    return rows
