"""Telling followers of a run that was made where they could not hear it, once it is in the store.

Its tables have all rows; its live file, which is thinned, is asked only for what the tables lack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from efhc.experiments.runs.live.followers import About, FollowerFactory, Row
from efhc.experiments.runs.live.reading import LIVE, read_live
from efhc.experiments.runs.live.telling import Followers
from efhc.experiments.runs.live.totals import with_totals
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.store import RunStore
from efhc.experiments.runs.tables import LOCKSTEP, RUN, tables_of


def tell_afterwards(
    run: Run, store: RunStore, followers: Sequence[FollowerFactory], warn: Callable[[str], None]
) -> None:
    """Tell followers of all evaluations of a run that is in the store, and of its end."""
    if not followers:
        return
    asked = run.experiment
    first = store.table(run, "network").row(0, named=True)
    about = About(
        run.whole.name,
        *run.pair,
        run.key,
        tables_of(asked).driver,
        asked.devices,
        asked.model.parameters(run.data),
        asked.iterations,
        store.table(run, "devices")["bandwidth"].to_list(),
        list(zip(first["link_from"], first["link_to"], strict=True)),
    )
    everyone = Followers(run, (), followers, warn)
    everyone.begin(about, 0)
    for row in _rows(run, store):
        everyone.evaluated(row)
    everyone.reached(asked.iterations)
    everyone.end("done", None)


def _rows(run: Run, store: RunStore) -> list[Row]:
    """Return the rows that followers of the run would have heard. Rows that its live file lacks have no `seconds`."""
    tables = tables_of(run.experiment)
    table = store.table(run, tables.curve).drop(*RUN)
    if tables is not LOCKSTEP:
        return list(table.iter_rows(named=True))
    live = read_live(store.directory(run) / LIVE)
    seconds = {one.row.get("iteration"): one.row.get("seconds") for one in live.rows} if live else {}
    evaluated = with_totals(table.lazy()).drop_nulls("accuracy").collect()  # the metrics have all iterations
    return [{**row, "seconds": seconds.get(row["iteration"])} for row in evaluated.iter_rows(named=True)]
