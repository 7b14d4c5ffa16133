"""The arithmetic of `core.law` in NumPy: one function per pass over the models. These change none of their arguments.

A driver may give the law one that is compiled (`efhc.kernels.compiled_law`). Every operation is made as it is written
here, so that both give the same bits, but for the sums of `drift` and `mix_and_descend`, whose order is free.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.core.arithmetic import consensus_error, drift
from efhc.core.graph import Graph
from efhc.core.local_steps import LocalStep, Moment, Rows
from efhc.core.mixing import mix_and_descend
from efhc.core.parts import Codec

Versions = tuple[Floats, Floats]
"""What is known before and after the messages of an iteration; the same array twice if that makes no difference."""


class Places(NamedTuple):
    """Where the terms of an iteration are: what links add to devices, by ascending device."""

    device: Ints
    plus: Ints
    """Rows of what is known before the messages; after them, if the term `is_newer`."""
    minus: Ints
    """Rows of what is known after the messages; before them, if the term `is_newer`."""
    is_newer: Flags
    message: Ints
    """The directed link that the message of the term went over."""
    link: Ints
    """The same link, from the device on."""
    starts: Ints
    """The terms of device i are starts[i] .. starts[i + 1]."""


class Terms(NamedTuple):
    """What links add: a device gets d = weight (plus - minus) for each of its terms, and h learns `learning` d."""

    places: Places
    weights: Floats
    learning: Floats


class Messages(NamedTuple):
    """What devices may send: row r of `known` is what is known of the model of device who[r]."""

    codec: Codec
    models: Floats
    who: Ints
    known: Floats
    thresholds: Floats
    """Per row, that of its coordinates."""
    chosen: Flags
    """The rows of which anything is sent."""


class LawArithmetic(Protocol):
    """What an iteration computes with. `role` names an array, so that its memory may be used again."""

    def descent(self, local: LocalStep, rows: Rows, gradients: Floats, moment: Moment) -> tuple[Floats, Rows]:
        """u - h, and what the local step remembers. The result may take the memory of `gradients`."""
        ...

    def stepped(self, rows: Rows, down: Floats, alpha: float) -> Rows:
        """The rows with y = x - alpha (u - h), where u - h is `down`. y may take the memory of `down`."""
        ...

    def drift(self, models: Floats, who: Ints, known: Floats) -> Floats:
        """(1/n)^(1/2) ||models[who[r]] - known[r]||_2 for each row r of `known`."""
        ...

    def send(self, role: str, messages: Messages) -> tuple[Floats, Ints]:
        """Return what is known after the messages of the chosen rows, and the bits of each row's message."""
        ...

    def replaced(self, role: str, known: Floats, chosen: Flags, models: Floats) -> Floats:
        """Return `known` with the rows of `models` where chosen."""
        ...

    def kept(self, role: str, changed: Floats, chosen: Flags, before: Floats) -> Floats:
        """Return `changed`, which `send` returned, with the chosen rows as they were `before`."""
        ...

    def mix_and_descend(
        self, graph: Graph, used: Flags, weights: Floats | None, models: Floats, down: Floats, alpha: float
    ) -> Floats:
        """P W - alpha D, D: `down`. `weights` are those of links, if they are not Metropolis'."""
        ...

    def pulled(
        self,
        local: LocalStep,
        rows: Rows,
        versions: Versions,
        terms: Terms,
        alpha: float,
        graph: Graph,
        taught: Floats | None = None,
    ) -> Rows:
        """`LocalStep.pulled` by the sums of all terms. `taught`, if given, is changed: taught[link] += learning d."""
        ...

    def remembered(self, local: LocalStep, rows: Rows, versions: Versions, terms: Terms, alpha: float) -> Rows:
        """The same, but "model" is left as it is."""
        ...

    def consensus_error(self, models: Floats) -> float:
        """sum_i ||w_i - w_bar||^2"""
        ...


class _Plain:
    """`LawArithmetic` in NumPy."""

    def descent(self, local: LocalStep, rows: Rows, gradients: Floats, moment: Moment) -> tuple[Floats, Rows]:
        return local.descent(rows, gradients, moment)

    @np.errstate(over="ignore", invalid="ignore")
    def stepped(self, rows: Rows, down: Floats, alpha: float) -> Rows:
        return {**rows, "model": rows["model"] - down.dtype.type(alpha) * down}

    def drift(self, models: Floats, who: Ints, known: Floats) -> Floats:
        return drift(models[who], known)

    def send(self, role: str, messages: Messages) -> tuple[Floats, Ints]:
        codec, models, who, known, thresholds, chosen = messages
        after, bits = known.copy(), np.zeros(len(known), dtype=np.int64)
        for row in np.flatnonzero(chosen):
            after[row], bits[row] = codec.send(models[who[row]], known[row], float(thresholds[row]))
        return after, bits

    def replaced(self, role: str, known: Floats, chosen: Flags, models: Floats) -> Floats:
        return np.where(chosen[:, None], models, known)

    def kept(self, role: str, changed: Floats, chosen: Flags, before: Floats) -> Floats:
        return np.where(chosen[:, None], before, changed)

    def mix_and_descend(
        self, graph: Graph, used: Flags, weights: Floats | None, models: Floats, down: Floats, alpha: float
    ) -> Floats:
        return mix_and_descend(graph, used, models, down, alpha, weights)

    def pulled(
        self,
        local: LocalStep,
        rows: Rows,
        versions: Versions,
        terms: Terms,
        alpha: float,
        graph: Graph,
        taught: Floats | None = None,
    ) -> Rows:
        return local.pulled(rows, *sums_of(rows, versions, terms, taught), np.full((len(rows["model"]), 1), alpha))

    def remembered(self, local: LocalStep, rows: Rows, versions: Versions, terms: Terms, alpha: float) -> Rows:
        after = local.pulled(rows, *sums_of(rows, versions, terms), np.full((len(rows["model"]), 1), alpha))
        return {**after, "model": rows["model"]}

    def consensus_error(self, models: Floats) -> float:
        return consensus_error(models)


PLAIN_LAW: LawArithmetic = _Plain()


@np.errstate(over="ignore", invalid="ignore")
def sums_of(rows: Rows, versions: Versions, terms: Terms, taught: Floats | None = None) -> tuple[Floats, Floats | None]:
    """Return what links add to each model, and what h learns, if there is one; term by term, in order."""
    (before, after), kind = versions, rows["model"].dtype.type
    pull, learned = np.zeros_like(rows["model"]), np.zeros_like(rows["model"]) if "correction" in rows else None
    device, plus, minus, is_newer, _, links, _ = terms.places
    for t, (i, p, q, link) in enumerate(zip(device, plus, minus, links, strict=True)):
        step = kind(terms.weights[t]) * ((after[p] - before[q]) if is_newer[t] else (before[p] - after[q]))
        pull[i] += step
        if learned is not None:
            learned[i] += kind(terms.learning[t]) * step
        if taught is not None:
            taught[link] += kind(terms.learning[t]) * step
    return pull, learned
