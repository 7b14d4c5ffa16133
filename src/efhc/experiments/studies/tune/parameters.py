"""The numbers that a tuning varies: how they are given, and which values they may take.

r                              a number of the strategy that --strategy names, with --low and --high
r=100:4000                     the same, with its range
strategies.X.mixing.rate=0.05:1   a number within a part of the strategy X
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from efhc.base.errors import InputError, did_you_mean
from efhc.base.policy import Policy, bounds_of
from efhc.strategies.paper import EventTriggered

DECADES = 2
"""By default a range covers `DECADES` powers of ten on both sides of the file's value."""

NEARLY = 1e-3
"""How far, relative to a bound that is not allowed itself, a default range stays away from it."""

RESERVED = ("trial", "iterations", "accuracy", "low", "high", "spent", "state")
"""The other columns of trials.csv."""

STRATEGIES = "strategies."


@dataclass(frozen=True)
class Range:
    """A parameter as the user asks for it."""

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
        owner, rest = _owner(text, known)
        if owner is not None and strategy not in (None, owner):
            given = f"{text}, a parameter of {owner}, beside {strategy}"
            raise InputError("--parameter", given, "parameters of one strategy")
        strategy = owner or strategy
        name, equals, ends = (part.strip() for part in rest.partition("="))
        ranges.append(Range(name, *_ends(text, ends)) if equals else Range(name))
    if len({one.name for one in ranges}) < len(ranges):
        raise InputError("--parameter", ", ".join(one.name for one in ranges), "each parameter once")
    if low is not None or high is not None:
        if len(ranges) != 1 or ranges[0].low is not None:
            allowed = "no --low and --high beside --parameter NAME=LOW:HIGH or several of them"
            raise InputError("--low and --high", f"{low} and {high}", allowed)
        ranges = [Range(ranges[0].name, low, high)]
    return strategy, ranges


def _owner(text: str, known: Sequence[str]) -> tuple[str | None, str]:
    """Split `strategies.X.r=1:2` into the strategy and the rest. Names of strategies may have dots in them."""
    if not text.startswith(STRATEGIES):
        return None, text
    rest = text.removeprefix(STRATEGIES)
    owners = [name for name in known if rest.startswith(f"{name}.")]
    if not owners:
        name = rest.partition(".")[0]
        raise InputError("--parameter", f"{text}: no strategy '{name}'{did_you_mean(name, known)}", ", ".join(known))
    owner = max(owners, key=len)
    return owner, rest.removeprefix(f"{owner}.")


def _ends(text: str, ends: str) -> tuple[float, float]:
    low, _, high = ends.partition(":")
    try:
        return float(low), float(high)
    except ValueError:
        raise InputError("--parameter", repr(text), "NAME=LOW:HIGH with two numbers, such as r=100:4000") from None


@dataclass(frozen=True)
class Parameter:
    """A number of a strategy, and the range in which its values are tried, on a logarithmic scale."""

    name: str
    own: float | None
    """The value in the file; None if it has none."""
    low: float
    high: float
    is_whole: bool = False
    """Whether only whole numbers make sense."""

    @property
    def first_allowed(self) -> float:
        """The smallest value that can be tried."""
        return math.ceil(self.low) if self.is_whole else self.low

    @property
    def last_allowed(self) -> float:
        """The largest value that can be tried."""
        return max(math.floor(self.high), math.ceil(self.low)) if self.is_whole else self.high

    @property
    def own_in_range(self) -> float | None:
        """The file's value, if it has one in the range."""
        return float(self.own) if self.own is not None and self.low <= self.own <= self.high else None

    def at(self, share: float) -> float:
        """Return the value at a share of the range: 0 is its low end, 1 its high end."""
        return self.rounded(self.low ** (1 - share) * self.high**share)

    def rounded(self, value: float) -> float:
        """Round to four digits: accuracies do not resolve more. Round to a whole number where only those make sense."""
        if self.is_whole:
            return float(min(max(round(value), self.first_allowed), self.last_allowed))
        return min(max(float(f"{value:.4g}"), self.low), self.high)

    def written(self, value: float) -> int | float:
        """Return the value as a config file has it."""
        return int(value) if self.is_whole else value


def parameter_of(asked: Range, name: str, table: Any, strategy: Any) -> Parameter:
    """Return the parameter of the strategy called `name`, given its config table, with its range filled in."""
    own, low, high = number_at(table, strategy, asked.name), asked.low, asked.high
    if not own and (low is None or high is None):
        given = f"none, and {asked.name} = {own or 0:g} for {name}"
        raise InputError("--low and --high", given, f"the range of {asked.name} to search, above 0")
    whole = isinstance(own, int) if own is not None else _is_whole_number(_field(strategy, asked.name))
    least, most = _allowed_range(_field(strategy, asked.name), whole=whole)
    low = max((own or 0.0) / 10**DECADES, least) if low is None else low
    high = min((own or 0.0) * 10**DECADES, most) if high is None else high
    if not 0 < low < math.inf:
        raise InputError("--low", low, f"a positive number, for {asked.name}")
    if not low < high < math.inf:
        raise InputError("--high", high, f"a number above --low, which is {low:g}, for {asked.name}")
    return Parameter(asked.name, own, float(low), float(high), whole)


def number_at(table: Any, strategy: Any, name: str) -> Any:
    """Return the number at `name`, None if it has no value but may be given one, and False if it is no number."""
    value, (*outer, last) = table, name.split(".")
    for key in outer:
        value, strategy = value.get(key) if isinstance(value, Mapping) else None, getattr(strategy, key, None)
    value = value.get(last) if isinstance(value, Mapping) else None
    value = getattr(strategy, last, None) if value is None else value  # the file may leave it at its default
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    fields = getattr(type(strategy), "model_fields", {})
    return None if value is None and last in fields else False


def with_number(table: Mapping[str, Any], name: str, value: float) -> dict[str, Any]:
    """Return the table with the number at `name` set."""
    first, _, rest = name.partition(".")
    return {**table, first: with_number(table.get(first, {}), rest, value) if rest else value}


def numbers(table: Any, strategy: Any) -> list[str]:
    """Return the names of the strategy's numbers, also of those that have no value and of those within its parts."""
    return list(dict.fromkeys(_numbers(table, strategy)))


def _numbers(table: Any, strategy: Any, before: str = "") -> Iterator[str]:
    fields = getattr(type(strategy), "model_fields", {})
    for key in [*(table if isinstance(table, Mapping) else ()), *fields]:
        part = getattr(strategy, key, None)
        if isinstance(part, Policy):
            yield from _numbers(table.get(key) if isinstance(table, Mapping) else None, part, f"{before}{key}.")
            continue
        found = number_at(table, strategy, key)
        may_be = found is not None or _may_be_number(getattr(fields.get(key), "annotation", None))
        if found is not False and may_be:
            yield before + key


def choose_strategy(
    asked: Sequence[Range], named: str | None, strategies: Mapping[str, Any], tables: Mapping[str, Any]
) -> str:
    """Return the strategy to tune, which has all of the numbers that are `asked` for.

    If none is `named`, it is the first of kind "ef-hc" that has them, or the only one that has them.
    """
    able = [
        name
        for name, strategy in strategies.items()
        if all(number_at(tables[name], strategy, one.name) is not False for one in asked)
    ]
    words = " and ".join(one.name for one in asked)
    if named in able:
        return named
    if named is not None:
        if named in strategies:
            _refuse_unknown(asked, {named: strategies[named]}, tables)
        given = f"{named}, which has no number {words}" if named in strategies else named
        raise InputError("--strategy", given, ", ".join(able) or f"a strategy with a number {words}")
    if not able:
        _refuse_unknown(asked, strategies, tables)
    ours = [name for name in able if isinstance(strategies[name], EventTriggered)]  # of several, people tune EF-HC
    if not ours and len(able) != 1:
        given = f"{', '.join(strategies)}, of which {len(able)} have a number {words}"
        raise InputError("strategies", given, "one of kind ef-hc, or --strategy with the name of the one to tune")
    return (ours or able)[0]


def _refuse_unknown(asked: Sequence[Range], strategies: Mapping[str, Any], tables: Mapping[str, Any]) -> None:
    """Raise an error about the first number that none of the strategies has, unless they have no numbers at all."""
    known = {name: numbers(tables[name], strategy) for name, strategy in strategies.items()}
    known = {name: found for name, found in known.items() if found}
    everyone = [number for found in known.values() for number in found]
    for one in asked:
        if known and one.name not in everyone:
            given = f"{one.name}, which is no number of {', '.join(known)}{did_you_mean(one.name, everyone)}"
            allowed = "; ".join(f"{', '.join(found)} of {name}" for name, found in known.items())
            raise InputError("--parameter", given, allowed)


def _field(strategy: Any, name: str) -> Any:
    *outer, last = name.split(".")
    for key in outer:
        strategy = getattr(strategy, key, None)
    return getattr(type(strategy), "model_fields", {}).get(last)


def _is_whole_number(field: Any) -> bool:
    kinds = set(_kinds(field.annotation)) if field is not None else set()
    return int in kinds and float not in kinds


def _may_be_number(annotation: Any) -> bool:
    return bool({int, float} & set(_kinds(annotation)))


def _kinds(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from _kinds(inner)


def _allowed_range(field: Any, *, whole: bool) -> tuple[float, float]:
    """Return the range in which the strategy's own declaration keeps the parameter."""
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
