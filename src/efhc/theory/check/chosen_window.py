"""The number of iterations B with which rho, the step-size limits and the bounds are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from efhc.theory.connectivity.windows import Connectivity

WindowKind = Literal["promised", "expected", "observed", "given"]
WantedWindow = int | Literal["promised", "observed"]


class ChosenWindow(NamedTuple):
    """The B with which rho, the limits and the bounds are computed."""

    length: int
    kind: WindowKind
    """Where B comes from.

    promised   `proposition:conn`, from B1 and B2
    expected   the same, but B1 or B2 were only seen: they come about by chance, or belong to a run yet to be made
    observed   the least B in which the run's used links are connected
    given      the user
    """


def fitting_window(
    found: Sequence[Connectivity], iterations: int, wanted: WantedWindow = "promised", *, by_chance: bool = False
) -> ChosenWindow | None:
    """Return the wanted B or, if it is promised and not known or longer than the run, the observed one.

    `found` holds the windows of every seed; the largest count. None if the end of the run cuts the observed B off, too:
    a B that may be longer than the run shows is none to compute with. `by_chance` says that B1 or B2 were only seen.
    """
    if isinstance(wanted, int):
        return ChosenWindow(wanted, "given")
    promised, observed = max(each.promised for each in found), max(each.observed.length for each in found)
    known = all(each.physical.is_known(iterations) and each.broadcast.is_known(iterations) for each in found)
    if wanted == "promised" and known and promised <= iterations:
        return ChosenWindow(int(promised), "expected" if by_chance else "promised")
    return ChosenWindow(int(observed), "observed") if observed_is_known(found, iterations) else None


def observed_is_known(found: Sequence[Connectivity], iterations: int) -> bool:
    """Return whether every seed shows how long its used links need to connect all devices."""
    return all(each.observed.is_known(iterations) for each in found)
