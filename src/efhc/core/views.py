"""What strategies see and return. Nothing is remembered except in the arrays that the driver hands out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.core.graph import Graph
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
    """For each link of G(k), whether its ends have to be told each other's models: those that have `met`, and at k = 0
    those of devices that start from different models."""
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
