"""How many runs at once, with how many threads each, and whether the memory will do. None of it changes a result."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from efhc.base.errors import EfhcError, InputError, within
from efhc.experiments.config.experiment import Experiment
from efhc.learning.batches import MiniBatches
from efhc.learning.data import Dataset

LEFT_FREE = 256 * 2**20


class Plan(NamedTuple):
    """How an experiment uses the machine."""

    runs_at_once: int
    threads_per_run: int


def plan(experiment: Experiment, data: Dataset, jobs: int | None = None, runs: int | None = None) -> Plan:
    """As many runs at once as there are cores (or `jobs`) and memory for; cores that are left over go into the runs.

    `runs` is how many there are like this one, of which nothing stays in memory; left out, they are the experiment's,
    and all their models stay.
    """
    if jobs is not None and jobs < 1:
        raise InputError("jobs", jobs, "at least 1, or nothing for all cores")
    cores = jobs or usable_cores()
    own = len(experiment.seeds) * len(experiment.strategies)
    at_once = min(cores, runs or own)
    with within("model"):
        one_array, batch = array_bytes(experiment, data)
    # The models of all runs, or of those at work; last broadcasts and gradients; a batch.
    kept, running = (own * one_array, 2 * one_array + batch) if runs is None else (0, 3 * one_array + batch)
    available = available_bytes()
    if available is not None:
        room = available - LEFT_FREE - kept
        if running > room:
            raise EfhcError(
                f"memory: {runs or own} runs of {experiment.devices} devices with "
                f"{experiment.model.parameters(data):,} parameters each need {_gigabytes(kept + running)}, and "
                f"{_gigabytes(available)} are free; take fewer devices, seeds or strategies, a smaller model "
                "or batch_size" + (", or float32" if experiment.precision == "float64" else "")
            )
        at_once = min(at_once, room // running)
    return Plan(at_once, cores // at_once)


def array_bytes(experiment: Experiment, data: Dataset) -> tuple[int, int]:
    """The size of one array (m, n), of which a run holds three, and of the samples that it has drawn ahead."""
    number, parameters = np.dtype(experiment.precision).itemsize, experiment.model.parameters(data)
    drawn = 0 if experiment.batch_size == "full" else MiniBatches.BLOCK * experiment.devices * experiment.batch_size
    return number * experiment.devices * parameters, 4 * drawn


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_bytes() -> int | None:
    """Memory that is free to be used, where the system tells."""
    try:
        facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(facts["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _gigabytes(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
