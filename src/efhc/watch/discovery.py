"""Which runs lie under a folder that others can write to.

a folder with config.toml    an experiment: its strategies and seeds are runs, whose folders are in its folder `runs` or
                             in a store elsewhere; efhc 0.2 has left the tables of complete ones in its own folder
a folder of run folders      a store, or the folder `runs` of a reproduction, a sweep or a tuning: runs whose settings
                             differ in strategy and seed only are a group
folders with a status.sock   the state folders of running nodes

Configs are read as plain tables: no code that they name is run. The number of folders and of runs is limited, and
untrusted.py says which files are read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field

from efhc.base.inputs import open_regular
from efhc.base.own_code import in_one_line
from efhc.experiments.runs.experiment_folder import OWN_RUNS
from efhc.experiments.runs.live_file import LIVE
from efhc.experiments.runs.run import file_name
from efhc.experiments.runs.study import (
    INDEX,
    KEY,
    NamedRun,
    in_order,
    label_runs,
    listed_runs,
    name_groups,
    names_in,
    names_in_meta,
    parse_config,
    parse_index,
    settings_of_group,
    unlisted_runs,
)
from efhc.experiments.runs.tables import EVENT_DRIVEN, LOCKSTEP, RunTables
from efhc.runtime.pages import SOCKET_NAME
from efhc.watch.untrusted import check_content, is_own, is_socket, may_enter, stamp_of

COLLECTED = "live"
"""The folder of the live files in an experiment that efhc 0.2 completed."""
MOST_BYTES = 2_000_000
"""The largest size of a config.toml or meta.json."""

MOST_FOLDERS, DEPTH = 20_000, 8
"""How many folders are searched, and how deep: the watched folder may be a whole disk."""
NAMED = re.compile(r"(.+)\.seed(\d{1,18})")
"""The folder of the nodes of one run of `efhc launch`."""
WITHOUT_RUNS = frozenset({"node_modules", "site-packages", "__pycache__"})
"""Folders that are not searched. Nor are hidden ones and virtual environments: they have thousands of folders."""
MOST_RUNS = 10_000
"""The largest number of runs of one experiment."""

Kind = Literal["run", "reproduction", "sweep", "tuning", "store", "nodes"]
STUDIES: Mapping[str, Kind] = {
    "report.html": "reproduction",
    "claims.csv": "reproduction",
    "figures": "reproduction",
    "results.parquet": "sweep",
    "optuna.journal": "tuning",
}
"""What lies beside the folder `runs` of a study."""


@dataclass(frozen=True)
class FoundRun(NamedRun):
    """One strategy with one seed, where its files are, and what its config says."""

    id: str
    is_complete: bool
    """Whether its tables are in its folder."""
    live: Path | None
    """Its live file, if its place is known."""
    problem: str | None = None
    """Why the run failed, if it did."""
    config_text: str = ""
    """The config.toml of the experiment or of the run, as it was when it was parsed. Nodes have none."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The meta.json in its folder."""
    sockets: tuple[Path, ...] = ()
    """The sockets of the nodes that make it, if it is known by them."""

    @property
    def driver(self) -> str:
        """The kind of its driver."""
        driver = self.config.get("driver", LOCKSTEP.driver)
        return str(driver.get("kind") if isinstance(driver, dict) else driver)

    @property
    def tables(self) -> RunTables:
        """The tables that the run leaves."""
        return EVENT_DRIVEN if self.driver == EVENT_DRIVEN.driver else LOCKSTEP

    @property
    def seconds(self) -> float | None:
        """When a run on its own clock ends. None: after its iterations."""
        driver = self.config.get("driver")
        given = driver.get("seconds") if isinstance(driver, dict) else None
        return float(given) if isinstance(given, int | float) and given > 0 else None

    @property
    def devices(self) -> int:
        """The number of devices."""
        return int(self.config.get("devices", 0))

    @property
    def iterations(self) -> int:
        """The number of iterations of the whole run."""
        return int(self.config.get("iterations", 0))


@dataclass(frozen=True)
class FoundGroup:
    """Runs that belong together."""

    id: str
    name: str
    kind: Kind
    folder: Path
    runs: tuple[FoundRun, ...] = ()
    is_complete: bool = True
    """Whether everything that belongs to the group was made."""
    problem: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The meta.json of an experiment."""


class _File(NamedTuple):
    """A file as it was when it was read last."""

    stamp: object
    content: Any = None
    """The parsed content. None: it is missing or damaged."""
    text: str = ""
    is_own: bool = False
    """Whether it belongs to the reader or to root."""


class Discovery:
    """Searches for runs repeatedly. A file is read only if it has changed since."""

    def __init__(self, root: Path, store: Path | None = None) -> None:
        """`store` is a folder elsewhere that has the runs of the experiments in `root`."""
        self.root, self._store_elsewhere = root, store
        self._files: dict[Path, _File] = {}
        self._used: set[Path] = set()
        """The files that belong to what this search has found."""
        self.left_out: str | None = None
        """What the last search left out, in words."""

    def find(self) -> list[FoundGroup]:
        """Return all groups, by place and name."""
        groups: list[FoundGroup] = []
        sockets: dict[Path, list[Path]] = {}
        self._used = set()
        for folder, names in self._folders():
            try:
                if "config.toml" in names:
                    groups.append(self._experiment(folder, names))
                elif any(map(KEY.fullmatch, names)):
                    groups += list(self._store(folder, names))
            except Exception as error:  # whatever is in one folder, the others are shown
                groups.append(self._damaged(folder, in_one_line(error)))
            if SOCKET_NAME in names and is_socket(folder / SOCKET_NAME):
                sockets.setdefault(_home(folder, self.root), []).append(folder / SOCKET_NAME)
        groups += [self._nodes(home, sorted(found)) for home, found in sockets.items()]
        self._files = {path: file for path, file in self._files.items() if path in self._used}
        return sorted(groups, key=lambda group: (group.kind == "nodes", self.place(group.folder), in_order(group.name)))

    def _folders(self) -> Iterator[tuple[Path, set[str]]]:
        """Yield folders with the names in them, near ones first. The runs of experiments and stores are not entered."""
        waiting = deque([(self.root, 0)])
        seen: set[tuple[int, int]] = set()
        self.left_out, further = None, "To see more, watch a folder further down."
        while waiting:
            if len(seen) >= MOST_FOLDERS:
                self.left_out = f"Only the nearest {MOST_FOLDERS:,} folders were searched. {further}"
                return
            folder, depth = waiting.popleft()
            try:
                with os.scandir(folder) as entries:
                    found = list(entries)
                of_folder = folder.stat()
            except OSError:  # deleted meanwhile, or not readable
                continue
            if (of_folder.st_dev, of_folder.st_ino) in seen:  # a link that leads back
                continue
            seen.add((of_folder.st_dev, of_folder.st_ino))
            names = {entry.name for entry in found}
            yield folder, names
            inner = _inner(found, names, self.root)
            if depth < DEPTH:
                waiting += [(Path(entry.path), depth + 1) for entry in inner]
            elif inner:
                self.left_out = f"Folders more than {DEPTH} levels down were not searched. {further}"

    def place(self, path: Path) -> str:
        """Return a path as it is shown: relative to the watched folder."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else path.name

    def id(self, *parts: object) -> str:
        """Return the id of something in addresses, which does not reveal where it lies."""
        words = [self.place(part) if isinstance(part, Path) else str(part) for part in parts]
        return hashlib.blake2s("\0".join(words).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()

    def _file(self, path: Path, parse: Callable[[bytes], Any]) -> _File:
        """Return a file, with what `parse` makes of it."""
        self._used.add(path)
        stamp = stamp_of(path)
        known = self._files.get(path)
        if known is None or stamp is None or known.stamp != stamp:
            known = self._files[path] = _read(path, stamp, parse)
        return known

    def _config(self, folder: Path) -> dict[str, Any] | None:
        """Return the config in the folder of a run. None: it is missing or damaged, or must not be read."""
        config: dict[str, Any] | None = None
        if may_enter(folder, self.root):
            config = self._file(folder / "config.toml", parse_config).content
        return config

    # Experiments

    def _experiment(self, folder: Path, names: set[str]) -> FoundGroup:
        config = self._file(folder / "config.toml", parse_config)
        meta_file = self._file(folder / "meta.json", _meta) if "meta.json" in names else _File(None, {})
        meta = meta_file.content
        if config.content is None or meta is None:
            return self._damaged(folder, f"{'config.toml' if config.content is None else 'meta.json'} is damaged")
        if (count := len(config.content["strategies"]) * len(config.content["seeds"])) > MOST_RUNS:
            raise ValueError(f"it has {count:,} runs; a page shows at most {MOST_RUNS:,}")
        if "names" in meta or LIVE in names:  # the folder of a single run
            single = self._single(folder)
            runs = [] if single is None else [single]
        else:
            runs = self._runs(folder, config, meta_file)
        name = str(config.content.get("name", "run"))
        return FoundGroup(
            self.id("run", folder), _name(folder) if name == "run" else name, "run", folder, tuple(runs),
            is_complete=meta.get("status") == "complete", meta=meta,
        )  # fmt: skip

    def _runs(self, folder: Path, config: _File, meta: _File) -> list[FoundRun]:
        """Return the runs of an experiment: those in its own tables, or those in its store."""
        is_complete = meta.content.get("status") == "complete"
        holds_tables = is_complete and "runs" not in meta.content  # completed by efhc 0.2, or saved from memory
        failed = {(one["strategy"], one["seed"]): one["reason"] for one in meta.content.get("failed", [])}
        singles = {} if holds_tables else self._singles(folder, config.content, meta)
        missing = (
            "its folder is missing; `efhc run --resume` makes it again" if is_complete and not holds_tables else None
        )
        runs = []
        for strategy, seed in product(config.content["strategies"], config.content["seeds"]):
            pair = strategy, seed
            found = singles.get(pair) or FoundRun(
                strategy, seed, strategy, config.content, folder, "", holds_tables, meta=meta.content,
                live=self._collected(folder, strategy, seed) if holds_tables else None,
            )  # fmt: skip
            problem = failed.get(pair, found.problem if pair in singles else missing)
            where = {"id": self.id(folder, strategy, seed), "strategy": strategy, "experiment": None}
            where |= {"config": config.content, "config_text": config.text, "problem": problem}
            runs.append(replace(found, **where, is_complete=found.is_complete and problem is None))
        return runs

    def _collected(self, folder: Path, strategy: str, seed: int) -> Path | None:
        """Return the live file of a run in an experiment that efhc 0.2 completed."""
        live = folder / COLLECTED / f"{file_name(strategy, seed)}.jsonl"
        is_within = live.parent == folder / COLLECTED  # a strategy may be named "../.."
        return live if is_within and may_enter(live.parent, self.root) else None

    def _singles(self, folder: Path, config: Mapping[str, Any], meta: _File) -> dict[tuple[str, int], FoundRun]:
        """Return the runs of an experiment that have a folder, by strategy and seed.

        A store outside of the watched folder is read only if the experiment's meta.json, which names it, belongs to
        the reader or to root. Otherwise any user who may write in the watched folder could show what the reader
        alone may read.
        """
        store, elsewhere = folder / OWN_RUNS, store_in(meta.content)
        if self._store_elsewhere is not None:
            store = self._store_elsewhere
        elif elsewhere is not None and (meta.is_own or elsewhere.resolve().is_relative_to(self.root.resolve())):
            store = elsewhere
        elif not may_enter(store, self.root):
            return {}
        if listed := meta.content.get("runs", []):
            folders = {(one["strategy"], one["seed"]): store / one["key"] for one in listed}
        else:  # begun by efhc 0.2
            folders = unlisted_runs(config, store, self._config)
        runs = {pair: self._single(path) for pair, path in folders.items()}
        return {pair: run for pair, run in runs.items() if run is not None}

    def _damaged(self, folder: Path, problem: str) -> FoundGroup:
        return FoundGroup(self.id("run", folder), _name(folder), "run", folder, problem=problem)

    def _nodes(self, home: Path, sockets: Iterable[Path]) -> FoundGroup:
        """Return the nodes in a folder, as the one run that they make."""
        name, id_ = _name(home), self.id("nodes", home)
        named = NAMED.fullmatch(name)
        strategy, seed = (named[1], int(named[2])) if named else (name, 0)
        run = FoundRun(strategy, seed, strategy, {}, home, id_, is_complete=False, live=None, sockets=tuple(sockets))
        return FoundGroup(id_, name, "nodes", home, (run,))

    # Single runs

    def _single(self, folder: Path) -> FoundRun | None:
        """Return the run in a folder of its own. None: there is none."""
        config = self._config(folder)
        if config is None or not config["strategies"] or not config["seeds"]:
            return None
        meta = self._file(folder / "meta.json", _meta).content or {}
        problem = str(meta.get("problem", "")) if meta.get("status") == "failed" else None
        there, live = next(iter(config["strategies"])), folder / LIVE
        strategy, experiment = names_in_meta(meta) or self._names(live) or (there, None)
        return FoundRun(
            strategy, config["seeds"][0], there, config, folder, self.id(folder), meta.get("status") == "complete",
            live, problem, experiment=experiment, config_text=self._files[folder / "config.toml"].text, meta=meta,
        )  # fmt: skip

    def _names(self, live: Path) -> tuple[str, str] | None:
        """Return the names of strategy and experiment in a live file, which stay the same while it grows."""
        self._used.add(live)
        if (known := self._files.get(live)) is None and (names := names_in(live)) is not None:
            known = self._files[live] = _File(None, names)
        return known.content if known else None

    def _store(self, folder: Path, names: Iterable[str]) -> Iterator[FoundGroup]:
        alike: dict[str, list[FoundRun]] = {}
        found = [self._single(folder / name) for name in sorted(names) if KEY.fullmatch(name)]
        singles = [run for run in found if run is not None]
        there = {run.folder for run in singles}
        index = self._file(folder / INDEX, parse_index).content if INDEX in names else None
        for one in listed_runs(index or [], folder):
            if one.folder not in there:  # it is not begun, or was deleted
                waiting = FoundRun(**vars(one), id=self.id(one.folder), is_complete=False, live=None)
                singles.append(waiting)
        for run in label_runs(singles):
            alike.setdefault(settings_of_group(run), []).append(run)
        is_of_study = folder.name == OWN_RUNS and folder != self.root
        place = folder.parent if is_of_study else folder
        kind: Kind = "store"
        if is_of_study:
            kind = next((kind for name, kind in STUDIES.items() if (place / name).exists()), "store")
        for (same, runs), name in zip(alike.items(), name_groups([*alike.values()], _name(place)), strict=True):
            yield FoundGroup(self.id("store", folder, same), name, kind, place, tuple(runs))


def _read(path: Path, stamp: object, parse: Callable[[bytes], Any]) -> _File:
    """Read a file. Its owner is that of the content, whatever is put in its place meanwhile."""
    try:
        with open_regular(path, MOST_BYTES) as file:
            owner, content = os.fstat(file.fileno()).st_uid, file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError("it has grown meanwhile")
        parsed = parse(content)
        check_content(parsed)
    except (OSError, ValueError, RecursionError):
        return _File(stamp)
    return _File(stamp, parsed, content.decode("utf-8", "replace"), is_own(owner))


def store_in(meta: Mapping[str, Any]) -> Path | None:
    """Return the store elsewhere that the meta.json of an experiment names. None: its runs are in its own folder."""
    sessions = meta.get("sessions")
    stores = [one.get("store") for one in sessions if isinstance(one, dict)] if isinstance(sessions, list) else []
    named = [Path(store) for store in stores if isinstance(store, str) and Path(store).is_absolute()]
    return named[-1] if named else None


def _home(state: Path, root: Path) -> Path:
    """Return the folder that the nodes of one experiment share, given the state folder of one of them."""
    home = state.parent
    if state.name == "state" and home.name.startswith("device"):
        home = home.parent
    return home if home.is_relative_to(root) else root


def _name(folder: Path) -> str:
    return folder.name or folder.absolute().name or str(folder)


class _Failed(BaseModel, strict=True):
    strategy: str
    seed: int
    reason: str


class _Kept(BaseModel, strict=True):
    strategy: str
    seed: int
    key: Annotated[str, Field(pattern=f"^{KEY.pattern}$")]


class _Meta(BaseModel, strict=True):
    """The runs in a meta.json, which others may have written."""

    failed: list[_Failed] = []
    runs: list[_Kept] = []


def _meta(content: bytes) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads(content)
    _Meta.model_validate(meta)
    return meta


def _inner(found: Iterable[os.DirEntry[str]], names: set[str], root: Path) -> list[os.DirEntry[str]]:
    """Return the folders to be searched within one, given what is in it."""

    def is_searched(entry: os.DirEntry[str]) -> bool:
        name = entry.name
        if name.startswith(".") or name in WITHOUT_RUNS or KEY.fullmatch(name):
            return False
        try:
            return entry.is_dir() and (not entry.is_symlink() or may_enter(Path(entry.path), root))
        except OSError:
            return False

    if "pyvenv.cfg" in names:  # a virtual environment
        return []
    candidates = [entry for entry in found if entry.name == "nodes" or "config.toml" not in names]
    return sorted(filter(is_searched, candidates), key=lambda entry: entry.name)
