"""How a device uses a slow uplink: when it sends, how much, and over which links.

A paced device sends when its uplink has almost nothing left to send, first to the neighbours that have waited longest,
and each message is short enough for its own bandwidth. A device that also chooses links by bandwidth does not use a
link that a common neighbour makes redundant (`redundant_links`). Each device decides alone; its neighbours may still
send over a link that it does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from efhc.base.arrays import Floats
from efhc.base.policy import Policy
from efhc.core.cost import ABOUT_BYTES, FRAME_HEADER_BYTES, NEIGHBOUR_BYTES
from efhc.core.randomness import Purpose, Randomness

CHANGED = 1.5
"""A device sends its neighbours its bandwidth again when that has changed by more than this factor."""
FIRST_BYTES = 4 * FRAME_HEADER_BYTES
"""Bytes of the payload of a device's messages until its bandwidth is measured."""
SLOW, RECOVERED = 0.5, 0.1
"""A device becomes slow when its frames to all neighbours take longer than `SLOW` local steps, and stops being slow
when they take less than `RECOVERED` local steps."""


class Pacing(Policy):
    """A device sends when its uplink is idle, to the neighbours that have waited longest, as much as it carries.

    Several frames may be under way to a neighbour, and acknowledgements travel with frames where they can. In
    lockstep, where nothing takes time, there is nothing to pace.
    """

    seconds: float = Field(default=1.0, gt=0, le=1e6)
    """The longest time that one message takes on the device's own uplink. Those of the coordinates are sent that differ
    most; a payload may always be as long as its header."""
    backlog: float = Field(default=0.1, ge=0, le=1e6)
    """The uplink is idle if it has sent in this many seconds what is waiting."""
    bandwidth: Literal["own", "another", "mean"] = "own"
    """Whose bandwidth a device goes by. The others are controls, in simulations only: "another" deals the bandwidths to
    other devices, "mean" gives all devices the same."""


class About(NamedTuple):
    """A device's description of itself, by which its neighbours choose links."""

    rate: float
    """The bandwidth of its uplink, in parameters per second."""
    is_slow: bool
    """Whether its frames to all neighbours take long compared with a local step."""
    neighbours: tuple[int, ...]
    """All devices that it has a link to, ascending."""

    @property
    def bytes(self) -> int:
        """The number of bytes by which a frame with this description is longer."""
        return ABOUT_BYTES + NEIGHBOUR_BYTES * len(self.neighbours)


@dataclass(frozen=True)
class Uplink:
    """What a device knows of its own uplink after a local step."""

    pacing: Pacing
    rate: float
    """In parameters per second."""
    parameter_bytes: int
    backlog: Callable[[int], float]
    """Seconds until everything that waits in front of the link to a neighbour is sent."""
    is_due: Callable[[int], bool]
    """Whether a frame may follow the last one to a neighbour: frames in flight are spread over a round trip."""
    step_seconds: float
    """How long a local step takes."""
    chooses_links: bool
    is_known: bool = True
    """Whether the rate is known. If it is a guess, the device begins with one short message."""

    @property
    def bytes_per_second(self) -> float:
        """The rate in bytes."""
        return self.rate * self.parameter_bytes

    def room(self, neighbour: int, planned: int) -> int | None:
        """Return the bits that a payload to a neighbour may have, after `planned` bytes; None if the uplink is busy."""
        seconds = self.backlog(neighbour) + planned / self.bytes_per_second
        if seconds > (self.pacing.backlog if self.is_known else 0.0):
            return None
        if not self.is_known:
            return 8 * FIRST_BYTES
        payload = self.bytes_per_second * self.pacing.seconds - FRAME_HEADER_BYTES
        return 8 * int(min(max(payload, FRAME_HEADER_BYTES), 1 << 50))


def is_due(window: int, awaits: bool, round_trip: float | None, since_last: float) -> bool:
    """Return whether a frame may follow the last one; `awaits`: a frame is unacknowledged.

    Frames in flight are spread over a round trip. Until that is known, only one frame is in flight.
    """
    if window == 1 or not awaits:
        return True
    return round_trip is not None and since_last >= round_trip / window


def bandwidths_to_go_by(pacing: Pacing | None, bandwidths: Floats, randomness: Randomness) -> Floats | None:
    """Return the bandwidths that devices use in place of their own in a control experiment; None otherwise."""
    if pacing is None or pacing.bandwidth == "own":
        return None
    if pacing.bandwidth == "mean":
        return np.full(len(bandwidths), bandwidths.mean())
    order = randomness.stream(Purpose.OTHER_BANDWIDTHS).permutation(len(bandwidths))
    dealt = np.empty(len(bandwidths))
    dealt[order] = bandwidths[np.roll(order, 1)]  # no device keeps its own, unless it is alone
    return dealt


def describe(before: About | None, uplink: Uplink, neighbours: tuple[int, ...], frame_bytes: float) -> About:
    """Return a device's description of itself. A rate that has hardly changed since `before` stays as it was."""
    rate, was_slow = uplink.rate, before is not None and before.is_slow
    if before is not None and before.rate / CHANGED <= rate <= before.rate * CHANGED:
        rate = before.rate
    seconds = len(neighbours) * frame_bytes / uplink.bytes_per_second
    return About(rate, seconds > uplink.step_seconds * (RECOVERED if was_slow else SLOW), neighbours)


def smoothed(before: float | None, value: float, weight: float = 0.25) -> float:
    """Return the exponential average before + weight (value - before); `value` if there was none before."""
    return float(value) if before is None else before + weight * (value - before)


def redundant_links(own: int, mine: About, others: Mapping[int, About]) -> set[int]:
    """Return the neighbours to which the links of a device are redundant, because a common neighbour has better ones.

    The link i, j is redundant if i or j is slow and they have a common neighbour k such that the links i, k and j, k
    are both better: by the smaller bandwidth of the two ends, then the larger, then the numbers of the devices. At most
    the worst link of a triangle is redundant, and the worst link of a cycle is in no maximum spanning tree. So if all
    devices know the same, the other links contain the maximum spanning tree and connect what the graph connects.
    """
    found: set[int] = set()
    for j, theirs in others.items():
        if not (mine.is_slow or theirs.is_slow):
            continue
        this = _rank(own, mine.rate, j, theirs.rate)
        for k in set(mine.neighbours).intersection(theirs.neighbours):
            third = others.get(k)
            if (
                third is not None
                and min(_rank(own, mine.rate, k, third.rate), _rank(j, theirs.rate, k, third.rate)) > this
            ):
                found.add(j)
                break
    return found


def _rank(i: int, rate_i: float, j: int, rate_j: float) -> tuple[float, float, int, int]:
    """Return the rank of a link in a strict total order; a better link has a larger one."""
    return min(rate_i, rate_j), max(rate_i, rate_j), -min(i, j), -max(i, j)
