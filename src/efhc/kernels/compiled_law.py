"""The arithmetic of `core.law` in compiled loops, spread over threads. It agrees with NumPy's to rounding.

Results are written to arrays that this object owns: those of an earlier state, once the driver has handed them back.
"""

from __future__ import annotations

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.own_code import is_built_in
from efhc.base.threads import in_ranges
from efhc.core.graph import Graph
from efhc.core.law_arithmetic import PLAIN_LAW, Local, Messages, Pull
from efhc.kernels import law_loops
from efhc.kernels.codecs import SEND_ROWS
from efhc.kernels.compiled_arithmetic import consensus_error


class CompiledLaw:
    """A `core.law_arithmetic.LawArithmetic` for a driver that owns its arrays."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._spare: dict[str, Floats] = {}

    def reuse(self, role: str, array: Floats) -> None:
        """Take an array that nobody needs any more."""
        self._spare[role] = array

    def _room(self, role: str, like: Floats) -> Floats:
        """Return an array like this one, to write to. It stays the same until it is replaced by `reuse`."""
        spare = self._spare.get(role)
        if spare is None or spare.shape != like.shape or spare is like:
            self._spare[role] = spare = np.empty_like(like)
        return spare

    def descend(self, models: Floats, gradients: Floats, local: Local) -> Floats:
        """In place: y takes the memory of `gradients`."""
        kind, (m, h, mu, alpha) = models.dtype.type, local
        arguments = (models, gradients, _or_none(m, models), _or_none(h, models), kind(mu), kind(alpha))
        in_ranges(law_loops.descend_rows, arguments, len(models), self.threads)
        return gradients

    def drift(self, models: Floats, who: Ints, known: Floats) -> Floats:
        drifts = np.empty(len(known))
        in_ranges(law_loops.drift_known, (models, who, known, drifts), len(known), self.threads)
        return drifts

    def send(self, role: str, messages: Messages) -> tuple[Floats, Ints]:
        codec, models, who, known, thresholds, chosen = messages
        send_rows, parameter = SEND_ROWS.get(getattr(codec, "kind", "")), getattr(codec, "parameter", None)
        if send_rows is None or not is_built_in(codec):  # a subclass may have changed what is sent
            return PLAIN_LAW.send(role, messages)
        after, bits = self._room(role, known), np.zeros(len(known), dtype=np.int64)
        arguments = (parameter, models, who, known, thresholds, chosen, after, bits)
        in_ranges(send_rows, arguments, len(known), self.threads)
        return after, bits

    def replaced(self, role: str, known: Floats, chosen: Flags, models: Floats, who: Ints) -> Floats:
        if not chosen.any():
            return known
        after = self._room(role, known) if self._spare.get(role) is not known else known
        if after is not known:
            after[...] = known
        in_ranges(law_loops.copy_chosen, (models, who, after, chosen), len(after), self.threads)
        return after

    def kept(self, role: str, changed: Floats, chosen: Flags, before: Floats) -> Floats:
        if chosen.any():
            in_ranges(
                law_loops.copy_chosen, (before, np.arange(len(before)), changed, chosen), len(before), self.threads
            )
        return changed

    def pull(self, graph: Graph, pull: Pull, y: Floats, models: Floats, local: Local) -> tuple[Floats, Local]:
        """In place: x' takes the memory of `y`."""
        kind, (m, h, mu, alpha) = models.dtype.type, local
        next_m = None if m is None else self._room("momentum", m)
        next_h = None if h is None else self._room("correction", h)
        arguments = (
            pull.pool,
            graph.rows.starts,
            pull.mine,
            pull.theirs,
            pull.weights.astype(models.dtype),
            np.atleast_1d(pull.correction).astype(models.dtype),
            y,
            models,
            _or_none(m, models),
            _or_none(h, models),
            _or_none(next_m, models),
            _or_none(next_h, models),
            kind(mu),
            kind(alpha),
        )
        in_ranges(law_loops.pull_rows, arguments, len(models), self.threads)
        return y, local._replace(momentum=next_m, correction=next_h)

    def consensus_error(self, models: Floats) -> float:
        return consensus_error(models, self.threads)


def _or_none(array: Floats | None, models: Floats) -> Floats:
    """Return the array, or one without rows."""
    return models[:0] if array is None else array
