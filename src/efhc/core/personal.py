"""Personal models: what of its model a device keeps to itself, as a part of any strategy.

Drivers mix, compare and send the models (m, n) that devices share. What is personal is in `State.local`, which no
driver ever sends. So bits, drift, triggers and codecs see what is shared, whatever the strategy and the driver are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from efhc.base.policy import Policy


class Personal(Policy, ABC):
    """A kind of personal models that a config can name."""

    copies: ClassVar[int] = 0
    """Arrays of the size of all models that a run holds because of it, at most."""

    @abstractmethod
    def around(self, problem: Any) -> Any:
        """Return a `learning.backends.personal.PersonalBackend` that computes what this kind says.

        `problem` is the `learning.backends.personal.Problem` of the run. Raises `InputError` if a setting does not fit
        the model.
        """
