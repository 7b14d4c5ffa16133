"""The arithmetic of `core` in compiled loops, spread over threads.

    drift, consensus_error, mix_and_descend   what `core.arithmetic` and `core.mixing` say, to rounding
    CompiledLaw, InPlaceLaw                   `core.law`: the bits of NumPy, except for drifts and exchanges
    StepArithmetic                            `core.half_steps`: one message, one step

Unlike the functions of `core`, those marked "in place" write to their arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.own_code import is_built_in
from efhc.base.threads import in_ranges
from efhc.core.arithmetic import CheckedCodec, LawArithmetic, Messages, Terms, Versions
from efhc.core.graph import Graph
from efhc.core.half_steps import Arithmetic, Encoded
from efhc.core.local_steps import SGD, DriftCorrected, LocalStep, Moment, QuasiGlobalMomentum, Rows
from efhc.kernels import model_loops as loops
from efhc.kernels.codecs import SEND_ROWS


def drift(models: Floats, last_broadcast: Floats, threads: int = 1, who: Ints | None = None) -> Floats:
    """(1/n)^(1/2) ||w_i - w_hat_r||_2 for each row r, summed in double precision; i = who[r]. Default of `who`: r."""
    drifts, every = np.empty(len(last_broadcast)), np.arange(len(last_broadcast))
    arguments = models, every if who is None else who, last_broadcast, every, drifts
    in_ranges(loops.drift_rows, arguments, len(drifts), threads)
    return drifts


def consensus_error(models: Floats, threads: int = 1) -> float:
    """sum_i ||w_i - w_bar||^2, summed in double precision."""
    spreads = np.empty(-(-models.shape[1] // loops.TILE))
    spread_tiles(models, spreads, threads)
    return float(loops.added_up(spreads))


def spread_tiles(models: Floats, spreads: Floats, threads: int) -> None:
    """Write the spread of every tile of columns to `spreads`."""

    def of_range(low: int, high: int) -> None:
        loops.spread_tiles(loops.tile_room(models.dtype), models, spreads, low, high)

    in_ranges(of_range, (), len(spreads), threads)


def links_of(graph: Graph, precision: np.dtype[np.floating], weights: Floats | None = None) -> loops.GraphLinks:
    """Return the links of a graph in the form that the loops take. Default of `weights`: those of the graph."""
    starts, neighbours, link_of, order = graph.rows
    beta = (graph.weights if weights is None else weights).astype(precision)
    room = np.empty(len(neighbours), np.int64), np.empty(len(neighbours), precision)
    return loops.GraphLinks(order, starts, neighbours, link_of, graph.links, beta, *room)


def mix_and_descend(
    graph: Graph,
    used: Flags,
    models: Floats,
    gradients: Floats,
    step_size: float,
    threads: int = 1,
    weights: Floats | None = None,
) -> Floats:
    """P W - alpha G in one pass over the rows of W. In place: the result takes the memory of `gradients`."""
    alpha = models.dtype.type(step_size)
    arguments = (links_of(graph, models.dtype, weights), used, models, gradients, alpha)
    in_ranges(loops.mix_rows, arguments, graph.devices, threads)
    return gradients


class CompiledLaw(LawArithmetic):
    """`LawArithmetic` for a driver that owns its arrays.

    Results are written to arrays that this object owns: those of an earlier state, once the driver hands them back.
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._spare: dict[str, Floats] = {}

    def reuse(self, role: str, array: Floats) -> None:
        """Take an array that is not needed any more."""
        self._spare[role] = array

    def _room(self, role: str, like: Floats) -> Floats:
        """Return an array like this one, to write to. It stays the same until it is replaced by `reuse`."""
        spare = self._spare.get(role)
        if spare is None or spare.shape != like.shape or spare is like:
            self._spare[role] = spare = np.empty_like(like)
        return spare

    def descent(self, local: LocalStep, rows: Rows, gradients: Floats, moment: Moment) -> tuple[Floats, Rows]:
        """In place: u - h takes the memory of `gradients`."""
        if not _is_compiled(local):
            down, remembered = super().descent(local, rows, gradients, moment)
            # What is remembered may be the direction or the gradient itself, and both are written to.
            kept = {name: np.array(array, gradients.dtype) for name, array in remembered.items()}
            np.copyto(gradients, down)
            return gradients, kept
        held, mu = _held(rows), getattr(local, "momentum", 0.0)
        next_m = self._room("momentum", held.momentum) if mu else held.momentum
        kind = gradients.dtype.type
        gates = (mu * moment.gate[:, 0]).astype(gradients.dtype)
        arguments = (held, gradients, next_m, gates, kind(mu), kind(1 - mu))
        in_ranges(loops.descend_rows, arguments, len(gradients), self.threads)
        return gradients, {"momentum": next_m} if mu else {}

    def stepped(self, rows: Rows, down: Floats, alpha: float) -> Rows:
        """In place: y takes the memory of `down`."""
        np.multiply(down, down.dtype.type(alpha), out=down)
        return {**rows, "model": np.subtract(rows["model"], down, out=down)}

    def drift(self, models: Floats, who: Ints, known: Floats) -> Floats:
        return drift(models, known, self.threads, who)

    def send(self, role: str, messages: Messages) -> tuple[Floats, Ints]:
        codec, models, who, known, thresholds, chosen = messages
        send_rows, parameter = SEND_ROWS.get(getattr(codec, "kind", "")), getattr(codec, "parameter", None)
        if send_rows is None or not is_built_in(codec):  # a subclass may have changed what is sent
            return super().send(role, messages)
        after, bits = self._room(role, known), np.zeros(len(known), dtype=np.int64)
        arguments = (parameter, models, who, known, thresholds, chosen, after, bits)
        in_ranges(send_rows, arguments, len(known), self.threads)
        return after, bits

    def replaced(self, role: str, known: Floats, chosen: Flags, models: Floats) -> Floats:
        if not chosen.any():
            return known
        after = self._room(role, known)
        after[...] = known
        in_ranges(loops.copy_rows, (models, after, chosen), len(after), self.threads)
        return after

    def kept(self, role: str, changed: Floats, chosen: Flags, before: Floats) -> Floats:
        if chosen.any():
            in_ranges(loops.copy_rows, (before, changed, chosen), len(before), self.threads)
        return changed

    def mix_and_descend(
        self, graph: Graph, used: Flags, weights: Floats | None, models: Floats, down: Floats, alpha: float
    ) -> Floats:
        """In place: the result takes the memory of `down`."""
        return mix_and_descend(graph, used, models, down, alpha, self.threads, weights)

    def pulled(
        self,
        local: LocalStep,
        rows: Rows,
        versions: Versions,
        terms: Terms,
        alpha: float,
        link_correction: Floats | None = None,
    ) -> Rows:
        """In place, if the kind is compiled: the models are changed."""
        if not _is_compiled(local):
            return super().pulled(local, rows, versions, terms, alpha, link_correction)
        y, held, mu = rows["model"], _held(rows), getattr(local, "momentum", 0.0)
        next_m = self._room("momentum after", held.momentum) if mu else held.momentum
        next_h = self._room("correction", held.correction) if local.correction else held.correction
        shares = np.full(len(y), (1 - mu) / alpha).astype(y.dtype)
        weights, learning = terms.weights.astype(y.dtype), terms.learning.astype(y.dtype)
        loop_terms = loops.LoopTerms(*terms.places, weights, learning)
        links = y[:0] if link_correction is None else link_correction

        def pull(low: int, high: int) -> None:
            room = np.empty((2, loops.TILE), y.dtype)
            loops.pull_rows(*versions, loop_terms, y, held, next_m, next_h, links, shares, room, low, high)

        in_ranges(pull, (), len(y), self.threads)
        after = {**rows, **({"momentum": next_m} if mu else {})}
        return {**after, "correction": next_h} if local.correction else after

    def consensus_error(self, models: Floats) -> float:
        return consensus_error(models, self.threads)


class InPlaceLaw(CompiledLaw):
    """`CompiledLaw` for the paper's exchange: last broadcasts are changed in place, so that a run has three arrays."""

    def replaced(self, role: str, known: Floats, chosen: Flags, models: Floats) -> Floats:
        in_ranges(loops.copy_rows, (models, known, chosen), len(known), self.threads)
        return known


def _is_compiled(local: LocalStep) -> bool:
    """Whether the loops here compute the local step: not one of the user's own, and nothing but momentum is set."""
    if type(local) not in (SGD, QuasiGlobalMomentum, DriftCorrected):
        return False
    return local.clip is None and not local.weight_decay


def _held(rows: Rows) -> loops.Held:
    none = rows["model"][:0]
    return loops.Held(rows["model"], rows.get("momentum", none), rows.get("correction", none))


class StepArithmetic(Arithmetic):
    """`Arithmetic` of a codec, in compiled loops where they are compiled."""

    def __init__(self, codec: Any) -> None:
        self._codec: Any = codec if is_built_in(codec) else CheckedCodec(codec)
        super().__init__(self._codec.send)
        self._send_rows = SEND_ROWS.get(getattr(codec, "kind", "")) if is_built_in(codec) else None

    def encode(self, model: Floats, known: Floats, threshold: float, most: int | None = None) -> Encoded | None:
        threshold = self.fitted(model, known, threshold, most)
        if self._send_rows is None:
            after, bits = self._codec_send(model, known, threshold)
            known = np.array(after, model.dtype)  # a copy: the codec may use its array again
            return Encoded(known, known, int(bits)) if bits else None
        after, found = np.empty((1, len(model)), model.dtype), np.zeros(1, np.int64)
        arguments = model[None], _FIRST, known[None], np.array([threshold]), _CHOSEN, after, found
        self._send_rows(self._codec.parameter, *arguments, 0, 1)
        return Encoded(after[0], after[0], int(found[0])) if found[0] else None

    def fitted(self, model: Floats, known: Floats, threshold: float, most: int | None) -> float:
        """Return a threshold with which a message has at most `most` bits, if the codec can tell."""
        coordinates = getattr(self._codec, "most_coordinates", None)
        if most is None or coordinates is None:
            return threshold
        return raised_threshold(model, known, threshold, coordinates(most, len(model), model.dtype.itemsize))

    def add_step(
        self,
        sums: Sequence[Floats | None],
        weight: float,
        learning: float,
        plus: Floats,
        minus: Floats,
        link: Floats | None = None,
    ) -> Floats | None:
        if link is not None:
            return super().add_step(sums, weight, learning, plus, minus, link)
        pull, learned, link_correction = sums
        kind, none = plus.dtype.type, np.empty(0, plus.dtype)
        rows = pull, none if learned is None else learned, none if link_correction is None else link_correction
        loops.add_step(kind(weight), kind(learning), plus, minus, *rows)
        return None


@np.errstate(over="ignore", invalid="ignore")
def raised_threshold(model: Floats, known: Floats, threshold: float, most: int) -> float:
    """Return the threshold, or a higher one that at most `most` of |model - known| reach; infinity if `most` is 0."""
    if most >= len(model):
        return threshold
    if most <= 0:
        return np.inf
    sizes = np.abs(model - known)
    if np.count_nonzero(sizes >= np.float64(max(threshold, np.finfo(np.float64).tiny))) <= most:
        return threshold
    least = float(np.partition(sizes, len(sizes) - most)[len(sizes) - most])
    is_too_many = np.count_nonzero(sizes >= np.float64(least)) > most  # some are equal
    return max(threshold, float(np.nextafter(least, np.inf)) if is_too_many else least)


_FIRST, _CHOSEN = np.zeros(1, np.int64), np.ones(1, bool)
