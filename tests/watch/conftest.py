"""Real runs in real folders, and real servers that show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import efhc
from efhc.experiments.runs import keeping
from efhc.watch.server import Server
from efhc.watch.watcher import Watcher

SMALL = {"devices": 5, "iterations": 60, "evaluate_every": 10, "seeds": (0, 1)}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a complete experiment in lockstep, and an event-driven one."""
    folder = tmp_path_factory.mktemp("watched")
    strategies = {"EF-HC": efhc.EventTriggered(), "ZT": efhc.ZeroThreshold()}
    one = SMALL | {"seeds": (0,), "strategies": {"EF-HC": efhc.EventTriggered()}}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(keeping, "SHORT_SECONDS", 0.0)
        efhc.simulate(out=folder / "steps", name="steps", strategies=strategies, **SMALL)
        efhc.simulate(out=folder / "seconds", name="seconds", driver=efhc.EventDriven(sample_seconds=5.0), **one)
    return folder


@pytest.fixture
def no_short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run that this process makes has a live file, however short it is."""
    monkeypatch.setattr(keeping, "SHORT_SECONDS", 0.0)


@contextmanager
def served(folder: Path, **options: object) -> Iterator[tuple[Server, httpx.Client]]:
    with Server(Watcher(folder), **options) as server, httpx.Client(base_url=address_of(server)) as client:
        yield server, client


def address_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture(scope="session")
def serve() -> Callable[..., object]:
    """Serve a folder in the body: the server, and a client of it."""
    return served
