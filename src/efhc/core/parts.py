"""What a strategy is made of: a local step, a trigger, a codec, a choice of links, a mixing and perhaps a budget.

`Parts` is that table, and `core.law` is one iteration of it. A strategy that does not fit the form is a
`WholeStrategy`: it makes its iterations itself.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from pydantic import Field

from efhc.base.arrays import Flags, Floats
from efhc.base.policy import Policy
from efhc.core.memory import Memories
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


# The local step


class LocalStep(Policy, ABC):
    """A local step that a config can name: y_i = x_i - alpha (mu m_i + g_i - h_i)."""


class SGD(LocalStep):
    """y_i = x_i - alpha g_i"""

    kind: Literal["sgd"] = "sgd"
    momentum: ClassVar[float] = 0.0
    correction: ClassVar[float] = 0.0


class QuasiGlobalMomentum(LocalStep):
    """y_i = x_i - alpha (mu m_i + g_i), where m_i <- mu m_i + (1 - mu)(x_i - x_i_next) / alpha.

    The momentum follows what the model really did, mixing included (Lin, Karimireddy, Stich, Jaggi, ICML 2021).
    """

    kind: Literal["momentum"] = "momentum"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """mu"""
    correction: ClassVar[float] = 0.0


class DriftCorrected(LocalStep):
    """y_i = x_i - alpha (mu m_i + g_i - h_i), where h_i <- h_i + (theta / alpha) f_i, and f_i is what mixing adds.

    h_i learns by how much the device's own gradient differs from that of all: in the end, mixing has nothing left to
    undo. The h_i of all devices add up to 0.
    """

    kind: Literal["corrected"] = "corrected"
    correction: float = Field(default=0.1, gt=0, le=1)
    """theta"""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """mu"""


# Mixing


class MixingPolicy(Policy, ABC):
    """A mixing that a config can name: `ExchangeMixing` or `EstimatesMixing`."""


class ExchangeMixing(MixingPolicy):
    """The paper's: f_i = sum_j v_ij beta_ij (x_j - x_i). Both ends of a used link send their whole model."""

    kind: Literal["exchange"] = "exchange"


class EstimatesMixing(MixingPolicy):
    """f_i = gamma sum_j beta_ij (x_hat_j - x_hat_i), where x_hat_i is what the neighbours know of x_i.

    A message changes what is known; nobody has to answer it.
    """

    kind: Literal["estimates"] = "estimates"
    rate: float = Field(default=1.0, gt=0, le=1)
    """gamma: the share of the way to its neighbours that a device goes in one iteration."""
    per: Literal["device", "link"] = "device"
    """Whether a device broadcasts, and all neighbours know the same of it ("device"), or sends each neighbour a message
    of its own, which is acknowledged ("link"). The latter survives lost messages, and remembers a model per link."""
    when: Literal["always", "sent"] = "always"
    """Whether devices mix in every iteration ("always"), or only over links that something was just sent over."""
    every: int = Field(default=1, ge=1)
    """Devices mix only at multiples of this number of iterations."""


class Budget(Policy):
    """A device's credit grows by a share of what ZT would spend; it sends when it can pay for the whole message.

    What estimates tell new neighbours (Event 1) is paid in any case, on credit if need be: on a network that changes a
    lot, devices may spend more than their share.
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
    """Chooses the links that may be used. Both ends of a link know of it without a message."""

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
    local: SGD | QuasiGlobalMomentum | DriftCorrected = field(default_factory=SGD)
    codec: Codec | None = None
    """None: whole models."""
    links: LinkChoice | None = None
    """None: all links."""
    mixing: MixingPolicy = field(default_factory=ExchangeMixing)
    budget: Budget | None = None

    @property
    def memory(self) -> Memories:
        """What the trigger remembers of its own."""
        found: Mapping[str, Any] = getattr(self.trigger, "memory", {})
        return found
