"""`efhc theory RUN_DIR`: were the assumptions met, what did the theorems promise, what happened?

The network's behaviour is read from the run directory, and so are the models if the run kept some on its way. If it
did not, a short run is made again: that gives the same models bit for bit, and is checked to fire as recorded. Of a
long run only the first and the last models are looked at, unless more is asked for. Where no theorem applies, because
the loss is not smooth, no models are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import using_inputs
from efhc.core.graph import Graph
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.directory import RunDirectory
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.resources import usable_cores
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.tables import require_lockstep, require_papers_form
from efhc.experiments.studies.theory_effort import POINTS, Effort
from efhc.experiments.studies.theory_flows import load_flow, load_graphs
from efhc.experiments.studies.theory_problem import SeedProblem
from efhc.experiments.studies.theory_progress import Tell, Work, in_parallel
from efhc.experiments.studies.theory_visits import Visits, not_made, replay_run, same_run, spread, thinned
from efhc.kernels.compiled_arithmetic import consensus_error
from efhc.learning.data import Dataset
from efhc.scenarios.scenario import Scenario
from efhc.theory.check.assess import assess
from efhc.theory.check.chosen_window import WantedWindow, fitting_window
from efhc.theory.check.connectivity_checks import check_flow
from efhc.theory.check.outcome import Check
from efhc.theory.check.promises import firing_of
from efhc.theory.check.strategy_check import SeedCheck, StrategyCheck
from efhc.theory.connectivity.contractions import window_contractions
from efhc.theory.connectivity.flow import Flow
from efhc.theory.connectivity.future_links import future_links
from efhc.theory.connectivity.windows import connectivity
from efhc.theory.constants.measured import Measured, look, look_at_several

MUCH_DATA = 10_000_000
"""The number of values in the training data above which matrix products gain from several threads."""


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
    require_lockstep(experiment, "the paper's analysis")
    require_papers_form(experiment, "the paper's analysis")
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
        check = _RunCheck.prepare(run, experiment, data, window, pool, tell, points, replay)
        for strategy in experiment.strategies:
            yield check.strategy(strategy)


@dataclass(frozen=True)
class _RunCheck:
    run: RunDirectory
    experiment: Experiment
    scenarios: Sequence[Scenario]
    graphs: Sequence[Callable[[int], Graph]]
    final: Mapping[tuple[str, int], Floats]
    """The last models of each strategy and seed, if the run kept them."""
    problems: Sequence[SeedProblem]
    effort: Effort
    asked: bool
    """Whether the user asked for the run to be made again."""
    points: int
    looks: int
    """The expected number of looks at models, per strategy and seed."""
    window: WantedWindow
    pool: ThreadPoolExecutor
    work: Work
    ends: dict[int, dict[str | None, tuple[float, ...]]] = field(default_factory=dict)
    """By seed, the measurements at its initial models (None) and at the last models of each strategy."""

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
    ) -> _RunCheck:
        """Prepare what all strategies share."""
        seeds, strategies = experiment.seeds, list(experiment.strategies)
        points = points or POINTS
        kept = bool(run.snapshots(strategies[0], seeds[0]))
        effort = Effort.of(experiment, data, points, replay, kept=kept)
        looks = points if effort.replay or kept else 2
        work = Work(len(seeds) + len(strategies) * (3 + len(seeds) * looks), tell)
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
        """Check one strategy, over all seeds."""
        experiment, iterations, work = self.experiment, self.experiment.iterations, self.work
        work.begin(f"{strategy}: who fired, and who was reached")
        flows = [
            load_flow(self.run, experiment, strategy, seed, graph)
            for seed, graph in zip(experiment.seeds, self.graphs, strict=True)
        ]
        firing = firing_of(experiment.strategies[strategy], experiment.devices)
        future = [future_links(scenario.network, experiment.network, iterations) for scenario in self.scenarios]
        links_by_chance = any(links.by_chance for links in future)
        windows = [
            connectivity(flow, never_fires=firing == "never", cut_off=links.cut_off)
            for flow, links in zip(flows, future, strict=True)
        ]
        chosen = fitting_window(windows, iterations, self.window, by_chance=firing == "coins" or links_by_chance)
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
                self.problems[n].problem.noise_source,
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
            firing,
            links_by_chance=links_by_chance,
            optimum_sought=self.effort.optimum,
        )

    def _models(self, strategy: str, flows: Sequence[Flow]) -> tuple[Ints, list[Visits], list[Check]]:
        """Return the iterations looked at, the measurements there, and whether a run made again is the recorded one."""
        seeds, iterations = self.experiment.seeds, self.experiment.iterations
        look_at = spread(iterations, self.points)
        if not self.theorems_apply and not self.asked:
            return look_at, self._recorded(strategy, look_at), [not_made("no-theorem")] * len(seeds)
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
        look_at = thinned({0} | on_the_way | at_the_end, self.points)
        items = [(strategy, n, look_at, kept[n]) for n in range(len(seeds))]
        unknown = not_made("kept" if on_the_way else "not-made-again")
        return look_at, in_parallel(self.pool, self._look_at_kept, items), [unknown] * len(seeds)

    def _replay(self, strategy: str, n: int, look_at: Ints) -> Visits:
        threads = max(1, usable_cores() // len(self.problems))
        scenario, of = self.scenarios[n], self.problems[n]
        return replay_run(self.experiment, scenario, strategy, look_at, of, threads, self.work.finish)

    def _look_at_kept(self, strategy: str, n: int, look_at: Ints, kept: Mapping[int, Floats]) -> Visits:
        seed, of, rows = self.experiment.seeds[n], self.problems[n], []
        for k in look_at.tolist():
            if k in kept:
                rows.append(look(kept[k], of.problem, of.optimum))
            else:
                if seed not in self.ends:
                    self.ends[seed] = self._look_at_ends(n)
                rows.append(self.ends[seed][strategy if k else None])
            self.work.finish()
        return Visits(Measured.of_rows(rows), of.curvature)

    def _look_at_ends(self, n: int) -> dict[str | None, tuple[float, ...]]:
        """Measure at the initial models of a seed and at the last models of all its runs, at once."""
        seed, of = self.experiment.seeds[n], self.problems[n]
        models: dict[str | None, Floats] = {None: self.scenarios[n].initial_models()}
        models |= {name: last for (name, of_seed), last in self.final.items() if of_seed == seed}
        return dict(zip(models, look_at_several(list(models.values()), of.problem, of.optimum), strict=True))

    def _recorded(self, strategy: str, look_at: Ints) -> list[Visits]:
        """Return the consensus errors that the run recorded; the rest is of no use where no theorem applies."""
        visits = []
        for seed, scenario, of in zip(self.experiment.seeds, self.scenarios, self.problems, strict=True):
            rows = self.run.read_rows("metrics", (pl.col("strategy") == strategy) & (pl.col("seed") == seed))
            start = consensus_error(scenario.initial_models())
            errors = np.concatenate([[start], rows.sort("iteration")["consensus_error"].to_numpy()])
            visits.append(Visits(Measured.of_consensus(errors[look_at]), of.curvature))
        return visits
