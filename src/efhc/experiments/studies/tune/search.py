"""What is tuned, for which budget, and which values are tried."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from efhc.base.errors import InputError, did_you_mean
from efhc.base.policy import bounds_of
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import build_experiment, to_tables
from efhc.experiments.studies.tune.budget import Budget
from efhc.strategies.paper import EventTriggered

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FACTOR = 3
"""Successive halving: one in `FACTOR` trials goes on, for `FACTOR` times the iterations."""

DECADES = 2
"""By default the range covers `DECADES` powers of ten on both sides of the file's value."""

VALIDATION = 0.1
"""The share of the training samples that a tuning chooses by, unless the experiment sets `validation`."""

NEARLY = 1e-3
"""How far, relative to a bound that is not allowed itself, a default range stays away from it."""

ASKS = 100
"""How often the sampler is asked for a value that was not tried before all of them count as tried."""

RESERVED = ("trial", "iterations", "accuracy", "low", "high", "spent", "state")
"""The other columns of trials.csv."""


@dataclass(frozen=True)
class Search:
    """A strategy, its parameter, the budget, and the range of values."""

    experiment: Experiment
    """The experiment as the user gave it."""
    strategy: str
    """The name of the strategy in the experiment."""
    parameter: str
    own: float | None
    """The value in the file; None if it has none."""
    budget: Budget
    low: float
    high: float
    on: str = "validation"
    """Which samples trials are judged by: "validation" or "test"."""

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        budget: Budget,
        strategy: str | None = None,
        low: float | None = None,
        high: float | None = None,
        *,
        parameter: str = "r",
        on: str = "validation",
    ) -> Search:
        """Check the arguments, and fill in the strategy and the range that follow from the experiment."""
        if on not in ("validation", "test"):
            raise InputError("--on", repr(on), "validation, test")
        if parameter in RESERVED:
            raise InputError("--parameter", parameter, f"a parameter that is not called {', '.join(RESERVED)}")
        name, own = _tunable(experiment, strategy, parameter)
        if not own and (low is None or high is None):
            given = f"none, and {parameter} = {own or 0:g} for {name}"
            raise InputError("--low and --high", given, f"the range of {parameter} to search, above 0")
        least, most = _allowed_range(experiment.strategies[name], parameter, whole=isinstance(own, int))
        low = max((own or 0.0) / 10**DECADES, least) if low is None else low
        high = min((own or 0.0) * 10**DECADES, most) if high is None else high
        if not 0 < low < math.inf:
            raise InputError("--low", low, "a positive number")
        if not low < high < math.inf:
            raise InputError("--high", high, f"a number above --low, which is {low:g}")
        search = cls(experiment, name, parameter, own, budget, float(low), float(high), on)
        for option, value in (("--low", search.first_allowed), ("--high", search.last_allowed)):
            try:
                search.part(value, 1)
            except InputError as error:
                raise InputError(option, f"{value:g} ({error})", f"values that {parameter} may take") from None
        return search

    @property
    def first_allowed(self) -> float:
        """The smallest value that can be tried."""
        return math.ceil(self.low) if self.is_whole else self.low

    @property
    def last_allowed(self) -> float:
        """The largest value that can be tried."""
        return max(math.floor(self.high), math.ceil(self.low)) if self.is_whole else self.high

    @property
    def is_whole(self) -> bool:
        """Whether the parameter is a whole number in the file; it is then tuned in whole numbers."""
        return isinstance(self.own, int)

    def with_value(self, value: float) -> Experiment:
        """Return the experiment with the parameter set, every strategy kept, and no validation split."""
        return self._built(value, {"validation": None})

    def part(self, value: float, iterations: int) -> Experiment:
        """Return the tuned strategy alone, for `iterations`, evaluated on the samples that trials are judged by."""
        return self._built(value, {"iterations": iterations, "validation": self.validation}, alone=True)

    def final(self, value: float) -> Experiment:
        """Return the tuned strategy alone, trained on all training samples and evaluated on the test samples."""
        return self._built(value, {"validation": None}, alone=True)

    @property
    def validation(self) -> float | None:
        """The share of the training samples that trials are judged by; None for the test samples."""
        return None if self.on == "test" else self.experiment.validation or VALIDATION

    def _built(self, value: float, fields: dict[str, Any], alone: bool = False) -> Experiment:
        tables = copy.deepcopy(self._tables)
        chosen = {**tables["strategies"][self.strategy], self.parameter: int(value) if self.is_whole else value}
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
    def first(self) -> list[float]:
        """The values that are tried first: the file's own, then five that cover the range, from the middle outwards."""
        points = [float(self.own)] if self.own is not None and self.low <= self.own <= self.high else []
        for value in np.geomspace(self.low, self.high, 5)[[2, 1, 3, 0, 4]]:
            rounded = self._rounded(value)
            if not any(math.isclose(rounded, point, rel_tol=1e-3) for point in points):
                points.append(rounded)
        return points

    def next_value(self, finished: Sequence[FrozenTrial]) -> float | None:
        """Return the value to try next, none that was tried; None if all were. It follows from the finished trials."""
        tried = {trial.params[self.parameter] for trial in finished}
        if len(finished) < len(self.first) and self.first[len(finished)] not in tried:
            return self.first[len(finished)]
        if self.is_whole and len(tried) > self.last_allowed - self.first_allowed:
            return None
        from optuna import create_study
        from optuna.samplers import TPESampler

        # `first` covers the range, so the sampler needs no random values before it starts.
        sampler = TPESampler(seed=len(finished), n_startup_trials=len(self.first))
        study = create_study(direction="maximize", sampler=sampler)
        study.add_trials(finished)
        for _ in range(ASKS):
            asked = study.ask().suggest_float(self.parameter, self.low, self.high, log=True)
            value = self._rounded(asked)
            if self.is_whole:
                return self._nearest_untried(value, tried)
            if value not in tried:
                return value
        return None

    def _nearest_untried(self, value: float, tried: Collection[float]) -> float:
        """Return the whole number next to `value` that was not tried, the smaller of two. There must be one."""
        return next(
            near
            for distance in itertools.count()
            for near in (value - distance, value + distance)
            if self.first_allowed <= near <= self.last_allowed and near not in tried
        )

    def _rounded(self, value: float) -> float:
        """Round to four digits: accuracies do not resolve more. Round to a whole number where only those make sense."""
        if self.is_whole:
            return float(min(max(round(value), self.first_allowed), self.last_allowed))
        return min(max(float(f"{value:.4g}"), self.low), self.high)


def _tunable(experiment: Experiment, name: str | None, parameter: str) -> tuple[str, float | None]:
    """Return the name of the strategy to tune, and its value of the parameter."""
    strategies = experiment.strategies
    tables = to_tables(experiment)["strategies"]
    numbers = {key: _number(tables[key], strategy, parameter) for key, strategy in strategies.items()}
    tunable = {key: value for key, value in numbers.items() if value is not False}
    if name is None:
        # Of several, EF-HC is the one that people tune.
        ours = [key for key in tunable if isinstance(strategies[key], EventTriggered)]
        candidates = ours or list(tunable)
        if not candidates and (known := {key: _numbers(tables[key], strategies[key]) for key in strategies}):
            _refuse_unknown(parameter, {key: names for key, names in known.items() if names})
        if not ours and len(candidates) != 1:
            given = f"{', '.join(strategies)}, of which {len(candidates)} have a number {parameter}"
            raise InputError("strategies", given, "one of kind ef-hc, or --strategy with the name of the one to tune")
        name = candidates[0]
    if name in strategies and name not in tunable:
        _refuse_unknown(parameter, {name: names} if (names := _numbers(tables[name], strategies[name])) else {})
    if name not in tunable:
        given = f"{name}, which has no number {parameter}" if name in strategies else name
        raise InputError("--strategy", given, ", ".join(tunable) or f"a strategy with a number {parameter}")
    return name, tunable[name]


def _refuse_unknown(parameter: str, known: Mapping[str, Sequence[str]]) -> None:
    """Raise an error that lists the numbers of each strategy, unless none has any."""
    if known:
        close = did_you_mean(parameter, [name for names in known.values() for name in names])
        allowed = "; ".join(f"{', '.join(names)} of {strategy}" for strategy, names in known.items())
        raise InputError("--parameter", f"{parameter}, which is no number of {', '.join(known)}{close}", allowed)


def _numbers(table: Any, strategy: Any) -> list[str]:
    """Return the names of the strategy's numbers, also of those that have no value."""
    fields = getattr(type(strategy), "model_fields", {})
    without_value = [name for name, field in fields.items() if _may_be_number(field.annotation)]
    names = [*(table if isinstance(table, dict) else ()), *without_value]
    return [name for name in dict.fromkeys(names) if _number(table, strategy, name) is not False]


def _may_be_number(annotation: Any) -> bool:
    return annotation in (int, float) or any(map(_may_be_number, get_args(annotation)))


def _allowed_range(strategy: Any, parameter: str, *, whole: bool) -> tuple[float, float]:
    """Return the range in which the strategy's own declaration keeps the parameter."""
    field = getattr(type(strategy), "model_fields", {}).get(parameter)
    if field is None:
        return 0.0, math.inf
    bounds = bounds_of(field)
    least = [0.0 if bounds.ge is None else bounds.ge]
    most = [math.inf if bounds.le is None else bounds.le]
    if bounds.gt is not None:
        least.append(bounds.gt + (1 if whole else NEARLY * abs(bounds.gt)))
    if bounds.lt is not None:
        most.append(bounds.lt - (1 if whole else NEARLY * abs(bounds.lt)))
    return max(least), min(most)


def _number(table: Any, strategy: Any, parameter: str) -> Any:
    """Return the parameter's value, None if it has none but may be given one, and False if it is no number."""
    value = table.get(parameter) if isinstance(table, dict) else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    fields = getattr(type(strategy), "model_fields", {})
    return None if value is None and parameter in fields else False
