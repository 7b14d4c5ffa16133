"""Making one run, by the driver that its experiment names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Event

import numpy as np
import polars as pl

from efhc.base.arrays import Floats
from efhc.core.state import Local
from efhc.drivers.observers import Observer
from efhc.experiments.runs.keeping import CHECKPOINT_SECONDS, FAILURES, Keeper, Making
from efhc.experiments.runs.live.followers import FollowerFactory
from efhc.experiments.runs.live.telling import Followers
from efhc.experiments.runs.make_event_driven import make_event_driven
from efhc.experiments.runs.make_lockstep import make_lockstep
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.tables import EVENT_DRIVEN, LOCKSTEP, driver_of
from efhc.scenarios.scenario import Scenario

MAKERS: Mapping[str, Callable[[Making], tuple[Floats, Local]]] = {
    LOCKSTEP.driver: make_lockstep,
    EVENT_DRIVEN.driver: make_event_driven,
}
"""By the kind of the driver: puts the tables of a run away, and returns its last models and what devices keep."""


def make_run(
    run: Run,
    scenario: Scenario,
    keeper: Keeper,
    *,
    threads: int = 1,
    observers: Sequence[Observer] = (),
    followers: Sequence[FollowerFactory] = (),
    progress: Callable[[float], None] = lambda share: None,
    stop: Event | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> None:
    """Make a run from its last checkpoint, or from the start, to its end.

    `progress` is called with the share of the run that is done. When `stop` is set, the run saves a checkpoint and
    raises `Stopped`. On any other error, a run in lockstep saves what is complete, and an event-driven run goes on from
    its last checkpoint when it is made again. `observers` see runs in lockstep only; `followers` hear of all, and one
    that fails is warned of and left out.
    """
    everyone = Followers(run, keeper.followers, followers, keeper.warn)
    making = Making(run, scenario, keeper, threads, observers, everyone, progress, stop or Event(), checkpoint_seconds)
    try:
        models, local = MAKERS[driver_of(run.experiment)](making)
        keeper.finish(models, local, devices_table(scenario, run.seed))
    except FAILURES as error:
        everyone.end("failed", str(error))
        raise
    except BaseException as error:
        everyone.end("stopped", str(error) or None)
        raise
    everyone.end("done", None)


def devices_table(scenario: Scenario, seed: int) -> pl.DataFrame:
    """Return the bandwidth, number of samples and labels of each device, one row per device."""
    labels = scenario.learner.data.y_train
    rows = [
        (seed, device, bandwidth, len(part), np.unique(labels[part]).tolist())
        for device, (bandwidth, part) in enumerate(zip(scenario.bandwidths.values, scenario.learner.parts, strict=True))
    ]
    schema = {
        "seed": pl.Int64(),
        "device": pl.Int32(),
        "bandwidth": pl.Float64(),
        "samples": pl.Int64(),
        "labels": pl.List(pl.Int32),
    }
    return pl.DataFrame(rows, schema=schema, orient="row")
