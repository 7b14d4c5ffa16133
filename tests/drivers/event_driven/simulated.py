"""Small runs of the event-driven driver, for tests: few devices, models of four numbers, links that are watched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import efhc
from efhc.base.errors import InputError
from efhc.core.randomness import Randomness
from efhc.drivers.event_driven.simulator import Simulator
from efhc.drivers.event_driven.transfers import Notice
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario, load_data

PARAMETERS = 4
"""n of a linear model of one feature and two classes."""


def tiny(devices: int, links: Any, bandwidths: Iterable[float] | float = 4.0, **fields: Any) -> Experiment:
    """Models of four numbers on given links. With the default bandwidth, a model takes one second."""
    x = np.linspace(-1.0, 1.0, 16 * devices)[:, None]
    data = efhc.Dataset(x, (x[:, 0] > 0).astype(int), x, (x[:, 0] > 0).astype(int))
    values = [bandwidths] * devices if isinstance(bandwidths, float | int) else list(bandwidths)
    known: dict[str, Any] = {
        "data": data,
        "devices": devices,
        "network": {"kind": "links", "links": links} if isinstance(links, list) else links,
        "bandwidths": {"kind": "list", "values": [float(one) for one in values]},
        "partition": efhc.IID(),
        "precision": "float64",
        "batch_size": 2,
        "strategies": {"S": efhc.ZeroThreshold()},
    }
    return Experiment(**known | fields)


def simulator_of(
    experiment: Experiment, seed: int = 0, trigger: Any = None, scenario: Any = None, **settings: Any
) -> Simulator:
    scenario = scenario or draw_scenario(experiment, load_data(experiment), seed)
    trigger = trigger or next(iter(experiment.strategies.values()))
    return Simulator(
        scenario,
        trigger,
        experiment.driver,
        experiment.iterations,
        Randomness(seed),
        evaluate_every=experiment.evaluate_every,
        **settings,
    )


def run(experiment: Experiment, seed: int = 0, trigger: Any = None) -> Simulator:
    """The simulator after its run."""
    simulator = simulator_of(experiment, seed, trigger)
    while not simulator.is_over:
        simulator.advance()
    return simulator


def csv_writer(path: Path) -> Callable[[str], Path]:
    """Return a function that writes a file with this content, as it is."""

    def write(content: str) -> Path:
        path.write_bytes(content.encode())
        return path

    return write


def refusal(ask: Callable[[], Any]) -> str:
    """Return the one line of the `InputError` that this raises."""
    with pytest.raises(InputError) as caught:
        ask()
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Firing:
    """A strategy of one's own: `fires[k]` are the devices that fire in their iteration k."""

    def __init__(self, fires: dict[int, set[int]]) -> None:
        self._fires = fires

    def thresholds(self, k: int, gamma: float, bandwidths: Any, coins: Any) -> Any:
        return np.array([0.0 if i in self._fires.get(k, ()) else np.inf for i in range(len(bandwidths.values))])


class WatchedLinks:
    """A link model of one's own: it carries what another one carries, notes it, and may lose chosen messages.

    `log` has a row (when it was sent, from, to, "header" or "model", when it arrived or got lost) per message.
    """

    def __init__(self, inner: Any, lose: Iterable[int] = ()) -> None:
        self._inner, self._lose = inner, set(lose)
        self.log: list[tuple[float, int, int, str, float | None]] = []

    def transfers(self, bandwidths: Any, randomness: Randomness) -> Any:
        return _Watched(self._inner.transfers(bandwidths, randomness), self.log, self._lose)

    def sent(self, what: str) -> list[tuple[float, int, int, float | None]]:
        """The messages of one sort."""
        return sorted((sent, i, j, there) for sent, i, j, sort, there in self.log if sort == what)


class _Watched:
    def __init__(self, inner: Any, log: list[Any], lose: set[int]) -> None:
        self._inner, self._log, self._lose = inner, log, lose
        self._places: dict[int, int] = {}
        for name in ("next_time", "cancel", "cut", "is_stalled", "state", "restore"):
            setattr(self, name, getattr(inner, name))

    def send(self, now: float, sender: int, receiver: int, size: float, ticket: int) -> None:
        self._places[ticket] = len(self._log)
        self._log.append((now, sender, receiver, "model" if size else "header", None))
        self._inner.send(now, sender, receiver, size, ticket)

    def take(self, now: float) -> list[Notice]:
        notices = []
        for ticket, what in self._inner.take(now):
            place = self._places[ticket]
            if what != "stalled":
                self._log[place] = (*self._log[place][:4], now)
            notices.append(Notice(ticket, "lost" if what == "arrived" and place in self._lose else what))
        return notices
