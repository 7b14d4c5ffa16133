"""The form of a strategy, checked as a whole: a table of parts, or an iteration of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from efhc.base.errors import InputError
from efhc.base.own_code import quoting
from efhc.core.memory import Memories, Memory, problem_with
from efhc.core.parts import Budget, EstimatesMixing, ExchangeMixing, FeedbackTrigger, LocalStep, Parts
from efhc.strategies.paper import ThresholdStrategy
from efhc.strategies.parts.codecs import FullCodec

OWN = "own/"
"""In front of the names of what a strategy remembers of its own."""


@dataclass(frozen=True)
class Form:
    """What drivers make of a strategy."""

    strategy: Any
    parts: Parts | None
    """None for a strategy that makes its iterations itself."""
    memory: Memories
    """All that is remembered from one iteration to the next, besides models and last broadcasts."""

    @property
    def is_papers(self) -> bool:
        """Whether only the trigger differs from the paper's algorithm, and thresholds depend on nothing but k."""
        parts = self.parts
        return (
            parts is not None
            and not isinstance(parts.trigger, FeedbackTrigger)
            and isinstance(parts.mixing, ExchangeMixing)
            and parts.local.momentum == parts.local.correction == 0
            and parts.links is None
            and parts.budget is None
        )

    @property
    def estimates(self) -> EstimatesMixing | None:
        """The mixing, if it is one of estimates."""
        return self.parts.mixing if self.parts and isinstance(self.parts.mixing, EstimatesMixing) else None

    @property
    def broadcasts(self) -> bool:
        """Whether each device has one model that all neighbours know of it: the last broadcast, or the estimate."""
        return self.parts is not None and not (self.estimates and self.estimates.per == "link")

    @property
    def needs_static(self) -> bool:
        """Whether the graph must stay as it is."""
        who = self.strategy if self.parts is None else self.parts.links
        return bool(getattr(who, "needs_static_graph", False))

    @property
    def needs_every_message(self) -> bool:
        """Whether a single lost message makes devices disagree for ever."""
        if self.parts is None:
            return not getattr(self.strategy, "survives_loss", False)
        return bool(self.estimates and self.estimates.per == "device")


def form_of(strategy: Any, name: str = "") -> Form:
    """Return the form of a strategy. Raises `InputError` if its parts do not go together; `name` is its name."""
    where = f"strategies.{name}" if name else f"strategy {getattr(strategy, 'kind', type(strategy).__name__)}"
    own = getattr(strategy, "memory", {})
    if problem := problem_with(own):
        raise InputError(f"{where}.memory", problem, "efhc.Memory by name, with a finite start")
    ways = _ways(strategy)
    if len(ways) != 1:
        given = f"a class with {' and '.join(sorted(ways)) or 'none of them'}"
        raise InputError(where, given, f"one of {', '.join(WAYS)}")
    if ways == {"step"}:
        return Form(strategy, None, {**{OWN + key: memory for key, memory in own.items()}, **_SPENT})
    if ways != {"parts"} and callable(getattr(strategy, "parts", None)) and not isinstance(strategy, ThresholdStrategy):
        given = f"a subclass of {type(strategy).__mro__[1].__name__} with {ways.pop()}"
        raise InputError(where, given, "one with parts(), which has the trigger in its table")
    with quoting(strategy, where):
        parts = strategy.parts() if ways == {"parts"} else Parts(strategy)
    if problem := _not_parts(parts):
        raise InputError(where, f"{problem} from parts()", "efhc.Parts with a trigger, and other parts by their names")
    if parts.codec is None:
        parts = replace(parts, codec=FullCodec())
    _check(parts, where)
    return Form(strategy, parts, _memory(parts))


WAYS = ("thresholds", "fires", "parts", "step")
"""The methods by which a strategy says what it does."""


def _ways(strategy: Any) -> set[str]:
    """Return how a strategy says what it does: by its own methods, or those of the nearest base that has any."""
    own = {name for name in WAYS if callable(vars(strategy).get(name))} if hasattr(strategy, "__dict__") else set()
    found = (set(WAYS) & vars(base).keys() for base in type(strategy).__mro__)
    return own or next(filter(None, found), set())


def _not_parts(parts: Any) -> str | None:
    """Return what is not a part, in a few words; None if all are."""
    if not isinstance(parts, Parts):
        return f"a {type(parts).__name__}"
    is_trigger = any(callable(getattr(parts.trigger, method, None)) for method in ("thresholds", "fires"))
    fits = {
        "trigger": is_trigger,
        "local": isinstance(parts.local, LocalStep),
        "codec": parts.codec is None or callable(getattr(parts.codec, "send", None)),
        "links": parts.links is None or callable(getattr(parts.links, "choose", None)),
        "mixing": isinstance(parts.mixing, ExchangeMixing | EstimatesMixing),
        "budget": parts.budget is None or isinstance(parts.budget, Budget),
    }
    return next((f"{name} = {getattr(parts, name)!r}" for name, is_fit in fits.items() if not is_fit), None)


def trigger_of(strategy: Any) -> Any:
    """Return the trigger of a strategy whose form is the paper's; a trigger is returned as it is."""
    form = form_of(strategy)
    if not form.is_papers:
        name = getattr(strategy, "kind", type(strategy).__name__)
        raise InputError(
            "strategy", f"'{name}', which changes more than the paper's trigger", "a strategy that does not"
        )
    assert form.parts is not None
    return form.parts.trigger


NEVER = 1e300
"""The sum of step sizes since a link was last used, if it never was."""
_SPENT = {"spent": Memory(per="device", dtype="float64")}


def _memory(parts: Parts) -> Memories:
    """Return what the law remembers for a table of parts."""
    mixing, found = parts.mixing, dict(_SPENT)
    if parts.local.momentum:
        found["momentum"] = Memory(size="model")
    if parts.local.correction:
        found["correction"] = Memory(size="model")
        is_always = isinstance(mixing, EstimatesMixing) and mixing.when == "always" and mixing.every == 1
        if not is_always or not (parts.links is None or parts.links.is_fixed):
            # A link that comes later teaches nothing at its first use: nobody knows since when its ends drift apart.
            found["elapsed"] = Memory(per="link", dtype="float64", start=NEVER)
    if isinstance(mixing, EstimatesMixing) and mixing.per == "link":
        found["estimates"] = Memory(per="link", size="model", start="models")
        found["met"] = Memory(per="link", dtype="bool")
    if parts.budget:
        found["credit"] = Memory(per="device", dtype="float64")
    return {**found, **{OWN + name: memory for name, memory in parts.memory.items()}}


def _check(parts: Parts, where: str) -> None:
    """Refuse a combination without meaning."""
    mixing, is_entrywise = parts.mixing, getattr(parts.trigger, "is_entrywise", False)
    if isinstance(mixing, ExchangeMixing):
        if parts.codec is not None and not isinstance(parts.codec, FullCodec):
            kind = getattr(parts.codec, "kind", type(parts.codec).__name__)
            given = f"'{kind}', while mixing is 'exchange', which sends whole models"
            raise InputError(f"{where}.codec", given, "'full'; or mixing.kind = 'estimates'")
        if is_entrywise:
            given = "'entrywise', while mixing is 'exchange', which sends whole models"
            raise InputError(f"{where}.trigger", given, "another trigger; or mixing.kind = 'estimates'")
    elif parts.links is not None and not parts.links.is_fixed and getattr(mixing, "per", "") == "device":
        kind = getattr(parts.links, "kind", type(parts.links).__name__)
        given = f"'{kind}', while all neighbours of a device must know the same of it (mixing.per = 'device')"
        raise InputError(f"{where}.links", given, "'all' or 'tree'; or mixing.per = 'link'")
