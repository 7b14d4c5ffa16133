"""What a strategy is made of: a local step, a trigger, a codec, a choice of links, a mixing and perhaps a budget.

`Parts` is that table, and `core.law` is one iteration of it. A strategy that does not fit the form is a
`WholeStrategy`: it makes its iterations itself.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from efhc.base.arrays import Flags, Floats
from efhc.base.errors import Unusable
from efhc.base.policy import Policy
from efhc.base.registry import Family
from efhc.core.half_steps import MOST_WINDOW, LinkLaw
from efhc.core.local_steps import SGD, LocalStep
from efhc.core.memory import Memories
from efhc.core.step_limits import NoLimit, StepLimit
from efhc.core.uplink import Pacing
from efhc.core.views import Moved, Now, Seen


class Strategy(Policy):
    """A strategy that a config can name. It has one of four methods, whichever says it best:

    thresholds(k, gamma, bandwidths, coins)    who fires, as a function of k; all else is the paper's
    fires(seen, memory)                        who fires, by what a device sees and remembers; all else is the paper's
    parts()                                    the table of its parts
    step(now, models, gradients, memory)       the whole iteration
    """

    memory: ClassVar[Memories] = {}
    """What the strategy remembers from one iteration to the next."""
    survives_loss: ClassVar[bool] = False
    """Whether `step` looks at `Now.lost`, so that messages may get lost."""
    needs_static_graph: ClassVar[bool] = False
    """Whether the graph must stay as it is."""


# Mixing


class MixingPolicy(Policy, ABC):
    """A link law that a config can name: how two ends make equal and opposite steps."""


class ExchangeMixing(MixingPolicy):
    """The paper's: f_i = sum_j v_ij beta_ij (x_j - x_i). Both ends of a used link send their whole model."""

    kind: Literal["exchange"] = "exchange"


MOST_RATE = 0.5
"""The largest rate of half-steps with which models never run apart on any graph, if messages take no time."""
STEP_LIMITS = Family(StepLimit, ("efhc.core.step_limits",), ("factor",), default="none")
AnyStepLimit = Annotated[StepLimit, STEP_LIMITS]


class HalfStepsMixing(MixingPolicy):
    """A message changes what the receiver knows of the sender, and is a step of both: nobody has to answer it.

    The sender adds d = rate beta_ij (x_hat_j - x_hat_i) and the receiver -d, as soon as each can. It runs in lockstep,
    on devices' own clocks and on nodes, and survives lost, late and repeated messages (`core.half_steps`).
    """

    model_config = ConfigDict(defer_build=True)  # kinds of installed packages may need what is here

    kind: Literal["half-steps"] = "half-steps"
    rate: float = Field(default=0.5, gt=0, le=1)
    """The share of beta_ij that one message moves. Two neighbours that both send move twice as much, so beyond 1/2
    models could run apart: that needs a guard, or steps that settle."""
    settle: bool = False
    """Whether what neighbours know of one another leaves out what their own link has done. Messages that come late, or
    again and again without an answer, then bring two models to their average and no further. It costs two more models
    per link end, and two per message under way."""
    window: int = Field(default=1, ge=1, le=MOST_WINDOW)
    """How many messages to a neighbour may be under way. More than one needs `settle`."""
    most_steps: int = Field(default=1, ge=1)
    """How many local steps count at most in what one message teaches the drift correction, until k = 50, of those since
    the last message that was acknowledged. Afterwards it comes down like 50 / k, to half a step for all messages under
    way: with delays, a correction that went on learning fast would run apart."""
    guard: Literal["degree"] | None = None
    """"degree": a message moves at most 1 / (2 max(d_i, d_j)), so that a rate above 1/2 counts where devices have few
    neighbours. Default: none, and a rate up to 1/2."""
    limit: AnyStepLimit = NoLimit()
    """How far one message may move two devices."""
    take_back: bool = True
    """Whether each link remembers what it has taught the drift correction, one model per end, so that it can be taken
    back when the link is gone. False is for networks in which links and devices stay."""

    @model_validator(mode="after")
    def _is_guarded(self) -> Self:
        if self.rate > MOST_RATE and self.guard is None and not self.settle:
            raise Unusable(
                "rate", f"{self.rate:g} without a guard", "at most 0.5; or settle = true, or guard = 'degree'"
            )
        if self.window > 1 and not self.settle:
            raise Unusable("window", f"{self.window} without settle", "1; or settle = true")
        return self


class EstimatesMixing(MixingPolicy):
    """f_i = gamma sum_j beta_ij (x_hat_j - x_hat_i), where x_hat_i is what the neighbours know of x_i.

    A message changes what is known; nobody has to answer it. All neighbours of a device know the same of it. It runs in
    lockstep only: if each end mixes on its own clock, the two ends of a link make different steps.
    """

    kind: Literal["estimates"] = "estimates"
    rate: float = Field(default=1.0, gt=0, le=1)
    """gamma: the share of the way to its neighbours that a device goes in one iteration."""
    when: Literal["always", "sent"] = "always"
    """Whether devices mix in every iteration ("always"), or only over links that something was just sent over."""
    every: int = Field(default=1, ge=1)
    """Devices mix only at multiples of this number of iterations."""


class Budget(Policy):
    """A device's credit grows by a share of what ZT would spend; it sends when it can pay for the whole message.

    What estimates and half-steps tell new neighbours (Event 1) is paid in any case, on credit if need be: on a network
    that changes a lot, devices may spend more than their share.
    """

    share: float = Field(gt=0, le=1)
    """The share of ZT's transmission time that each device may spend."""


# What may be the user's own


@runtime_checkable
class WholeStrategy(Protocol):
    """A strategy that makes its iterations itself."""

    def step(self, now: Now, models: Floats, gradients: Floats, memory: dict[str, np.ndarray]) -> Moved:
        """Make iteration k. `models` is W(k) and `gradients` are taken at it, both (m, n) and read-only.

        Write what is remembered to the arrays of `memory`; they count only if the iteration succeeds.
        """
        ...


@runtime_checkable
class FeedbackTrigger(Protocol):
    """A trigger that looks at what a device sees and remembers. It is asked when the iteration is made."""

    def fires(self, seen: Seen, memory: dict[str, np.ndarray]) -> Flags:
        """Return v_i for all devices, (m,). Write what is remembered to the arrays of `memory`."""
        ...


class ChosenLinks(NamedTuple):
    """The links that may be used in an iteration."""

    active: Flags
    """For each link of G(k)."""
    weights: Floats | None = None
    """w_ij of each link. Default: the Metropolis weights beta_ij of G(k)."""


class LinkChoice(Protocol):
    """Chooses the links that may be used. Both ends of a link know of it without a message, in lockstep."""

    @property
    def is_fixed(self) -> bool:
        """Whether the links of a graph that stays the same stay the same too."""
        ...

    def choose(self, now: Now) -> ChosenLinks:
        """Return the links of iteration k."""
        ...


@runtime_checkable
class Codec(Protocol):
    """What is sent of the difference between a model and what the neighbours know of it."""

    def send(self, model: Floats, known: Floats, threshold: float) -> tuple[Floats, int]:
        """Return what the neighbours know afterwards, (n,), and the bits of the message; 0 if nothing is sent.

        Only coordinates with |model - known| >= `threshold` may change. `known` is not changed.
        """
        ...


@dataclass(frozen=True)
class Parts:
    """A strategy as a table. The defaults are the paper's: whole models, exchanged by both ends of a link."""

    trigger: Any
    """A `Trigger`, or a `FeedbackTrigger`."""
    local: LocalStep = field(default_factory=SGD)
    codec: Codec | None = None
    """None: whole models."""
    links: LinkChoice | None = None
    """None: all links."""
    mixing: MixingPolicy = field(default_factory=ExchangeMixing)
    budget: Budget | None = None
    pacing: Pacing | None = None
    """How a device uses its uplink. None: it sends to all neighbours at once, whenever the trigger fires."""

    @property
    def link_law(self) -> LinkLaw:
        """The numbers of half-steps."""
        mixing, theta = self.mixing, self.local.correction
        assert isinstance(mixing, HalfStepsMixing)
        keeps = mixing.take_back and theta > 0
        return LinkLaw(mixing.rate, theta, keeps, mixing.settle, mixing.window, mixing.most_steps)

    @property
    def memory(self) -> Memories:
        """What the trigger remembers of its own."""
        found: Mapping[str, Any] = getattr(self.trigger, "memory", {})
        return found
