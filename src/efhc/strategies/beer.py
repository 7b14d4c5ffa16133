"""Gradient tracking with compressed messages."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from efhc.base.arrays import Floats, Ints
from efhc.core.arithmetic import Messages
from efhc.core.cost import whole_message_bits
from efhc.core.memory import Arrays, Memories, Memory
from efhc.core.parts import Codec, Moved, Now, Strategy
from efhc.strategies.parts.averaging import averaging_matrix, broadcast_bits
from efhc.strategies.parts.codecs import AnyCodec, SignCodec


class Beer(Strategy):
    """BEER (Zhao et al., NeurIPS 2022): gradient tracking in which only compressed differences are sent.

        V(k)   = V(k-1) + gamma (W - I) G(k-1) + g(k) - g(k-1),   V(0) = g(0)
        G(k)   = G(k-1) + C(V(k) - G(k-1)),                       G(-1) = 0
        x(k+1) = x(k) + gamma (W - I) H(k) - alpha(k) V(k)
        H(k+1) = H(k) + C(x(k+1) - H(k)),                         H(0) = x(0)

    x: `models`; g: `gradients`; alpha(k): `now.step_size`; gamma: `rate`; C: `codec`; V: the trackers, whose mean is
    the mean gradient; H and G: what the neighbours know of x and V; W: the Metropolis weights. `correction` is c = V -
    g, whose mean is zero:

        V = c + g,   c <- V + gamma (W - I) G - g

    Every device sends two messages per iteration, C(V - G) and C(x - H), to all neighbours. As in the authors' code,
    C(V(0)) is sent; unlike the paper, H(0) = x(0). What a new neighbour does not know is sent in full once.
    """

    kind: Literal["beer"] = "beer"
    rate: float = Field(default=0.8, gt=0, le=1)
    """gamma: share of the way to the neighbours per iteration."""
    codec: AnyCodec = Field(default_factory=SignCodec)
    """How the differences are compressed."""
    memory: ClassVar[Memories] = {
        "known_models": Memory(size="model", start="models"),
        "known_trackers": Memory(size="model"),
        "correction": Memory(size="model"),
    }

    @np.errstate(over="ignore", invalid="ignore")
    def step(self, now: Now, models: Floats, gradients: Floats, memory: Arrays) -> Moved:
        H, G, correction = memory["known_models"], memory["known_trackers"], memory["correction"]
        W = averaging_matrix(now.graph, models.dtype)
        alpha, gamma = models.dtype.type(now.step_size), models.dtype.type(self.rate)

        V = correction + gradients
        bits = _send(self.codec, V, G)
        correction[...] = V + gamma * (W @ G - G) - gradients
        moved = models + gamma * (W @ H - H) - alpha * V
        bits += _send(self.codec, moved, H)
        per_link = _with_introductions(now, models, broadcast_bits(now.graph, bits))
        return Moved(moved, per_link, per="link")


def _send(codec: Codec, rows: Floats, known: Floats) -> Ints:
    """Send each device's row; update `known` to what the neighbours know afterwards. Return the bits, (m,)."""
    from efhc.kernels.compiled_arithmetic import CompiledLaw

    devices = np.arange(len(rows))
    messages = Messages(codec, rows, devices, known, np.zeros(len(rows)), devices >= 0)
    known[...], bits = CompiledLaw().send("", messages)
    return bits


def _with_introductions(now: Now, models: Floats, bits: Ints) -> Ints:
    """Return the bits of the messages, and of what was known before if there are ends that did not know it.

    `models` are those of iteration k. Before k = 0 only the models are known; the trackers are zero.
    """
    directed, new = now.graph.directed, now.new_links
    known_in_full = whole_message_bits(models) * (1 if now.k == 0 else 2)
    per_link: Ints = bits[directed.sender] + known_in_full * new[directed.link]
    return per_link
