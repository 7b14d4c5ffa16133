"""What the two hostile networks share: one integer is one schedule, laws have names, and faults can be planted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

Link = tuple[int, int]
SCHEDULES = 1000
"""Schedules within which a planted fault must be found."""


class Broken(AssertionError):
    """A law was broken."""

    def __init__(self, law: str, what: str) -> None:
        super().__init__(f"{law}: {what}")
        self.law = law


def edge_of(i: int, j: int) -> Link:
    return (i, j) if i < j else (j, i)


def both(edge: Link) -> tuple[Link, Link]:
    return edge, (edge[1], edge[0])


def checked(run: Callable[[int], Any], schedule: int, file: str) -> Any:
    """Run one schedule; a failure names the integer that replays it."""
    try:
        return run(schedule)
    except Exception as error:
        error.add_note(f"schedule {schedule}; to replay it: python {file} {schedule}")
        raise


def replay(run: Callable[..., Any], made: Callable[[Any], int], first: str, *last: str) -> int:
    """Replay one schedule and print all that happens, or run many and name those that break a law.

    `made` says what a network has made in its schedule.
    """
    if not last:
        run(int(first), trace=print)
        return 0
    failed = total = 0
    for schedule in range(int(first), int(last[0])):
        try:
            total += made(run(schedule))
        except Exception as error:
            failed += 1
            print(f"schedule {schedule}: {type(error).__name__}: {error}")  # noqa: T201 - a tool
    print(f"{failed} schedules broke a law; {total} steps were made")  # noqa: T201
    return min(failed, 1)


# Planted faults


class Faults(dict[str, tuple[Callable[..., None], tuple[str, ...], dict[str, Any]]]):
    """Faults by name: how each is planted, the laws of which it may break one, and what the network is like."""

    def __call__(self, *laws: str, **settings: Any) -> Callable[..., Any]:
        def register(plant_it: Callable[..., None]) -> Callable[..., None]:
            self[plant_it.__name__] = plant_it, laws, settings
            return plant_it

        return register


def replaces(method: str, *owner: type) -> Callable[..., Any]:
    """Make a fault of `wrong(right, self, ...)`, which takes the place of `method` of `owner`. Default: the core."""

    def plants(wrong: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(wrong)
        def plant_it(plant: Callable[..., None]) -> None:
            def make(right: Callable[..., Any]) -> Callable[..., Any]:
                return lambda self, *rest, **more: wrong(right, self, *rest, **more)

            plant(method, make, *owner)

        return plant_it

    return plants


def assert_found(fault: tuple[Callable[..., None], tuple[str, ...], dict[str, Any]], plant: Any, hostile: Any) -> None:
    """Plant a fault, and look for the first schedule of a hostile network that breaks a law."""
    plant_it, laws, settings = fault
    plant_it(plant)
    for schedule in range(SCHEDULES):
        try:
            hostile.run(schedule, **settings)
        except Broken as broken:
            if broken.law not in laws:
                raise
            return
    pytest.fail(f"no law was broken in {SCHEDULES} schedules")
