"""What a run is made of between two iterations, and what is raised when it cannot go on: shared by all drivers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from efhc.base.arrays import Flags, Floats
from efhc.base.errors import EfhcError
from efhc.core.memory import Arrays

Local = Mapping[str, np.ndarray]
"""What devices keep to themselves and never mix (running statistics): name -> one row per device."""

NOTHING: Local = MappingProxyType({})


class State(NamedTuple):
    """What the next iteration needs."""

    k: int
    models: Floats
    """W(k), one row w_i per device."""
    last_broadcast: Floats
    """w_hat_i: each device's model when it last fired, or what its neighbours know of it."""
    local: Local = NOTHING
    memory: Arrays = NOTHING
    """What the strategy remembers, by name; of the paper's strategies nothing."""


class Diverged(EfhcError):
    """Raised when a model or loss is no longer finite. The iteration was not made: the state is that of iteration k."""

    def __init__(self, k: int, what: str, finite: Flags) -> None:
        """`what` ("loss" or "model") of every device where `finite` is False is not finite.

        If all of them are finite, the sum of their squares overflowed, and no device is named.
        """
        self.k, self.devices = k, np.flatnonzero(~finite).tolist()
        if self.devices:
            found = f"the {what} of device {self.devices[0]} is not finite"
        else:
            found = f"the consensus error of the {what}s is too large for a floating-point number"
        super().__init__(
            f"training diverged at iteration {k}: {found}; "
            "try a smaller step_size or proximal, and look at the scale of data, initial models and a loss of your own"
        )
