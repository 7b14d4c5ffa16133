"""The runs under a folder, as pages get them: found by id, read when they have changed, never written."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, cast

from efhc import __version__
from efhc.base.errors import EfhcError, InputError
from efhc.base.own_code import in_one_line
from efhc.experiments.runs.provenance import is_running
from efhc.experiments.runs.run import file_name
from efhc.learning.measures import CLASSIFICATION, OWN, measure_in, measures_of, metrics_in
from efhc.report.looks import strategy_styles
from efhc.report.views import Curve, Group, Look, MeasureView, RunDetail, RunSummary, State, Tree
from efhc.watch.describing import describe, repeat_command
from efhc.watch.discovery import Discovery, FoundGroup, FoundRun
from efhc.watch.nodes import NodesReader
from efhc.watch.readers import PARTS, LiveReader, Reader, TableReader
from efhc.watch.repeating import Repeated
from efhc.watch.untrusted import readable

READ_SECONDS = 0.1
"""Least time between two reads of live files."""
NODES_SECONDS = 20.0
"""How long a page that is written once waits for the answers of nodes."""
SHORT_RUNS_SECONDS = 10.0
"""An experiment whose runs are too short for live files counts as running for this long after one was added."""
MOST_TABLES = 64
"""The largest number of complete runs whose tables are kept in memory."""
SCAN_SECONDS, REST = 1.0, 20
"""Least time between two scans, and the ratio of the pause after a scan to the time that the scan took."""
WAIT_SECONDS = 0.1
"""How long a page waits for a scan to end. After that, the page shows what the scan before found."""


class Watcher:
    """The runs under a folder. May be used by several threads."""

    def __init__(self, root: Path, store: Path | None = None) -> None:
        """`store` is a folder elsewhere that has the runs of the experiments in `root`."""
        self.root = root
        self._discovery = Discovery(root, store)
        self._scans = Repeated(self._scan, SCAN_SECONDS, REST)
        self._lock = Lock()
        self._scan_began = self._read = float("-inf")
        self._groups: dict[str, FoundGroup] = {}
        self._readers: dict[str, Reader] = {}
        """The readers of runs, by the ids of the runs."""
        self._changed: dict[str, float] = {}
        self._made: dict[str, float] = {}
        """When a group was last known to be made between two of its runs, by its id, on the monotonic clock."""
        self._recent: OrderedDict[str, Reader] = OrderedDict()
        """The readers of complete runs whose tables are in memory, by the ids of the runs."""
        self.tree: Tree = self._new_tree()
        """Everything that was found."""

    @classmethod
    def of(cls, folder: Path, *, may_be_empty: bool) -> Watcher:
        """Return the watcher of a folder after its first scan.

        Raises `InputError` if there are no runs, unless it may be empty.
        """
        allowed = "a folder with runs, or an empty one for runs to come" if may_be_empty else "a folder with runs"
        is_to_come = may_be_empty and not folder.exists() and folder.absolute().parent.is_dir()
        if not folder.is_dir() and not is_to_come:
            raise InputError("DIR", f"{folder}, which is not a folder", allowed)
        watcher = cls(folder)
        watcher.refresh()
        is_empty = is_to_come or not any(folder.iterdir())
        left_out = f" ({watcher.tree['left_out']})" if watcher.tree["left_out"] else ""
        if not watcher.tree["groups"] and not (may_be_empty and is_empty):
            raise InputError("DIR", f"{folder}, which holds no runs{left_out}", f"{allowed}; `efhc run` makes one")
        return watcher

    # Reading

    def refresh(self) -> None:
        """Scan for runs, read their live files, and poll nodes, unless that was done just now.

        A page waits a short time for the end of a scan, and without limit for that of the first one.
        """
        self._scans.begin()
        self._scans.wait(WAIT_SECONDS if self._scans.has_ended else None)
        with self._lock:
            if time.monotonic() - self._read >= READ_SECONDS:
                for reader in self._readers.values():
                    if not (reader.run.is_complete and self._groups[reader.group].is_complete):
                        reader.read()
                self.tree = self._new_tree()
                self._read = time.monotonic()

    def wait_for_nodes(self, seconds: float = NODES_SECONDS) -> None:
        """Wait for the answers of nodes that are being polled, for this long at most."""
        end = time.monotonic() + seconds
        for reader in [*self._readers.values()]:
            if isinstance(reader, NodesReader):
                reader.polling.wait(max(0.0, end - time.monotonic()))
        with self._lock:
            self.tree = self._new_tree()

    def scan_now(self) -> None:
        """Scan for runs now: something was not where it was found. A scan that began earlier does not count."""
        self._scans.wait()
        self._scans.begin(now=True)
        self._scans.wait()
        self.refresh()

    def _scan(self) -> None:
        began = time.monotonic()
        groups = self._discovery.find()
        found = {group.id for group in groups}
        for group in self._groups.values():  # nodes that were there and have gone are still shown
            if group.id not in found and any(self._readers[run.id].is_kept for run in group.runs):
                groups.append(group)
        readers = {run.id: self._reader_of(group, run) for group in groups for run in group.runs}
        changed = {group.id: at for group in groups if (at := _changed(group)) is not None}
        with self._lock:
            for group in groups:
                for run in group.runs:
                    readers[run.id].run, readers[run.id].group = run, group.id
            self._scan_began, self._read = began, float("-inf")
            self._readers, self._groups = readers, {group.id: group for group in groups}
            known = self._changed | changed  # of nodes that have gone, too
            self._changed = {id_: at for id_, at in known.items() if id_ in self._groups}

    def _reader_of(self, group: FoundGroup, run: FoundRun) -> Reader:
        """Return the reader of a run: the known one, unless the run is in other files now."""
        known = self._readers.get(run.id)
        if known is not None and known.is_of(run):
            return known
        if group.kind == "nodes":
            return NodesReader(run)
        return TableReader(run) if run.is_complete else LiveReader(run)

    # What pages get

    def has(self, id_: str | None) -> bool:
        """Return whether there is a group or a run of this id."""
        return id_ in self._groups or id_ in self._readers

    def runs_of(self, group: str | None) -> list[str]:
        """Return the ids of the runs of a group; none of a group that is not there."""
        found = self._groups.get(group or "")
        return [run.id for run in found.runs] if found is not None else []

    def final_generation(self, run: str) -> Hashable | None:
        """Return the generation of a complete run, whose rows do not change. No file is read.

        None: the run is being made, or is not there.
        """
        reader = self._readers.get(run)
        return reader.generation if reader is not None and reader.run.is_complete else None

    def reader(self, run: str) -> Reader | None:
        """Return what is known of a run. None: there is no such run."""
        with self._lock:
            reader = self._readers.get(run)
            if reader is None or not reader.run.is_complete:
                return reader
            self._recent[run] = reader
            self._recent.move_to_end(run)
            if len(self._recent) > MOST_TABLES:
                self._recent.popitem(last=False)[1].forget()
        reader.read()  # its live file has what the tables lack
        return reader

    def curves(self, group: str) -> dict[str, Curve] | None:
        """Return the curve of each run of a group that can be read. None: there is no such group."""
        if group not in self._groups:
            return None
        curves = {}
        for run in self.runs_of(group):
            with suppress(EfhcError), readable(self.root):
                if (reader := self.reader(run)) is not None:
                    curves[run] = reader.curve
        return curves

    def about(self, run: str) -> dict[str, Any] | None:
        """Return a run without its rows. None: there is no such run. Raises `EfhcError` if its files cannot be read."""
        reader = self.reader(run)
        group = None if reader is None else self._groups.get(reader.group)
        if reader is None or group is None:
            return None
        with readable(group.folder):
            about = reader.about()
        return {
            "id": run,
            **about,
            "facts": describe(reader.run, group) | about["facts"],
            "config": reader.run.config_text,
            "repeat": repeat_command(reader.run, group),
        }

    def detail(self, run: str) -> RunDetail | None:
        """Return one run in full. None: there is no such run. Raises `EfhcError` if its files cannot be read."""
        about, reader = self.about(run), self.reader(run)
        if about is None or reader is None:
            return None
        with readable(self.root):
            return cast("RunDetail", about | {part: reader.rows(part).columns for part in PARTS})

    def config(self, run: str) -> str | None:
        """Return the config file of a run as text. None: there is no such run, or it has none."""
        reader = self._readers.get(run)
        return reader.run.config_text or None if reader is not None else None

    def metrics_csv(self, run: str) -> str | None:
        """Return all rows of the metrics or the timeline of a run as CSV; of an unfinished one, those in its live file.

        None: there is no such run.
        """
        reader = self.reader(run)
        with readable(self.root):
            return None if reader is None else reader.metrics().write_csv()

    # The tree

    def _new_tree(self) -> Tree:
        name = self.root.name or self.root.absolute().name or str(self.root)
        groups = [self._shown(group) for group in self._groups.values()]
        return {
            "title": name, "version": __version__, "groups": groups, "left_out": self._discovery.left_out,
            "measures": _measures(dict.fromkeys(one for group in groups for one in _known(group["runs"]))),
        }  # fmt: skip

    def _shown(self, group: FoundGroup) -> Group:
        """Return a group, or what is wrong with it: whatever is in one folder, the others are shown."""
        try:
            return self._group(group)
        except Exception as error:
            return self._group(FoundGroup(group.id, group.name, "run", group.folder, problem=in_one_line(error)))

    def _group(self, group: FoundGroup) -> Group:
        runs = [self._line(group, run) for run in group.runs]
        place, strategies = self._discovery.place(group.folder), _looks(tuple(run["strategy"] for run in runs))
        return {
            "id": group.id, "name": group.name, "kind": group.kind, "place": place, "state": self._state(group, runs),
            "changed": self._changed.get(group.id), "strategies": strategies, "runs": runs, "problem": group.problem,
            "measure": None if group.kind == "nodes" else _measure(group, runs),
        }  # fmt: skip

    def _line(self, group: FoundGroup, run: FoundRun) -> RunSummary:
        own = self._readers[run.id]
        try:
            if not run.is_complete and not run.problem:
                nodes = group.folder / "nodes" / file_name(run.strategy, run.seed)
                if (maker := self._readers.get(self._discovery.id("nodes", nodes))) is not None:  # of `efhc launch`
                    facts = {"id": run.id, "strategy": run.strategy, "seed": run.seed, "iterations": run.iterations}
                    return cast("RunSummary", maker.summary() | facts)
            return own.summary()
        except Exception as error:
            return own.summary(in_one_line(error))

    def _state(self, group: FoundGroup, runs: list[RunSummary]) -> State:
        states = {run["state"] for run in runs}
        if group.problem or states == {"failed"}:
            return "failed"
        if "running" in states:
            return "running"
        if group.is_complete and not {"waiting", "stopped"} & states:
            return "done"
        if states <= {"waiting"}:
            return "waiting"
        # Between two of its runs, only the process that makes them knows whether it goes on. If it has ended since the
        # last scan began, all may be complete: the next scan finds that.
        if self._is_being_made(group):
            self._made[group.id] = time.monotonic()
        return "running" if self._made.get(group.id, float("-inf")) > self._scan_began else "stopped"

    def _is_being_made(self, group: FoundGroup) -> bool:
        """Return whether a process that makes the runs of a group goes on.

        Runs that last less than a second leave no trace of their process. An experiment of such runs goes on if one
        was added just now.
        """
        sessions = group.meta.get("sessions")
        last = sessions[-1] if isinstance(sessions, list) and sessions else None
        if isinstance(last, dict) and "wall_seconds" in last:  # the command that made it last has noted its end
            return False
        found = [self._readers[run.id].live for run in group.runs]
        processes = {(live.about.pid, live.about.host, live.about.process) for live in found if live is not None}
        if not processes and not group.is_complete:
            return time.time() - self._changed.get(group.id, 0.0) < SHORT_RUNS_SECONDS
        return any(is_running(*process) is True for process in processes)


def _known(runs: Iterable[RunSummary]) -> dict[str, None]:
    """Return the names of the measures that any of these runs has."""
    return dict.fromkeys(name for run in runs for name in run["latest"])


def _measures(names: Collection[str]) -> list[MeasureView]:
    return [
        {"name": name, "label": one.label, "better": one.better, "family": (OWN if one.is_own else "") + one.metric}
        for name, one in measures_of(metrics_in(names)).items()
        if name in names
    ]


def _measure(group: FoundGroup, runs: Iterable[RunSummary]) -> str:
    """Return the measure that the config of a group names if its runs have it, or else the first that they have."""
    given, known = next((run.config.get("measure") for run in group.runs), None), _known(runs)
    if isinstance(given, str) and given in (known or measures_of(CLASSIFICATION)):
        return given
    return measure_in(None, known or ["accuracy"]).name


@lru_cache(maxsize=1_000)
def _looks(strategies: tuple[str, ...]) -> list[Look]:
    styles = strategy_styles(strategies).items()
    return [{"name": name, "color": color, "dash": dash} for name, (color, dash) in styles]


def _changed(group: FoundGroup) -> float | None:
    """Return when a file was last added to a folder of a group, or taken away. None: no folder can be read."""
    times = []
    for folder in {group.folder, *(run.folder for run in group.runs)}:
        with suppress(OSError):
            times.append(folder.stat().st_mtime)
    return max(times, default=None)
