"""What a tuning searches: the numbers that it varies, the budget that trials share, and which values are tried.

A parameter is given in one of these forms:

r                              a number of the strategy that --strategy names, with --low and --high
r=100:4000                     the same, with its range
strategies.X.mixing.rate=0.05:1   a number within a part of the strategy X
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

import polars as pl
from pydantic.fields import FieldInfo

from efhc.base.errors import InputError, did_you_mean
from efhc.base.policy import Policy, bounds_of
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import build_experiment, to_tables, with_settings
from efhc.learning.measures import Measure
from efhc.report.claims.panels import within_budgets
from efhc.strategies.paper import EventTriggered

if TYPE_CHECKING:
    from optuna.distributions import FloatDistribution
    from optuna.trial import FrozenTrial

DECADES = 2
"""By default a range covers `DECADES` powers of ten on both sides of the file's value."""

NEARLY = 1e-3
"""How far, relative to a bound that is not allowed itself, a default range stays away from it."""

RESERVED = ("trial", "iterations", "low", "high", "spent", "state")
"""The other columns of trials.csv, beside the measure."""

STRATEGIES = "strategies."

FACTOR = 3
"""Successive halving: one in `FACTOR` trials goes on, for `FACTOR` times the iterations."""

VALIDATION = 0.1
"""The share of each device's training samples that a tuning chooses by, unless the experiment sets `validation`."""

ALONE = (0.5, 0.25, 0.75, 0.0, 1.0)
"""The shares of its range at which a single parameter is tried first, from the middle outwards."""

FIRST_PER_PARAMETER = 4
"""The number of first trials for each of several parameters."""

SUGGESTIONS = 100
"""Number of times that the sampler may suggest values that were tried before, until all count as tried."""

Values = dict[str, float]
"""A value of each parameter, by name."""


# Budgets

COLUMNS = {
    "transmission_time": "transmission_time_total",
    "broadcasts": "broadcasts_total",
    "zt": "transmission_time_total",
}
"""What a budget limits, and the column of a run's curve that adds it up."""


@dataclass(frozen=True)
class TuningBudget:
    """An upper limit on the total transmission time, or on the broadcasts of all devices together."""

    kind: str
    """A key of `COLUMNS`."""
    amount: float
    """For the kind "zt", the share of the transmission time that ZT takes with the same seed."""
    totals: Mapping[int, float] = field(default_factory=dict, compare=False)
    """For the kind "zt", what ZT takes with each seed."""

    @classmethod
    def parse(cls, text: str) -> TuningBudget:
        """Read `transmission_time=500`, `broadcasts=2000` or `zt=2%`."""
        kind, _, number = (part.strip() for part in text.partition("="))
        percent = kind == "zt" and number.endswith("%")
        try:
            amount = float(number.removesuffix("%")) / 100 if percent else float(number)
        except ValueError:
            amount = math.nan
        if kind not in COLUMNS or not (0 < amount < math.inf) or (kind == "zt" and not percent):
            allowed = "transmission_time=T, broadcasts=N or zt=P% (a share of what ZT spends), with a number above 0"
            raise InputError("--budget", repr(text) if text else "nothing", allowed)
        return cls(kind, amount)

    def __str__(self) -> str:
        return f"zt={100 * self.amount:.6g}%" if self.kind == "zt" else f"{self.kind}={self.amount:.15g}"

    @property
    def words(self) -> str:
        """The budget as figures name it: "2000 broadcasts"."""
        if self.kind == "zt":
            return f"{100 * self.amount:.6g} % of ZT's transmission time"
        return (
            f"{self.amount:.15g} broadcasts" if self.kind == "broadcasts" else f"transmission time {self.amount:.15g}"
        )

    def measured_by(self, curves: pl.DataFrame) -> TuningBudget:
        """Return the budget with what ZT takes, given the curves of ZT."""
        totals = curves.group_by("seed").agg(pl.col("transmission_time_total").max())
        return replace(self, totals=dict(totals.iter_rows()))

    def of_seed(self, seed: int) -> float:
        """Return what the run with this seed may spend."""
        return self.amount * self.totals[seed] if self.kind == "zt" else self.amount

    def values(self, curves: pl.DataFrame, measure: Measure, share: float = 1.0) -> list[float]:
        """Return the measure of each seed when it has spent `share` of the budget; if it never does, at its end.

        It is NaN for a seed that had spent more when it was first evaluated.
        """
        # `within_budgets` reads values against transmission time; here it is what the budget limits.
        against = curves.with_columns(pl.col(COLUMNS[self.kind]).alias("transmission_time_total"))
        budgets = {seed: share * self.of_seed(seed) for seed in curves["seed"].unique()}
        return within_budgets(against, measure.name, budgets)[measure.name].fill_null(math.nan).to_list()

    def spent(self, curves: pl.DataFrame) -> list[float]:
        """Return how much of the budget each seed has spent."""
        return [min(total, self.of_seed(seed)) for seed, total in self._totals(curves)]

    def is_exceeded(self, curves: pl.DataFrame) -> bool:
        """Return whether every seed has spent more: further iterations cannot change the values any more."""
        return all(total > self.of_seed(seed) for seed, total in self._totals(curves))

    def _totals(self, curves: pl.DataFrame) -> list[tuple[int, float]]:
        totals = curves.group_by("seed", maintain_order=True).agg(pl.col(COLUMNS[self.kind]).max())
        return [(seed, float(total)) for seed, total in totals.iter_rows()]


# Parameters


@dataclass(frozen=True)
class Range:
    """A parameter and its range, as the user gives them."""

    name: str
    """The place of the number in the table of its strategy: `r`, `mixing.rate`."""
    low: float | None = None
    """Default: a hundredth of the file's value, within the bounds that the strategy declares."""
    high: float | None = None
    """Default: a hundred times the file's value, within these bounds."""


def read_ranges(
    texts: Iterable[str],
    known: Sequence[str],
    strategy: str | None = None,
    low: float | None = None,
    high: float | None = None,
) -> tuple[str | None, list[Range]]:
    """Read every --parameter; return the strategy that they belong to, None for the default, and their ranges.

    `known` are the strategies of the experiment. `low` and `high` are the range of a single parameter without one.
    """
    ranges: list[Range] = []
    for text in texts:
        rest = text
        if text.startswith(STRATEGIES):
            rest = text.removeprefix(STRATEGIES)
            owner = max((name for name in known if rest.startswith(f"{name}.")), key=len, default=None)
            if owner is None:  # names of strategies may have dots in them
                suggestion = did_you_mean(rest.partition(".")[0], known)
                given = f"{text}, whose strategy does not exist{suggestion}"
                raise InputError("--parameter", given, ", ".join(known))
            if strategy not in (None, owner):
                given = f"{text}, a parameter of {owner}, beside {strategy}"
                raise InputError("--parameter", given, "parameters of one strategy")
            strategy, rest = owner, rest.removeprefix(f"{owner}.")
        name, equals, ends = (part.strip() for part in rest.partition("="))
        try:
            first, last = map(float, ends.split(":")) if equals else (None, None)
        except ValueError:
            allowed = "NAME=LOW:HIGH with two numbers, such as r=100:4000"
            raise InputError("--parameter", repr(text), allowed) from None
        ranges.append(Range(name, first, last))
    if len({one.name for one in ranges}) < len(ranges):
        raise InputError("--parameter", ", ".join(one.name for one in ranges), "each parameter once")
    if low is not None or high is not None:
        if len(ranges) != 1 or ranges[0].low is not None:
            allowed = "no --low and --high beside --parameter NAME=LOW:HIGH or several of them"
            raise InputError("--low and --high", f"{low} and {high}", allowed)
        ranges = [Range(ranges[0].name, low, high)]
    return strategy, ranges


@dataclass(frozen=True)
class Parameter:
    """A number of a strategy, and the range in which its values are tried, on a logarithmic scale."""

    name: str
    own: float | None
    """The value in the file; None if it has none."""
    low: float
    """The smallest value that can be tried."""
    high: float
    """The largest value that can be tried."""
    is_whole: bool = False
    """Whether only whole numbers make sense."""

    def narrowed_to(self, wanted: Range, strategy: str) -> Parameter:
        """Return the parameter with the range that the user gave, or else the default one within the present range."""
        own, low, high = self.own or 0.0, wanted.low, wanted.high
        if not own and (low is None or high is None):
            given = f"{self.name} = {own:g} of {strategy} to find a range"
            raise InputError("--low and --high", given, f"the range of {self.name} to search, above 0")
        low = max(own / 10**DECADES, self.low) if low is None else low
        high = min(own * 10**DECADES, self.high) if high is None else high
        if not 0 < low < math.inf:
            raise InputError("--low", low, f"a positive number, for {self.name}")
        if not low < high < math.inf:
            raise InputError("--high", high, f"a number above --low, which is {low:g}, for {self.name}")
        if self.is_whole:
            low = math.ceil(low)
            high = max(math.floor(high), low)
        return replace(self, low=float(low), high=float(high))

    @property
    def own_in_range(self) -> float | None:
        """The file's value, if it has one in the range."""
        return float(self.own) if self.own is not None and self.low <= self.own <= self.high else None

    def at(self, share: float) -> float:
        """Return the value at a share of the range: 0 is its low end, 1 its high end."""
        return self.rounded(self.low ** (1 - share) * self.high**share)

    def rounded(self, value: float) -> float:
        """Round to four digits: measures do not resolve more. Round to a whole number where only those make sense."""
        return min(max(float(round(value) if self.is_whole else f"{value:.4g}"), self.low), self.high)


def numbers_of(strategy: Policy, prefix: str = "") -> dict[str, Parameter]:
    """Return the numbers of a strategy and of its parts by name, each with the range that its declaration allows."""
    found: dict[str, Parameter] = {}
    for key, declared in type(strategy).model_fields.items():
        name, value = f"{prefix}{key}", getattr(strategy, key)
        kinds = {int, float} & set(_types_in(declared.annotation))
        if isinstance(value, Policy):
            found |= numbers_of(value, f"{name}.")
        elif (value is None and kinds) or (isinstance(value, int | float) and not isinstance(value, bool)):
            is_whole = kinds == {int} if value is None else isinstance(value, int)
            found[name] = Parameter(name, value, *_allowed_range(declared, is_whole), is_whole)
    return found


def _types_in(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from _types_in(inner)


def _allowed_range(declared: FieldInfo, is_whole: bool) -> tuple[float, float]:
    ge, gt, le, lt = bounds_of(declared)
    low, high = 0.0 if ge is None else ge, math.inf if le is None else le
    if gt is not None:
        low = max(low, gt + (1 if is_whole else NEARLY * abs(gt)))
    if lt is not None:
        high = min(high, lt - (1 if is_whole else NEARLY * abs(lt)))
    return low, high


def choose_strategy(
    ranges: Sequence[Range], named: str | None, strategies: Mapping[str, Any], known: Mapping[str, Collection[str]]
) -> str:
    """Return the strategy to tune, which has a number for each of `ranges`; `known` are the numbers of each.

    If none is `named`, it is the first of kind "ef-hc" that has them, or the only one that has them.
    """
    able = [name for name, found in known.items() if all(one.name in found for one in ranges)]
    ours = [name for name in able if isinstance(strategies[name], EventTriggered)]  # of several, people tune EF-HC
    if named in able:
        return named
    if named is None and (ours or len(able) == 1):
        return (ours or able)[0]
    words = " and ".join(one.name for one in ranges)
    candidates = {name: found for name, found in known.items() if found and named in (None, name)}
    numbers = [number for found in candidates.values() for number in found]
    for one in ranges:
        if candidates and one.name not in numbers:
            given = f"{one.name}, which is not a numeric setting of {', '.join(candidates)}"
            allowed = "; ".join(f"{', '.join(found)} of {name}" for name, found in candidates.items())
            raise InputError("--parameter", given + did_you_mean(one.name, numbers), allowed)
    if named is not None:
        given = f"{named}, which has no number {words}" if named in strategies else named
        raise InputError("--strategy", given, ", ".join(able) or f"a strategy with a number {words}")
    given = f"{', '.join(strategies)}, of which {len(able)} have a number {words}"
    raise InputError("strategies", given, "one of kind ef-hc, or --strategy with the name of the one to tune")


# The search


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
    measure: str | None = None
    """The measure that trials are judged by. Default: accuracy, or the first metric."""

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        budget: TuningBudget,
        parameters: Sequence[Range] = (Range("r"),),
        *,
        strategy: str | None = None,
        on: str = "validation",
        measure: str | None = None,
    ) -> Search:
        """Check the arguments, and fill in the strategy and the ranges that follow from the experiment."""
        if on not in ("validation", "test"):
            raise InputError("--on", repr(on), "validation or test")
        for wanted in parameters:
            if wanted.name in RESERVED:
                raise InputError("--parameter", wanted.name, f"a parameter that is not called {', '.join(RESERVED)}")
        known = {name: numbers_of(one) for name, one in experiment.strategies.items()}
        name = choose_strategy(parameters, strategy, experiment.strategies, known)
        found = tuple(known[name][wanted.name].narrowed_to(wanted, name) for wanted in parameters)
        search = cls(experiment, name, found, budget, on, measure or experiment.measure)
        search._check_ends()
        return search

    def _check_ends(self) -> None:
        """Refuse a range whose ends the strategy does not allow, beside the first values of the other parameters."""
        beside = {one.name: one.own_in_range or one.at(0.5) for one in self.parameters}
        for one in self.parameters:
            for option, value in (("--low", one.low), ("--high", one.high)):
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
        tables = to_tables(self.experiment)
        tables.pop("validation", None)
        settings = [(one.name, int(values[one.name]) if one.is_whole else values[one.name]) for one in self.parameters]
        tables["strategies"][self.strategy] = with_settings(tables["strategies"][self.strategy], settings)
        return build_experiment(tables)

    def final(self, values: Mapping[str, float]) -> Experiment:
        """Return the tuned strategy alone, trained on all training samples and evaluated on the test samples."""
        whole = self.with_values(values)
        alone = {self.strategy: whole.strategies[self.strategy]}
        return whole.model_copy(update={"strategies": alone, "measure": self.measure})

    def part(self, values: Mapping[str, float], iterations: int) -> Experiment:
        """Return the tuned strategy alone, for `iterations`, evaluated on the samples that trials are judged by."""
        return self.final(values).model_copy(update={"iterations": iterations, "validation": self.validation})

    @property
    def validation(self) -> float | None:
        """The share of each device's training samples that trials are judged by; None for the test samples."""
        return None if self.on == "test" else self.experiment.validation or VALIDATION

    @cached_property
    def rungs(self) -> list[int]:
        """The iterations of successive halving: about K/9, K/3, and K.

        The first two are multiples of the interval between evaluations, so that what is evaluated in a short run is,
        but for its end, the beginning of what is evaluated in a longer one. Where that leaves nothing to evaluate,
        there are fewer.
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
        from scipy.stats.qmc import Halton

        several = len(self.parameters)
        halton = Halton(several, scramble=False).random(FIRST_PER_PARAMETER * several + 1)
        # The first point of the sequence is the corner of all low ends.
        shares = halton[1:].tolist() if several > 1 else [[share] for share in ALONE]
        covering = [{one.name: one.at(x) for one, x in zip(self.parameters, point, strict=True)} for point in shares]
        own = {one.name: one.own_in_range for one in self.parameters}
        points = [{name: value for name, value in own.items() if value is not None}]
        if len(points[0]) < several:
            points = []
        for point in covering:
            if not any(all(math.isclose(point[key], other[key], rel_tol=1e-3) for key in point) for other in points):
                points.append(point)
        return points

    def next_values(self, finished: Sequence[FrozenTrial]) -> Values | None:
        """Return the values to try next, not tried together before; None if all were. They follow from `finished`."""
        tried = {self._key(trial.params) for trial in finished}
        if len(finished) < len(self.first) and self._key(self.first[len(finished)]) not in tried:
            return self.first[len(finished)]
        # There are finitely many points only if all parameters are whole numbers.
        counts = (one.high - one.low + 1 if one.is_whole else math.inf for one in self.parameters)
        if (number_of_points := math.prod(counts)) <= len(tried):
            return None
        from optuna import create_study

        study = create_study(direction="maximize", sampler=self._sampler(len(finished)))
        study.add_trials(finished)
        for _ in range(SUGGESTIONS):
            trial = study.ask()
            values = {
                one.name: one.rounded(trial.suggest_float(one.name, one.low, one.high, log=True))
                for one in self.parameters
            }
            if number_of_points < math.inf:
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

    def _nearest_untried(self, values: Values, tried: Collection[tuple[float, ...]]) -> Values:
        """Return the whole numbers next to `values` that were not tried, the smaller of two. There must be some."""
        return next(
            near
            for distance in itertools.count()
            for steps in _steps(len(self.parameters), distance)
            for near in [{name: values[name] + step for name, step in zip(self.names, steps, strict=True)}]
            if self._key(near) not in tried and all(one.low <= near[one.name] <= one.high for one in self.parameters)
        )


def _steps(dimensions: int, distance: int) -> list[tuple[int, ...]]:
    """Return all steps whose absolute values sum to `distance`, short steps in the first dimensions first."""
    steps = itertools.product(range(-distance, distance + 1), repeat=dimensions)
    at_distance = (step for step in steps if sum(map(abs, step)) == distance)
    return sorted(at_distance, key=lambda step: ([*map(abs, step[:-1])], step[::-1]))
