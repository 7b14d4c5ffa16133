"""The transfers of a link model of the user's own. Every return value is checked; errors are one line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import numpy as np

from efhc.base.errors import InputError, did_you_mean
from efhc.base.own_code import quoting
from efhc.base.traces import as_number
from efhc.drivers.event_driven.transfers import Carrier, Notice, What

FIELD = "driver.links"

METHODS = ("send", "next_time", "take", "cancel", "cut", "is_stalled", "state", "restore")

WORDS: dict[str, What] = {word: word for word in get_args(What)}

TAKES = 1000
"""How often in a row `take` may give nothing at one instant."""

ROUNDING = 1e-9
"""Times whose relative difference is smaller count as one instant."""


class CheckedTransfers(Carrier):
    """Transfers of code that is not ours. Numbers of NumPy become Python's."""

    def __init__(self, policy: Any, transfers: Any) -> None:
        if missing := [name for name in METHODS if not callable(getattr(transfers, name, None))]:
            given = f"a {type(transfers).__name__} without {missing[0]} from transfers"
            raise InputError(f"{FIELD}.kind", given, f"an object with the methods {', '.join(METHODS)}")
        self._policy, self._transfers = policy, transfers
        self._now = 0.0
        self._next: float | None = None
        """What `next_time` answered, until something changes."""
        self._under_way: dict[int, tuple[int, int]] = {}
        """Sender and receiver by ticket."""
        self._empty_takes, self._empty_since = 0, 0.0
        self._stalled: set[int] = set()
        """What `take` said to be stalled since it last said something else."""
        self._unseen = {"header", "model"}
        """Sorts of messages with which no state was checked yet: a wrong one is found before there is much to lose."""
        self._call("restore", self._own_state())

    def _call(self, method: str, *arguments: Any) -> Any:
        with quoting(self._policy, FIELD):
            return getattr(self._transfers, method)(*arguments)

    def _change(self, now: float, method: str, *arguments: Any) -> Any:
        """Call a method that changes what is under way."""
        self._now, self._next = max(self._now, now), None
        return self._call(method, now, *arguments)

    # Messages

    def send(self, now: float, sender: int, receiver: int, size: float, ticket: int) -> None:
        self._change(now, "send", sender, receiver, size, ticket)
        self._under_way[ticket] = sender, receiver
        sort = "model" if size else "header"
        if sort in self._unseen:
            self._unseen.remove(sort)
            self._own_state()

    def next_time(self) -> float:
        if self._next is None:
            self._next = self._checked_time(self._call("next_time"))
        return self._next

    def _checked_time(self, given: Any) -> float:
        time = as_number(given)
        if not time >= self._now - ROUNDING * (1 + self._now):
            at = f"{given!r} from next_time() at second {self._now:g}"
            raise InputError(FIELD, at, f"a time, {self._now:g} or later, or infinity")
        return max(time, self._now)

    def take(self, now: float) -> list[Notice]:
        found = self._listed(self._change(now, "take"), f"take({now:g})", "a list of efhc.Notice(ticket, what)")
        notices = [self._checked_notice(now, one) for one in found]
        self._require_progress(now, notices)
        return notices

    def _listed(self, given: Any, call: str, allowed: str) -> list[Any]:
        if not isinstance(given, Iterable) or isinstance(given, str | bytes | dict):
            raise InputError(FIELD, f"{given!r} from {call}", allowed)
        with quoting(self._policy, FIELD):  # it may be a generator
            return list(given)

    def _checked_notice(self, now: float, given: Any) -> Notice:
        from_take = f"in what take({now:g}) gave"
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise InputError(FIELD, f"{given!r} {from_take}", "efhc.Notice(ticket, what)")
        ticket, word = _whole(given[0]), given[1]
        what = WORDS.get(word) if isinstance(word, str) else None
        if what is None:
            hint = did_you_mean(word, WORDS) if isinstance(word, str) else ""
            raise InputError(FIELD, f"{word!r} {from_take}{hint}", " or ".join(map(repr, WORDS)))
        if ticket not in self._under_way:
            raise InputError(FIELD, f"ticket {given[0]!r} {from_take}", "tickets of messages under way, each once")
        if what != "stalled":
            del self._under_way[ticket]
        return Notice(ticket, what)

    def _require_progress(self, now: float, notices: list[Notice]) -> None:
        """Raise `InputError` if `take` was called many times at this instant and nothing came of it."""
        stalled = {notice.ticket for notice in notices if notice.what == "stalled"}
        if len(stalled) < len(notices) or stalled - self._stalled:
            self._empty_takes, self._empty_since = 0, now
            self._stalled = stalled if len(stalled) < len(notices) else self._stalled | stalled
            return
        if now - self._empty_since > ROUNDING * (1 + now):
            self._empty_takes, self._empty_since = 0, now
        self._empty_takes += 1
        if self._empty_takes >= TAKES and (again := self.next_time()) - now <= ROUNDING * (1 + now):
            given = f"a take({now:g}) without news, {TAKES} times in a row, while next_time() is still {again:g}"
            raise InputError(FIELD, given, "a later next_time() once there is nothing to take")

    def cancel(self, now: float, ticket: int) -> None:
        self._change(now, "cancel", ticket)
        self._under_way.pop(ticket, None)

    def cut(self, now: float, i: int, j: int) -> list[int]:
        call = f"cut({now:g}, {i}, {j})"
        found = set(map(_whole, self._listed(self._change(now, "cut", i, j), call, "a list of tickets")))
        tickets = sorted(ticket for ticket, ends in self._under_way.items() if ends in ((i, j), (j, i)))
        if missing := [ticket for ticket in tickets if ticket not in found]:
            allowed = f"the tickets of all messages between devices {i} and {j}"
            raise InputError(FIELD, f"what {call} returned, without ticket {missing[0]}", allowed)
        for ticket in tickets:
            del self._under_way[ticket]
        return tickets

    def is_stalled(self, ticket: int) -> bool:
        given = self._call("is_stalled", ticket)
        if not isinstance(given, bool | np.bool_):
            raise InputError(FIELD, f"{given!r} from is_stalled({ticket})", "True or False")
        return bool(given)

    # Checkpoints

    def state(self) -> dict[str, Any]:
        under_way = [[ticket, *ends] for ticket, ends in self._under_way.items()]
        return {"now": self._now, "under_way": under_way, "transfers": self._own_state()}

    def _own_state(self) -> Any:
        """Return the state of the user's own code as plain data."""
        given = self._call("state")
        try:
            return as_plain(given)
        except TypeError as error:
            allowed = "numbers, texts, booleans, None, and lists, tuples, sets and dicts of these"
            raise InputError(FIELD, f"{error} in what state() gave", allowed) from error

    def restore(self, state: dict[str, Any]) -> None:
        self._now, self._next = state["now"], None
        self._under_way = {ticket: (sender, receiver) for ticket, sender, receiver in state["under_way"]}
        self._unseen.clear()
        self._call("restore", state["transfers"])


def _whole(given: Any) -> int:
    """Return a ticket as an int, and -1, which is no ticket, for anything else."""
    is_whole = isinstance(given, int | np.integer) and not isinstance(given, bool)
    return int(given) if is_whole else -1


def as_plain(value: Any) -> Any:
    """Return a copy of what a checkpoint can hold, with Python's numbers. Raises `TypeError` for anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple, set):
        return type(value)(as_plain(one) for one in value)
    if type(value) is dict:
        return {as_plain(key): as_plain(one) for key, one in value.items()}
    raise TypeError(f"a {type(value).__name__}")
