"""The numbers that a tuning varies: how they are given, and which values they may take.

r                              a number of the strategy that --strategy names, with --low and --high
r=100:4000                     the same, with its range
strategies.X.mixing.rate=0.05:1   a number within a part of the strategy X
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from pydantic.fields import FieldInfo

from efhc.base.errors import InputError, did_you_mean
from efhc.base.policy import Bounds, Policy, bounds_of
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
        raise InputError(
            "--parameter", f"{text}, whose strategy does not exist{did_you_mean(name, known)}", ", ".join(known)
        )
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


class Number(NamedTuple):
    """A number of a strategy, which can be tuned."""

    value: float | None
    """The value in the file, or else the default; None if it has none."""
    is_whole: bool
    least: float
    """The smallest value that the strategy's own declaration allows."""
    most: float
    """The largest value that it allows."""


def numbers(table: Mapping[str, Any], strategy: Any) -> dict[str, Number]:
    """Return the strategy's numbers by name, given its config table, also those without a value and those of parts."""
    found: dict[str, Number] = {}
    fields: Mapping[str, FieldInfo] = getattr(type(strategy), "model_fields", {})
    for key in dict.fromkeys([*table, *fields]):
        inner, part, field = table.get(key), getattr(strategy, key, None), fields.get(key)
        if isinstance(part, Policy) or isinstance(inner, Mapping):
            of_part = numbers(inner if isinstance(inner, Mapping) else {}, part)
            found |= {f"{key}.{name}": number for name, number in of_part.items()}
            continue
        value = part if inner is None else inner  # the file may leave it at its default
        kinds = {int, float} & set(_kinds(field.annotation if field else None))
        if value is None and kinds:
            found[key] = Number(None, kinds == {int}, *_allowed_range(field, whole=kinds == {int}))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            whole = isinstance(value, int)
            found[key] = Number(value, whole, *_allowed_range(field, whole=whole))
    return found


def _kinds(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from _kinds(inner)


def _allowed_range(field: FieldInfo | None, *, whole: bool) -> tuple[float, float]:
    """Return the range in which the strategy's own declaration keeps a number."""
    bounds = bounds_of(field) if field else Bounds()
    least = [0.0 if bounds.ge is None else bounds.ge]
    most = [math.inf if bounds.le is None else bounds.le]
    if bounds.gt is not None:
        least.append(bounds.gt + (1 if whole else NEARLY * abs(bounds.gt)))
    if bounds.lt is not None:
        most.append(bounds.lt - (1 if whole else NEARLY * abs(bounds.lt)))
    return max(least), min(most)


def parameter_of(wanted: Range, name: str, number: Number) -> Parameter:
    """Return the parameter of the strategy called `name`, with its range filled in."""
    own, low, high = number.value, wanted.low, wanted.high
    if not own and (low is None or high is None):
        given = f"{wanted.name} = {own or 0:g} of {name} to find a range"
        raise InputError("--low and --high", given, f"the range of {wanted.name} to search, above 0")
    low = max((own or 0.0) / 10**DECADES, number.least) if low is None else low
    high = min((own or 0.0) * 10**DECADES, number.most) if high is None else high
    if not 0 < low < math.inf:
        raise InputError("--low", low, f"a positive number, for {wanted.name}")
    if not low < high < math.inf:
        raise InputError("--high", high, f"a number above --low, which is {low:g}, for {wanted.name}")
    return Parameter(wanted.name, own, float(low), float(high), number.is_whole)


def with_number(table: Mapping[str, Any], name: str, value: float) -> dict[str, Any]:
    """Return the table with the number at `name` set."""
    first, _, rest = name.partition(".")
    return {**table, first: with_number(table.get(first, {}), rest, value) if rest else value}


def choose_strategy(
    ranges: Sequence[Range], named: str | None, strategies: Mapping[str, Any], known: Mapping[str, Collection[str]]
) -> str:
    """Return the strategy to tune, which has a number for each of `ranges`; `known` are the numbers of each.

    If none is `named`, it is the first of kind "ef-hc" that has them, or the only one that has them.
    """
    able = [name for name, found in known.items() if all(one.name in found for one in ranges)]
    words = " and ".join(one.name for one in ranges)
    if named in able:
        return named
    if named is not None:
        if named in strategies:
            _refuse_unknown(ranges, {named: known[named]})
        given = f"{named}, which has no number {words}" if named in strategies else named
        raise InputError("--strategy", given, ", ".join(able) or f"a strategy with a number {words}")
    if not able:
        _refuse_unknown(ranges, known)
    ours = [name for name in able if isinstance(strategies[name], EventTriggered)]  # of several, people tune EF-HC
    if not ours and len(able) != 1:
        given = f"{', '.join(strategies)}, of which {len(able)} have a number {words}"
        raise InputError("strategies", given, "one of kind ef-hc, or --strategy with the name of the one to tune")
    return (ours or able)[0]


def _refuse_unknown(ranges: Sequence[Range], known: Mapping[str, Collection[str]]) -> None:
    """Raise an error about the first number that none of the strategies has, unless they have no numbers at all."""
    known = {name: found for name, found in known.items() if found}
    everyone = [number for found in known.values() for number in found]
    for one in ranges:
        if known and one.name not in everyone:
            given = (
                f"{one.name}, which is not a numeric setting of {', '.join(known)}{did_you_mean(one.name, everyone)}"
            )
            allowed = "; ".join(f"{', '.join(found)} of {name}" for name, found in known.items())
            raise InputError("--parameter", given, allowed)
