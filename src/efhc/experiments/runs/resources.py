"""How many runs are made at once, with how many threads each, and whether the memory suffices.

None of this changes a result.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from efhc.base.errors import EfhcError, InputError, within
from efhc.base.own_code import quoting
from efhc.core.memory import total_bytes
from efhc.core.randomness import Randomness
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.tables import LOCKSTEP, tables_of
from efhc.learning.batches import SHARED_BYTES, MiniBatches
from efhc.learning.data import Dataset
from efhc.learning.learner import TOGETHER
from efhc.network.topologies import GraphsOverTime, StaticGraph
from efhc.strategies.forms import form_of

LEFT_FREE = 256 * 2**20
MOST_THREADS = 1024
"""Largest number of threads that are used: by default, systems do not let a process have many more."""

STEP_ARRAYS = 12
"""Arrays (m, n) that a step may compute on the way: RelaySGD, which adds in double precision, needs that many."""


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
    with within("model"):
        one_array, batch = array_bytes(experiment, data)
        of_strategy = strategy_bytes(experiment, data)
    kept = data.x_test.nbytes + (runs * one_array if keeps_models else 0)  # test samples are laid out for evaluation
    running = arrays_of(experiment) * one_array + batch + of_strategy
    available = available_bytes()
    if available is not None:
        room = available - LEFT_FREE - kept
        if running > room:
            raise EfhcError(
                f"memory: {runs} runs of {experiment.devices} devices with "
                f"{experiment.model.parameters(data):,} parameters each need {_gigabytes(kept + running)}, and "
                f"{_gigabytes(available)} are free; take fewer devices, seeds or strategies, a smaller model "
                "or batch_size" + (", or float32" if experiment.precision == "float64" else "")
            )
        if at_once > 1:
            at_times = in_flight_bytes(experiment, one_array) + step_bytes(experiment, one_array)
            at_once = max(1, min(at_once, room // (running + at_times)))
    return Plan(at_once, cores // at_once)


def array_bytes(experiment: Experiment, data: Dataset) -> tuple[int, int]:
    """Return the bytes of one array (m, n), of which a run holds `arrays_of`, and those of all else that it needs.

    That is the samples drawn ahead, those kept for the other strategies, and copies of small models to evaluate.
    """
    number, parameters = np.dtype(experiment.precision).itemsize, experiment.model.parameters(data)
    drawn = 0 if experiment.batch_size == "full" else 4 * MiniBatches.BLOCK * experiment.devices * experiment.batch_size
    blocks = -(-experiment.iterations // MiniBatches.BLOCK)
    one_array = number * experiment.devices * parameters
    return one_array, drawn + min(blocks * drawn, SHARED_BYTES) + 2 * min(one_array, number * TOGETHER)


def arrays_of(experiment: Experiment) -> int:
    """Return how many arrays (m, n) a run at work holds.

    In lockstep: models, last broadcasts and gradients. Event-driven: also what the devices offer.
    """
    return 3 if tables_of(experiment) is LOCKSTEP else 4


def in_flight_bytes(experiment: Experiment, one_array: int) -> int:
    """Return the bytes of all models that can be under way at once: one per end of each link, in G(0); with half-steps
    four, for what an end has told, told before, heard and been taught.

    Devices share what they send, so that a run seldom holds as many. Therefore this limits how many runs are made at
    once, but a single run is never refused for it.
    """
    if tables_of(experiment) is LOCKSTEP:
        return 0
    forms = [form_of(strategy, name) for name, strategy in experiment.strategies.items()]
    per_end = 4 if any(form.half_steps for form in forms) else 1
    return 2 * per_end * len(_network(experiment).graph(0).links) * one_array // experiment.devices


def step_bytes(experiment: Experiment, one_array: int) -> int:
    """Return the bytes that strategies which make their iterations themselves may need on the way.

    Nobody knows how many arrays such a step computes. Therefore this limits how many runs are made at once, but a
    single run is never refused for it.
    """
    forms = (form_of(strategy, name) for name, strategy in experiment.strategies.items())
    return STEP_ARRAYS * one_array if any(form.parts is None for form in forms) else 0


def strategy_bytes(experiment: Experiment, data: Dataset) -> int:
    """Return the bytes that the most demanding strategy needs in addition to the `arrays_of` a run.

    The paper's strategies need none. The others compute the next last broadcasts, if they have any, and all that they
    remember beside the current ones. The links are those of G(0).
    """
    one_array, _ = array_bytes(experiment, data)
    parameters, precision = experiment.model.parameters(data), np.dtype(experiment.precision)
    forms = [form_of(strategy, name) for name, strategy in experiment.strategies.items()]
    loses_messages = bool(getattr(experiment.driver, "loss", None))
    beyond = [form for form in forms if loses_messages or not form.is_papers]
    if not beyond:
        return 0
    network, needed = _network(experiment), [0]
    is_static, links = isinstance(network, StaticGraph), len(network.graph(0).links)
    for form in beyond:
        memories = form.memory(is_static=is_static)
        remembered = total_bytes(memories, experiment.devices, links, parameters, precision)
        needed.append(one_array * form.broadcasts(is_static=is_static) + 2 * remembered)
    return max(needed)


def _network(experiment: Experiment) -> GraphsOverTime:
    with within("network"), quoting(experiment.network, "kind"):
        return experiment.network.over_time(experiment.devices, Randomness(experiment.seeds[0]))


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
