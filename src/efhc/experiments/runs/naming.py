"""The runs in a store, and names that distinguish them for people. Configs are read as plain tables: no code is run.

A store knows a strategy by its kind. The meta.json and the live file of a run have the names that the experiment gave.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from efhc.base.inputs import open_regular
from efhc.experiments.config.files import flat_settings
from efhc.experiments.runs.events import Begin
from efhc.experiments.runs.live_file import LIVE, MOST_BYTES, decoded

KEY = re.compile(r"[0-9a-f]{24}")
"""The name of a run's folder."""
MOST_SETTINGS = 4
"""The largest number of settings in a name."""
NOT_OF_GROUP = ("strategies", "seeds", "name")
"""Settings in which the runs of a group may differ."""


@dataclass(frozen=True)
class NamedRun:
    """One strategy with one seed, and what its config says."""

    strategy: str
    """Its name for people."""
    seed: int
    strategy_there: str
    """The name of the strategy in its config."""
    config: Mapping[str, Any]
    folder: Path
    """The folder with its config.toml and meta.json."""
    experiment: str | None = field(default=None, kw_only=True)
    """The name of the experiment that it was made for, if it is kept by its key and that is known."""


R = TypeVar("R", bound=NamedRun)

# Finding


def parse_config(content: bytes) -> dict[str, Any]:
    """Return the tables of a config. Raises `ValueError` if it is not that of an experiment."""
    tables = tomllib.loads(content.decode())
    strategies, seeds = tables.get("strategies"), tables.get("seeds")
    is_whole = isinstance(strategies, dict) and isinstance(seeds, list) and all(type(seed) is int for seed in seeds)
    numbers = [tables.get(name) for name in ("devices", "iterations")]
    if not is_whole or not all(type(number) is int for number in numbers):
        raise ValueError("it is not the config of an experiment")
    return tables


def _config_in(folder: Path) -> dict[str, Any] | None:
    try:
        return parse_config((folder / "config.toml").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def runs_in(store: Path, config_in: Callable[[Path], Mapping[str, Any] | None] = _config_in) -> list[NamedRun]:
    """Return the runs in a store, oldest first, under the names in their configs.

    `config_in` returns the tables of the config in a folder, or None if it is missing or damaged.
    """

    def begun_at(folder: Path) -> tuple[float, str]:
        try:
            return (folder / "config.toml").stat().st_mtime, folder.name
        except OSError:
            return 0.0, folder.name

    try:
        folders = [one for one in store.iterdir() if KEY.fullmatch(one.name)]
    except OSError:
        return []
    runs = []
    for folder in sorted(folders, key=begun_at):
        config = config_in(folder)
        if config is not None and config["strategies"] and config["seeds"]:
            name = next(iter(config["strategies"]))
            runs.append(NamedRun(name, config["seeds"][0], name, config, folder))
    return runs


def unlisted_runs(
    config: Mapping[str, Any], store: Path, config_in: Callable[[Path], Mapping[str, Any] | None] = _config_in
) -> dict[tuple[str, int], Path]:
    """Return the folders of an experiment's runs by strategy and seed, if efhc 0.2 began it, which listed no keys.

    Of a run of several versions, it is the latest. Strategies that are the same are one run with several names.
    """

    def identity(strategy: Any, seed: int) -> str:
        return json.dumps([strategy, seed], sort_keys=True, default=str)

    runs = runs_in(store, config_in)
    found = {identity(run.config["strategies"][run.strategy_there], run.seed): run.folder for run in runs}
    wanted = {
        (name, seed): identity(table, seed) for name, table in config["strategies"].items() for seed in config["seeds"]
    }
    return {pair: found[which] for pair, which in wanted.items() if which in found}


# Naming


def names_in_meta(meta: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """Return the names of strategy and experiment in the meta.json of a single run. None: it has none."""
    names = meta.get("asked_as")
    if not isinstance(names, dict) or not isinstance(names.get("strategy"), str):
        return None
    return names["strategy"], names.get("experiment") if isinstance(names.get("experiment"), str) else None


def names_in(live: Path) -> tuple[str, str] | None:
    """Return the names of strategy and experiment in the first record of a live file. None: there are none."""
    try:
        with open_regular(live, MOST_BYTES) as file:
            file.readline(1000)
            begin = decoded(file.readline())
    except (OSError, ValueError):
        return None
    return (begin.strategy, begin.experiment) if isinstance(begin, Begin) else None


def with_known_names(run: NamedRun) -> NamedRun:
    """Return the run under the names of the experiment that it was made for, if they are known."""
    try:
        meta = json.loads((run.folder / "meta.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        meta = {}
    names = (names_in_meta(meta) if isinstance(meta, dict) else None) or names_in(run.folder / LIVE)
    return run if names is None else replace(run, strategy=names[0], experiment=names[1])


def settings_of_group(run: NamedRun) -> str:
    """Return the settings that all runs of a group share, as a text."""
    settings = {key: value for key, value in run.config.items() if key not in NOT_OF_GROUP}
    return json.dumps(settings, sort_keys=True, default=str)


def label_runs(runs: Sequence[R]) -> list[R]:
    """Return the runs of a store by strategy and seed, with names that distinguish them.

    Strategies of one name that are not the same, such as the trials of a tuning, get the settings that differ.
    """
    tables = [dict(flat_settings(run.config["strategies"][run.strategy_there])) for run in runs]
    words = _differences([(run.experiment, run.strategy) for run in runs], tables)
    labelled = [replace(run, strategy=", ".join([run.strategy, *own])) for run, own in zip(runs, words, strict=True)]
    return sorted(labelled, key=lambda run: (run.strategy, run.seed))


def name_groups(groups: Sequence[Sequence[NamedRun]], place: str) -> list[str]:
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
    first, *others = tables
    keys = {key for table in tables for key in table}
    return {key for key in keys if any(other.get(key) != first.get(key) for other in others)}
