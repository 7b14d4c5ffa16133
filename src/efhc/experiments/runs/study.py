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
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import polars as pl
from pydantic import BaseModel, Field, TypeAdapter

from efhc.base.errors import EfhcError, InputError, did_you_mean
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
SETTING = "setting"
"""The column of `Study.settings` with the names of the settings in a figure's file."""
NOT_OF_GROUP = ("strategies", "seeds", "name")
"""Settings in which the runs of a group may differ."""


class SettingName(NamedTuple):
    """A setting of a figure."""

    name: str
    title: str


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
    setting: SettingName | None = field(default=None, kw_only=True)
    """The setting of a figure that it was made for, if that is known."""


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
    setting: Annotated[list[str], Field(min_length=2, max_length=2)] | None = None
    """Name and title."""


_LISTED = TypeAdapter(list[_Listed])


def list_runs(runs: Iterable[Run], store: Path, settings: Mapping[str, SettingName] | None = None) -> None:
    """Write which runs a study in a store consists of, before they are made. Those made in Python are left out.

    `settings` are the settings of a figure that runs are made for, by their keys.
    """
    listed = [
        {"key": run.key, "experiment": run.whole.name, "strategy": run.strategy, "config": run.tables}
        | ({"setting": settings[run.key]} if settings and run.key in settings else {})
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
        setting = one["setting"] and SettingName(*one["setting"])
        run = NamedRun(one["strategy"], seed, there, config, store / one["key"], experiment=experiment, setting=setting)
        runs.append(run)
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
    """Return a name for each group: its experiment, and the title of its setting in a figure's file.

    Without such a title, it is the settings in which the group differs from others of the same experiment.
    """
    titles = [next((run.experiment for run in runs if run.experiment), place) for runs in groups]
    settings = [settings_of(runs[0].config) for runs in groups]
    words = _differences(titles, settings)
    named = [next((run.setting.title for run in runs if run.setting), None) for runs in groups]
    names = [
        ", ".join([title, *(own if of_file is None else [of_file])])
        for title, own, of_file in zip(titles, words, named, strict=True)
    ]
    return _unique(names, range(len(names)))


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in which groups may differ, with flat keys."""
    return {key: value for key, value in flat_settings(config) if key.partition(".")[0] not in NOT_OF_GROUP}


def _setting_of(runs: Iterable[NamedRun]) -> dict[str, str]:
    """Return the name of the setting of a figure that runs were made for, as a setting named "setting"."""
    return next(({SETTING: run.setting.name} for run in runs if run.setting), {})


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


def _setting_named(name: str, varying: Sequence[str], every: Sequence[str]) -> str:
    """Return the setting of that name, or the only one that ends with it. Raises `InputError` if there is none."""
    matches: list[str] = []
    for settings in (varying, every):
        matches = (
            matches or [one for one in settings if one == name] or [one for one in settings if one.endswith(f".{name}")]
        )
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InputError(name, name, ", ".join(matches), f"{name} may be {' or '.join(matches)}: give its full name.")
    there = f"Results differ in {', '.join(varying)}." if varying else "There is one result."
    raise InputError(name, name, ", ".join(every), f"there is no setting {name}{did_you_mean(name, every)}. {there}")


# The results


class Study(Mapping[str, Result]):
    """The results of a study, by name. Runs whose settings differ in strategy and seed only are one result.

    `metrics`, `devices` and the other tables of a result are here those of all runs, with the columns of `settings` in
    front.
    """

    def __init__(
        self,
        results: Mapping[str, Result],
        directory: Path,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        old_failures: int = 0,
    ) -> None:
        """`settings` are those of each result, with flat keys."""
        self._results = dict(results)
        self._settings = dict(settings or {name: {} for name in results})
        self.directory = directory
        """The folder of the study."""
        self.old_failures = old_failures
        """How many failed runs of earlier commands lie in the folder, which are left out."""

    @classmethod
    def load(cls, folder: Path | str, *, unfinished: bool = False) -> Study:
        """Return the study in a folder, or the runs in a store. Raises `EfhcError` if there are none.

        Without `unfinished`, runs that are being made or were stopped are left out; if the study lists its runs, they
        are "waiting". Runs that failed, or whose meta.json is damaged, are among `failed` of their result; but failed
        runs that the latest command into this folder did not ask for any more are left out, and counted by
        `old_failures`. Results and strategies are in the order of the file. Code that configs name is not run.
        """
        path = Path(folder)
        store = path / OWN_RUNS if runs_in(path / OWN_RUNS) or (path / OWN_RUNS / INDEX).exists() else path
        listed = {run.folder: run for run in listed_runs(_index_in(store), store)}
        there = {run.folder: with_known_names(run) for run in runs_in(store)}
        old = {folder for folder in there if listed and folder not in listed and _has_failed(folder)}
        # Those of the latest command come first: they keep their names if earlier ones have the same.
        found = [replace(there.get(one, run), setting=run.setting) for one, run in listed.items()]
        found += [run for one, run in there.items() if one not in listed and one not in old]
        if not found:
            raise EfhcError(why_no_experiment(path, "use efhc.load_experiment"))
        shown = {folder for folder in there if folder not in old and (unfinished or _has_ended(folder))}
        if not shown:
            raise EfhcError(f"no run in {folder} has finished; with unfinished=True, you get what is there so far")
        places = {one: place for place, one in enumerate(listed)}
        labelled = label_runs([run for run in found if run.folder in shown.union(listed)])
        groups: dict[str, list[NamedRun]] = {}
        for run in sorted(labelled, key=lambda run: places.get(run.folder, len(places))):
            groups.setdefault(settings_of_group(run), []).append(run)
        names = name_groups([*groups.values()], path.name)
        by_name = dict(zip(names, groups.values(), strict=True))

        def order(name: str) -> tuple[int, list[tuple[float, str]]]:
            return places.get(by_name[name][0].folder, len(places)), in_order(name)

        ordered = sorted(by_name, key=order)
        settings = {name: settings_of(by_name[name][0].config) | _setting_of(by_name[name]) for name in ordered}
        return cls({name: _result(by_name[name], name, shown) for name in ordered}, path, settings, len(old))

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

        Keys are settings as in a file; the last part of one is enough if it is the only such setting. In a reproduction
        of a figure with settings, `{"setting": NAME}` is one by its name in the file. Raises `InputError` unless it is
        one result.
        """
        if not isinstance(settings, Mapping):
            raise InputError("where", repr(settings), 'a mapping of settings to values: {"network.radius": 0.3}')
        own = {name: {key.removesuffix(".kind"): one for key, one in of.items()} for name, of in self._settings.items()}
        varying = self.settings.columns[1:]
        found = list(self)
        for key, value in settings.items():
            setting = _setting_named(str(key), varying, list(dict.fromkeys(one for of in own.values() for one in of)))
            given = [json.dumps(value, default=str), value]
            having = {
                name
                for name, of in own.items()
                if setting in of and (of[setting] in given or _identity(of[setting]) == given[0])
            }
            if not having:
                values = dict.fromkeys(str(of[setting]) for of in own.values() if setting in of)
                raise InputError(setting, repr(value), ", ".join(values))
            found = [name for name in found if name in having]
        if len(found) != 1:
            words = ", ".join(f"{key}={value}" for key, value in settings.items()) or "no setting"
            more = f". They differ in {', '.join(varying)}" if varying else ""
            allowed = f"settings of one of: {'; '.join(found or self)}{more}"
            raise InputError("where", f"{words}, which {len(found)} results have", allowed)
        return self[found[0]]

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
        if lacking := [each for each in self.values() if table not in tables_of(each.experiment).names]:
            getattr(lacking[0], table)  # says which tables it has
        named: list[pl.DataFrame] = [
            getattr(each, table).select(pl.lit(one).alias("result"), pl.all()) for one, each in self.items()
        ]
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
        old = f", {self.old_words}" if self.old_failures else ""
        return f"<Study in {self.directory}: {len(self)} experiment{'s'[: len(self) != 1]}, {runs} runs{old}>"

    @property
    def old_words(self) -> str:
        """How many failed runs of earlier commands are left out, in words."""
        return f"{self.old_failures} failed run{'s'[: self.old_failures != 1]} of earlier commands left out"


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


def _has_failed(folder: Path) -> bool:
    """Return whether a run failed. One that is damaged did not."""
    try:
        return not RunFolder(folder).is_complete and StoredRun(RunFolder(folder), LOCKSTEP).problem is not None
    except DamagedError:
        return False


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
