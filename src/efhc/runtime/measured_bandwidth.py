"""The bandwidth b_i that a node measures on its own links."""

from __future__ import annotations

import math
from collections.abc import Sequence

WIDEST = 1000.0
"""b_i stays within this factor of the nominal bandwidth, whatever was measured."""
SUSPICIOUS = 10.0
"""A factor by which a measured b_i differs from the nominal one that is worth a warning: r belongs to the nominal."""


class MeasuredBandwidth:
    """b_i: the mean over links of the parameters per second that were acknowledged while a model was under way."""

    def __init__(self, nominal: float, parameter_bytes: int, send_limit: float | None = None) -> None:
        """`nominal` is b_M, which counts until something was measured; `parameter_bytes` what a parameter takes.

        `send_limit` are the bytes per second that the node sends at most: no link can do better.
        """
        self._nominal, self._bytes = nominal, parameter_bytes
        self._most = math.inf if send_limit is None else send_limit / parameter_bytes
        self._warned = False
        self.value = nominal

    def update(self, rates: Sequence[float]) -> float:
        """Return b_i, given what each link carries in bytes of models per second, as far as that is known."""
        if rates:
            measured = min(sum(rates) / len(rates) / self._bytes, self._most)
            self.value = min(max(measured, self._nominal / WIDEST), self._nominal * WIDEST)
        return self.value

    def warning(self) -> str | None:
        """Return one line, once, if what was measured is far off the nominal bandwidth."""
        factor = self.value / self._nominal
        if self._warned or 1 / SUSPICIOUS < factor < SUSPICIOUS:
            return None
        self._warned = True
        return (
            f"the measured bandwidth is {self.value:.3g} parameters per second, {factor:.2g} times the nominal "
            f"{self._nominal:.3g}; r belongs to the nominal bandwidth: set bandwidths.nominal and r accordingly"
        )
