"""A second witness: what the frames of a link make of it, from base, D and `used` alone, in exact numbers.

Let b_n be what side s has told with frame n, after the payload, and M_n the sum of the steps of its frames up to n at
its own end. With the law that settles, E = M_(n-1) - M'_used, and

    the two models, as both ends can know them, are   b_n + E   and   b'_used - E
    d_n = c (the other one - the own one)

and without it E is left out. The other end makes the step -d_n. Nothing of `efhc.core` is used here.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from half_steps.witness import Direction

Exact = list[Fraction]


class Side(NamedTuple):
    """One end of a link."""

    bases: list[Exact]
    """What the other end knows of its model, by version."""
    frames: list[tuple[int, Fraction]]
    """`used` and c of its frames."""
    moved: list[Exact]
    """The sums of the steps of its frames, by version; the first is 0."""


def moved_by_frames(there: Direction, back: Direction, *, settles: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of the steps of each end's own frames at that end, by version."""
    sides = [_side(direction) for direction in (there, back)]
    while any(len(side.moved) <= len(side.frames) for side in sides):
        ready = [s for s in (0, 1) if _is_ready(sides[s], sides[1 - s])]
        assert ready, "two frames have used each other"
        _make_step(sides[ready[0]], sides[1 - ready[0]], settles=settles)
    own, other = (np.array(side.moved, float) for side in sides)
    return own, other


def _side(direction: Direction) -> Side:
    bases = [[Fraction(float(x)) for x in base] for base in direction.versions if base is not None]
    frames = [(frame.used, Fraction(frame.weight)) for frame in direction.frames]
    return Side(bases, frames, [[Fraction(0)] * len(bases[0])])


def _is_ready(side: Side, other: Side) -> bool:
    done = len(side.moved) - 1
    return done < len(side.frames) and side.frames[done][0] < len(other.moved)


def _make_step(side: Side, other: Side, *, settles: bool) -> None:
    number = len(side.moved)
    used, weight = side.frames[number - 1]
    total = []
    for base, heard, mine, theirs in zip(
        side.bases[number], other.bases[used], side.moved[-1], other.moved[used], strict=True
    ):
        link = mine - theirs if settles else 0
        total.append(mine + weight * ((heard - link) - (base + link)))
    side.moved.append(total)
