"""How the check of one assumption came out."""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["held", "broken", "not checkable"]


class Finding(NamedTuple):
    """One assumption, or one promise, of the paper."""

    label: str
    """Its label in the paper's LaTeX, `assump:conn-(b)`."""
    what: str
    """Its name, in words."""
    verdict: Verdict
    detail: str
    iteration: int | None = None
    """Where it broke."""
    device: int | None = None
    """Who broke it."""
