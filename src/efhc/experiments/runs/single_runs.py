"""The runs in a store, found by what their configs say. Configs are read as plain tables: no code is run."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from efhc.experiments.runs.live_file import LIVE
from efhc.experiments.runs.naming import NamedRun, asked_as, names_in

KEY = re.compile(r"[0-9a-f]{24}")
"""The name of a run's folder."""


def parse_config(content: bytes) -> dict[str, Any]:
    """Return the tables of a config. Raises `ValueError` if it is not that of an experiment."""
    tables = tomllib.loads(content.decode())
    strategies, seeds = tables.get("strategies"), tables.get("seeds")
    is_whole = isinstance(strategies, dict) and isinstance(seeds, list) and all(type(seed) is int for seed in seeds)
    numbers = [tables.get(name) for name in ("devices", "iterations")]
    if not is_whole or not all(type(number) is int for number in numbers):
        raise ValueError("it is not the config of an experiment")
    return tables


def read_config(path: Path) -> dict[str, Any] | None:
    """Return the tables of a config. None: it is missing or damaged."""
    try:
        return parse_config(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def same_run(strategy: Any, seed: int) -> str:
    """Return what distinguishes the runs of one experiment, given the table of a strategy in a config.

    Strategies of an experiment that are the same are one run with several names.
    """
    return json.dumps([strategy, seed], sort_keys=True, default=str)


def runs_in(folder: Path, read: Callable[[Path], Mapping[str, Any] | None] = read_config) -> list[NamedRun]:
    """Return the runs in a store, oldest first, under the names in their configs.

    `read` returns the tables of a config, or None.
    """
    try:
        folders = [one for one in folder.iterdir() if KEY.fullmatch(one.name)]
    except OSError:
        return []
    runs = []
    for one in sorted(folders, key=_begun_at):
        config = read(one / "config.toml")
        if config is not None and config["strategies"] and config["seeds"]:
            name = next(iter(config["strategies"]))
            runs.append(NamedRun(name, config["seeds"][0], name, config, one))
    return runs


def single_runs(folder: Path, read: Callable[[Path], Mapping[str, Any] | None] = read_config) -> dict[str, NamedRun]:
    """Return the runs in the store of one experiment, by `same_run`. Of a run of several versions, it is the latest."""
    runs = runs_in(folder, read)
    return {same_run(run.config["strategies"][run.strategy_there], run.seed): run for run in runs}


def names_of(folder: Path) -> tuple[str, str | None] | None:
    """Return the names of strategy and experiment that the experiment gave which asked for a run. None: unknown."""
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        meta = {}
    return (asked_as(meta) if isinstance(meta, dict) else None) or names_in(folder / LIVE)


def _begun_at(folder: Path) -> tuple[float, str]:
    try:
        return (folder / "config.toml").stat().st_mtime, folder.name
    except OSError:
        return 0.0, folder.name
