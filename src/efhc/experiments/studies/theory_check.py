"""`efhc theory RUN_DIR`: were the assumptions met, what did the theorems promise, what happened?

What the network did is read from the run directory. What the models did is not in it but for where they ended: the run
is made again, which gives the same models bit for bit, and looked at on its way; that it fires as recorded is checked.
Of a long run only the first and the last models are looked at, unless more is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Literal, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.errors import EfhcError, InputError
from efhc.core.graph import Graph
from efhc.core.randomness import Randomness
from efhc.drivers.lockstep import Lockstep
from efhc.drivers.scenario import Scenario
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.directory import RunDirectory
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.experiments.runs.execute import wait_for_all
from efhc.experiments.runs.resources import usable_cores
from efhc.experiments.studies.theory_flows import load_flow, load_graphs
from efhc.learning.data import Dataset
from efhc.learning.models import ModuleModel
from efhc.theory.checks import SeedCheck, StrategyCheck
from efhc.theory.findings import Finding
from efhc.theory.judgement import judge
from efhc.theory.measured import Measured, look
from efhc.theory.network import Connectivity, check_flow, connectivity
from efhc.theory.problem import Curvature, Optimum, Problem, problem_for
from efhc.theory.spectral import window_contractions

Tell = Callable[[str], None]

PATIENCE, OF_NETWORKS = 4e9, 30
"""Parameters of all devices, times iterations, that are done again without being asked for; networks count for more."""
MUCH_DATA = 10_000_000
"""Numbers in the training data from which on matrix products gain by threads."""


def check_run(
    directory: Path,
    points: int = 40,
    replay: bool | None = None,
    window: int | Literal["promised", "observed"] = "promised",
    tell: Tell = lambda what: None,
) -> list[StrategyCheck]:
    """Every strategy of a finished run.

    `points` is the number of iterations at which models are looked at, if the run is made again: `replay`; left out,
    that is done where it is quick. `window` is the B that rho and the bounds are computed with: the one of
    `proposition:conn`, the one observed (which stands in where the first is longer than the run), or any other.
    """
    run = RunDirectory(directory)
    if not run.is_complete:
        allowed = "the directory of a run that has finished (before a run: efhc theory plan CONFIG)"
        raise InputError("run directory", directory, allowed)
    experiment = run.load_experiment()
    data = load_data(experiment)
    run.check_inputs(experiment, data.sha256)
    if isinstance(window, int) and window > experiment.iterations:
        raise InputError("--window", window, f"at most {experiment.iterations}, the iterations of the run")
    again = _is_quick(experiment, data) if replay is None else replay
    look_at = spread(experiment.iterations, points) if again else np.array([0, experiment.iterations])
    cores, seeds = usable_cores(), len(experiment.seeds)
    blas = max(1, cores // seeds) if data.x_train.size > MUCH_DATA else 1
    with threadpool_limits(blas, "blas"), ThreadPoolExecutor(cores, thread_name_prefix="efhc-theory") as pool:
        tell("the learning problem")
        drawn = ((experiment, draw_scenario(experiment, data, seed), seed) for seed in experiment.seeds)
        problems = in_parallel(pool, SeedProblem.of, drawn)
        final = run.load_models() if (directory / "models.safetensors").exists() else {}
        graphs = [load_graphs(run, experiment, seed) for seed in experiment.seeds]
        check = _Check(run, experiment, data, graphs, final, problems, look_at, window, pool, tell)
        return [check.strategy(strategy, again=again) for strategy in experiment.strategies]


def _is_quick(experiment: Experiment, data: Dataset) -> bool:
    """To make all runs again."""
    runs = len(experiment.seeds) * len(experiment.strategies)
    numbers = experiment.devices * experiment.model.parameters(data) * experiment.iterations * runs
    return numbers * (OF_NETWORKS if isinstance(experiment.model, ModuleModel) else 1) <= PATIENCE


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
        try:
            minimiser = problem.optimum() if optimum else None
        except EfhcError:  # it could not be found as closely as is demanded: the rest can be checked without it
            minimiser = None
        return cls(problem, problem.curvature(start), minimiser)


def fitting_window(
    found: Sequence[Connectivity], iterations: int, wanted: int | Literal["promised", "observed"] = "promised"
) -> int | None:
    """The B to compute with: the wanted one or, if the run is shorter than that, the one observed."""
    promised, observed = max(each.promised for each in found), max(each.observed.length for each in found)
    first = {"promised": promised, "observed": observed}[wanted] if isinstance(wanted, str) else wanted
    return next((int(length) for length in (first, observed) if length <= iterations), None)


@dataclass(frozen=True)
class _Check:
    run: RunDirectory
    experiment: Experiment
    data: Dataset
    graphs: Sequence[Callable[[int], Graph]]
    final: Mapping[tuple[str, int], Floats]
    """Where models ended, if that was kept."""
    problems: Sequence[SeedProblem]
    look_at: Ints
    window: int | Literal["promised", "observed"]
    pool: ThreadPoolExecutor
    tell: Tell

    def strategy(self, strategy: str, *, again: bool) -> StrategyCheck:
        """All seeds of one strategy."""
        experiment, iterations = self.experiment, self.experiment.iterations
        self.tell(f"{strategy}: who fired, and who was reached")
        flows = [
            load_flow(self.run, experiment, strategy, seed, graph)
            for seed, graph in zip(experiment.seeds, self.graphs, strict=True)
        ]
        windows = [connectivity(flow) for flow in flows]
        window = fitting_window(windows, iterations, self.window)
        self.tell(f"{strategy}: transition weights")
        findings = [check_flow(flow) for flow in flows]
        self.tell(f"{strategy}: how much averaging contracts")
        contractions = [
            window_contractions(flow.matrix, iterations, window, threads=usable_cores()) if window else None
            for flow in flows
        ]
        self.tell(f"{strategy}: the run once more" if again else f"{strategy}: the first and the last models")
        visits = self._replays(strategy) if again else self._ends(strategy)
        seeds = {}
        for n, seed in enumerate(experiment.seeds):
            same = _same_run(visits[n], flows[n].fired, self.final.get((strategy, seed)))
            curvature, optimum = visits[n].curvature, self.problems[n].optimum
            seeds[seed] = SeedCheck(
                [*findings[n], same], windows[n], contractions[n], curvature, optimum, visits[n].measured
            )
        look_at = self.look_at[: len(visits[0].measured.loss)]
        return judge(strategy, seeds, experiment.step_size, iterations, look_at, window)

    def _replays(self, strategy: str) -> list[Visits]:
        threads = max(1, usable_cores() // len(self.problems))
        drawn = (draw_scenario(self.experiment, self.data, seed, threads) for seed in self.experiment.seeds)
        items = (
            (self.experiment, scenario, strategy, self.look_at, problem, threads)
            for scenario, problem in zip(drawn, self.problems, strict=True)
        )
        return in_parallel(self.pool, replay_run, items)

    def _ends(self, strategy: str) -> list[Visits]:
        """Where models began and, if that was kept, where they ended."""
        visits = []
        for seed, of in zip(self.experiment.seeds, self.problems, strict=True):
            first = draw_scenario(self.experiment, self.data, seed).initial_models()
            last = self.final.get((strategy, seed))
            rows = [look(models, of.problem, of.optimum) for models in (first, last) if models is not None]
            visits.append(Visits(Measured.of_rows(rows), of.curvature))
        return visits


class Visits(NamedTuple):
    """A run that was looked at."""

    measured: Measured
    curvature: Curvature
    fired: Flags | None = None
    """Who fired, if it was made again."""
    models: Floats | None = None
    """Where it ended, if it was made again."""


def replay_run(
    experiment: Experiment, scenario: Scenario, strategy: str, look_at: Ints, of: SeedProblem, threads: int = 1
) -> Visits:
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
    return Visits(Measured.of_rows(rows), curvature, fired, state.models)


def _same_run(visits: Visits, recorded: Flags, final: Floats | None) -> Finding:
    label, what = "alg:efhc", "the run once more"
    if visits.fired is None:
        return Finding(label, what, "not checkable", "long, so it was not made again; --replay does it")
    if (differs := (visits.fired != recorded).any(axis=1)).any():
        k = int(np.argmax(differs))
        device = int(np.argmax(visits.fired[k] != recorded[k]))
        detail = "fires otherwise than recorded: what was measured is not that run"
        return Finding(label, what, "broken", detail, k, device)
    if final is None:
        return Finding(label, what, "held", "fires as recorded")
    if np.array_equal(np.asarray(visits.models), final):
        return Finding(label, what, "held", "fires as recorded, and ends with the same models")
    return Finding(label, what, "broken", "ends with other models than those that were kept", len(recorded))
