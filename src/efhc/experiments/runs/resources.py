"""How many runs are made at once, with how many threads each, and whether the memory suffices.

None of this changes a result.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from efhc.base.errors import EfhcError, InputError, within
from efhc.base.own_code import quoting
from efhc.core.memory import total_bytes
from efhc.core.personal import Personal
from efhc.core.randomness import Randomness
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.tables import LOCKSTEP, tables_of
from efhc.learning.batches import SHARED_BYTES, MiniBatches
from efhc.learning.data import Dataset
from efhc.learning.learner import TOGETHER
from efhc.network.topologies import StaticGraph
from efhc.strategies.forms import form_of

LEFT_FREE = 256 * 2**20
MOST_THREADS = 1024
"""Largest number of threads that are used: by default, systems do not let a process have many more."""

STEP_ARRAYS = 12
"""Arrays (m, n) that a strategy of a form of its own may compute on the way: RelaySGD, which adds in double precision,
needs that many."""


class Plan(NamedTuple):
    """How an experiment uses the machine."""

    runs_at_once: int
    threads_per_run: int


def plan(experiment: Experiment, data: Dataset, jobs: int | None, runs: int, *, keeps_models: bool = False) -> Plan:
    """Return how many of `runs` runs to make at once, and the threads of each.

    As many runs are made at once as there are cores (or `jobs`) and memory for; the cores that are left over are shared
    among them. With `keeps_models` the final models of all runs stay in memory. Raises `EfhcError` if the memory does
    not suffice for one run.
    """
    if jobs is not None and jobs < 1:
        raise InputError("jobs", jobs, "at least 1, or nothing for all cores")
    cores = min(jobs or usable_cores(), MOST_THREADS)
    at_once = min(cores, runs)
    needs, available = memory_of(experiment, data), available_bytes()
    kept = data.x_test.nbytes + (runs * needs.models if keeps_models else 0)  # test samples are laid out for evaluation
    if available is not None:
        room = available - LEFT_FREE - kept
        if needs.running > room:
            raise EfhcError(
                f"memory: {runs} runs of {experiment.devices} devices with "
                f"{experiment.model.parameters(data):,} parameters each need {_gigabytes(kept + needs.running)}, and "
                f"{_gigabytes(available)} are free; take fewer devices, seeds or strategies, a smaller model "
                "or batch_size" + (", or float32" if experiment.precision == "float64" else "")
            )
        at_once = max(1, min(at_once, room // (needs.running + needs.at_times)))
    return Plan(at_once, cores // at_once)


class MemoryNeeds(NamedTuple):
    """The bytes that one run needs."""

    models: int
    """One array (m, n)."""
    running: int
    """What every run holds while it is made."""
    at_times: int
    """What it may need in addition. This limits how many runs are made at once, but never refuses a single run."""


def memory_of(experiment: Experiment, data: Dataset) -> MemoryNeeds:
    """Return the memory that each run of an experiment needs, given by its most demanding strategy."""
    with within("model"):
        parameters = experiment.model.parameters(data)
    devices, precision = experiment.devices, np.dtype(experiment.precision)
    number, is_lockstep = precision.itemsize, tables_of(experiment) is LOCKSTEP
    models = number * devices * parameters
    # Samples drawn ahead, those kept for the other strategies, and copies of small models to evaluate.
    drawn = 0 if experiment.batch_size == "full" else 4 * MiniBatches.BLOCK * devices * experiment.batch_size
    shared = min(-(-experiment.iterations // MiniBatches.BLOCK) * drawn, SHARED_BYTES)
    # Models, last broadcasts and gradients; event-driven also what the devices offer.
    running = (3 if is_lockstep else 4) * models + drawn + shared + 2 * min(models, number * TOGETHER)
    running += models * max(_personal_copies(strategy) for strategy in experiment.strategies.values())
    forms = [form_of(strategy, name) for name, strategy in experiment.strategies.items()]
    at_times = STEP_ARRAYS * models if any(form.parts is None for form in forms) else 0
    loses_messages = bool(getattr(experiment.driver, "loss", None))
    beyond = [form for form in forms if loses_messages or not form.is_papers]
    if is_lockstep and not beyond:
        return MemoryNeeds(models, running, at_times)
    with within("network"), quoting(experiment.network, "kind"):
        network = experiment.network.over_time(devices, Randomness(experiment.seeds[0]))
    is_static, links = isinstance(network, StaticGraph), len(network.graph(0).links)
    if not is_lockstep:
        # All models that can be under way: one per end of each link; with half-steps four: two versions of what the
        # neighbour knows, what is known of it, and what the link has added to h. Devices share what they send, so that
        # a run seldom holds as many.
        per_end = 4 if any(form.half_steps for form in forms) else 1
        at_times += 2 * per_end * links * models // devices
    # Strategies beyond the paper's compute the next last broadcasts, if they have any, and all that they remember
    # beside the current ones.
    needed = [
        models * form.broadcasts(is_static=is_static)
        + 2 * total_bytes(form.memory(is_static=is_static), devices, links, parameters, precision)
        for form in beyond
    ]
    return MemoryNeeds(models, running + max(needed, default=0), at_times)


def _personal_copies(strategy: Any) -> int:
    """Return how many arrays like the models the personal models of a strategy take, with what local steps remember."""
    personal = getattr(strategy, "personal", None)
    if personal is None:
        return 0
    parts = form_of(strategy).parts
    copies = personal.copies if isinstance(personal, Personal) else Personal.copies
    return copies + (2 * len(parts.local.memory) if parts else 0)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_bytes() -> int | None:
    """Return the free memory in bytes, or None if the system does not say."""
    try:
        facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(facts["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _gigabytes(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
