"""The form of a strategy: what it sees, what it returns, and the parts that it is made of.

    y_i = x_i - alpha (u_i - h_i)                 local step: u_i is its direction, h_i the drift correction
    x_hat_i <- x_hat_i + C(y_i - x_hat_i)         what neighbours know: trigger (when), codec C (what), links (to whom),
                                                  budget, pacing
    x_i <- y_i + f_i                              mixing: the link law

`Parts` is the table of these parts, and `core.law` is one iteration of it. A strategy that does not fit this form is a
`WholeStrategy`: it makes its iterations itself. Nothing is remembered except in the arrays that the driver provides
(`core.memory`).
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.errors import Unusable
from efhc.base.policy import Policy
from efhc.base.registry import Family
from efhc.core.cost import BITS_PER_NUMBER
from efhc.core.graph import Graph
from efhc.core.half_steps import MOST_WINDOW, LinkLaw
from efhc.core.local_steps import SGD, LocalStep
from efhc.core.memory import Memories
from efhc.core.personal import Personal
from efhc.core.step_limits import NoLimit, StepLimit
from efhc.core.triggers import Bandwidths
from efhc.core.uplink import Pacing

PERSONAL = Family(Personal, ("efhc.core.personal",), ("backend_for",), default="shared")
AnyPersonal = Annotated[Personal, PERSONAL]


class Strategy(Policy):
    """Base class of strategies that a config can name. A subclass implements one of four methods:

    thresholds(k, gamma, bandwidths, coins)    who fires, as a function of k; all else is the paper's
    fires(seen, memory)                        who fires, by what a device sees and remembers; all else is the paper's
    parts()                                    the table of its parts
    step(now, models, gradients, memory)       the whole iteration
    """

    model_config = ConfigDict(defer_build=True)  # kinds of installed packages may need what is here

    memory: ClassVar[Memories] = {}
    """What the strategy remembers from one iteration to the next."""
    survives_loss: ClassVar[bool] = False
    """Whether `step` looks at `Now.lost`, so that messages may get lost."""
    needs_static_graph: ClassVar[bool] = False
    """Whether the graph must stay as it is."""

    personal: AnyPersonal | None = None
    """What of its model a device keeps to itself. Default: nothing, devices share whole models."""


# What a strategy sees and returns


@dataclass(frozen=True, eq=False)
class Now:
    """Read-only inputs of a strategy in iteration k."""

    k: int
    step_size: float
    """alpha(k)"""
    threshold_decay: float
    """gamma(k)"""
    graph: Graph
    """G(k)"""
    new_links: Flags
    """For each link of G(k), whether its devices must send each other their models because the link is new: those in
    `met` and, at k = 0, those between devices with different initial models."""
    bandwidths: Bandwidths
    losses: Floats
    """Each device's loss on its batch at its model, (m,)."""
    spent: Floats
    """The transmission time that each device has spent so far, (m,)."""
    coins: Callable[[int], Floats]
    """`coins(k)`: one uniform number per device, (m,), the same for all strategies."""
    random: Callable[..., np.random.Generator]
    """`random(a, b, ...)`: a stream of random numbers that is a function of the seed, k and these whole numbers."""
    lost: Flags | None = None
    """For each directed link, whether what is sent over it gets lost, (2 links,). None: nothing does."""
    met: Flags | None = None
    """For each link of G(k), whether its ends have just met (Event 1). None: none of them."""


class Moved(NamedTuple):
    """What a whole strategy did in an iteration."""

    models: Floats
    """W(k+1), (m, n)."""
    bits: Ints | Floats
    """Bits sent by each device to all of its neighbours, (m,); or, with per="link", over each directed link in the
    order of `Graph.directed`, (2 links,)."""
    fired: Flags | None = None
    """Which devices sent something of their own accord, (m,). Default: those that sent any bits."""
    per: Literal["device", "link"] = "device"
    """What `bits` has an entry for."""


@dataclass(frozen=True, eq=False)
class Seen:
    """Inputs of a trigger in iteration k: one entry per device, (m,)."""

    k: int
    threshold_decay: float
    """gamma(k)"""
    drift: Floats
    """(1/n)^(1/2) ||w_i - w_hat_i||_2; with estimates per link, the largest over the device's links."""
    losses: Floats
    """The loss on the device's batch."""
    spent: Floats
    """The transmission time that the device has spent so far."""
    degrees: Ints
    bandwidths: Bandwidths
    coins: Callable[[int], Floats]


# Mixing


class MixingPolicy(Policy, ABC):
    """A link law that a config can name: how two ends make equal and opposite steps."""


class ExchangeMixing(MixingPolicy):
    """The paper's: f_i = sum_j v_ij beta_ij (x_j - x_i). Both ends of a used link send their whole model."""

    kind: Literal["exchange"] = "exchange"


MOST_RATE = 0.5
"""Largest rate for which mixing is proved not to diverge on any fixed graph, with whole models, without gradients and
delays (docs/asynchrony.md)."""
STEP_LIMITS = Family(StepLimit, ("efhc.core.step_limits",), ("factor",), default="none")
AnyStepLimit = Annotated[StepLimit, STEP_LIMITS]


class HalfStepsMixing(MixingPolicy):
    """Each message updates the receiver's estimate of the sender's model and moves both devices. It needs no reply.

    The sender adds d = rate beta_ij (x_hat_j - x_hat_i) when it sends, and the receiver subtracts d when the message
    arrives. It runs in lockstep, event-driven and on nodes, and survives lost, late and repeated messages
    (`core.half_steps`).
    """

    model_config = ConfigDict(defer_build=True)  # kinds of installed packages may need what is here

    kind: Literal["half-steps"] = "half-steps"
    rate: float = Field(default=0.5, gt=0, le=1)
    """Share of beta_ij that one message moves. Two neighbours that both send move twice as much, so more than 1/2 needs
    `guard` or `settle`."""
    settle: bool = False
    """Whether the neighbours' estimates of each other exclude the steps made over their own link. Late or repeated
    messages then move two models to their average and no further. It takes two more models per end of a link and per
    message in flight."""
    window: int = Field(default=1, ge=1, le=MOST_WINDOW)
    """Largest number of unacknowledged messages to a neighbour. More than one needs `settle`."""
    most_steps: int = Field(default=1, ge=1)
    """Largest number of local steps since the last acknowledged message that one message contributes to the drift
    correction until k = 50. Afterwards the excess falls like 50 / k. In the limit all messages in flight together
    contribute half a step, or one step if `most_steps` is 1. Otherwise the correction could diverge with delays."""
    guard: Literal["degree"] | None = None
    """"degree": a message moves at most 1 / (2 max(d_i, d_j)), which allows rates above 1/2. Default: none."""
    limit: AnyStepLimit = NoLimit()
    """How far one message may move two devices."""
    take_back: bool = True
    """Whether each end of a link stores the link's part of the drift correction (one model) and subtracts it when the
    link goes down. False: only for networks whose links and devices never leave."""

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

    A message changes what all neighbours know, and needs no reply. It runs in lockstep only, because ends that mix on
    their own clocks would make different steps.
    """

    kind: Literal["estimates"] = "estimates"
    rate: float = Field(default=1.0, gt=0, le=1)
    """gamma: share of the way to the neighbours per iteration."""
    when: Literal["always", "sent"] = "always"
    """Mix in every iteration ("always"), or only over links that were just used ("sent")."""
    every: int = Field(default=1, ge=1)
    """Mix at multiples of this number of iterations."""


class Budget(Policy):
    """A device's credit grows by a share of what ZT would spend; it sends when it can pay for the whole message.

    With estimates and half-steps, the models for new neighbours (Event 1) are always sent and charged, even if the
    credit becomes negative: on a network that changes often, devices may spend more than their share.
    """

    share: float = Field(gt=0, le=1)
    """The share of ZT's transmission time that each device may spend."""

    def income(self, parameters: int) -> float:
        """Return the bits on the air by which the credit of a device grows in an iteration."""
        return self.share * BITS_PER_NUMBER * parameters


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
    """A trigger that depends on measurements and on its own memory. `fires` is called during the iteration."""

    def fires(self, seen: Seen, memory: dict[str, np.ndarray]) -> Flags:
        """Return v_i for all devices, (m,). Write what is remembered to the arrays of `memory`."""
        ...


class ChosenLinks(NamedTuple):
    """The links that may be used in an iteration."""

    active: Flags
    """For each link of G(k)."""
    weights: Floats | None = None
    """w_ij of each link. Default: those of G(k), which are Metropolis' unless it has its own."""


class LinkChoice(Protocol):
    """Chooses the links that may be used. In lockstep both ends of a link know the choice without a message."""

    @property
    def is_fixed(self) -> bool:
        """Whether the chosen links are constant as long as the graph is."""
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
    """How a device uses its uplink. None: it sends to all neighbours whenever the trigger fires."""

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
