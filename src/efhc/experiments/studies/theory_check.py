"""`efhc theory RUN_DIR`: were the assumptions met, what did the theorems promise, what happened?

What the network did is read from the run directory. The models are read from there too if the run kept any on its way.
If it did not, a short run is made again, which gives the same models bit for bit, and that it fires as recorded is
checked. Of a long run only the first and the last models are looked at, unless more is asked for; and where no theorem
applies, because the loss is not smooth, none are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import using_inputs
from efhc.core.graph import Graph
from efhc.core.iteration import State
from efhc.core.randomness import Randomness
from efhc.core.triggers import Never, RandomizedGossip, Trigger, ZeroThreshold
from efhc.drivers.lockstep import Lockstep
from efhc.drivers.observers import LookAt, drive
from efhc.drivers.scenario import Scenario
from efhc.drivers.steps import Steps
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.directory import RunDirectory
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.engines.local import wait_for_all
from efhc.experiments.runs.resources import usable_cores
from efhc.experiments.runs.run import Runs
from efhc.experiments.studies.theory_flows import load_flow, load_graphs
from efhc.kernels.compiled_arithmetic import consensus_error
from efhc.learning.data import Dataset
from efhc.learning.models import LeastSquares, ModuleModel
from efhc.theory.assess import Firing, assess
from efhc.theory.checks import ChosenWindow, SeedCheck, StrategyCheck
from efhc.theory.flow import Flow
from efhc.theory.measured import Measured, look
from efhc.theory.network import Connectivity, check_flow, connectivity
from efhc.theory.outcome import Check
from efhc.theory.problem import Curvature, Optimum, Problem, problem_for
from efhc.theory.spectral import window_contractions

Tell = Callable[[str, float], None]
"""Called with what is being done and the share of all work that is finished."""
WantedWindow = int | Literal["promised", "observed"]

POINTS = 40
"""Iterations at which the models are looked at, where nothing else is asked for."""
QUICK = 15.0
"""Processor seconds that may be spent, by the estimates below, without being asked for."""
ITERATION, ITERATION_OF_NETWORK, LOOK = 12e-9, 360e-9, 1.4e-9
"""Seconds per parameter and device in an iteration, and per parameter and sample in a look at a model."""
OPTIMUM_LOOKS = {"direct": 4, "iterative": 200}
"""Looks at a model that it takes to find w*."""
NOISE_SAMPLES = 500
"""Samples per device from which the gradient noise is estimated, unless everything is asked for."""
MUCH_DATA = 10_000_000
"""Numbers in the training data from which on matrix products gain by threads."""


def check_run(
    directory: Path,
    points: int | None = None,
    replay: bool | None = None,
    window: WantedWindow = "promised",
    tell: Tell = lambda what, share: None,
    *,
    trust_code: bool = False,
) -> list[StrategyCheck]:
    """Check every strategy of a finished run; see `iterate_checks`."""
    return list(iterate_checks(directory, points, replay, window, tell, trust_code=trust_code))


def iterate_checks(
    directory: Path,
    points: int | None = None,
    replay: bool | None = None,
    window: WantedWindow = "promised",
    tell: Tell = lambda what, share: None,
    *,
    trust_code: bool = False,
) -> Iterator[StrategyCheck]:
    """Check a finished run, one strategy after the other.

    `points` is the number of iterations at which models are looked at. Default: 40. `replay` says whether the run is
    made again to look at its models; with True, w* is found and the noise is computed exactly however long it takes.
    Default: where that is quick and the run has kept no models. `window` is the B with which rho and the bounds are
    computed: that of `proposition:conn`, the least one observed (which stands in where the first is longer than the
    run), or a number. `trust_code` allows Python code that the stored config names to be executed.
    """
    run = RunDirectory(directory)
    if not run.is_complete:
        allowed = "the directory of a run that has finished (before a run: efhc theory plan CONFIG)"
        raise InputError("run directory", directory, allowed)
    experiment = run.load_experiment(trust_code=trust_code)
    if run.failures:
        (strategy, seed), reason = next(iter(run.failures.items()))
        raise EfhcError(f"{strategy}, seed {seed} failed ({reason}); only runs that all succeeded can be checked")
    if isinstance(window, int) and window > experiment.iterations:
        raise InputError("--window", window, f"at most {experiment.iterations}, the iterations of the run")
    inputs = Runs().inputs(experiment)
    run.check_inputs(inputs.checksums)
    data = inputs.data
    cores, seeds = usable_cores(), len(experiment.seeds)
    blas = max(1, cores // seeds) if data.x_train.size > MUCH_DATA else 1
    with (
        using_inputs(inputs.files),
        threadpool_limits(blas, "blas"),
        ThreadPoolExecutor(cores, thread_name_prefix="efhc-theory") as pool,
    ):
        check = _Check.prepare(run, experiment, data, window, pool, tell, points, replay)
        for strategy in experiment.strategies:
            yield check.strategy(strategy)


def in_parallel(pool: ThreadPoolExecutor, work: Callable[..., Any], items: Iterable[tuple[Any, ...]]) -> list[Any]:
    """`work` on each of the items."""
    futures = [pool.submit(work, *item) for item in items]
    wait_for_all(pool, futures, Event())
    return [future.result() for future in futures]


def spread(iterations: int, points: int) -> Ints:
    """At most `points` of the numbers 0 .. `iterations`, both ends among them, evenly in log k."""
    evenly = np.geomspace(1, iterations, max(points - 1, 2)).round().astype(np.int64)
    return np.unique(np.concatenate([[0], evenly]))


def firing_of(trigger: Trigger, devices: int) -> Firing:
    """By what the devices of a strategy fire. One that is not built in may do so by drift."""
    if isinstance(trigger, RandomizedGossip):
        p = 1 / devices if trigger.probability is None else trigger.probability
        return "coins" if 0 < p < 1 else "fixed"
    return "fixed" if isinstance(trigger, ZeroThreshold | Never) else "drift"


class Effort(NamedTuple):
    """How much is looked at."""

    replay: bool
    """Whether the run is made again."""
    optimum: bool
    """Whether w* is looked for."""
    noise_samples: int | None
    """Samples per device from which the noise is estimated; None for all."""

    @classmethod
    def of(cls, experiment: Experiment, data: Dataset, points: int, replay: bool | None, *, kept: bool) -> Effort:
        """What was asked for, or what is quick."""
        if replay:
            return cls(True, True, None)
        seeds, runs = len(experiment.seeds), len(experiment.seeds) * len(experiment.strategies)
        parameters, samples = experiment.model.parameters(data), len(data.y_train)
        network = isinstance(experiment.model, ModuleModel)
        each = ITERATION_OF_NETWORK if network else ITERATION
        look_at = LOOK * parameters * samples * (each / ITERATION)
        again = runs * (each * experiment.devices * parameters * experiment.iterations + points * look_at)
        direct = isinstance(experiment.model, LeastSquares)
        optimum = seeds * OPTIMUM_LOOKS["direct" if direct else "iterative"] * look_at
        quick = again <= QUICK and not kept and replay is None
        return cls(quick, optimum <= QUICK, None if points * runs * look_at <= QUICK else NOISE_SAMPLES)


class SeedProblem(NamedTuple):
    """The learning problem that one seed draws."""

    problem: Problem
    curvature: Curvature
    optimum: Optimum | None

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        scenario: Scenario,
        seed: int,
        *,
        optimum: bool = True,
        noise_samples: int | None = None,
    ) -> SeedProblem:
        """Its constants at the mean of the initial models; its minimiser, if `optimum` asks for it."""
        learner = scenario.learner
        draws = Randomness(seed)  # of mini-batches to measure the noise by, where it has to be sampled
        problem = problem_for(
            experiment.model,
            learner.data,
            learner.parts,
            experiment.batch_size,
            learner.backend,
            draws,
            noise_samples,
        )
        start = scenario.initial_models().mean(axis=0, dtype=np.float64)
        try:
            minimiser = problem.optimum() if optimum else None
        except EfhcError:  # it could not be found as closely as is demanded: the rest can be checked without it
            minimiser = None
        return cls(problem, problem.curvature(start), minimiser)


def fitting_window(
    found: Sequence[Connectivity], iterations: int, wanted: WantedWindow = "promised"
) -> ChosenWindow | None:
    """The B to compute with: the wanted one or, if the run is shorter than that, the one observed."""
    promised, observed = max(each.promised for each in found), max(each.observed.length for each in found)
    if isinstance(wanted, int):
        return ChosenWindow(wanted, "given")
    if wanted == "promised" and promised <= iterations:
        return ChosenWindow(int(promised), "promised")
    return ChosenWindow(int(observed), "observed") if observed <= iterations else None


class Visits(NamedTuple):
    """A run whose models were looked at."""

    measured: Measured
    curvature: Curvature
    fired: Flags | None = None
    """Who fired, if it was made again."""
    models: Floats | None = None
    """Where it ended, if it was made again."""


@dataclass
class _Work:
    """How much of all work is done."""

    total: float
    tell: Tell
    done: float = 0.0
    what: str = ""
    lock: Any = field(default_factory=Lock)

    def begin(self, what: str) -> None:
        self.what = what
        self.tell(what, min(1.0, self.done / self.total))

    def finish(self, amount: float = 1.0) -> None:
        with self.lock:
            self.done += amount
            self.tell(self.what, min(1.0, self.done / self.total))


@dataclass(frozen=True)
class _Check:
    run: RunDirectory
    experiment: Experiment
    scenarios: Sequence[Scenario]
    graphs: Sequence[Callable[[int], Graph]]
    final: Mapping[tuple[str, int], Floats]
    """Where models ended, if that was kept."""
    problems: Sequence[SeedProblem]
    effort: Effort
    asked: bool
    """Whether the run is made again because the user says so."""
    points: int
    looks: int
    """At models, per run, that are expected."""
    window: WantedWindow
    pool: ThreadPoolExecutor
    work: _Work
    first_looks: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """By seed what its initial models show, which is the same for all strategies."""

    @classmethod
    def prepare(
        cls,
        run: RunDirectory,
        experiment: Experiment,
        data: Dataset,
        window: WantedWindow,
        pool: ThreadPoolExecutor,
        tell: Tell,
        points: int | None,
        replay: bool | None,
    ) -> _Check:
        """What all strategies have in common."""
        seeds, strategies = experiment.seeds, list(experiment.strategies)
        points = points or POINTS
        kept = bool(run.snapshots(strategies[0], seeds[0]))
        effort = Effort.of(experiment, data, points, replay, kept=kept)
        looks = points if effort.replay or kept else 2
        work = _Work(len(seeds) + len(strategies) * (3 + len(seeds) * looks), tell)
        work.begin("the learning problem")
        threads = max(1, usable_cores() // len(seeds))
        scenarios = [draw_scenario(experiment, data, seed, threads) for seed in seeds]

        def problem(scenario: Scenario, seed: int) -> SeedProblem:
            found = SeedProblem.of(
                experiment, scenario, seed, optimum=effort.optimum, noise_samples=effort.noise_samples
            )
            work.finish()
            return found

        problems = in_parallel(pool, problem, zip(scenarios, seeds, strict=True))
        final = run.load_models() if run.has_models else {}
        graphs = [load_graphs(run, experiment, seed) for seed in seeds]
        asked = bool(replay)
        return cls(
            run, experiment, scenarios, graphs, final, problems, effort, asked, points, looks, window, pool, work
        )

    @property
    def theorems_apply(self) -> bool:
        return all(math.isfinite(each.curvature.L) for each in self.problems)

    def strategy(self, strategy: str) -> StrategyCheck:
        """All seeds of one strategy."""
        experiment, iterations, work = self.experiment, self.experiment.iterations, self.work
        work.begin(f"{strategy}: who fired, and who was reached")
        flows = [
            load_flow(self.run, experiment, strategy, seed, graph)
            for seed, graph in zip(experiment.seeds, self.graphs, strict=True)
        ]
        windows = [connectivity(flow) for flow in flows]
        chosen = fitting_window(windows, iterations, self.window)
        work.finish()
        work.begin(f"{strategy}: transition weights")
        checks = [check_flow(flow) for flow in flows]
        work.finish()
        work.begin(f"{strategy}: contraction")
        contractions = [
            window_contractions(flow.matrix, iterations, chosen.length, threads=usable_cores()) if chosen else None
            for flow in flows
        ]
        work.finish()
        before = work.done
        look_at, visits, same = self._models(strategy, flows)
        work.finish(max(0.0, before + len(flows) * self.looks - work.done))  # some may have been spared
        seeds = {
            seed: SeedCheck(
                [*checks[n], same[n]],
                windows[n],
                contractions[n],
                visits[n].curvature,
                self.problems[n].optimum,
                visits[n].measured,
            )
            for n, seed in enumerate(experiment.seeds)
        }
        return assess(
            strategy,
            seeds,
            experiment.step_size,
            iterations,
            look_at,
            chosen,
            firing_of(experiment.strategies[strategy], experiment.devices),
            optimum_sought=self.effort.optimum,
        )

    def _models(self, strategy: str, flows: Sequence[Flow]) -> tuple[Ints, list[Visits], list[Check]]:
        """At which iterations models were looked at, what they showed, and whether they are those of the run."""
        seeds, iterations = self.experiment.seeds, self.experiment.iterations
        look_at = spread(iterations, self.points)
        if not self.theorems_apply and not self.asked:
            return look_at, self._recorded(strategy, look_at), [_not_made("no-theorem")] * len(seeds)
        if self.effort.replay:
            self.work.begin(f"{strategy}: the run once more")
            visits: list[Visits] = in_parallel(
                self.pool, self._replay, [(strategy, n, look_at) for n in range(len(seeds))]
            )
            same = [
                same_run(visit, flow.fired, self.final.get((strategy, seed)))
                for visit, flow, seed in zip(visits, flows, seeds, strict=True)
            ]
            return look_at, visits, same
        kept = [self.run.snapshots(strategy, seed) for seed in seeds]
        on_the_way = set.intersection(*map(set, kept))
        at_the_end = {iterations} if all((strategy, seed) in self.final for seed in seeds) else set()
        self.work.begin(f"{strategy}: the models that were kept")
        look_at = _thinned({0} | on_the_way | at_the_end, self.points)
        items = [(strategy, n, look_at, kept[n]) for n in range(len(seeds))]
        not_made = _not_made("kept" if on_the_way else "not-made-again")
        return look_at, in_parallel(self.pool, self._look_at_kept, items), [not_made] * len(seeds)

    def _replay(self, strategy: str, n: int, look_at: Ints) -> Visits:
        threads = max(1, usable_cores() // len(self.problems))
        scenario, of = self.scenarios[n], self.problems[n]
        return replay_run(self.experiment, scenario, strategy, look_at, of, threads, self.work.finish)

    def _look_at_kept(self, strategy: str, n: int, look_at: Ints, kept: Mapping[int, Floats]) -> Visits:
        seed, of, rows = self.experiment.seeds[n], self.problems[n], []
        for k in look_at.tolist():
            if k == 0:
                if seed not in self.first_looks:
                    self.first_looks[seed] = look(self.scenarios[n].initial_models(), of.problem, of.optimum)
                rows.append(self.first_looks[seed])
            else:
                rows.append(look(kept[k] if k in kept else self.final[strategy, seed], of.problem, of.optimum))
            self.work.finish()
        return Visits(Measured.of_rows(rows), of.curvature)

    def _recorded(self, strategy: str, look_at: Ints) -> list[Visits]:
        """Consensus errors as the run recorded them; nothing else is of use where no theorem applies."""
        visits = []
        for seed, scenario, of in zip(self.experiment.seeds, self.scenarios, self.problems, strict=True):
            rows = self.run.read_rows("metrics", (pl.col("strategy") == strategy) & (pl.col("seed") == seed))
            start = consensus_error(scenario.initial_models())
            errors = np.concatenate([[start], rows.sort("iteration")["consensus_error"].to_numpy()])
            visits.append(Visits(Measured.of_consensus(errors[look_at]), of.curvature))
        return visits


def _thinned(iterations: Iterable[int], points: int) -> Ints:
    """At most `points` of these, evenly in log k."""
    every = np.array(sorted(iterations), dtype=np.int64)
    if len(every) <= points:
        return every
    wanted = spread(int(every[-1]), points)
    nearest = np.abs(every[None, :] - wanted[:, None]).argmin(axis=1)
    return np.unique(every[nearest])


class _Looks(LookAt):
    """Looks at the models of one run, and notes who fired."""

    def __init__(self, look_at: Ints, of: SeedProblem, shape: tuple[int, int], done: Callable[[], None]) -> None:
        super().__init__(look_at.tolist())
        self.fired: Flags = np.zeros(shape, dtype=bool)
        self.rows: list[tuple[float, ...]] = []
        self.curvature = of.curvature
        self._of, self._done = of, done
        middle_and_end = {int(look_at[len(look_at) // 2]), int(look_at[-1])}
        self._curved_at = middle_and_end if of.curvature.known == "estimate" else set()

    def look(self, state: State) -> None:
        self.rows.append(look(state.models, self._of.problem, self._of.optimum))
        if state.k in self._curved_at:
            here = self._of.problem.curvature(state.models.mean(axis=0, dtype=np.float64))
            self.curvature = Curvature.worst([self.curvature, here])
        self._done()

    def after(self, steps: Steps, state: State) -> None:
        self.fired[steps.k : steps.k + len(steps)] = steps.fired
        super().after(steps, state)


def replay_run(
    experiment: Experiment,
    scenario: Scenario,
    strategy: str,
    look_at: Ints,
    of: SeedProblem,
    threads: int = 1,
    done: Callable[[], None] = lambda: None,
) -> Visits:
    """Make the run of one strategy in a scenario, and look at its models at the iterations `look_at`."""
    looks = _Looks(look_at, of, (experiment.iterations, experiment.devices), done)
    lockstep = Lockstep(scenario, experiment.strategies[strategy], threads)
    state = drive(lockstep, scenario.initial_state(), int(look_at[-1]), [looks])
    return Visits(Measured.of_rows(looks.rows), looks.curvature, looks.fired, state.models)


def _not_made(reason: str) -> Check:
    return Check("same-run", "alg:efhc", "not checkable", reason)


def same_run(visits: Visits, recorded: Flags, final: Floats | None) -> Check:
    """Whether a run that was made again is the one that was recorded."""
    if visits.fired is None:
        return _not_made("not-made-again")
    if (differs := (visits.fired != recorded).any(axis=1)).any():
        k = int(np.argmax(differs))
        device = int(np.argmax(visits.fired[k] != recorded[k]))
        return Check("same-run", "alg:efhc", "broken", "fires-otherwise", {}, k, device)
    if final is None:
        return Check("same-run", "alg:efhc", "held", "fires-as-recorded")
    if np.array_equal(np.asarray(visits.models), final):
        return Check("same-run", "alg:efhc", "held", "same")
    return Check("same-run", "alg:efhc", "broken", "ends-otherwise", {}, len(recorded))
