"""Who takes part in a run in lockstep, and from which iteration all go on. Nothing here sends anything.

Each node says which checkpoints it has (`Presence`), and passes on what it hears for the first time. So each node hears
of every other, and all of them find the same iteration: the latest of which everybody has a checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from efhc.runtime.messages import Presence


class RollCall:
    """What one node knows of all."""

    def __init__(self, own: Presence, everyone: Collection[int]) -> None:
        """`everyone` are the devices that messages can reach, this one among them."""
        self._everyone = frozenset(everyone)
        self._own = own.device
        self._known = {own.device: own}
        self._heard: dict[tuple[int, int], int] = {}
        """By device and session, the last checkpoint that was heard of."""

    def hear(self, presence: Presence) -> bool:
        """Take note of what a device says. Returns whether it is news, which is to be passed on."""
        which, last = (presence.device, presence.session), presence.checkpoints[-1]
        if presence.device == self._own or presence.device not in self._everyone:
            return False  # what this node said itself, perhaps before a restart; or nobody of this run
        if self._heard.get(which, -1) >= last:
            return False
        self._heard[which] = last
        self._known[presence.device] = presence
        return True

    def say(self, checkpoints: Iterable[int]) -> Presence:
        """Return what to tell all of this node, which now has these checkpoints."""
        own = self.own._replace(checkpoints=tuple(sorted(checkpoints)))
        self._known[self._own] = own
        return own

    @property
    def own(self) -> Presence:
        """What this node says of itself."""
        return self._known[self._own]

    @property
    def known(self) -> list[Presence]:
        """What was heard last of each device, and what this node says of itself."""
        return list(self._known.values())

    @property
    def missing(self) -> list[int]:
        """The devices that nothing was heard of yet."""
        return sorted(self._everyone - self._known.keys())

    @property
    def common(self) -> int:
        """The latest iteration of which every known device has a checkpoint."""
        return max(set[int].intersection(*(set(presence.checkpoints) for presence in self._known.values())))

    def session_of(self, device: int) -> int | None:
        """Return the session of a device, if something was heard of it."""
        return self._known[device].session if device in self._known else None

    def has_made(self, device: int, iterations: int) -> bool:
        """Return whether a device is known to have made so many iterations."""
        return device in self._known and self._known[device].checkpoints[-1] >= iterations

    def all_have_made(self, iterations: int) -> bool:
        """Return whether every device is known to have made so many iterations."""
        return all(self.has_made(device, iterations) for device in self._everyone)
