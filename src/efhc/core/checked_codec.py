"""What a codec of the user's own returns, checked: all drivers count on it."""

from __future__ import annotations

import numpy as np

from efhc.base.arrays import Floats, read_only
from efhc.base.errors import InputError
from efhc.base.own_code import quoting
from efhc.core.parts import Codec

MOST_BITS = 2.0**62


class CheckedCodec:
    """A codec of the user's own, whose messages are checked."""

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
