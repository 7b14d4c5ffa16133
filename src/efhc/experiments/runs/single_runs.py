"""The single runs of an unfinished experiment: directories in one folder, each named after the key of its run.

A run is found by what its config says, not by a name: strategies of an experiment that are the same are one run with
several names. Configs are read as plain tables: no code that they name is run.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEY = re.compile(r"[0-9a-f]{24}")
"""The name of a single run's directory."""


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
    """Return what tells the runs of one experiment apart, given the table of a strategy in a config."""
    return json.dumps([strategy, seed], sort_keys=True, default=str)


@dataclass(frozen=True)
class SingleRun:
    """One run in a directory of its own."""

    folder: Path
    strategy: str
    """The name of the strategy in this directory."""
    seed: int
    config: Mapping[str, Any]


def single_runs(folder: Path, read: Callable[[Path], Mapping[str, Any] | None] = read_config) -> dict[str, SingleRun]:
    """Return the single runs in a folder, by `same_run`. Of the same run of several versions, it is the latest one.

    `read` returns the tables of a config, or None.
    """
    try:
        folders = [one for one in folder.iterdir() if KEY.fullmatch(one.name)]
    except OSError:
        return {}
    runs: dict[str, SingleRun] = {}
    for one in sorted(folders, key=_begun_at):
        config = read(one / "config.toml")
        if config is not None and config["strategies"] and config["seeds"]:
            (strategy, table), seed = next(iter(config["strategies"].items())), config["seeds"][0]
            runs[same_run(table, seed)] = SingleRun(one, strategy, seed, config)
    return runs


def _begun_at(folder: Path) -> tuple[float, str]:
    try:
        return (folder / "config.toml").stat().st_mtime, folder.name
    except OSError:
        return 0.0, folder.name
