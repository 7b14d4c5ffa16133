"""Who takes part in a run in lockstep, and from which iteration all go on. Nothing here sends anything.

Each node says which checkpoints it has (`Presence`), and passes on what it hears for the first time. So each node hears
of every other, and all of them find the same iteration: the latest of which everybody has a checkpoint.

A device that was restarted may have other checkpoints than before, and others may still pass on what it said in its
earlier session. Sessions have no order. So what a device that is connected says of itself counts; of other devices, the
session that was heard of last.
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
        self._told: dict[int, int] = {}
        """By device that is connected, the session that it has told itself."""
        self._heard: dict[tuple[int, int], int] = {}
        """By device and session, the last checkpoint that was heard of."""

    def meet(self, device: int, session: int) -> None:
        """A device is connected, and says in which session it is. What is heard of another session is out of date."""
        self._told[device] = session

    def part_from(self, device: int) -> None:
        """A device is no longer connected: it may be restarted, and others may hear of it first."""
        self._told.pop(device, None)

    def hear(self, presence: Presence) -> bool:
        """Take note of what a device says. Returns whether it is news, which is to be passed on."""
        device, session, checkpoints = presence
        if device == self._own or device not in self._everyone:
            return False  # what this node said itself, perhaps before a restart; or nobody of this run
        is_other = session != self.session_of(device)
        if device in self._told:
            is_out_of_date = session != self._told[device]
        else:
            is_out_of_date = is_other and (device, session) in self._heard
        is_known = not is_other and self._heard[device, session] >= checkpoints[-1]
        if is_out_of_date or is_known:
            return False
        self._heard[device, session] = checkpoints[-1]
        self._known[device] = presence
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
        """The devices that nothing was heard of yet, or nothing of their present session."""
        present = {device for device, known in self._known.items() if self._told.get(device) in (None, known.session)}
        return sorted(self._everyone - present)

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

    def who_has_not_made(self, iterations: int) -> list[int]:
        """Return the devices that are not known to have made so many iterations."""
        return sorted(device for device in self._everyone if not self.has_made(device, iterations))
