"""A run in which every device has its own clock: the simulator, the events it emits, and what is kept of it.

There is no iteration of all devices here: the k of an event is the mean number of steps that a device has made, rounded
down. So is that of pages that show the tables of a complete run, which have the number of all steps.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.randomness import Randomness
from efhc.core.state import Local
from efhc.drivers.event_driven.record import EXCHANGES, STEPS, TIMELINE
from efhc.drivers.event_driven.simulator import Simulator
from efhc.drivers.record import Piece
from efhc.drivers.settings import EventDriven
from efhc.experiments.runs.early_stopping import Patience
from efhc.experiments.runs.events import (
    EVENTS_PER_SECOND,
    SAMPLE_SECONDS,
    SAMPLE_SHARE,
    Allowance,
    Begin,
    Devices,
    Evaluated,
    EventStream,
    Firings,
    Network,
    Reached,
    Recalled,
    pairs,
)
from efhc.experiments.runs.keeping import Checkpoint, RunKeeper, RunOptions, Stopped, joined
from efhc.experiments.runs.run import Run
from efhc.network.topologies import GraphsOverTime, StaticGraph
from efhc.scenarios.scenario import Scenario

END, OUTCOME, ONE, OTHER = (list(EXCHANGES).index(name) for name in ("end", "outcome", "device", "neighbour"))
DEVICE, SECONDS, FIRED = (list(STEPS).index(name) for name in ("device", "seconds", "fired"))


def simulator_of(run: Run, scenario: Scenario, threads: int) -> Simulator:
    """Return the simulator of a run at its start."""
    experiment, settings = run.experiment, run.experiment.driver
    assert isinstance(settings, EventDriven)
    (strategy,) = experiment.strategies.values()
    return Simulator(
        scenario,
        strategy,
        settings,
        experiment.iterations,
        Randomness(run.seed),
        evaluate_every=experiment.evaluate_every,
        draws_samples=experiment.evaluate_at == "drawn",
        threads=threads,
    )


def make_event_driven(scenario: Scenario, keeper: RunKeeper, options: RunOptions) -> tuple[Floats, Local]:
    """Make the events after the last checkpoint, or all. Returns the last models and what devices do not share."""
    run, stream = keeper.run, keeper.stream

    def restore(checkpoint: Checkpoint) -> Simulator:
        simulator = simulator_of(run, scenario, options.threads)
        simulator.restore(checkpoint.tensors, checkpoint.facts)
        return simulator

    simulator = keeper.resume(restore) or simulator_of(run, scenario, options.threads)
    events = _SimulatorEvents(stream, simulator, scenario.network)
    stream.emit(Begin.of(run, scenario, events.k))
    if pieces := keeper.kept("timeline"):
        stream.emit(Recalled(lambda: joined(pieces).collect().iter_rows(named=True)))

    def save() -> None:
        keeper.show(events.rows())
        keeper.checkpoint(events.take(), *simulator.checkpoint())

    patience = Patience(
        run.experiment, scenario, lambda: joined(pieces).collect().iter_rows(named=True) if pieces else ()
    )
    saved_at, is_whole = time.monotonic(), True
    try:
        while not simulator.is_over:
            options.progress(simulator.progress)
            if options.stop.is_set():
                raise Stopped
            is_whole, sampled = False, len(simulator.record.timeline)
            (simulator.advance if patience.over_after is None else simulator.end)()
            for row in simulator.record.timeline[sampled:]:
                patience.note(row)
            events.emit()
            is_whole = not simulator.is_over  # a run that is over has nothing to go on with, and would end twice
            if is_whole and time.monotonic() - saved_at > options.checkpoint_seconds:
                save()
                saved_at = time.monotonic()
            elif simulator.record.is_large or keeper.should_show:
                keeper.show(events.rows())
                if simulator.record.is_large:
                    keeper.put_away(events.take())
    except BaseException:
        if is_whole:  # an event that failed half-way leaves the last checkpoint as it is
            save()
        raise
    last = simulator.record.take()
    keeper.put_away(last)
    keeper.warn_if_apart(last.tables["timeline"]["consensus_error"])
    for text in simulator.warnings:
        keeper.warn(f"{run.name}: {text}")
    return simulator.models, simulator.local


class _SimulatorEvents:
    """Emits the events of a run. Call `emit` after every `advance`, before the record is emptied by `take`."""

    def __init__(self, stream: EventStream, simulator: Simulator, network: GraphsOverTime) -> None:
        self._stream, self._simulator = stream, simulator
        self._allowance = Allowance(EVENTS_PER_SECOND)
        self._next_sample, self._last_k = 0.0, self.k
        self._fired: set[int] = set()
        self._used: set[tuple[int, int]] = set()
        """Since the last sample of events or the last change of the network."""
        graph, self._rewired_at = simulator.wiring
        is_first = self.k == 0 and np.array_equal(graph.links, network.graph(0).links)
        self._graph_since = None if is_first or isinstance(network, StaticGraph) else self.k
        """The k from which on there are links that readers do not know. None: they know them."""
        self._seen = {"timeline": 0, "steps": 0, "exchanges": 0}
        """The rows of each table of the record that were emitted."""

    @property
    def k(self) -> int:
        return self._simulator.steps // len(self._simulator.devices)

    def take(self) -> Piece:
        """Return everything recorded since the last piece, and empty the record."""
        self._seen = dict.fromkeys(self._seen, 0)
        return self._simulator.record.take()

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows of the timeline that the record has, for a reader that is new."""
        self._seen["timeline"] = 0
        return self._new_rows()

    def _new_rows(self) -> list[dict[str, Any]]:
        return [{**dict.fromkeys(TIMELINE), **row} for row in self._new("timeline")]

    def emit(self) -> None:
        if not len(self._stream):
            return
        rows = [Evaluated(time.time(), self.k, row) for row in self._new_rows()]
        if not self._stream.wants_samples:
            self._stream.emit(*rows)
            return
        self._stream.emit(Reached(time.time(), self.k), *rows)
        if self._simulator.is_over or (rows and time.monotonic() >= self._next_sample):
            self._emit_devices()
        graph, rewired_at = self._simulator.wiring
        if rewired_at != self._rewired_at:  # what happened before used links of which some are gone
            self._rewired_at, self._graph_since = rewired_at, max(self.k, self._last_k + 1)
            self._fired, self._used = set(), set()
        self._fired |= {row[DEVICE] for row in self._new("steps") if row[FIRED] and row[SECONDS] >= rewired_at}
        exchanges = (row for row in self._new("exchanges") if row[OUTCOME] == "committed" and row[END] >= rewired_at)
        self._used |= {(min(row[ONE], row[OTHER]), max(row[ONE], row[OTHER])) for row in exchanges}
        if self.k > self._last_k and self._allowance.left():
            if self._graph_since is not None:
                self._allowance.spend(len(graph.links))
                self._stream.emit(Network(min(self._graph_since, self.k), pairs(graph.links)))
                self._graph_since = None
            self._allowance.spend(len(self._fired) + len(self._used))
            self._stream.emit(Firings(self.k, sorted(self._fired), sorted(self._used), self._simulator.now))
            self._last_k, self._fired, self._used = self.k, set(), set()

    def _emit_devices(self) -> None:
        """Emit a sample of the devices as they are now, right after a sample of the timeline."""
        started, simulator = time.monotonic(), self._simulator
        drifts, thresholds = simulator.drifts(), None
        with suppress(Exception):  # the user's own trigger: if it fails, the run itself says so
            thresholds = simulator.thresholds()
        if (found := simulator.evaluation) is not None:
            accuracy, own = (found.of_all("accuracy", len(simulator.devices), own=own) for own in (False, True))
            self._stream.emit(Devices(time.time(), self.k, accuracy, drifts, thresholds, own))
        self._next_sample = started + max(SAMPLE_SECONDS, (time.monotonic() - started) / SAMPLE_SHARE)

    def _new(self, table: str) -> list[Any]:
        rows: list[Any] = getattr(self._simulator.record, table)
        new, self._seen[table] = rows[self._seen[table] :], len(rows)
        return new
