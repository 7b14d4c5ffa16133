"""Numbers as printed tables show them: never in powers of ten as long as they fit otherwise."""

from __future__ import annotations

from math import isfinite

MEGABYTE = 1e6
"""In bytes."""

TIME_UNIT = "time: transmission time in units of parameters / bandwidth (docs/concepts.md)"
"""The caption of tables with transmission times."""


def number_words(value: object) -> str:
    """Return a number with at most four digits or as a whole number: 0.25, 1,234, 10,000. Other values as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or 1000 <= abs(value) < 1e12:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def cost_words(reached: float | None, without: float | None = None, unit: float = 1.0) -> str:
    """Return what it takes to reach a target, in multiples of `unit`.

    `reached` is the mean over the seeds that reach it, and `without` the least that the others have spent in vain: 40
    if all reach it, `> 60` if none does, and `40 / > 60` if some do.
    """
    parts = [] if reached is None else [number_words(float(reached / unit))]
    parts += [] if without is None else [f"> {number_words(float(without / unit))}"]
    return " / ".join(parts)


def percent(share: float) -> str:
    """Return the share as a percentage: `10 %`."""
    return f"{100 * share:g} %"


def signed(value: float) -> str:
    """Return a difference with its sign: `+0.0123`; `none` if it is not a number."""
    return f"{value:+.3g}".replace("-", "\N{MINUS SIGN}") if isfinite(value) else "none"
