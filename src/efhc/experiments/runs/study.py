"""A study: several experiments whose runs lie in one store, as a sweep, a reproduction or a tuning leaves them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from efhc.base.errors import EfhcError
from efhc.experiments.config.files import build_experiment
from efhc.experiments.runs.experiment_folder import OWN_RUNS
from efhc.experiments.runs.folder import RunFolder
from efhc.experiments.runs.naming import NamedRun, label_runs, name_groups, runs_in, settings_of_group, with_known_names
from efhc.experiments.runs.result import Result
from efhc.experiments.runs.store import StoredRun
from efhc.experiments.runs.tables import tables_of


class Study(Mapping[str, Result]):
    """The results of a study, by name. Runs whose settings differ in strategy and seed only are one result."""

    def __init__(self, results: Mapping[str, Result], directory: Path) -> None:
        self._results = dict(results)
        self.directory = directory
        """The folder of the study."""

    @classmethod
    def load(cls, folder: Path | str, *, unfinished: bool = False) -> Study:
        """Return the study in a folder, or the runs in a store. Raises `EfhcError` if there are none.

        Without `unfinished`, runs that are being made or were stopped are left out. Code that configs name is not run.
        """
        path = Path(folder)
        found = runs_in(path / OWN_RUNS) or runs_in(path)
        if not found:
            raise EfhcError(_what_is_wrong(path))
        found = [run for run in found if unfinished or RunFolder(run.folder).is_complete]
        if not found:
            raise EfhcError(f"no run in {folder} has finished; with unfinished=True, you get what is there so far")
        groups: dict[str, list[NamedRun]] = {}
        for run in label_runs([with_known_names(run) for run in found]):
            groups.setdefault(settings_of_group(run), []).append(run)
        names = name_groups([*groups.values()], path.name)
        return cls({name: _result(runs, name) for name, runs in zip(names, groups.values(), strict=True)}, path)

    def table(self, name: str) -> pl.DataFrame:
        """Return a table of all runs, such as "metrics", with the name of each one's result in the column `result`."""
        tables = [each.tables[name].select(pl.lit(one).alias("result"), pl.all()) for one, each in self.items()]
        return pl.concat(tables, how="diagonal_relaxed")

    def __getitem__(self, name: str) -> Result:
        if name not in self._results:
            raise KeyError(f"{name!r}; this study has {', '.join(map(repr, self._results))}")
        return self._results[name]

    def __getattr__(self, name: str) -> Any:
        if hasattr(Result, name) and not name.startswith("_"):
            example = next(iter(self._results))
            raise AttributeError(
                f"this is a study of {len(self)} experiments: choose one, such as study[{example!r}].{name}"
            )
        raise AttributeError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        runs = sum(len(result.states) for result in self.values())
        return f"<Study in {self.directory}: {len(self)} experiment{'s'[: len(self) != 1]}, {runs} runs>"


def _what_is_wrong(path: Path) -> str:
    if not path.exists():
        return f"{path} does not exist"
    if not path.is_dir():
        return f"{path} is a file; load the directory of its runs, or use efhc.load_experiment"
    inner = sorted(one.name for one in path.iterdir() if (one / "config.toml").exists() or (one / OWN_RUNS).is_dir())
    if inner:
        return f"{path} holds several experiments; load one of {', '.join(inner[:8])}{', ...' if inner[8:] else ''}"
    return f"{path} holds no runs; `efhc run FILE --out {path}` makes some"


def _result(runs: list[NamedRun], name: str) -> Result:
    """Return the result of runs that differ in strategy and seed only."""
    strategies = {run.strategy: run.config["strategies"][run.strategy_there] for run in runs}
    tables = {**runs[0].config, "name": name, "strategies": strategies, "seeds": sorted({run.seed for run in runs})}
    experiment = build_experiment(tables, runs[0].folder, run_code=False)
    meta = RunFolder(runs[0].folder).meta
    checksums = {name: meta.get(name, {}) for name in ("data_sha256", "input_sha256")}
    kept = {(run.strategy, run.seed): StoredRun(RunFolder(run.folder), tables_of(experiment)) for run in runs}
    return Result(experiment, kept, {}, checksums)
