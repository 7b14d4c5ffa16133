"""`efhc theory RUN_DIR`: were the assumptions met, what did the theorems promise, what happened?

What the network did is read from the run directory. What the models did is not in it: the run is made again, which
gives the same models bit for bit, and looked at on its way; that it fires as recorded is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from efhc.core.arrays import Flags, Floats, Ints
from efhc.core.errors import InputError
from efhc.core.randomness import Randomness
from efhc.experiments.config import Experiment
from efhc.experiments.execute import wait_for_all
from efhc.experiments.flows import load_flow
from efhc.experiments.resources import usable_cores
from efhc.experiments.run_directory import RunDirectory
from efhc.experiments.scenario import draw_scenario, load_data
from efhc.learning.data import Dataset
from efhc.simulation.lockstep import Lockstep, Scenario
from efhc.theory.findings import Finding
from efhc.theory.judgement import SeedCheck, StrategyCheck, judge
from efhc.theory.measured import Measured, look
from efhc.theory.network import Connectivity, check_connectivity, check_flow, connectivity
from efhc.theory.problem import Curvature, Optimum, Problem, problem_for
from efhc.theory.spectral import window_contractions

Tell = Callable[[str], None]


def check_run(directory: Path, points: int = 64, tell: Tell = lambda what: None) -> list[StrategyCheck]:
    """Every strategy of a finished run. `points` is the number of iterations at which models are looked at."""
    run = RunDirectory(directory)
    if not run.is_complete:
        raise InputError("run directory", directory, "the directory of a run that has finished")
    experiment = run.load_experiment()
    data = load_data(experiment)
    for name, checksum in run.meta.get("data_sha256", {}).items():
        if data.sha256.get(name) != checksum:
            raise InputError("data", f"a changed {name}", f"the file with SHA-256 {checksum[:12]}... of that run")
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(usable_cores(), thread_name_prefix="efhc-theory") as pool:
        tell("the learning problem")
        drawn = ((experiment, draw_scenario(experiment, data, seed), seed) for seed in experiment.seeds)
        problems = in_parallel(pool, SeedProblem.of, drawn)
        return [
            _check_strategy(
                run, experiment, data, strategy, problems, spread(experiment.iterations, points), pool, tell
            )
            for strategy in experiment.strategies
        ]


def in_parallel(pool: ThreadPoolExecutor, work: Callable[..., Any], items: Iterable[tuple[Any, ...]]) -> list[Any]:
    """`work` on each of the items."""
    futures = [pool.submit(work, *item) for item in items]
    wait_for_all(pool, futures, Event())
    return [future.result() for future in futures]


def spread(iterations: int, points: int) -> Ints:
    """Of 0 .. K, evenly in log k."""
    evenly = np.geomspace(1, iterations, max(points - 1, 2)).round().astype(np.int64)
    return np.unique(np.concatenate([[0], evenly]))


class SeedProblem(NamedTuple):
    """The learning problem that one seed draws."""

    problem: Problem
    curvature: Curvature
    optimum: Optimum | None

    @classmethod
    def of(cls, experiment: Experiment, scenario: Scenario, seed: int, *, optimum: bool = True) -> SeedProblem:
        """Its constants at the mean of the initial models; its minimiser, if that is asked for."""
        learner = scenario.learner
        draws = Randomness(seed)  # of mini-batches to measure the noise by, where it has to be sampled
        problem = problem_for(
            experiment.model, learner.data, learner.parts, experiment.batch_size, learner.backend, draws
        )
        start = scenario.initial_models().mean(axis=0, dtype=np.float64)
        return cls(problem, problem.curvature(start), problem.optimum() if optimum else None)


def _check_strategy(
    run: RunDirectory,
    experiment: Experiment,
    data: Dataset,
    strategy: str,
    problems: Sequence[SeedProblem],
    look_at: Ints,
    pool: ThreadPoolExecutor,
    tell: Tell,
) -> StrategyCheck:
    tell(f"{strategy}: who fired, and who was reached")
    flows = [load_flow(run, experiment, strategy, seed) for seed in experiment.seeds]
    windows = [connectivity(flow) for flow in flows]
    window = fitting_window(windows, experiment.iterations)
    tell(f"{strategy}: transition weights")
    weights = [check_flow(flow) for flow in flows]
    tell(f"{strategy}: how much averaging contracts")
    cores = usable_cores()
    contractions = [
        window and window_contractions(flow.matrix, flow.iterations, window, threads=cores) for flow in flows
    ]
    tell(f"{strategy}: the run once more")
    final = run.load_models() if (run.path / "models.safetensors").exists() else {}
    threads = max(1, cores // len(flows))
    replays = in_parallel(
        pool,
        replay,
        (
            (experiment, draw_scenario(experiment, data, seed, threads), strategy, look_at, problem, threads)
            for seed, problem in zip(experiment.seeds, problems, strict=True)
        ),
    )
    seeds = {
        seed: SeedCheck(
            [
                *weights[n],
                _same_run(replays[n], flows[n].fired, final.get((strategy, seed))),
                *check_connectivity(windows[n], experiment.iterations),
            ],
            windows[n],
            contractions[n] or None,
            replays[n].curvature,
            problems[n].optimum,
            replays[n].measured,
        )
        for n, seed in enumerate(experiment.seeds)
    }
    return judge(strategy, seeds, experiment.step_size, experiment.iterations, look_at, window)


def fitting_window(found: Sequence[Connectivity], iterations: int) -> int | None:
    """The B to compute with: what `proposition:conn` promises or, if the run is shorter than that, what was seen."""
    lengths = max(each.promised for each in found), max(each.observed.length for each in found)
    return next((int(length) for length in lengths if length <= iterations), None)


class Replay(NamedTuple):
    """A run, made once more and looked at."""

    measured: Measured
    curvature: Curvature
    fired: Flags
    models: Floats


def replay(
    experiment: Experiment, scenario: Scenario, strategy: str, look_at: Ints, of: SeedProblem, threads: int
) -> Replay:
    """Make the run of one strategy in a scenario, and look at its models at the iterations `look_at`."""
    lockstep, state = Lockstep(scenario, experiment.strategies[strategy], threads), scenario.initial_state()
    fired = np.empty((experiment.iterations, experiment.devices), dtype=bool)
    rows, curvature = [], of.curvature
    for target in look_at.tolist():
        while state.k < target:
            state, steps = lockstep.advance(state, target - state.k)
            fired[steps.k : steps.k + len(steps)] = steps.fired
        rows.append(look(state.models, of.problem, of.optimum))
        if curvature.known == "estimate" and target in (look_at[len(look_at) // 2], look_at[-1]):
            here = of.problem.curvature(state.models.mean(axis=0, dtype=np.float64))
            curvature = Curvature.worst([curvature, here])
    return Replay(Measured.of_rows(rows), curvature, fired, state.models)


def _same_run(replay: Replay, recorded: Flags, final: Floats | None) -> Finding:
    label, what = "alg:efhc", "the run once more"
    if (differs := (replay.fired != recorded).any(axis=1)).any():
        k = int(np.argmax(differs))
        device = int(np.argmax(replay.fired[k] != recorded[k]))
        return Finding(
            label, what, "broken", "fires otherwise than recorded: what was measured is not that run", k, device
        )
    same = final is not None and np.array_equal(replay.models, final)
    return Finding(label, what, "held", "fires as recorded" + (", and ends with the same models" if same else ""))
