"""What is tuned, for which budget, and which values are tried."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from efhc.base.errors import InputError
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import build_experiment, to_tables
from efhc.experiments.studies.tune.budget import TuningBudget
from efhc.experiments.studies.tune.parameters import (
    RESERVED,
    Parameter,
    Range,
    choose_strategy,
    numbers,
    parameter_of,
    with_number,
)

if TYPE_CHECKING:
    from optuna.distributions import FloatDistribution
    from optuna.trial import FrozenTrial

FACTOR = 3
"""Successive halving: one in `FACTOR` trials goes on, for `FACTOR` times the iterations."""

VALIDATION = 0.1
"""The share of the training samples that a tuning chooses by, unless the experiment sets `validation`."""

ALONE = (0.5, 0.25, 0.75, 0.0, 1.0)
"""The shares of its range at which a single parameter is tried first, from the middle outwards."""

FIRST_PER_PARAMETER = 4
"""The number of first trials for each of several parameters."""

SUGGESTIONS = 100
"""Number of times that the sampler may suggest values that were tried before, until all count as tried."""

Values = dict[str, float]
"""A value of each parameter, by name."""


@dataclass(frozen=True)
class Search:
    """A strategy, its parameters with their ranges, and the budget."""

    experiment: Experiment
    """The experiment as the user gave it."""
    strategy: str
    """The name of the strategy in the experiment."""
    parameters: tuple[Parameter, ...]
    budget: TuningBudget
    on: str = "validation"
    """Which samples trials are judged by: "validation" or "test"."""

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        budget: TuningBudget,
        parameters: Sequence[Range] = (Range("r"),),
        *,
        strategy: str | None = None,
        on: str = "validation",
    ) -> Search:
        """Check the arguments, and fill in the strategy and the ranges that follow from the experiment."""
        if on not in ("validation", "test"):
            raise InputError("--on", repr(on), "validation or test")
        for wanted in parameters:
            if wanted.name in RESERVED:
                raise InputError("--parameter", wanted.name, f"a parameter that is not called {', '.join(RESERVED)}")
        strategies, tables = experiment.strategies, to_tables(experiment)["strategies"]
        known = {name: numbers(tables[name], one) for name, one in strategies.items()}
        name = choose_strategy(parameters, strategy, strategies, known)
        found = tuple(parameter_of(wanted, name, known[name][wanted.name]) for wanted in parameters)
        search = cls(experiment, name, found, budget, on)
        search._check_ends()
        return search

    def _check_ends(self) -> None:
        """Refuse a range whose ends the strategy does not allow, beside the first values of the other parameters."""
        beside = {one.name: one.own_in_range or one.at(0.5) for one in self.parameters}
        for one in self.parameters:
            for option, value in (("--low", one.first_allowed), ("--high", one.last_allowed)):
                try:
                    self.part(beside | {one.name: value}, 1)
                except InputError as error:
                    raise InputError(option, f"{value:g} ({error})", f"values that {one.name} may take") from None

    @property
    def names(self) -> list[str]:
        """The names of the parameters."""
        return [one.name for one in self.parameters]

    @property
    def distributions(self) -> dict[str, FloatDistribution]:
        """The ranges of the parameters, as Optuna keeps them."""
        from optuna.distributions import FloatDistribution

        return {one.name: FloatDistribution(one.low, one.high, log=True) for one in self.parameters}

    def with_values(self, values: Mapping[str, float]) -> Experiment:
        """Return the experiment with the parameters set, every strategy kept, and no validation split."""
        return self._built(values, {"validation": None})

    def part(self, values: Mapping[str, float], iterations: int) -> Experiment:
        """Return the tuned strategy alone, for `iterations`, evaluated on the samples that trials are judged by."""
        return self._built(values, {"iterations": iterations, "validation": self.validation}, alone=True)

    def final(self, values: Mapping[str, float]) -> Experiment:
        """Return the tuned strategy alone, trained on all training samples and evaluated on the test samples."""
        return self._built(values, {"validation": None}, alone=True)

    @property
    def validation(self) -> float | None:
        """The share of the training samples that trials are judged by; None for the test samples."""
        return None if self.on == "test" else self.experiment.validation or VALIDATION

    def _built(self, values: Mapping[str, float], fields: dict[str, Any], alone: bool = False) -> Experiment:
        tables = copy.deepcopy(self._tables)
        chosen = tables["strategies"][self.strategy]
        for one in self.parameters:
            chosen = with_number(chosen, one.name, one.written(values[one.name]))
        tables["strategies"] = {self.strategy: chosen} if alone else {**tables["strategies"], self.strategy: chosen}
        for name, setting in fields.items():
            tables.pop(name, None)
            if setting is not None:
                tables[name] = setting
        return build_experiment(tables)

    @cached_property
    def _tables(self) -> dict[str, Any]:
        return to_tables(self.experiment)

    @cached_property
    def rungs(self) -> list[int]:
        """The iterations of successive halving: about K/9, K/3, and K.

        The first two are multiples of the interval between evaluations, so that what is evaluated in a short run is
        the beginning of what is evaluated in a longer one. Where that leaves nothing to evaluate, there are fewer.
        """
        K, every = self.experiment.iterations, self.experiment.evaluate_every
        shorter = {round(K / FACTOR**power / every) * every for power in (1, 2)}
        return [*sorted(iterations for iterations in shorter if 0 < iterations < K), K]

    @cached_property
    def first(self) -> list[Values]:
        """The values that are tried first: the file's own, then some that cover the ranges.

        A single parameter is tried at five values, from the middle outwards. Several are tried at the points of a
        Halton sequence, which cover every range and every pair of ranges.
        """
        own = {one.name: one.own_in_range for one in self.parameters}
        points = [{name: value for name, value in own.items() if value is not None}] if None not in own.values() else []
        for shares in self._first_shares():
            point = {one.name: one.at(share) for one, share in zip(self.parameters, shares, strict=True)}
            if not any(all(math.isclose(point[key], other[key], rel_tol=1e-3) for key in point) for other in points):
                points.append(point)
        return points

    def _first_shares(self) -> list[Sequence[float]]:
        several = len(self.parameters)
        if several == 1:
            return [(share,) for share in ALONE]
        from scipy.stats.qmc import Halton

        points = Halton(several, scramble=False).random(FIRST_PER_PARAMETER * several + 1)
        return [point.tolist() for point in points[1:]]  # the first point is the corner of all low ends

    def next_values(self, finished: Sequence[FrozenTrial]) -> Values | None:
        """Return the values to try next, not tried together before; None if all were. They follow from `finished`."""
        tried = {self._key(trial.params) for trial in finished}
        if len(finished) < len(self.first) and self._key(self.first[len(finished)]) not in tried:
            return self.first[len(finished)]
        if self._number_of_points <= len(tried):
            return None
        from optuna import create_study

        study = create_study(direction="maximize", sampler=self._sampler(len(finished)))
        study.add_trials(finished)
        for _ in range(SUGGESTIONS):
            trial = study.ask()
            suggested = {
                one.name: trial.suggest_float(one.name, one.low, one.high, log=True) for one in self.parameters
            }
            values = {one.name: one.rounded(suggested[one.name]) for one in self.parameters}
            if self._number_of_points < math.inf:
                return self._nearest_untried(values, tried)
            if self._key(values) not in tried:
                return values
        return None

    def _sampler(self, seed: int) -> Any:
        """Return a sampler that models several parameters together. `first` covers the ranges: it needs no startup."""
        from optuna.exceptions import ExperimentalWarning
        from optuna.samplers import TPESampler

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            together = len(self.parameters) > 1
            return TPESampler(seed=seed, n_startup_trials=len(self.first), multivariate=together)

    def _key(self, values: Mapping[str, float]) -> tuple[float, ...]:
        return tuple(values[name] for name in self.names)

    @property
    def _number_of_points(self) -> float:
        """How many points there are: finitely many only if all parameters are whole numbers."""
        counts = (one.last_allowed - one.first_allowed + 1 if one.is_whole else math.inf for one in self.parameters)
        return math.prod(counts)

    def _nearest_untried(self, values: Values, tried: Collection[tuple[float, ...]]) -> Values:
        """Return the whole numbers next to `values` that were not tried, the smaller of two. There must be some."""
        return next(
            near
            for distance in itertools.count()
            for steps in _steps(len(self.parameters), distance)
            for near in [{name: values[name] + step for name, step in zip(self.names, steps, strict=True)}]
            if self._key(near) not in tried
            and all(one.first_allowed <= near[one.name] <= one.last_allowed for one in self.parameters)
        )


def _steps(dimensions: int, distance: int) -> Iterator[tuple[int, ...]]:
    """Yield all steps in `dimensions` directions that are `distance` long in all."""
    if dimensions == 1:
        yield from ((-distance,), (distance,)) if distance else ((0,),)
        return
    for here in range(distance + 1):
        for rest in _steps(dimensions - 1, distance - here):
            yield from ((sign * here, *rest) for sign in ((-1, 1) if here else (1,)))
