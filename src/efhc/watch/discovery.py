"""Which runs lie under a folder. Configs are read as plain tables: no code that they name is run.

a folder with config.toml     an experiment: its strategies and seeds are runs; while it is unfinished, their own
                              directories are in its folder `runs`
a folder of run directories   a store, or the folder `runs` of a reproduction, a sweep or a tuning: runs whose settings
                              are the same but for strategy and seed are a group
folders with a status.sock    the state folders of running nodes
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from efhc.base.own_code import in_one_line
from efhc.base.regular_files import read_regular
from efhc.experiments.runs.directory import COLLECTED, OWN_RUNS, RunDirectory
from efhc.experiments.runs.live.reading import LIVE
from efhc.experiments.runs.single_runs import KEY, parse_config, same_run, single_runs
from efhc.experiments.runs.tables import LOCKSTEP
from efhc.runtime.pages import SOCKET_NAME
from efhc.watch.checking import check_content, check_runs, may_enter
from efhc.watch.naming import NOT_OF_GROUP, Names, label_runs, name_groups, names_in

T = TypeVar("T")

MOST_FOLDERS, DEPTH = 20_000, 8
"""How many folders are searched, and how deep: the watched folder may be a whole disk."""
WITHOUT_RUNS = frozenset({"node_modules", "site-packages", "__pycache__"})
"""Folders that are not searched. Nor are hidden ones and virtual environments: they have thousands of folders."""
MOST_BYTES = 2_000_000
"""The largest size of a config.toml or meta.json."""

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
class FoundRun:
    """One strategy with one seed, where its files are, and what its config says."""

    id: str
    strategy: str
    """Its name for people."""
    seed: int
    folder: Path
    """The directory with its config.toml and meta.json."""
    config: Mapping[str, Any]
    strategy_there: str
    """The name of the strategy in the tables of that directory."""
    is_complete: bool
    """Whether the tables are there."""
    live: Path | None
    """Its live file, if its place is known."""
    problem: str | None = None
    """Why the run failed, if it did."""
    experiment: str | None = None
    """The name of the experiment that asked for it, if it is kept by its key and that is known."""
    config_text: str = ""
    """The config.toml in its folder, as it was when it was parsed."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The meta.json in its folder."""

    @property
    def driver(self) -> str:
        """The kind of its driver."""
        driver = self.config.get("driver", LOCKSTEP.driver)
        return str(driver.get("kind") if isinstance(driver, dict) else driver)

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
    sockets: tuple[Path, ...] = ()
    """The sockets of nodes. A group has either runs or sockets."""
    is_complete: bool = True
    """Whether everything that belongs to the group was made."""
    problem: str | None = None


class Discovery:
    """Looks for runs again and again. A file is read only if it has changed since."""

    def __init__(self, root: Path, store: Path | None = None) -> None:
        """`store` is a folder elsewhere that has the single runs of unfinished experiments."""
        self.root, self._store_elsewhere = root, store
        self._read: dict[Path, tuple[object, Any]] = {}
        """What was made of each file, and its stamp then."""
        self._texts: dict[Path, str] = {}
        """The files themselves, as they were then: whoever may write there may put others in their place."""
        self.left_out: str | None = None
        """What the last search left out, in words."""

    def find(self) -> list[FoundGroup]:
        """Return all groups, by place and name."""
        groups: list[FoundGroup] = []
        sockets: dict[Path, list[Path]] = {}
        used: set[Path] = set()
        walk = _Walk()
        for folder, names in walk.folders(self.root):
            try:
                if "config.toml" in names:
                    groups += list(self._experiment(folder, names, used))
                elif any(map(KEY.fullmatch, names)):
                    groups += list(self._store(folder, names, used))
            except Exception as error:  # whatever is in one folder, the others are shown
                groups.append(self._damaged(folder, in_one_line(error)))
            if SOCKET_NAME in names and _is_socket(folder / SOCKET_NAME):
                sockets.setdefault(_home(folder, self.root), []).append(folder / SOCKET_NAME)
        for home, found in sockets.items():
            groups.append(FoundGroup(self.id("nodes", home), _name(home), "nodes", home, sockets=tuple(sorted(found))))
        self._read = {path: content for path, content in self._read.items() if path in used}
        self._texts = {path: text for path, text in self._texts.items() if path in used}
        self.left_out = walk.left_out
        return sorted(
            groups, key=lambda group: (group.kind == "nodes", self.place(group.folder), _in_order(group.name))
        )

    def place(self, path: Path) -> str:
        """Return a path as it is shown: relative to the watched folder."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else path.name

    def id(self, *parts: object) -> str:
        """Return the name of something in addresses: it is looked up, and says nothing about where it lies."""
        words = [self.place(part) if isinstance(part, Path) else str(part) for part in parts]
        return hashlib.blake2s("\0".join(words).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()

    def _cached(self, path: Path, parse: Callable[[bytes], T], used: set[Path]) -> T | None:
        """Return what `parse` makes of a file. None: it is missing or damaged."""
        used.add(path)
        stamp = stamp_of(path)
        if stamp is not None and (known := self._read.get(path)) is not None and known[0] == stamp:
            return known[1]  # type: ignore[no-any-return]
        content = None
        try:
            found = read_regular(path, MOST_BYTES)
            parsed = parse(found)
            check_content(parsed)
            self._texts[path], content = found.decode("utf-8", "replace"), parsed
        except (OSError, ValueError, RecursionError):
            pass
        self._read[path] = stamp, content
        return content

    def _experiment(self, folder: Path, names: Iterable[str], used: set[Path]) -> Iterator[FoundGroup]:
        config = self._cached(folder / "config.toml", parse_config, used)
        meta = self._cached(folder / "meta.json", _meta, used) if "meta.json" in names else {}
        if config is None:
            yield self._damaged(folder, "config.toml is damaged")
            return
        if meta is None:
            yield self._damaged(folder, "meta.json is damaged")
            return
        check_runs(config["strategies"], config["seeds"])
        is_complete = meta.get("status") == "complete"
        failed = {(one["strategy"], one["seed"]): one["reason"] for one in meta.get("failed", [])}
        singles = {} if is_complete else self._singles(self._store_elsewhere or folder / OWN_RUNS, used)
        runs = []
        for strategy, table in config["strategies"].items():
            for seed in config["seeds"]:
                where = {"id": self.id(folder, strategy, seed), "strategy": strategy, "seed": seed, "config": config}
                single = singles.get(same_run(table, seed))
                if single is not None:
                    runs.append(
                        FoundRun(
                            **where, folder=single.folder, strategy_there=single.strategy_there,
                            is_complete=single.is_complete, live=single.live, config_text=single.config_text,
                            meta=single.meta,
                        )
                    )  # fmt: skip
                    continue
                live = RunDirectory(folder).live_file(strategy, seed) if is_complete else None
                if LIVE in names:  # a single run that is looked at alone
                    live = folder / LIVE
                is_within = live is None or live.parent in (folder, folder / COLLECTED)  # a name may be "../.."
                if live is not None and not (is_within and may_enter(live.parent, self.root)):
                    live = None
                problem = failed.get((strategy, seed))
                runs.append(
                    FoundRun(
                        **where, folder=folder, strategy_there=strategy, is_complete=is_complete and problem is None,
                        live=live, problem=problem, config_text=self._texts[folder / "config.toml"], meta=meta,
                    )
                )  # fmt: skip
        name = str(config.get("name", "run"))
        named = _name(folder) if name == "run" else name
        yield FoundGroup(self.id("run", folder), named, "run", folder, tuple(runs), is_complete=is_complete)

    def _damaged(self, folder: Path, problem: str) -> FoundGroup:
        return FoundGroup(self.id("run", folder), _name(folder), "run", folder, problem=problem)

    def _singles(self, store: Path, used: set[Path]) -> dict[str, FoundRun]:
        """Return the runs in a folder of run directories, by strategy and seed."""
        if store != self._store_elsewhere and not may_enter(store, self.root):
            return {}
        found = single_runs(store, lambda config: self._config(config.parent, used))
        runs = {which: self._single(one.folder, used) for which, one in found.items()}
        return {which: run for which, run in runs.items() if run is not None}

    def _config(self, folder: Path, used: set[Path]) -> dict[str, Any] | None:
        """Return the config in the directory of a single run. None: it is missing or damaged, or not to be read."""
        return self._cached(folder / "config.toml", parse_config, used) if may_enter(folder, self.root) else None

    def _single(self, folder: Path, used: set[Path]) -> FoundRun | None:
        """Return the run in a directory of its own."""
        config = self._config(folder, used)
        if config is None or not config["strategies"] or not config["seeds"]:
            return None
        meta = self._cached(folder / "meta.json", _meta, used) or {}
        there, seed, live = next(iter(config["strategies"])), config["seeds"][0], folder / LIVE
        is_complete = meta.get("status") == "complete"
        names = self._names(live, used)
        strategy, experiment = (names.strategy, names.experiment) if names else (there, None)
        return FoundRun(
            self.id(folder), strategy, seed, folder, config, there, is_complete, live, experiment=experiment,
            config_text=self._texts[folder / "config.toml"], meta=meta,
        )  # fmt: skip

    def _names(self, live: Path, used: set[Path]) -> Names | None:
        """Return the names in a live file, which stay the same while it grows."""
        used.add(live)
        if (known := self._read.get(live)) is None and (names := names_in(live)) is not None:
            known = self._read[live] = None, names
        return known[1] if known else None

    def _store(self, folder: Path, names: Iterable[str], used: set[Path]) -> Iterator[FoundGroup]:
        alike: dict[str, list[FoundRun]] = {}
        found = [self._single(folder / name, used) for name in sorted(names) if KEY.fullmatch(name)]
        for run in label_runs([run for run in found if run is not None]):
            settings = {key: value for key, value in run.config.items() if key not in NOT_OF_GROUP}
            alike.setdefault(json.dumps(settings, sort_keys=True, default=str), []).append(run)
        is_of_study = folder.name == OWN_RUNS and folder != self.root
        place = folder.parent if is_of_study else folder
        kind: Kind = "store"
        if is_of_study:
            kind = next((kind for name, kind in STUDIES.items() if (place / name).exists()), "store")
        for (same, runs), name in zip(alike.items(), name_groups([*alike.values()], _name(place)), strict=True):
            yield FoundGroup(self.id("store", folder, same), name, kind, place, tuple(runs))


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Return what changes whenever a file is written. None: there is no file."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class _Walk:
    """One search. Folders near its beginning come first."""

    def __init__(self) -> None:
        self._is_cut = self._is_deeper = False

    @property
    def left_out(self) -> str | None:
        """What was not searched, in words."""
        if self._is_cut:
            return f"Only the nearest {MOST_FOLDERS:,} folders were searched. To see more, watch a folder further down."
        if self._is_deeper:
            return f"Folders more than {DEPTH} levels down were not searched. To see more, watch a folder further down."
        return None

    def folders(self, root: Path) -> Iterator[tuple[Path, set[str]]]:
        """Yield folders with the names in them. Folders of run directories and of experiments are not looked into."""
        waiting = deque([(root, 0)])
        seen: set[tuple[int, int]] = set()
        while waiting:
            if len(seen) >= MOST_FOLDERS:
                self._is_cut = True
                return
            folder, depth = waiting.popleft()
            try:
                with os.scandir(folder) as entries:
                    found = list(entries)
                of_folder = folder.stat()
            except OSError:  # deleted meanwhile, or not ours to read
                continue
            if (of_folder.st_dev, of_folder.st_ino) in seen:  # a link that leads back
                continue
            seen.add((of_folder.st_dev, of_folder.st_ino))
            names = {entry.name for entry in found}
            yield folder, names
            inner = _inner(found, names, root)
            if depth == DEPTH:
                self._is_deeper = self._is_deeper or bool(inner)
            else:
                waiting += [(Path(entry.path), depth + 1) for entry in inner]


def _inner(found: Iterable[os.DirEntry[str]], names: set[str], root: Path) -> list[os.DirEntry[str]]:
    """Return the folders to be searched within one, given what is in it."""
    if "pyvenv.cfg" in names:  # a virtual environment
        return []
    is_experiment = "config.toml" in names
    return [
        entry
        for entry in sorted(found, key=lambda entry: entry.name)
        if (entry.name == "nodes" or not is_experiment)
        and not entry.name.startswith(".")
        and entry.name not in WITHOUT_RUNS
        and not KEY.fullmatch(entry.name)
        and _is_folder(entry, root)
    ]


def _is_folder(entry: os.DirEntry[str], root: Path) -> bool:
    try:
        return entry.is_dir() and (not entry.is_symlink() or may_enter(Path(entry.path), root))
    except OSError:
        return False


def _is_socket(path: Path) -> bool:
    """Return whether a path is a socket itself: a link may lead to one of another program."""
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False


def _home(state: Path, root: Path) -> Path:
    """Return the folder that the nodes of one experiment share, given the state folder of one of them."""
    home = state.parent
    if state.name == "state" and home.name.startswith("device"):
        home = home.parent
    return home if home.is_relative_to(root) else root


def _in_order(name: str) -> list[tuple[float, str]]:
    """Return a sort key that orders numbers within names by their value, as people do."""
    parts = re.findall(r"(\d+(?:\.\d+)?)|(\D+)", name)
    return [(float(number), "") if number else (-1.0, text) for number, text in parts]


def _name(folder: Path) -> str:
    return folder.name or folder.absolute().name or str(folder)


def _meta(content: bytes) -> dict[str, Any]:
    meta = json.loads(content)
    failed = meta.get("failed", []) if isinstance(meta, dict) else None
    if not isinstance(failed, list) or not all(map(_is_failure, failed)):
        raise ValueError("it does not describe a run")
    return meta  # type: ignore[no-any-return]


def _is_failure(one: Any) -> bool:
    if not isinstance(one, dict):
        return False
    return [type(one.get(name)) for name in ("strategy", "seed", "reason")] == [str, int, str]
