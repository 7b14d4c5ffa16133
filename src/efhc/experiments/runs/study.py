"""A study: several experiments whose runs lie in one store, as a sweep, a reproduction or a tuning leaves them.

A store knows a strategy by its kind. The meta.json and the live file of a run have the names that the experiment gave.
Configs are read as plain tables: no code is run.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import polars as pl
from pydantic import BaseModel, Field, TypeAdapter

from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import open_regular
from efhc.base.saving import write_safely
from efhc.experiments.config.files import build_experiment, flat_settings
from efhc.experiments.runs.events import Begin
from efhc.experiments.runs.experiment_folder import OWN_RUNS
from efhc.experiments.runs.folder import DamagedError, Pair, RunFolder
from efhc.experiments.runs.live_file import LIVE, MOST_BYTES, decoded
from efhc.experiments.runs.result import Result
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.store import StoredRun
from efhc.experiments.runs.tables import LOCKSTEP, SCHEMAS, tables_of

if TYPE_CHECKING:
    from efhc.report.tables import ComparisonTable

INDEX = "index.json"
"""The list of the runs of a study, beside their folders."""
KEY = re.compile(r"[0-9a-f]{24}")
"""The name of a run's folder."""
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
    return _checked_config(tomllib.loads(content.decode()))


def _checked_config(tables: dict[str, Any]) -> dict[str, Any]:
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


class _Listed(BaseModel, strict=True):
    key: Annotated[str, Field(pattern=f"^{KEY.pattern}$")]
    experiment: str
    config: dict[str, Any]
    strategy: str


_LISTED = TypeAdapter(list[_Listed])


def list_runs(runs: Iterable[Run], store: Path) -> None:
    """Write which runs a study in a store consists of, before they are made. Those made in Python are left out."""
    listed = [
        {"key": run.key, "experiment": run.whole.name, "strategy": run.strategy, "config": run.tables}
        for run in {run.key: run for run in runs}.values()
        if run.tables
    ]
    write_safely(store / INDEX, json.dumps(listed).encode() + b"\n")


def parse_index(content: bytes) -> list[dict[str, Any]]:
    """Return the runs in an index. Raises `ValueError` if it is damaged."""
    listed = _LISTED.validate_json(content)
    if not all(_checked_config(one.config)["strategies"] and one.config["seeds"] for one in listed):
        raise ValueError("it lists what is no run")
    return [one.model_dump() for one in listed]


def listed_runs(listed: Iterable[Mapping[str, Any]], store: Path) -> list[NamedRun]:
    """Return the runs in an index, which need not have a folder yet."""
    runs = []
    for one in listed:
        config, experiment = one["config"], one["experiment"]
        there, seed = next(iter(config["strategies"])), config["seeds"][0]
        runs.append(NamedRun(one["strategy"], seed, there, config, store / one["key"], experiment=experiment))
    return runs


def _index_in(store: Path) -> list[dict[str, Any]]:
    try:
        with open_regular(store / INDEX, MOST_BYTES) as file:
            return parse_index(file.read())
    except (OSError, ValueError, RecursionError):
        return []


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
    names = meta.get("names")
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


def in_order(name: str) -> list[tuple[float, str]]:
    """Return a sort key that orders numbers within names by their value, as people do."""
    parts = re.findall(r"(\d+(?:\.\d+)?)|(\D+)", name)
    return [(float(number), "") if number else (-1.0, text) for number, text in parts]


def settings_of_group(run: NamedRun) -> str:
    """Return the settings that all runs of a group share, as a text."""
    settings = {key: value for key, value in run.config.items() if key not in NOT_OF_GROUP}
    return json.dumps(settings, sort_keys=True, default=str)


def label_runs(runs: Sequence[R]) -> list[R]:
    """Return the runs of a store by strategy and seed, with names that distinguish them.

    Strategies of one name that are not the same, such as the trials of a tuning, get the settings that differ. Names
    that still coincide are numbered, and so are the versions of a run, such as those that two versions of efhc made.
    """
    tables = [dict(flat_settings(run.config["strategies"][run.strategy_there])) for run in runs]
    words = _differences([(run.experiment, run.strategy) for run in runs], tables)
    names = [", ".join([run.strategy, *own]) for run, own in zip(runs, words, strict=True)]
    versions: Counter[Hashable] = Counter()
    strategies = []
    for run, table in zip(runs, tables, strict=True):
        strategy = run.experiment, run.strategy, _identity(table)
        one_run = strategy, settings_of_group(run), run.seed
        strategies.append((*strategy[1:], versions[one_run]))
        versions[one_run] += 1
    labelled = [replace(run, strategy=name) for run, name in zip(runs, _unique(names, strategies), strict=True)]
    return sorted(labelled, key=lambda run: (in_order(run.strategy), run.seed))


def name_groups(groups: Sequence[Sequence[NamedRun]], place: str) -> list[str]:
    """Return a name for each group: its experiment and the settings in which it differs from others of that name."""
    titles = [next((run.experiment for run in runs if run.experiment), place) for runs in groups]
    settings = [settings_of(runs[0].config) for runs in groups]
    words = _differences(titles, settings)
    names = [", ".join([title, *own]) for title, own in zip(titles, words, strict=True)]
    return _unique(names, range(len(names)))


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in which groups may differ, with flat keys."""
    return {key: value for key, value in flat_settings(config) if key.partition(".")[0] not in NOT_OF_GROUP}


def _column(key: str, values: Sequence[Any]) -> pl.Series:
    """Return numbers, truth values or texts as they are, and lists or mixed values as JSON."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or any(kinds <= {one} for one in (bool, str)):
        return pl.Series(key, values, pl.Float64 if kinds == {int, float} else None, strict=False)
    return pl.Series(key, [None if value is None else json.dumps(value) for value in values], pl.String)


def _unique(names: Sequence[str], things: Iterable[Hashable]) -> list[str]:
    """Return a name for each thing, with a number if it is that of another thing. Equal things have one name."""
    owners: dict[str, Hashable] = {}
    unique = []
    for name, thing in zip(names, things, strict=True):
        candidates = chain([name], (f"{name} ({number})" for number in count(2)))
        unique.append(next(one for one in candidates if owners.setdefault(one, thing) == thing))
    return unique


def _identity(table: Mapping[str, Any]) -> str:
    return json.dumps(table, sort_keys=True, default=str)


def _differences(titles: Sequence[Hashable], tables: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield for each table the settings that are not the same in all of its title, as `key=value`."""
    alike: dict[Hashable, list[Mapping[str, Any]]] = {}
    for title, table in zip(titles, tables, strict=True):
        alike.setdefault(title, []).append(table)
    varying = {title: _varying(of_title) for title, of_title in alike.items()}
    for title, table in zip(titles, tables, strict=True):
        yield [f"{key.removesuffix('.kind')}={table[key]}" for key in table if key in varying[title]]


def _varying(tables: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the settings in which tables differ.

    A setting that some tables lack and that is the same in the others, such as a default of one kind of network, is
    left out unless tables would be alike without it.
    """
    values: dict[str, set[str]] = {}
    for table in tables:
        for key, value in table.items():
            values.setdefault(key, set()).add(_identity({key: value}))
    differing = {key for key, found in values.items() if len(found) > 1}

    def distinct(keys: Collection[str]) -> int:
        return len({_identity({key: table[key] for key in keys if key in table}) for table in tables})

    return (
        differing
        if distinct(differing) == distinct(values)
        else {key for key, found in values.items() if len(found) > 1 or not all(key in table for table in tables)}
    )


# The results


class Study(Mapping[str, Result]):
    """The results of a study, by name. Runs whose settings differ in strategy and seed only are one result.

    `metrics`, `devices` and the other tables of a result are here those of all runs, with the columns of `settings` in
    front.
    """

    def __init__(
        self, results: Mapping[str, Result], directory: Path, settings: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """`settings` are those of each result, with flat keys."""
        self._results = dict(results)
        self._settings = dict(settings or {name: {} for name in results})
        self.directory = directory
        """The folder of the study."""

    @classmethod
    def load(cls, folder: Path | str, *, unfinished: bool = False) -> Study:
        """Return the study in a folder, or the runs in a store. Raises `EfhcError` if there are none.

        Without `unfinished`, runs that are being made or were stopped are left out; if the study lists its runs, they
        are "waiting". Runs that failed, or whose meta.json is damaged, are among `failed` of their result. Code that
        configs name is not run.
        """
        path = Path(folder)
        store = path / OWN_RUNS if runs_in(path / OWN_RUNS) or (path / OWN_RUNS / INDEX).exists() else path
        found = [with_known_names(run) for run in runs_in(store)]
        folders = {run.folder for run in found}
        listed = listed_runs(_index_in(store), store)
        found += [run for run in listed if run.folder not in folders]
        if not found:
            raise EfhcError(why_no_experiment(path, "use efhc.load_experiment"))
        shown = {folder for folder in folders if unfinished or _has_ended(folder)}
        if not shown:
            raise EfhcError(f"no run in {folder} has finished; with unfinished=True, you get what is there so far")
        groups: dict[str, list[NamedRun]] = {}
        known = shown.union(run.folder for run in listed)
        for run in label_runs([run for run in found if run.folder in known]):
            groups.setdefault(settings_of_group(run), []).append(run)
        names = name_groups([*groups.values()], path.name)
        by_name = dict(zip(names, groups.values(), strict=True))
        ordered = sorted(by_name, key=in_order)
        settings = {name: settings_of(by_name[name][0].config) for name in ordered}
        return cls({name: _result(by_name[name], name, shown) for name in ordered}, path, settings)

    @property
    def settings(self) -> pl.DataFrame:
        """A row per result: its name as `result`, and the settings in which results differ, by their keys in a file.

        A kind is named by its setting: `network`. Numbers, truth values and texts are as in the file; a setting with
        lists or with values of several types is text.
        Null: the result has no such setting.
        """
        keys = sorted(_varying(list(self._settings.values()))) if self._settings else []
        columns = {key.removesuffix(".kind"): [self._settings[name].get(key) for name in self] for key in keys}
        named = pl.Series("result", list(self), pl.String)
        return pl.DataFrame([named, *(_column(key, values) for key, values in columns.items())])

    def where(self, settings: Mapping[str, Any]) -> Result:
        """Return the result with these settings: `study.where({"network.radius": 0.3})`.

        Keys are columns of `settings`; the last part of one is enough. Raises `InputError` unless it is one result.
        """
        known = self.settings
        found = known.rows(named=True)
        for key, value in settings.items():
            columns = [one for one in known.columns[1:] if one == key or one.endswith(f".{key}")]
            if len(columns) != 1:
                raise InputError(
                    key, repr(value), ", ".join(columns or known.columns[1:]) or "no setting: none differs"
                )
            values = known[columns[0]].to_list()
            if value not in values:
                raise InputError(columns[0], repr(value), ", ".join(dict.fromkeys(map(str, values))))
            found = [row for row in found if row[columns[0]] == value]
        if len(found) != 1:
            given = ", ".join(f"{key}={value}" for key, value in settings.items()) or "no setting"
            names = "; ".join([row["result"] for row in found] or self)
            raise InputError("where", f"{given}, which {len(found)} results have", f"settings of one of: {names}")
        return self[found[0]["result"]]

    def table(
        self,
        measure: str | Sequence[str] | None = None,
        budget: float | Sequence[float] | None = None,
        of: str = "ZT",
    ) -> ComparisonTable:
        """Return a table for a paper, as `Result.table`, with a group of columns for each result."""
        return Result.compared(self, measure, budget, of)

    def _rows(self, table: str) -> pl.DataFrame:
        """Return a table of all runs, with the name and the settings of each one's result in front."""
        named = [each.tables[table].select(pl.lit(one).alias("result"), pl.all()) for one, each in self.items()]
        rows, settings = pl.concat(named, how="diagonal_relaxed"), self.settings
        renamed = {key: f"setting {key}" for key in settings.columns[1:] if key in rows.columns}
        joined = rows.join(settings.rename(renamed), on="result", maintain_order="left")
        return joined.select("result", *(renamed.get(key, key) for key in settings.columns[1:]), *rows.columns[1:])

    def __getitem__(self, name: str) -> Result:
        if name not in self._results:
            raise KeyError(f"{name!r}; this study has {', '.join(map(repr, self._results))}")
        return self._results[name]

    def __getattr__(self, name: str) -> Any:
        if name in SCHEMAS:  # the tables of all runs: metrics, events, timeline, ..
            return self._rows(name)
        if hasattr(Result, name) and not name.startswith("_"):
            example, call = next(iter(self._results)), "()" if callable(getattr(Result, name)) else ""
            many = f"{len(self)} experiment{'s'[: len(self) != 1]}"
            raise AttributeError(f"this is a study of {many}: choose one, such as study[{example!r}].{name}{call}")
        raise AttributeError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        runs = sum(len(result.states) for result in self.values())
        return f"<Study in {self.directory}: {len(self)} experiment{'s'[: len(self) != 1]}, {runs} runs>"


def why_no_experiment(path: Path, use_of_file: str) -> str:
    """Return why there is no experiment to load in `path`; `use_of_file` is what else to do if it is a file."""
    if not path.exists():
        return f"{path} does not exist"
    if not path.is_dir():
        return f"{path} is a file; give the folder of its run, or {use_of_file}"
    inner = sorted(one.name for one in path.iterdir() if (one / "config.toml").exists() or (one / OWN_RUNS).is_dir())
    if inner:
        some = ", ".join(str(path / name) for name in inner[:8])
        return f"{path} holds several experiments; give one: {some}{', ...' if inner[8:] else ''}"
    return f"{path} holds no runs"


def _has_ended(folder: Path) -> bool:
    """Return whether a run is complete, failed or damaged, so that nothing more will come."""
    try:
        return RunFolder(folder).is_complete or StoredRun(RunFolder(folder), LOCKSTEP).problem is not None
    except DamagedError:
        return True


def _result(runs: list[NamedRun], name: str, shown: Collection[Path]) -> Result:
    """Return the result of runs that differ in strategy and seed only, without the content of those not `shown`."""
    strategies = {run.strategy: run.config["strategies"][run.strategy_there] for run in runs}
    # The names of strategies are for people here, and need not be such as a config may have.
    numbered = {str(number): strategy for number, strategy in enumerate(strategies.values())}
    tables = {**runs[0].config, "name": "study", "strategies": numbered, "seeds": sorted({run.seed for run in runs})}
    built = build_experiment(tables, runs[0].folder, run_code=False)
    named = dict(zip(strategies, built.strategies.values(), strict=True))
    experiment = built.model_copy(update={"name": name, "strategies": named})
    kept: dict[Pair, StoredRun] = {}
    failed: dict[Pair, str] = {}
    checksums: dict[str, Mapping[str, str]] = {"data_sha256": {}, "input_sha256": {}}
    for run in (run for run in runs if run.folder in shown):
        folder, pair = RunFolder(run.folder), (run.strategy, run.seed)
        try:
            kept[pair] = StoredRun(folder, tables_of(experiment))
            if folder.has("meta.json"):
                checksums = {one: known or folder.meta.get(one, {}) for one, known in checksums.items()}
        except DamagedError as error:
            failed[pair] = str(error)
    return Result(experiment, kept, failed, checksums, pairs=[(run.strategy, run.seed) for run in runs])
