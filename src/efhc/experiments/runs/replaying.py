"""Emitting the events of a run that was made where its readers were not, once it is in the store.

Its tables have all rows; its live file, which is thinned, only adds what the tables lack.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from efhc.experiments.runs.driver_tables import LOCKSTEP, RUN, tables_of
from efhc.experiments.runs.events import Begin, Evaluated, EventStream, FollowerFactory, Reached, Row, evaluated_after
from efhc.experiments.runs.live_file import LIVE, read_live
from efhc.experiments.runs.lockstep_run import with_totals
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.store import RunStore


def replay_events(run: Run, store: RunStore, followers: Sequence[FollowerFactory], warn: Callable[[str], None]) -> None:
    """Emit all evaluations of a run that is in the store, and its end."""
    if not followers:
        return
    asked = run.experiment
    first = store.table(run, "network").row(0, named=True)
    links = list(zip(first["link_from"], first["link_to"], strict=True))
    bandwidths = store.table(run, "devices")["bandwidth"].to_list()
    stream = EventStream(run, followers, warn)
    begin = Begin.described(run, 0, asked.model.parameters(run.data), bandwidths, links)
    stream.emit(begin)
    stream.emit(*(Evaluated(time.time(), evaluated_after(row, begin), row) for row in _rows(run, store)))
    stream.emit(Reached(time.time(), asked.iterations))
    stream.end("done", None)


def _rows(run: Run, store: RunStore) -> list[Row]:
    """Return the evaluated rows. Those that the live file lacks have no `seconds`."""
    tables = tables_of(run.experiment)
    table = store.table(run, tables.curve).drop(*RUN)
    if tables is not LOCKSTEP:
        return list(table.iter_rows(named=True))
    live = read_live(store.directory(run) / LIVE)
    seconds = {one.row.get("iteration"): one.row.get("seconds") for one in live.rows} if live else {}
    evaluated = with_totals(table.lazy()).drop_nulls("accuracy").collect()  # the metrics have all iterations
    return [{**row, "seconds": seconds.get(row["iteration"])} for row in evaluated.iter_rows(named=True)]
