"""Real runs in real folders, and real servers that show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import efhc
from efhc.watch.server import Server
from efhc.watch.watched import Watched

SMALL = {"devices": 5, "iterations": 60, "evaluate_every": 10, "seeds": (0, 1)}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a complete experiment in lockstep, and an event-driven one."""
    folder = tmp_path_factory.mktemp("watched")
    strategies = {"EF-HC": efhc.EventTriggered(), "ZT": efhc.ZeroThreshold()}
    efhc.simulate(out=folder / "steps", name="steps", strategies=strategies, **SMALL)
    one = SMALL | {"seeds": (0,)}
    timed = efhc.EventDriven(sample_seconds=5.0)
    efhc.simulate(
        out=folder / "seconds", name="seconds", driver=timed, strategies={"EF-HC": efhc.EventTriggered()}, **one
    )
    return folder


@contextmanager
def served(folder: Path, **options: object) -> Iterator[tuple[Server, httpx.Client]]:
    with Server(Watched(folder), **options) as server, httpx.Client(base_url=address_of(server)) as client:
        yield server, client


def address_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture(scope="session")
def serve() -> Callable[..., object]:
    """Serve a folder in the body: the server, and a client of it."""
    return served
