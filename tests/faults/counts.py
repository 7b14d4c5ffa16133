"""How many faults are tried, and what became of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

CHOSEN = os.environ.get("EFHC_FAULTS")
WHOLE = CHOSEN == "all"


@dataclass
class Counts:
    """How often a fault was tried, how often all went on as it should, and how many exchanges were lost."""

    fault: str
    tried: int = 0
    survived: int = 0
    lost: int = 0
    slowest: float = 0.0
    """Seconds until the last end noticed, at most."""
    note: str = ""

    @contextmanager
    def one(self) -> Iterator[None]:
        """One try: it has survived if the body does not raise."""
        self.tried += 1
        yield
        self.survived += 1

    def found(self, seconds: float) -> None:
        """A fault was noticed after so many seconds."""
        self.slowest = max(self.slowest, seconds)


SHARES = {"all": 1, "tenth": 10, "few": 30}
"""By EFHC_FAULTS: one of how many faults is tried, and each kind at least once."""


def of(number: int) -> int:
    """Return how many of `number` faults to try."""
    return max(1, number // SHARES[CHOSEN or "all"])
