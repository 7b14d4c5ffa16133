"""The arithmetic of an iteration in NumPy: one function per pass over the models. They change no arguments but those
that they name. What overflows becomes infinite or NaN without a warning, and the law looks for it.

A driver may pass a compiled one (`efhc.kernels.compiled_arithmetic`). It makes every operation as it is written here,
so that both give the same bits, except for the sums of `drift` and `mix_and_descend`, whose order is free.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints, read_only
from efhc.base.errors import InputError
from efhc.base.own_code import quoting
from efhc.core.graph import Graph
from efhc.core.local_steps import LocalStep, Moment, Rows
from efhc.core.mixing import mix_and_descend
from efhc.core.parts import Codec


@np.errstate(over="ignore", invalid="ignore")
def drift(models: Floats, last_broadcast: Floats) -> Floats:
    """(1/n)^(1/2) ||w_i - w_hat_i||_2 per device, summed in double precision."""
    change = np.subtract(models, last_broadcast).astype(np.float64)
    drifts: Floats = np.sqrt(np.square(change).mean(axis=1))
    return drifts


@np.errstate(over="ignore", invalid="ignore")
def consensus_error(models: Floats) -> float:
    """sum_i ||w_i - w_bar||^2, summed in double precision."""
    seen_from_first = np.subtract(models, models[0]).astype(np.float64)  # so that little cancels
    return float(np.square(seen_from_first - seen_from_first.mean(axis=0)).sum())


def finite_rows(models: Floats) -> Flags:
    """Which devices' models are finite."""
    finite: Flags = np.logical_and.reduce(np.isfinite(models), axis=1)
    return finite


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


MOST_BITS = 2.0**62
"""A message has fewer bits."""


class CheckedCodec:
    """A codec of the user's own. Its messages are checked, because all drivers rely on them."""

    def __init__(self, codec: Codec) -> None:
        self._codec, self._name = codec, f"codec {getattr(codec, 'kind', type(codec).__name__)}"

    def send(self, model: Floats, known: Floats, threshold: float) -> tuple[Floats, int]:
        with quoting(self._codec, self._name):
            after, bits = self._codec.send(read_only(model), read_only(known), threshold)
        found = np.asarray(after)
        if found.shape != known.shape or found.dtype.kind != "f":
            raise InputError(self._name, f"{found.dtype} of shape {found.shape}", f"{known.dtype} of {known.shape}")
        if np.isnan(found).any():
            raise InputError(self._name, "NaN in what is known", "finite numbers")
        if not isinstance(bits, int | np.integer) or not 0 <= bits < MOST_BITS:
            raise InputError(self._name, f"{bits!r} bits", "a whole number from 0")
        return found, int(bits)


class LawArithmetic:
    """The passes over the models that `core.law` and `core.iteration` consist of.

    `role` names an array, so that a subclass may use its memory again. One may also write to the arguments that a
    method names.
    """

    def descent(self, local: LocalStep, rows: Rows, gradients: Floats, moment: Moment) -> tuple[Floats, Rows]:
        """Return u - h, which may take the memory of `gradients`, and what the local step remembers."""
        return local.descent(rows, gradients, moment)

    @np.errstate(over="ignore", invalid="ignore")
    def stepped(self, rows: Rows, down: Floats, alpha: float) -> Rows:
        """Return the rows with y = x - alpha (u - h), where u - h is `down`, whose memory y may take."""
        return {**rows, "model": rows["model"] - down.dtype.type(alpha) * down}

    def drift(self, models: Floats, who: Ints, known: Floats) -> Floats:
        """Return (1/n)^(1/2) ||models[who[r]] - known[r]||_2 for each row r of `known`."""
        return drift(models[who], known)

    def send(self, role: str, messages: Messages) -> tuple[Floats, Ints]:
        """Return what is known after the messages of the chosen rows, and the bits of each row's message."""
        codec, models, who, known, thresholds, chosen = messages
        after, bits = known.copy(), np.zeros(len(known), dtype=np.int64)
        for row in np.flatnonzero(chosen):
            after[row], bits[row] = codec.send(models[who[row]], known[row], float(thresholds[row]))
        return after, bits

    def replaced(self, role: str, known: Floats, chosen: Flags, models: Floats) -> Floats:
        """Return `known` with the rows of `models` where chosen."""
        return np.where(chosen[:, None], models, known)

    def kept(self, role: str, changed: Floats, chosen: Flags, before: Floats) -> Floats:
        """Return `changed`, which `send` returned, with the chosen rows as they were `before`."""
        return np.where(chosen[:, None], before, changed)

    def mix_and_descend(
        self, graph: Graph, used: Flags, weights: Floats | None, models: Floats, down: Floats, alpha: float
    ) -> Floats:
        """Return P W - alpha D, D: `down`, whose memory it may take. Default of the `weights`: those of the graph."""
        return mix_and_descend(graph, used, models, down, alpha, weights)

    def pulled(
        self,
        local: LocalStep,
        rows: Rows,
        versions: Versions,
        terms: Terms,
        alpha: float,
        link_correction: Floats | None = None,
    ) -> Rows:
        """Return `LocalStep.pulled` by the sums of all terms, after link_correction[link] += learning d, in place."""
        return local.pulled(
            rows, *sums_of(rows, versions, terms, link_correction), np.full((len(rows["model"]), 1), alpha)
        )

    def remembered(self, local: LocalStep, rows: Rows, versions: Versions, terms: Terms, alpha: float) -> Rows:
        """Return the same, with "model" as it was."""
        after = local.pulled(rows, *sums_of(rows, versions, terms), np.full((len(rows["model"]), 1), alpha))
        return {**after, "model": rows["model"]}

    def consensus_error(self, models: Floats) -> float:
        """Return sum_i ||w_i - w_bar||^2."""
        return consensus_error(models)


PLAIN_LAW = LawArithmetic()


@np.errstate(over="ignore", invalid="ignore")
def sums_of(
    rows: Rows, versions: Versions, terms: Terms, link_correction: Floats | None = None
) -> tuple[Floats, Floats | None]:
    """Return what links add to each model, and what h learns, if there is one; term by term, in order."""
    (before, after), kind = versions, rows["model"].dtype.type
    pull, learned = np.zeros_like(rows["model"]), np.zeros_like(rows["model"]) if "correction" in rows else None
    device, plus, minus, is_newer, _, links, _ = terms.places
    for t, (i, p, q, link) in enumerate(zip(device, plus, minus, links, strict=True)):
        step = kind(terms.weights[t]) * ((after[p] - before[q]) if is_newer[t] else (before[p] - after[q]))
        pull[i] += step
        if learned is not None:
            learned[i] += kind(terms.learning[t]) * step
        if link_correction is not None:
            link_correction[link] += kind(terms.learning[t]) * step
    return pull, learned
