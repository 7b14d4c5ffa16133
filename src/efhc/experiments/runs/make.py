"""Making one run, by the driver that its experiment names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from efhc.base.arrays import Floats
from efhc.core.state import Local
from efhc.experiments.runs.driver_tables import EVENT_DRIVEN, LOCKSTEP, devices_table, driver_of
from efhc.experiments.runs.event_driven_run import make_event_driven
from efhc.experiments.runs.events import EventStream, FollowerFactory
from efhc.experiments.runs.keeping import FAILURES, RunKeeper, RunOptions
from efhc.experiments.runs.lockstep_run import make_lockstep
from efhc.experiments.runs.run import Run
from efhc.scenarios.scenario import Scenario

MAKERS: Mapping[str, Callable[[Run, Scenario, RunKeeper, EventStream, RunOptions], tuple[Floats, Local]]] = {
    LOCKSTEP.driver: make_lockstep,
    EVENT_DRIVEN.driver: make_event_driven,
}
"""By the kind of the driver: puts the tables of a run away, and returns its last models and what devices keep."""


def make_run(
    run: Run,
    scenario: Scenario,
    keeper: RunKeeper,
    options: RunOptions | None = None,
    followers: Sequence[FollowerFactory] = (),
) -> None:
    """Make a run from its last checkpoint, or from the start, to its end, and emit its events to `followers`.

    When `options.stop` is set, the run saves a checkpoint and raises `Stopped`. On any other error, a run in lockstep
    saves what is complete, and an event-driven run goes on from its last checkpoint when it is made again.
    """
    stream = keeper.stream = EventStream(run, followers, keeper.warn)
    if keeper.is_open:
        keeper.show()
    try:
        made = MAKERS[driver_of(run.experiment)](run, scenario, keeper, stream, options or RunOptions())
        keeper.finish(*made, devices_table(scenario, run.seed))
    except FAILURES as error:
        stream.end("failed", str(error))
        raise
    except BaseException as error:
        stream.end("stopped", str(error) or None)
        raise
    stream.end("done", None)
