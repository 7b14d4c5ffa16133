"""A link model of the user's own is checked: what it gives wrong is one line that says what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated import run, simulator_of, tiny

import efhc
from efhc.base.errors import InputError
from efhc.core.randomness import Randomness
from efhc.drivers.event_driven.links import InstantLinks, Notice, PerLink, draw_transfers
from efhc.drivers.event_driven.timed_transfers import TimedTransfers
from efhc.drivers.event_driven.transfers import Transfers

BANDWIDTHS = np.full(4, 4.0)
SEED = Randomness(3)


class Changed:
    """Transfers in which a test has changed some methods: `changes[name](inner, *arguments)` is what they return."""

    def __init__(self, inner: Transfers, changes: dict[str, Callable[..., Any]]) -> None:
        for name in ("send", "next_time", "take", "cancel", "cut", "is_stalled", "state", "restore"):
            method = getattr(inner, name)
            if name in changes:
                method = lambda *arguments, change=changes[name]: change(inner, *arguments)  # noqa: E731
            setattr(self, name, method)


class OwnLinks:
    """What `PerLink` does, but for some methods."""

    def __init__(self, latency: float = 1.0, **changes: Callable[..., Any]) -> None:
        self._latency, self._changes = latency, changes

    def transfers(self, bandwidths: Any, randomness: Randomness) -> Any:
        return Changed(PerLink(latency=self._latency).transfers(bandwidths, randomness), self._changes)


def drawn(**changes: Callable[..., Any]) -> Any:
    return draw_transfers(OwnLinks(**changes), BANDWIDTHS, SEED)


def experiment(links: Any, **settings: Any) -> Any:
    driver = efhc.EventDriven(links=links, **settings)
    return tiny(3, [[0, 1], [1, 2]], iterations=6, driver=driver)


def refusal(links: OwnLinks) -> str:
    """What a whole run says."""
    with pytest.raises(InputError) as caught:
        run(experiment(links))
    assert caught.value.field == "driver.links"
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What is right


def test_checks_change_nothing():
    own, built_in = (run(experiment(links)) for links in (OwnLinks(), PerLink(latency=1.0)))
    assert np.array_equal(own.models, built_in.models)
    assert own.record.exchanges == built_in.record.exchanges
    assert own.record.exchanges


def test_built_in_transfers_need_no_check():
    class Own:
        def transfers(self, bandwidths: Any, randomness: Randomness) -> Transfers:
            return InstantLinks().transfers(bandwidths, randomness)

    assert draw_transfers(Own(), BANDWIDTHS, SEED).models_at_once


def test_numbers_of_numpy_become_plain_and_checkpoints_hold_them():
    def take(inner: Transfers, now: float) -> list[Any]:
        return [(np.int64(ticket), what) for ticket, what in inner.take(now)]

    def next_time(inner: Transfers) -> np.float64:
        return np.float64(inner.next_time())

    def state(inner: Transfers) -> dict[str, Any]:
        return {"inner": inner.state(), "some": np.float64(2.5), "pair": (np.int32(1), None), "by": {(1, 2): {3}}}

    def restore(inner: Transfers, state: dict[str, Any]) -> None:
        assert (state["some"], state["pair"], state["by"]) == (2.5, (1, None), {(1, 2): {3}})
        inner.restore(state["inner"])

    links = OwnLinks(take=take, next_time=next_time, state=state, restore=restore)
    first = simulator_of(experiment(links))
    for _ in range(10):
        first._advance_to(first._next_time())
    assert first.messages._under_way  # otherwise the checkpoint is none of messages under way
    second = simulator_of(experiment(links))
    second.restore(*first.checkpoint())
    for simulator in (first, second):
        while not simulator.is_over:
            simulator.advance()
    assert np.array_equal(first.models, run(experiment(PerLink(latency=1.0))).models)
    assert np.array_equal(first.models, second.models)


def test_a_time_that_rounding_puts_a_little_before_now_is_now():
    links = drawn(next_time=lambda inner: math.nextafter(5.0, 0.0))
    links.send(5.0, 0, 1, 4, 1)
    assert links.next_time() == 5.0


def test_a_class_of_ones_own_is_checked_though_it_derives_from_a_built_in_one():
    class Late(TimedTransfers):
        def next_time(self) -> float:
            return math.nan

    class Own(PerLink):
        def transfers(self, bandwidths: Any, randomness: Randomness) -> Any:
            found = super().transfers(bandwidths, randomness)
            found.__class__ = Late
            return found

    with pytest.raises(InputError, match=r"^driver\.links: cannot use nan from next_time\(\)"):
        draw_transfers(Own(), BANDWIDTHS, SEED).next_time()


# What is wrong


@pytest.mark.parametrize("time", [math.nan, None, "5", True, -1.0, -math.inf, 10**400], ids=lambda one: repr(one)[:9])
def test_a_next_time_that_is_none(time: Any):
    text = refusal(OwnLinks(next_time=lambda inner: time))
    assert text.endswith(". Use a time, 0 or later, or infinity.")
    assert f"cannot use {time!r} from next_time() at second 0" in text or time == 10**400


def test_an_arrival_before_it_was_sent():
    links = drawn(next_time=lambda inner: 3.0)
    links.send(5.0, 0, 1, 4, 1)
    with pytest.raises(InputError, match=r"cannot use 3\.0 from next_time\(\) at second 5. Use a time, 5 or later"):
        links.next_time()


def test_a_clock_that_stands_still_is_told_rather_than_waited_for():
    text = refusal(OwnLinks(take=lambda inner, now: [], next_time=lambda inner: min(inner.next_time(), 5.0)))
    assert "cannot use a take(1) without news, 1000 times in a row, while next_time() is still 1. Use a later" in text


def test_a_clock_that_only_creeps_stands_still():
    now = [0.0]

    def next_time(inner: Transfers) -> float:
        now[0] = math.nextafter(now[0], 1.0)
        return now[0]

    assert "1000 times in a row" in refusal(OwnLinks(take=lambda inner, now: [], next_time=next_time))


def test_a_stall_that_is_reported_again_and_again_is_nothing_new():
    def take(inner: Transfers, now: float) -> list[Notice]:
        return [Notice(1, "stalled")]

    assert "cannot use a take(1) without news" in refusal(OwnLinks(take=take))


def test_many_messages_at_one_instant_are_no_standstill():
    links = drawn(take=lambda inner, now: [Notice(todo.pop(), "stalled")], next_time=lambda inner: 1.0)
    todo = list(range(1500))
    for ticket in todo:
        links.send(0.0, 0, 1, 4, ticket)
    for _ in range(1500):
        assert len(links.take(1.0)) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "cannot use None from take(1). Use a list of efhc.Notice(ticket, what)"),
        ("arrived", "cannot use 'arrived' from take(1). Use a list"),
        ([1], "cannot use 1 in what take(1) gave. Use efhc.Notice(ticket, what)"),
        ([(1, "arrived", 2)], "cannot use (1, 'arrived', 2) in what take(1) gave. Use efhc.Notice"),
        (
            [(1, "arived")],
            "cannot use 'arived' in what take(1) gave (did you mean 'arrived'?). Use 'arrived' or 'lost'",
        ),
        ([(1, np.zeros(2))], "Use 'arrived' or 'lost' or 'stalled'"),
        ([(77, "arrived")], "cannot use ticket 77 in what take(1) gave. Use tickets of messages under way, each once"),
        ([(1, "lost"), (1, "arrived")], "cannot use ticket 1 in what take(1) gave"),
        ([("1", "arrived")], "cannot use ticket '1' in what take(1) gave"),
        ([(True, "arrived")], "cannot use ticket True in what take(1) gave"),
    ],
    ids=str,
)
def test_what_take_gives(given: Any, said: str):
    assert said in refusal(OwnLinks(take=lambda inner, now: given))


def test_a_cut_names_all_messages_between_two_devices():
    links = drawn(cut=lambda inner, now, i, j: [*inner.cut(now, i, j)][1:])
    links.send(0.0, 0, 1, 4, 1)
    links.send(0.0, 1, 0, 4, 2)
    links.send(0.0, 1, 2, 4, 3)
    with pytest.raises(InputError, match=r"cut\(2, 1, 0\) returned, without ticket 2. Use .* between devices 1 and 0"):
        links.cut(2.0, 1, 0)
    with pytest.raises(InputError, match=r"cannot use None from cut\(2, 1, 0\). Use a list of tickets"):
        drawn(cut=lambda inner, now, i, j: None).cut(2.0, 1, 0)


def test_a_cut_may_name_messages_that_are_gone():
    links = drawn(cut=lambda inner, now, i, j: [*inner.cut(now, i, j), 99])
    links.send(0.0, 0, 1, 4, 1)
    assert links.cut(2.0, 0, 1) == [1]
    assert links.cut(2.0, 0, 1) == []


def test_a_stall_is_true_or_false():
    assert drawn(is_stalled=lambda inner, ticket: np.True_).is_stalled(1) is True
    with pytest.raises(InputError, match=r"cannot use None from is_stalled\(1\). Use True or False"):
        drawn(is_stalled=lambda inner, ticket: None).is_stalled(1)


@pytest.mark.parametrize("when", ["at the start", "with a message"])
@pytest.mark.parametrize("bad", [np.zeros(2), object(), 1j, b"5"], ids=lambda one: type(one).__name__)
def test_a_state_that_no_checkpoint_holds_is_told_before_there_is_anything_to_lose(when: str, bad: Any):
    def state(inner: Transfers) -> dict[str, Any]:
        known = inner.state()
        return known | {"bad": [bad]} if when == "at the start" or known["messages"] else known

    with pytest.raises(InputError, match=f"cannot use a {type(bad).__name__} in what state\\(\\) gave. Use numbers"):
        simulator_of(experiment(OwnLinks(state=state)))


def test_a_restore_that_fails_is_told_at_the_start():
    with pytest.raises(InputError, match=r"^driver\.links: your OwnLinks raised TypeError"):
        drawn(restore=lambda inner: None)


def test_methods_that_fail_or_are_missing():
    assert "your OwnLinks raised ZeroDivisionError" in refusal(OwnLinks(take=lambda inner, now: 1 / 0))

    class Nothing:
        def transfers(self, bandwidths: Any, randomness: Randomness) -> Any:
            return None

    with pytest.raises(InputError, match=r"^driver\.links\.kind: cannot use a NoneType without send from transfers"):
        draw_transfers(Nothing(), BANDWIDTHS, SEED)
