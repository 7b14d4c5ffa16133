"""The form of a strategy, checked as a whole: a table of parts, or an iteration of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from efhc.base.errors import InputError
from efhc.base.own_code import is_built_in, quoting
from efhc.core.local_steps import SGD, LocalStep, Moment, Rows
from efhc.core.memory import Memories, Memory, problem_with
from efhc.core.parts import (
    Budget,
    EstimatesMixing,
    ExchangeMixing,
    FeedbackTrigger,
    HalfStepsMixing,
    MixingPolicy,
    Parts,
)
from efhc.core.uplink import Pacing
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
    own_memory: Memories
    """What a strategy, or its trigger, remembers of its own."""

    @property
    def is_papers(self) -> bool:
        """Whether only the trigger differs from the paper's algorithm, and thresholds depend on nothing but k."""
        parts = self.parts
        return (
            parts is not None
            and not isinstance(parts.trigger, FeedbackTrigger)
            and isinstance(parts.mixing, ExchangeMixing)
            and parts.local == SGD()
            and parts.links is None
            and parts.budget is None
        )

    @property
    def period(self) -> int:
        """Number of iterations after which the strategy does the same again, as far as its settings tell; else 1."""
        parts = () if self.parts is None else (self.parts.trigger, self.parts.mixing)
        every = (getattr(one, "every", 1) for one in parts)
        return math.lcm(*(number for number in every if isinstance(number, int) and number > 0))

    @property
    def half_steps(self) -> HalfStepsMixing | None:
        """The link law, if it is that of half-steps."""
        return self.parts.mixing if self.parts and isinstance(self.parts.mixing, HalfStepsMixing) else None

    @property
    def chooses_links(self) -> bool:
        """Whether each device decides for itself over which links it sends."""
        return self.parts is not None and bool(getattr(self.parts.links, "is_own_choice", False))

    def is_per_link(self, *, is_static: bool) -> bool:
        """Whether neighbours may know different things of a device in lockstep. `is_static`: the graph stays."""
        fixed = self.parts is None or self.parts.links is None or self.parts.links.is_fixed
        return self.half_steps is not None and (self.half_steps.settle or not (is_static and fixed))

    def broadcasts(self, *, is_static: bool) -> bool:
        """Whether each device has one model that all neighbours know of it: the last broadcast, or the estimate."""
        return self.parts is not None and not self.is_per_link(is_static=is_static)

    def memory(self, *, is_static: bool) -> Memories:
        """Return all that lockstep remembers from one iteration to the next, besides models and last broadcasts."""
        own = {OWN + name: memory for name, memory in self.own_memory.items()}
        if self.parts is None:
            return {**own, **_SPENT}
        return {**_memory(self.parts, is_per_link=self.is_per_link(is_static=is_static)), **own}

    @property
    def keeps_no_history(self) -> bool:
        """Whether h could not lose what a link has added to it, if the link went."""
        mixing, parts = self.half_steps, self.parts
        return mixing is not None and parts is not None and not mixing.take_back and parts.local.correction > 0

    @property
    def needs_static(self) -> bool:
        """Whether the graph must stay as it is."""
        who = self.strategy if self.parts is None else self.parts.links
        return bool(getattr(who, "needs_static_graph", False)) or self.keeps_no_history

    @property
    def needs_every_message(self) -> bool:
        """Whether a message that lockstep loses makes devices disagree for ever."""
        if self.parts is None:
            return not getattr(self.strategy, "survives_loss", False)
        return not isinstance(self.parts.mixing, ExchangeMixing)

    def off_lockstep(self) -> str | None:
        """Return why the strategy cannot run with devices on their own clocks, or None if it can."""
        parts = self.parts
        if parts is None:
            return "its `step` makes the iterations of all devices at once"
        is_exchange, feedback = isinstance(parts.mixing, ExchangeMixing), isinstance(parts.trigger, FeedbackTrigger)
        corrects, own = parts.local.correction > 0, self.own_memory.values()
        reasons = {
            "mixing is 'estimates', with which two ends on clocks of their own make different steps": isinstance(
                parts.mixing, EstimatesMixing
            ),
            "it chooses links by iteration, and devices are in different ones": (
                parts.links is not None and not self.chooses_links
            ),
            "links chosen by bandwidth need pacing, which knows the bandwidth": self.chooses_links and not parts.pacing,
            "a drift correction needs mixing 'half-steps', in which the sender's step size counts at both ends": (
                is_exchange and corrects
            ),
            "a budget, or a trigger with `fires`, needs mixing 'half-steps', in which the sender decides alone": (
                is_exchange and (parts.budget is not None or feedback)
            ),
            "its trigger remembers something of links or of the whole run": any(one.per != "device" for one in own),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)


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
        return Form(strategy, None, own)
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
    check_row_wise(parts.local, f"{where}.local")
    return Form(strategy, parts, parts.memory)


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
        "mixing": isinstance(parts.mixing, MixingPolicy),
        "budget": parts.budget is None or isinstance(parts.budget, Budget),
        "pacing": parts.pacing is None or isinstance(parts.pacing, Pacing),
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


def _memory(parts: Parts, *, is_per_link: bool) -> Memories:
    """Return what the law remembers for a table of parts."""
    mixing, found = parts.mixing, dict(_SPENT)
    is_half_steps = isinstance(mixing, HalfStepsMixing)
    found |= {name: Memory(size="model") for name in parts.local.memory}
    if parts.local.correction:
        found["correction"] = Memory(size="model")
        is_always = isinstance(mixing, EstimatesMixing) and mixing.when == "always" and mixing.every == 1
        if not is_always or not (parts.links is None or parts.links.is_fixed):
            # A link that comes later adds nothing to h at its first use: it is unknown since when its ends drift apart.
            # Half-steps count from the introduction.
            found["elapsed"] = Memory(per="link", dtype="float64", start=0.0 if is_half_steps else NEVER)
    if isinstance(mixing, HalfStepsMixing) and mixing.settle:
        found["moved"] = Memory(per="link", size="model")
        found |= {name: Memory(per="link", dtype="float64", start=start) for name, start in (("since", 0), ("news", 1))}
        found |= {
            name: Memory(per="device", dtype="float64", start=start) for name, start in (("load", 0), ("scale", 1))
        }
    if is_half_steps:
        found["steps"] = Memory(per="device", dtype="float64")
    if is_per_link:
        found["known"] = Memory(per="link", size="model", start="models")
        if parts.local.correction:
            found["link_correction"] = Memory(per="link", size="model")
    if parts.budget:
        found["credit"] = Memory(per="device", dtype="float64")
    return found


def _check(parts: Parts, where: str) -> None:
    """Refuse a combination without meaning."""
    mixing, is_entrywise = parts.mixing, getattr(parts.trigger, "is_entrywise", False)
    if parts.pacing is not None and not isinstance(mixing, HalfStepsMixing):
        given = "a pace, while devices wait for answers"
        raise InputError(f"{where}.pacing", given, "none; or mixing.kind = 'half-steps'")
    if isinstance(mixing, ExchangeMixing):
        if parts.codec is not None and not isinstance(parts.codec, FullCodec):
            kind = getattr(parts.codec, "kind", type(parts.codec).__name__)
            given = f"'{kind}', while mixing is 'exchange', which sends whole models"
            raise InputError(f"{where}.codec", given, "'full'; or mixing.kind = 'half-steps'")
        if is_entrywise:
            given = "'entrywise', while mixing is 'exchange', which sends whole models"
            raise InputError(f"{where}.trigger", given, "another trigger; or mixing.kind = 'half-steps'")
    elif isinstance(mixing, EstimatesMixing) and parts.links is not None and not parts.links.is_fixed:
        kind = getattr(parts.links, "kind", type(parts.links).__name__)
        given = f"'{kind}', while all neighbours of a device must know the same of it (mixing 'estimates')"
        raise InputError(f"{where}.links", given, "'all' or 'tree'; or mixing.kind = 'half-steps'")


DEVICES, PARAMETERS = 4, 12


def check_row_wise(local: LocalStep, where: str) -> None:
    """Raise `InputError` if a local step returns something else for a device when the others stand elsewhere.

    What it remembers must be named in `memory`, each an array like the models.
    """
    if is_built_in(local):
        return
    rng, order = np.random.default_rng(0), np.array([2, 0, 3, 1])
    names = ("model", *(["correction"] if local.correction else []), *local.memory)
    rows = {name: rng.normal(size=(DEVICES, PARAMETERS)).astype(np.float32) for name in names}
    gradient, ones = rng.normal(size=(DEVICES, PARAMETERS)).astype(np.float32), np.ones((DEVICES, 1))
    pull = rng.normal(size=(DEVICES, PARAMETERS)).astype(np.float32)
    learned = pull if local.correction else None
    alpha = (0.1 * ones).astype(np.float32)

    def both(which: np.ndarray) -> Rows:
        """Return the rows after a local step and what links add, where the devices stand in this order."""
        moment = Moment(alpha[which], np.arange(1, DEVICES + 1)[which], ones[which])
        after = local.local({name: array[which] for name, array in rows.items()}, gradient[which], moment)
        return local.pulled(after, pull[which], None if learned is None else learned[which], alpha[which])

    with quoting(local, where):
        found, again = both(np.arange(DEVICES)), both(order)
        alone = [both(np.array([device])) for device in range(DEVICES)]
    if found.keys() != rows.keys():
        given = f"a local step that remembers {', '.join(sorted(found.keys() - {'model', 'correction'})) or 'nothing'}"
        raise InputError(where, given, f"what its `memory` names: {', '.join(local.memory) or 'nothing'}")
    for name, array in found.items():
        if np.shape(array) != (DEVICES, PARAMETERS):
            raise InputError(where, f"{name} of shape {np.shape(array)}", f"one row per device, ({DEVICES}, n)")
        if np.asarray(array).dtype != np.float32:
            raise InputError(where, f"{name} in {np.asarray(array).dtype}", "the precision of the models")
        is_same = np.array_equal(np.asarray(array)[order], again[name], equal_nan=True)
        alike = np.allclose(array, np.concatenate([rows[name] for rows in alone]), rtol=1e-4, atol=1e-5, equal_nan=True)
        if not is_same or not alike:
            given = f"a local step whose {name} of a device depends on the rows of other devices"
            raise InputError(where, given, "a function of each device's own row")
