"""The arithmetic of `core.half_steps` in compiled loops: one message, one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from efhc.base.arrays import Floats
from efhc.base.own_code import is_built_in
from efhc.core.arithmetic import CheckedCodec
from efhc.core.half_steps import Arithmetic, Encoded
from efhc.kernels import law_loops
from efhc.kernels.codecs import SEND_ROWS


class StepArithmetic(Arithmetic):
    """`Arithmetic` of a codec, in compiled loops where they are compiled."""

    def __init__(self, codec: Any) -> None:
        self._codec: Any = codec if is_built_in(codec) else CheckedCodec(codec)
        super().__init__(self._codec.send)
        self._send_rows = SEND_ROWS.get(getattr(codec, "kind", "")) if is_built_in(codec) else None

    def encode(self, model: Floats, told: Floats, threshold: float, most: int | None = None) -> Encoded | None:
        threshold = self.fitted(model, told, threshold, most)
        if self._send_rows is None:
            after, bits = self._codec_send(model, told, threshold)
            known = np.array(after, model.dtype)  # a copy: the codec may use its array again
            return Encoded(known, known, int(bits)) if bits else None
        after, found = np.empty((1, len(model)), model.dtype), np.zeros(1, np.int64)
        arguments = model[None], _FIRST, told[None], np.array([threshold]), _CHOSEN, after, found
        self._send_rows(self._codec.parameter, *arguments, 0, 1)
        return Encoded(after[0], after[0], int(found[0])) if found[0] else None

    def fitted(self, model: Floats, told: Floats, threshold: float, most: int | None) -> float:
        """Return a threshold with which a message has at most `most` bits, if the codec can tell."""
        coordinates = getattr(self._codec, "most_coordinates", None)
        if most is None or coordinates is None:
            return threshold
        return raised_threshold(model, told, threshold, coordinates(most, len(model), model.dtype.itemsize))

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
        pull, learned, taught = sums
        kind = plus.dtype.type
        if learned is None:
            law_loops.add_step(kind(weight), plus, minus, pull)
        else:
            law_loops.add_step_and_learn(kind(weight), kind(learning), plus, minus, pull, learned)
        if taught is not None:
            law_loops.learn(kind(weight), kind(learning), plus, minus, taught)
        return None


@np.errstate(over="ignore", invalid="ignore")
def raised_threshold(model: Floats, told: Floats, threshold: float, most: int) -> float:
    """Return the threshold, or a higher one that at most `most` of |model - told| reach; infinity if `most` is 0."""
    if most >= len(model):
        return threshold
    if most <= 0:
        return np.inf
    sizes = np.abs(model - told)
    if np.count_nonzero(sizes >= np.float64(max(threshold, np.finfo(np.float64).tiny))) <= most:
        return threshold
    least = float(np.partition(sizes, len(sizes) - most)[len(sizes) - most])
    is_too_many = np.count_nonzero(sizes >= np.float64(least)) > most  # some are equal
    return max(threshold, float(np.nextafter(least, np.inf)) if is_too_many else least)


_FIRST, _CHOSEN = np.zeros(1, np.int64), np.ones(1, bool)
