"""What a strategy is made of. Its law, one iteration of all devices, is in `core.law`.

A strategy is a table of parts: a local step, a trigger, a codec, a choice of links, a mixing and perhaps a budget. One
that does not fit that form is a `WholeStrategy`: it makes its iterations itself. Nothing here draws random numbers
except from the streams of `Now.random`, and nothing is remembered except in the arrays that the driver hands out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.core.graph import Graph
from efhc.core.memory import Arrays, Memories
from efhc.core.triggers import Bandwidths


@dataclass(frozen=True, eq=False)
class Now:
    """What a strategy may look at in iteration k. Arrays must not be written to."""

    k: int
    step_size: float
    """alpha(k)"""
    threshold_decay: float
    """gamma(k)"""
    graph: Graph
    """G(k)"""
    new_links: Flags
    """For each link of G(k), whether its ends have just met (Event 1)."""
    bandwidths: Bandwidths
    losses: Floats
    """Each device's loss on its batch at its model, (m,)."""
    spent: Floats
    """The transmission time that each device has spent so far, (m,)."""
    coins: Callable[[int], Floats]
    """`coins(k)`: one uniform number per device, (m,), the same for all strategies."""
    random: Callable[..., np.random.Generator]
    """`random(a, b, ...)`: a stream of random numbers that is a function of the seed, k and these whole numbers."""


class Moved(NamedTuple):
    """What a whole strategy did in an iteration."""

    models: Floats
    """W(k+1), (m, n)."""
    bits: Ints | Floats
    """Bits sent: per directed link (see `Graph.directed`), (2 links,), or per device to all of its neighbours, (m,)."""
    fired: Flags | None = None
    """Which devices sent something of their own accord, (m,). Default: those that sent any bits."""


@runtime_checkable
class WholeStrategy(Protocol):
    """A strategy that makes its iterations itself."""

    memory: Memories

    def step(self, now: Now, models: Floats, gradients: Floats, memory: Mapping[str, np.ndarray]) -> Moved:
        """Make iteration k. `models` is W(k) and `gradients` are taken at it, both (m, n) and read-only.

        Write what is remembered to the arrays of `memory`; they count only if the iteration succeeds.
        """
        ...


@dataclass(frozen=True, eq=False)
class Seen:
    """What the trigger of a device can see in iteration k: one entry per device, (m,)."""

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


@runtime_checkable
class FeedbackTrigger(Protocol):
    """A trigger that looks at what a device sees and remembers. It is asked when the iteration is made."""

    def fires(self, seen: Seen, memory: Mapping[str, np.ndarray]) -> Flags:
        """Return v_i for all devices, (m,). Write what is remembered to the arrays of `memory`."""
        ...


@runtime_checkable
class EntrywiseLaw(Protocol):
    """A trigger that chooses coordinates: device i sends those with |y_il - x_hat_il| >= threshold_i(k)."""

    def entry_thresholds(self, k: int, gamma: float, bandwidths: Bandwidths, coins: Callable[[int], Floats]) -> Floats:
        """threshold_i(k) for all devices, (m,); `gamma` is gamma(k)."""
        ...


class ChosenLinks(NamedTuple):
    """The links that may be used in an iteration."""

    active: Flags
    """For each link of G(k)."""
    weights: Floats | None = None
    """w_ij of each link. Default: the Metropolis weights beta_ij of G(k)."""


class LinkChoice(Protocol):
    """Chooses the links that may be used. Both ends of a link know of it without a message."""

    is_fixed: bool
    """Whether the links of a graph that stays the same stay the same too."""

    def choose(self, now: Now) -> ChosenLinks:
        """Return the links of iteration k."""
        ...


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
    momentum: float = 0.0
    """mu of the local step"""
    correction: float = 0.0
    """theta of the local step"""
    codec: Codec | None = None
    """None: whole models."""
    links: LinkChoice | None = None
    """None: all links."""
    mixing: Any = None
    """None: exchange."""
    budget: Any = None
    memory: Memories = field(default_factory=dict)
