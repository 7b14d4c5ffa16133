"""The runs under a folder, as pages get them: found by id, read when they have changed, never written."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock, Thread
from typing import Any, cast

from efhc import __version__
from efhc.base.errors import EfhcError, InputError
from efhc.base.own_code import in_one_line
from efhc.experiments.runs.provenance import is_running
from efhc.experiments.runs.run import file_name
from efhc.report.looks import strategy_styles
from efhc.report.views import Curve, Group, Look, RunDetail, RunSummary, State, Tree
from efhc.watch.describing import describe, repeat_command
from efhc.watch.discovery import Discovery, FoundGroup, FoundRun, readable
from efhc.watch.nodes import NodesReader
from efhc.watch.readers import PARTS, Reader, RunReader

READ_SECONDS, POLL_SECONDS = 0.1, 1.0
"""Least time between two reads of live files, and between two polls of nodes."""
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


class Scanner:
    """Calls a function in a thread of its own, and pauses in between for much longer than a call takes.

    So no page waits until a large folder has been searched.
    """

    def __init__(self, scan: Callable[[], None]) -> None:
        self._scan = scan
        self._lock = Lock()
        self._thread: Thread | None = None
        self._due = float("-inf")
        self.has_scanned = False
        """Whether a scan has ended."""

    def scan_if_due(self) -> None:
        """Start a scan if the pause is over. Waits a short time for its end, and without limit for the first one."""
        thread = self._start() if time.monotonic() >= self._due else self._thread
        if thread is not None:
            thread.join(WAIT_SECONDS if self.has_scanned else None)

    def scan_now(self) -> None:
        """Scan, and wait for the end. A scan that began earlier does not count."""
        if (earlier := self._thread) is not None:
            earlier.join()
        self._start().join()

    def _start(self) -> Thread:
        """Return the thread that scans; it begins now unless there is one."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run, name="efhc-scan", daemon=True)
                self._thread.start()
            return self._thread

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self._scan()
        finally:
            ended, self.has_scanned = time.monotonic(), True
            self._due = ended + max(SCAN_SECONDS, REST * (ended - began))


class Watcher:
    """The runs under a folder. May be used by several threads."""

    def __init__(self, root: Path, store: Path | None = None) -> None:
        """`store` is a folder elsewhere that has the runs of the experiments in `root`."""
        self.root = root
        self._discovery = Discovery(root, store)
        self._scanner = Scanner(self._scan)
        self._lock = Lock()
        self._scan_began = self._read = self._polled = float("-inf")
        self._groups: dict[str, FoundGroup] = {}
        self._runs: dict[str, tuple[FoundGroup, FoundRun | None]] = {}
        """The runs by id, each with its group. None: the nodes of the group."""
        self._changed: dict[str, float] = {}
        self._made: dict[str, float] = {}
        """When a group was last known to be made between two of its runs, by its id, on the monotonic clock."""
        self._readers: dict[str, RunReader] = {}
        self._unfinished: list[str] = []
        """The ids of the runs whose live files are read: those of groups that are not complete."""
        self._nodes: dict[str, NodesReader] = {}
        self._recent: OrderedDict[str, None] = OrderedDict()
        """The ids of the complete runs whose tables are in memory."""
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
        """Scan for runs, read their live files, and poll nodes, unless that was done just now."""
        self._scanner.scan_if_due()
        with self._lock:
            now = time.monotonic()
            if now - self._polled >= POLL_SECONDS and self._nodes:
                self._polled = now
                for id_, nodes in self._nodes.items():
                    nodes.poll(self._groups[id_].sockets)
            if now - self._read >= READ_SECONDS:
                for run in self._unfinished:
                    self._readers[run].read()
                self.tree = self._new_tree()
                self._read = time.monotonic()

    def wait_for_nodes(self, seconds: float = NODES_SECONDS) -> None:
        """Wait for the answers of nodes that are being polled, for this long at most."""
        end = time.monotonic() + seconds
        for nodes in [*self._nodes.values()]:
            nodes.wait(max(0.0, end - time.monotonic()))
        with self._lock:
            self.tree = self._new_tree()

    def scan_now(self) -> None:
        """Scan for runs now: something was not where it was found."""
        self._scanner.scan_now()
        self.refresh()

    def _scan(self) -> None:
        began = time.monotonic()
        groups = self._discovery.find()
        readers = {run.id: self._reader_of(run) for group in groups for run in group.runs}
        folders = {group.id: {group.folder, *(run.folder for run in group.runs)} for group in groups}
        changed = {id_: at for id_, some in folders.items() if (at := _changed(some)) is not None}
        with self._lock:
            self._scan_began, self._read, self._readers = began, float("-inf"), readers
            self._arrange(groups)
            known = self._changed | changed  # of nodes that have gone, too
            self._changed = {id_: at for id_, at in known.items() if id_ in self._groups}

    def _arrange(self, groups: list[FoundGroup]) -> None:
        found = {group.id for group in groups}
        for id_, nodes in self._nodes.items():  # nodes that were there and have gone are still shown
            if id_ not in found and nodes.answers:
                groups.append(self._groups[id_])
        self._groups = {group.id: group for group in groups}
        self._runs = {run.id: (group, run) for group in groups for run in group.runs}
        for id_, reader in self._readers.items():
            reader.run = cast("FoundRun", self._runs[id_][1])
        self._unfinished = [
            run.id for group in groups for run in group.runs if not (run.is_complete and group.is_complete)
        ]
        of_nodes = [group for group in groups if group.kind == "nodes"]
        self._runs |= {group.id: (group, None) for group in of_nodes}
        self._nodes = {group.id: self._nodes.get(group.id) or NodesReader() for group in of_nodes}

    def _reader_of(self, run: FoundRun) -> RunReader:
        """Return the reader of a run: the known one, unless the run is in other files now."""
        known = self._readers.get(run.id)
        return known if known is not None and known.is_of(run) else RunReader(run)

    # What pages get

    def has(self, id_: str | None) -> bool:
        """Return whether there is a group or a run of this id."""
        return id_ in self._groups or id_ in self._runs

    def runs_of(self, group: str | None) -> list[str]:
        """Return the ids of the runs of a group; none of a group that is not there."""
        with self._lock:
            return [id_ for id_, (of, _) in self._runs.items() if of.id == group]

    def final(self, run: str) -> Hashable | None:
        """Return the generation of a complete run, whose rows do not change. No file is read.

        None: the run is being made, or is not there.
        """
        reader = self._readers.get(run)
        return reader.generation if reader is not None and reader.run.is_complete else None

    def reader(self, run: str) -> Reader | None:
        """Return what is known of a run. None: there is no such run."""
        with self._lock:
            if run not in self._runs:
                return None
            if run in self._nodes:
                return self._nodes[run]
            reader = self._readers[run]
            if not reader.run.is_complete:
                return reader
            self._recent[run] = None
            self._recent.move_to_end(run)
            if len(self._recent) > MOST_TABLES:
                oldest, _ = self._recent.popitem(last=False)
                if oldest in self._readers:
                    self._readers[oldest].forget()
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
        reader, known = self.reader(run), self._runs.get(run)
        if reader is None or known is None:
            return None
        group, found = known
        with readable(group.folder):
            about = reader.about()
        return {
            "id": run,
            **about,
            "facts": describe(found, group) | about["facts"],
            "config": found.config_text if found else "",
            "repeat": repeat_command(found, group),
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
        _, found = self._runs.get(run, (None, None))
        return None if found is None else found.config_text

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
        return {"title": name, "version": __version__, "groups": groups, "left_out": self._discovery.left_out}

    def _shown(self, group: FoundGroup) -> Group:
        """Return a group, or what is wrong with it: whatever is in one folder, the others are shown."""
        try:
            return self._group(group)
        except Exception as error:
            return self._group(FoundGroup(group.id, group.name, "run", group.folder, problem=in_one_line(error)))

    def _group(self, group: FoundGroup) -> Group:
        if group.kind == "nodes":
            runs = [self._nodes[group.id].summary(group.id, group.folder)]
        else:
            runs = [self._line(group, run) for run in group.runs]
        place, strategies = self._discovery.place(group.folder), _looks(tuple(run["strategy"] for run in runs))
        return {
            "id": group.id, "name": group.name, "kind": group.kind, "place": place, "state": self._state(group, runs),
            "changed": self._changed.get(group.id), "strategies": strategies, "runs": runs, "problem": group.problem,
        }  # fmt: skip

    def _line(self, group: FoundGroup, run: FoundRun) -> RunSummary:
        try:
            return self._by_nodes(group, run) or self._readers[run.id].summary()
        except Exception as error:
            return self._readers[run.id].summary(in_one_line(error))

    def _by_nodes(self, group: FoundGroup, run: FoundRun) -> RunSummary | None:
        """Return the state of the nodes that make a run of `efhc launch`. None: no nodes make it."""
        if run.is_complete or run.problem:
            return None
        folder = group.folder / "nodes" / file_name(run.strategy, run.seed)
        nodes = self._nodes.get(self._discovery.id("nodes", folder))
        if nodes is None:
            return None
        summary = nodes.summary(run.id, folder)
        return {**summary, "strategy": run.strategy, "seed": run.seed, "iterations": run.iterations}

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


@lru_cache(maxsize=1_000)
def _looks(strategies: tuple[str, ...]) -> list[Look]:
    styles = strategy_styles(strategies).items()
    return [{"name": name, "color": color, "dash": dash} for name, (color, dash) in styles]


def _changed(folders: Iterable[Path]) -> float | None:
    """Return when a file was last added to one of these folders, or taken away. None: no folder can be read."""
    times = []
    for folder in folders:
        with suppress(OSError):
            times.append(folder.stat().st_mtime)
    return max(times, default=None)
