"""A run in which every device has its own clock: the simulator and what is kept of the run come together."""

from __future__ import annotations

import time

from efhc.base.arrays import Floats
from efhc.core.randomness import Randomness
from efhc.core.state import Local
from efhc.drivers.event_driven.settings import EventDriven
from efhc.drivers.event_driven.simulator import Simulator
from efhc.experiments.runs.keeping import Checkpoint, Making, Stopped
from efhc.experiments.runs.live.of_event_driven import EventDrivenTelling
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.tables import require_lockstep
from efhc.scenarios.scenario import Scenario


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
        threads=threads,
    )


def make_event_driven(making: Making) -> tuple[Floats, Local]:
    """Make the events after the last checkpoint, or all. Returns the last models and what devices keep."""
    run, keeper, experiment = making.run, making.keeper, making.run.experiment
    if making.observers:
        require_lockstep(experiment, "observers")

    def begin() -> Simulator:
        return simulator_of(run, making.scenario, making.threads)

    def restore(checkpoint: Checkpoint) -> Simulator:
        simulator = begin()
        simulator.restore(checkpoint.tensors, checkpoint.facts)
        return simulator

    simulator = keeper.resume(restore) or begin()
    telling = EventDrivenTelling(making.followers, simulator, making.scenario.network)
    making.tell_begin(telling.k)
    saved_at, is_whole = time.monotonic(), True
    try:
        while not simulator.is_over:
            making.progress(simulator.progress)
            if making.stop.is_set():
                raise Stopped
            is_whole = False
            simulator.advance()
            telling.tell()
            is_whole = not simulator.is_over  # a run that is over has nothing to go on with, and would end twice
            if is_whole and time.monotonic() - saved_at > making.checkpoint_seconds:
                keeper.checkpoint(simulator.record.take(), *simulator.checkpoint())
                telling.begin_piece()
                saved_at = time.monotonic()
            elif simulator.record.is_large:
                keeper.put_away(simulator.record.take())
                telling.begin_piece()
    except BaseException:
        if is_whole:  # an event that failed half-way leaves the last checkpoint as it is
            keeper.checkpoint(simulator.record.take(), *simulator.checkpoint())
        raise
    keeper.put_away(simulator.record.take())
    for text in simulator.warnings:
        keeper.warn(f"{run.name}: {text}")
    return simulator.models, simulator.local
