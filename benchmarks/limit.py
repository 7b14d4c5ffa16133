"""How fast this machine multiplies matrices and copies memory, and how long an iteration would take at that pace.

Copies within a cache are faster than those from memory. So each workload is held against a copy whose two arrays take
as much room as the arrays that the workload goes through.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import Row, by_turns, timed
from benchmarks.workloads import WORKLOADS, Workload
from efhc.base.extras import EXTRAS
from efhc.learning.models import LinearModel

SIZE = 2048
"""Rows and columns of the matrices."""
COPIED = 256 * 2**20
"""Bytes of an array that no cache holds."""
COPIED_IN_A_ROUND = 64 * 2**20
"""Bytes that a round copies at least, by several copies if the arrays are small."""
NUMBER = 4
"""Bytes of a number."""

BESIDE = (
    "svm-b1", "svm-b16", "svm-b64", "svm-m1000", "svm-m10000", "lenet-b16", "lenet-b32", "eval-10k", "eval-10k-lenet",
)  # fmt: skip
"""Workloads whose arithmetic and traffic are easily counted."""


class Counted(NamedTuple):
    """What one iteration, or one evaluation, cannot do without."""

    flop: float
    """Multiplications and additions."""
    models: int
    """Bytes of the models that it reads and writes."""
    inputs: int
    """Bytes of the samples that it reads."""


def measure(rounds: int) -> Iterator[Row]:
    """For each workload: the least processor time that its arithmetic and its memory traffic need, and ours."""
    flops, from_memory = product_speed(rounds), copy_speed(2 * COPIED, rounds)
    for name in (name for name in BESIDE if EXTRAS["deep"].is_installed() or "lenet" not in name):
        flop, models, inputs = counted(WORKLOADS[name])
        arithmetic, memory = flop / flops, models / copy_speed(models, rounds) + inputs / from_memory
        ours = statistics.median(by_turns({name: timed(WORKLOADS[name].ours())}, rounds)[name])
        times = {"arithmetic alone": arithmetic, "memory alone": memory, "efhc": ours}
        row = {"workload": name} | {column: f"{1e6 * seconds:.0f} us" for column, seconds in times.items()}
        yield row | {"of the limit": f"{max(arithmetic, memory) / ours:.0%}"}


def product_speed(rounds: int) -> float:
    """Multiplications and additions per processor second in a product of matrices, in single precision."""
    a, b = (np.random.default_rng(0).random((SIZE, SIZE), dtype=np.float32) for _ in range(2))

    def multiply() -> int:
        np.dot(a, b)
        return 1

    return 2 * SIZE**3 / statistics.median(by_turns({"product": timed(multiply)}, rounds)["product"])


def copy_speed(room: int, rounds: int) -> float:
    """Bytes read and written per second by copies between two arrays that take `room` bytes together."""
    source, target = np.ones(room // 2, np.uint8), np.zeros(room // 2, np.uint8)
    copies = -(-COPIED_IN_A_ROUND // len(source))

    def copy() -> int:
        for _ in range(copies):
            np.copyto(target, source)
        return copies

    return 2 * len(source) / statistics.median(by_turns({"copy": timed(copy)}, rounds)["copy"])


def counted(workload: Workload) -> Counted:
    """Count what a workload cannot do without: every number of W, w_hat and W(k+1) once, every sample once.

    An evaluation reads models and all test inputs.
    """
    experiment, data = workload.experiment(), workload.dataset()
    devices, model = experiment.devices, experiment.model
    of_models = NUMBER * devices * model.parameters(data)
    is_evaluation = workload.measures == "evaluation"
    samples = len(data.y_test) if is_evaluation else int(experiment.batch_size)
    if isinstance(model, LinearModel):
        passes = 1 if is_evaluation else 2  # scores; the gradients from them
        of_sample = 2.0 * passes * data.features * data.classes
    else:
        of_sample = _flop_of_network(model, data, backward=not is_evaluation)
    inputs = samples * data.features * data.x_test.itemsize * (1 if is_evaluation else devices)
    return Counted(of_sample * samples * devices, of_models if is_evaluation else 3 * of_models, inputs)


def _flop_of_network(model: Any, data: Any, *, backward: bool) -> float:
    """Multiplications and additions for one sample, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    from efhc.learning.models.modules import input_shape
    from efhc.learning.pytorch import torch

    module = model.build(data)
    with FlopCounterMode(display=False) as counter:
        scores = module(torch.zeros(1, *input_shape(data)))
        if backward:
            scores.sum().backward()
    return float(counter.get_total_flops())
