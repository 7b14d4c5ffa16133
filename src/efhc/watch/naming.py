"""Names of runs that are kept by their key alone: people tell them apart by what differs.

A store knows a strategy by its kind. The live file of a run also has the names that the experiment gave.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from efhc.base.regular_files import open_regular
from efhc.experiments.config.files import flat_settings
from efhc.experiments.runs.live.reading import MOST_BYTES
from efhc.experiments.runs.live.records import Begin, decoded

if TYPE_CHECKING:
    from efhc.watch.discovery import FoundRun

MOST_SETTINGS = 4
"""The largest number of settings in a name."""
NOT_OF_GROUP = ("strategies", "seeds", "name")
"""Settings in which the runs of a group may differ."""


class Names(NamedTuple):
    """The names that an experiment gave to a run."""

    experiment: str
    strategy: str


def names_in(live: Path) -> Names | None:
    """Return the names in the first record of a live file. None: there are none."""
    try:
        with open_regular(live, MOST_BYTES) as file:
            file.readline(1000)
            begin = decoded(file.readline())
    except (OSError, ValueError):
        return None
    return Names(begin.experiment, begin.strategy) if isinstance(begin, Begin) else None


def label_runs(runs: Sequence[FoundRun]) -> list[FoundRun]:
    """Return the runs of a store by strategy and seed, with names that tell them apart.

    Strategies of one name that are not the same, such as the trials of a tuning, get the settings that differ.
    """
    tables = [dict(flat_settings(run.config["strategies"][run.strategy_there])) for run in runs]
    words = _differences([(run.experiment, run.strategy) for run in runs], tables)
    labelled = [replace(run, strategy=", ".join([run.strategy, *own])) for run, own in zip(runs, words, strict=True)]
    return sorted(labelled, key=lambda run: (run.strategy, run.seed))


def name_groups(groups: Sequence[Sequence[FoundRun]], place: str) -> list[str]:
    """Return a name for each group: its experiment and the settings in which it differs from others of that name."""
    titles = [next((run.experiment for run in runs if run.experiment), place) for runs in groups]
    settings = [
        {key: value for key, value in flat_settings(runs[0].config) if key.partition(".")[0] not in NOT_OF_GROUP}
        for runs in groups
    ]
    words = _differences(titles, settings)
    return [", ".join([title, *own]) for title, own in zip(titles, words, strict=True)]


def _differences(titles: Sequence[Hashable], tables: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield for each table the settings that are not the same in all of its title, as `key=value`, the first few."""
    alike: dict[Hashable, list[Mapping[str, Any]]] = {}
    for title, table in zip(titles, tables, strict=True):
        alike.setdefault(title, []).append(table)
    varying = {title: _varying(of_title) for title, of_title in alike.items()}
    for title, table in zip(titles, tables, strict=True):
        words = [f"{key.removesuffix('.kind')}={table[key]}" for key in table if key in varying[title]]
        yield words if len(words) <= MOST_SETTINGS else [*words[:MOST_SETTINGS], "..."]


def _varying(tables: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the keys that some of the tables lack, or have another value of."""
    first, *others = tables
    keys = {key for table in tables for key in table}
    return {key for key in keys if any(other.get(key) != first.get(key) for other in others)}
