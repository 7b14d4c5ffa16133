"""Messages under way in simulated time: what carries them, and what it says of them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

WhenLost = Literal["resend", "drop"]
What = Literal["arrived", "lost", "stalled"]


class Notice(NamedTuple):
    """What has become of a message."""

    ticket: int
    """The number under which the caller sent the message."""
    what: What
    """`lost`: it will never arrive. `stalled`: it does not move until its rate is above 0 again; then it goes on."""


class Transfers(Protocol):
    """The messages under way in one run. A link model of your own returns such an object from `transfers`.

    Time runs forward: the caller never passes a `now` that is smaller than an earlier one or greater than
    `next_time()`, except that `take` may be called late. `next_time()` is never before the last `now`, and lies after
    `take(now)` if that had nothing to say. The answers of your own code are checked.
    """

    def send(self, now: float, sender: int, receiver: int, size: float, ticket: int) -> None:
        """Send a message of `size` parameters (0: a header). `ticket` is a number that no other message has."""
        ...

    def next_time(self) -> float:
        """Return the time at which to call `take` next; infinity if no message will move without a further call."""
        ...

    def take(self, now: float) -> list[Notice]:
        """Return what has happened until and including `now`, in order of time; possibly nothing."""
        ...

    def cancel(self, now: float, ticket: int) -> None:
        """Forget a message. What it used of a link is free at once. An unknown ticket is ignored."""
        ...

    def cut(self, now: float, i: int, j: int) -> list[int]:
        """Forget all messages between devices i and j, in both directions, and return their tickets."""
        ...

    def is_stalled(self, ticket: int) -> bool:
        """Return whether the message waits for a rate above 0."""
        ...

    def state(self) -> dict[str, Any]:
        """Return all that changes during a run.

        It consists of numbers, texts, booleans, None, and lists, tuples, sets and dicts of these.
        """
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state()` of the same link model, bandwidths and seed."""
        ...


class Carrier(Transfers):
    """What the simulator sends by: transfers that are built in, or those of the user's own once they are checked."""

    models_at_once = False
    """Whether all messages arrive at the instant at which they are sent: the caller need not send them."""
    headers_at_once = False
    """Whether messages of size 0 arrive at the instant at which they are sent: the caller need not send them."""
    is_orderly = False
    """Whether no message is lost or overtakes an earlier one: then the caller need not watch every message."""

    def could_send(self, device: int, since: float, now: float) -> bool:
        """Return whether the rate of a device is known to have been above 0 at some time from `since` to `now`."""
        return False

    def backlog(self, now: float, sender: int, receiver: int) -> float:
        """Return the seconds until everything that waits in front of a link is sent; 0 if unknown."""
        return 0.0

    def latency_of(self, ticket: int) -> float:
        """Return how long a message that `take` has just reported was in flight after the uplink; 0 if unknown."""
        return 0.0
