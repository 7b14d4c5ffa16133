"""The arithmetic of `core.law` in compiled loops, spread over threads.

It has the bits of NumPy's, but for drifts and exchanges, whose sums have another order.

Results are written to arrays that this object owns: those of an earlier state, once the driver has handed them back.
"""

from __future__ import annotations

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.own_code import is_built_in
from efhc.base.threads import in_ranges
from efhc.core.arithmetic import LawArithmetic, Messages, Terms, Versions
from efhc.core.graph import Graph
from efhc.core.local_steps import SGD, DriftCorrected, LocalStep, Moment, QuasiGlobalMomentum, Rows
from efhc.kernels import law_loops
from efhc.kernels.codecs import SEND_ROWS
from efhc.kernels.compiled_arithmetic import consensus_error, mix_and_descend


class CompiledLaw(LawArithmetic):
    """`LawArithmetic` for a driver that owns its arrays."""

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
        in_ranges(law_loops.descend_rows, arguments, len(gradients), self.threads)
        return gradients, {"momentum": next_m} if mu else {}

    def stepped(self, rows: Rows, down: Floats, alpha: float) -> Rows:
        """In place: y takes the memory of `down`."""
        np.multiply(down, down.dtype.type(alpha), out=down)
        return {**rows, "model": np.subtract(rows["model"], down, out=down)}

    def drift(self, models: Floats, who: Ints, known: Floats) -> Floats:
        drifts = np.empty(len(known))
        in_ranges(law_loops.drift_known, (models, who, known, drifts), len(known), self.threads)
        return drifts

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
        in_ranges(law_loops.copy_chosen, (models, after, chosen), len(after), self.threads)
        return after

    def kept(self, role: str, changed: Floats, chosen: Flags, before: Floats) -> Floats:
        if chosen.any():
            in_ranges(law_loops.copy_chosen, (before, changed, chosen), len(before), self.threads)
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
        graph: Graph,
        taught: Floats | None = None,
    ) -> Rows:
        """In place, if the kind is compiled: the models are changed."""
        if not _is_compiled(local):
            return super().pulled(local, rows, versions, terms, alpha, graph, taught)
        y, held, mu = rows["model"], _held(rows), getattr(local, "momentum", 0.0)
        next_m = self._room("momentum after", held.momentum) if mu else held.momentum
        next_h = self._room("correction", held.correction) if local.correction else held.correction
        shares = np.full(len(y), (1 - mu) / alpha).astype(y.dtype)
        weights, learning = terms.weights.astype(y.dtype), terms.learning.astype(y.dtype)
        loop_terms = law_loops.LoopTerms(*terms.places, weights, learning)
        links = y[:0] if taught is None else taught

        def pull(low: int, high: int) -> None:
            room = np.empty((2, law_loops.TILE), y.dtype)
            law_loops.pull_rows(*versions, loop_terms, y, held, next_m, next_h, links, shares, room, low, high)

        in_ranges(pull, (), len(y), self.threads)
        after = {**rows, **({"momentum": next_m} if mu else {})}
        return {**after, "correction": next_h} if local.correction else after

    def consensus_error(self, models: Floats) -> float:
        return consensus_error(models, self.threads)


class InPlaceLaw(CompiledLaw):
    """`CompiledLaw` for the paper's exchange: last broadcasts are changed in place, so that a run has three arrays."""

    def replaced(self, role: str, known: Floats, chosen: Flags, models: Floats) -> Floats:
        in_ranges(law_loops.copy_chosen, (models, known, chosen), len(known), self.threads)
        return known


def _is_compiled(local: LocalStep) -> bool:
    """Whether the loops here compute the local step: not one of the user's own, and nothing but momentum is set."""
    if type(local) not in (SGD, QuasiGlobalMomentum, DriftCorrected):
        return False
    return local.clip is None and not local.weight_decay


def _held(rows: Rows) -> law_loops.Held:
    none = rows["model"][:0]
    return law_loops.Held(rows["model"], rows.get("momentum", none), rows.get("correction", none))
