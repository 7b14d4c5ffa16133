"""Churn: what happens to a device depends on (seed, device, count) alone, comes in order of time, and is possible."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats
from simulated import csv_writer, refusal

from efhc.core.randomness import Randomness
from efhc.drivers.event_driven.churn import (
    BECOMES,
    ChurnEvent,
    ChurnFile,
    ChurnPolicy,
    ChurnRates,
    DrawnEvents,
    draw_churn,
)

Write = Callable[[str], Path]
BOTH = ChurnRates(crash_every=30.0, restart_after=5.0, leave_every=50.0, join_after=20.0, absent=(1,))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return csv_writer(tmp_path / "churn.csv")


def course(policy: ChurnPolicy | None, device: int, most: int = 100, seed: int = 3) -> list[ChurnEvent]:
    churn = draw_churn(policy, 4, Randomness(seed))
    events = (churn.events.next_event(device, count) for count in range(most))
    return [event for event in events if event]


def refused(policy: Any) -> str:
    return refusal(lambda: course(policy, 0))


@pytest.mark.parametrize("device", [0, 1])
def test_each_event_is_possible_and_comes_after_the_last(device: int):
    events = course(BOTH, device, 400)
    assert len(events) == 400
    assert all(event.device == device for event in events)
    assert all(before.seconds < after.seconds for before, after in pairwise(events))
    status: Any = "away" if device == 1 else "there"
    for event in events:
        status = BECOMES[status, event.what]
    assert {event.what for event in events} == {"join", "leave", "crash", "restart"}


def test_the_times_between_events_are_exponential_with_the_given_means():
    events = course(ChurnRates(crash_every=8.0, restart_after=2.0), 2, 2000)
    waits = np.diff([0.0, *(event.seconds for event in events)])
    assert [event.what for event in events[:4]] == ["crash", "restart", "crash", "restart"]
    assert stats.kstest(waits[::2] / 8.0, "expon").pvalue > 1e-3
    assert stats.kstest(waits[1::2] / 2.0, "expon").pvalue > 1e-3
    either = course(BOTH, 0, 3000)
    left = sum(event.what == "leave" for event in either) / sum(event.what in ("leave", "crash") for event in either)
    assert abs(left - 30 / 80) < 0.05


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3 * DrawnEvents.BLOCK)), min_size=1), st.integers(0, 2**62))
def test_an_event_does_not_depend_on_what_was_asked_before(asked: list[tuple[int, int]], seed: int):
    churn = draw_churn(BOTH, 4, Randomness(seed))
    found = [churn.events.next_event(*where) for where in asked]
    assert found == [draw_churn(BOTH, 9, Randomness(seed)).events.next_event(*where) for where in asked]


def test_what_has_no_rate_does_not_happen():
    assert course(None, 0) == []
    assert [event.what for event in course(ChurnRates(crash_every=1.0), 0)] == ["crash"]
    assert [event.what for event in course(ChurnRates(leave_every=1.0), 0)] == ["leave"]
    joins = ChurnRates(join_after=1.0, absent=(2,))
    assert course(joins, 0) == []
    assert [event.what for event in course(joins, 2)] == ["join"]


def test_the_events_of_a_file(write: Write):
    policy = ChurnFile(
        path=write("seconds,device,event\n0,0,leave\n1.5,1,JOIN\n1.5,0, join\n3,1,crash\n3,1,restart\n"),
        absent=(1,),
        journal="lose",
        start="copy",
    )
    churn = draw_churn(policy, 2, Randomness(0))
    assert (churn.absent, churn.journal, churn.start) == ({1}, "lose", "copy")
    assert [churn.events.next_event(0, count) for count in range(3)] == [(0.0, 0, "leave"), (1.5, 0, "join"), None]
    assert [event.what for event in course(policy, 1)] == ["join", "crash", "restart"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("2,0,leave\n1,1,leave", "seconds '1' in line 3 of {path}. Use times in order, here 2 or later"),
        ("-1,0,leave", "seconds '-1' in line 2 of {path}. Use numbers from 0 to 1e+09"),
        ("1,4,leave", "device '4' in line 2 of {path}. Use devices 0 to 3."),
        ("1,0,explode", "event 'explode' in line 2 of {path}. Use join, leave, crash, restart"),
        ("1,0", "event ''"),
        ("1,0,join", "join of device 0 at 1 s, which is there in line 2 of {path}. Use leave or crash"),
        ("1,3,leave", "leave of device 3 at 1 s, which is not there"),
        ("1,3,crash", "crash of device 3 at 1 s, which is not there in line 2 of {path}. Use join"),
        ("1,0,restart", "restart of device 0 at 1 s, which is there"),
        ("1,0,crash\n2,0,leave", "leave of device 0 at 2 s, which has crashed in line 3 of {path}. Use restart"),
    ],
)
def test_a_bad_file_of_events_is_one_line(write: Write, lines: str, said: str):
    path = write(f"seconds,device,event\n{lines}\n")
    text = refused(ChurnFile(path=path, absent=(3,)))
    assert text.startswith("driver.churn.path: cannot use ")
    assert said.format(path=path) in text


def test_an_absent_device_must_be_one_of_the_devices():
    assert refused(ChurnRates(crash_every=1.0, absent=(4,))) == (
        "driver.churn.absent: cannot use device 4. Use devices 0 to 3."
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"restart_after": 3.0, "leave_every": 1.0},
        {"join_after": 3.0, "crash_every": 1.0},
        {"absent": (1,)},
        {"crash_every": 0.0},
        {"crash_every": float("nan")},
        {"crash_every": 1.0, "absent": (1, 1)},
        {"crash_every": 1.0, "absent": (-1,)},
        {"crash_every": 1.0, "journal": "burn"},
        {"crash_every": 1.0, "start": "late"},
    ],
)
def test_rates_without_effect_or_sense_are_refused(fields: dict[str, Any]):
    with pytest.raises(ValidationError):
        ChurnRates(**fields)


class Own(ChurnPolicy):
    """Gives whatever it was told to give."""

    gives: tuple[Any, ...]

    def events(self, devices: int, randomness: Randomness) -> Any:
        return SimpleNamespace(next_event=lambda device, count: self.gives[count] if count < len(self.gives) else None)


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (((1.0, 0, "leave"), (0.5, 0, "join")), "0.5 for event 1 of device 0. Use a finite time, 1 s or later"),
        (((float("nan"), 0, "leave"),), "nan for event 0"),
        ((("soon", 0, "leave"),), "'soon' for event 0"),
        (((1.0, 2, "leave"),), "(1.0, 2, 'leave') for device 0"),
        (((1.0, 0, "explode"),), "(1.0, 0, 'explode')"),
        (((1.0, 0, "join"),), "join of device 0 at 1 s, which is there. Use leave or crash"),
        ((3,), "your Own raised TypeError"),
    ],
)
def test_what_own_churn_gives_is_checked(gives: tuple[Any, ...], said: str):
    assert course(Own(gives=((1, 0, "leave"), (2.0, 0, "join"))), 0) == [(1.0, 0, "leave"), (2.0, 0, "join")]
    text = refused(Own(gives=gives))
    assert text.startswith("driver.churn: ")
    assert said in text


def test_own_churn_may_not_stop_the_clock():
    class Restless(ChurnPolicy):
        many: int

        def events(self, devices: int, randomness: Randomness) -> Any:
            def next_event(device: int, count: int) -> tuple[float, int, str]:
                return (5.0 if count <= self.many else 5.0 + count, device, ("crash", "restart")[count % 2])

            return SimpleNamespace(next_event=next_event)

    allowed = draw_churn(Restless(many=900), 2, Randomness(0))
    assert allowed.events.next_event(0, 2000) == (2005.0, 0, "crash")
    endless = draw_churn(Restless(many=10**9), 2, Randomness(0))
    text = "driver.churn: cannot use more than 1000 events of device 1 at 5 s. Use later times, or None."
    assert refusal(lambda: endless.events.next_event(1, 2000)) == text


def test_own_churn_need_not_be_a_policy():
    events = SimpleNamespace(next_event=lambda device, count: None)
    churn = draw_churn(SimpleNamespace(events=lambda devices, randomness: events), 2, Randomness(0))  # type: ignore[arg-type]
    assert (churn.absent, churn.journal, churn.start) == (frozenset(), "keep", "fresh")
    assert "an object with the method next_event" in refused(SimpleNamespace(events=lambda *_: None))
