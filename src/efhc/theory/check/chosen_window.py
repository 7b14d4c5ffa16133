"""The number of iterations B with which rho, the step-size limits and the bounds are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from efhc.theory.connectivity.windows import Connectivity

WindowKind = Literal["promised", "observed", "given"]
WantedWindow = int | Literal["promised", "observed"]


class ChosenWindow(NamedTuple):
    """The B with which rho, the limits and the bounds are computed."""

    length: int
    kind: WindowKind
    """Where B comes from: `proposition:conn`, the least B in which the run's used links are connected, or the user."""


def fitting_window(
    found: Sequence[Connectivity], iterations: int, wanted: WantedWindow = "promised"
) -> ChosenWindow | None:
    """Return the wanted B or, if it is promised and longer than the run, the observed one.

    `found` holds the windows of every seed; the largest count. None if the run is too short for the observed B, too.
    """
    promised, observed = max(each.promised for each in found), max(each.observed.length for each in found)
    if isinstance(wanted, int):
        return ChosenWindow(wanted, "given")
    if wanted == "promised" and promised <= iterations:
        return ChosenWindow(int(promised), "promised")
    return ChosenWindow(int(observed), "observed") if observed <= iterations else None
