"""Everything under the watched folder, as pages get it: looked up by id, read when it changed, never written."""

from __future__ import annotations

import io
import time
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

import polars as pl

from efhc import __version__
from efhc.base.errors import EfhcError, InputError
from efhc.base.own_code import in_one_line
from efhc.experiments.runs.live.processes import is_running
from efhc.experiments.runs.live.reading import LiveRun
from efhc.experiments.runs.run import file_name
from efhc.report.views import Curve, Group, RunDetail, RunSummary, State, Tree
from efhc.watch.describing import describe_nodes, describe_run, repeat_command
from efhc.watch.discovery import Discovery, FoundGroup, FoundRun
from efhc.watch.live_source import LiveSource
from efhc.watch.looking import Look, Looking
from efhc.watch.node_source import NodeSource
from efhc.watch.reading import readable
from efhc.watch.sources import NothingYet, Source, curve_of, events_of, network_of, samples_of
from efhc.watch.table_source import TableSource, curve_table

READ_SECONDS, ASK_SECONDS = 0.1, 1.0
"""Least time between two reads of live files, and two questions to nodes."""
HEAR_SECONDS = 20.0
"""How long a page that is written once waits for the answers of nodes."""
MOST_TABLES = 64
"""The largest number of complete runs whose tables are kept in memory."""


@dataclass(frozen=True)
class _Found:
    """A run, and the group that it belongs to."""

    group: FoundGroup
    run: FoundRun | None
    """None: the nodes of the group."""


class Watched:
    """The runs under a folder. May be used by several threads."""

    def __init__(self, root: Path, store: Path | None = None) -> None:
        """`store` is a folder elsewhere that has the single runs of unfinished experiments."""
        self.root = root
        self._discovery = Discovery(root, store)
        self._looking = Looking(self._discovery, self._take)
        self._lock = Lock()
        self._look = Look([], {}, None, {}, float("-inf"))
        self._read = self._asked = float("-inf")
        self._groups: dict[str, FoundGroup] = {}
        self._runs: dict[str, _Found] = {}
        self._changed: dict[str, float] = {}
        self._made: dict[str, float] = {}
        """When a group was last known to be made between two of its runs, by its id, on the monotonic clock."""
        self._live: dict[Path, LiveSource] = {}
        self._nodes: dict[str, NodeSource] = {}
        self._tables: OrderedDict[Hashable, TableSource] = OrderedDict()
        self._tree: Tree = self._new_tree()

    @classmethod
    def of(cls, folder: Path, *, may_be_empty: bool) -> Watched:
        """Return what is under a folder, found. Raises `InputError` if there are no runs, unless it may be empty."""
        allowed = "a folder with runs, or an empty one for runs to come" if may_be_empty else "a folder with runs"
        is_to_come = may_be_empty and not folder.exists() and folder.absolute().parent.is_dir()
        if not folder.is_dir() and not is_to_come:
            raise InputError("DIR", f"{folder}, which is not a folder", allowed)
        watched = cls(folder)
        watched.refresh()
        is_empty = is_to_come or not any(folder.iterdir())
        left_out = f" ({watched.tree['left_out']})" if watched.tree["left_out"] else ""
        if not watched.tree["groups"] and not (may_be_empty and is_empty):
            raise InputError(
                "DIR", f"{folder}, in which there are no runs{left_out}", f"{allowed}; `efhc run` makes one"
            )
        return watched

    # Looking

    def refresh(self) -> None:
        """Look for runs, read what they told, and ask nodes, unless that was done just now."""
        self._looking.look_if_due()
        with self._lock:
            now = time.monotonic()
            if now - self._asked >= ASK_SECONDS and self._nodes:
                self._asked = now
                for id_, nodes in self._nodes.items():
                    nodes.look(self._groups[id_].sockets)
            if now - self._read >= READ_SECONDS:
                for live in self._live.values():
                    live.read()
                self._tree = self._new_tree()
                self._read = time.monotonic()

    def hear_nodes(self, seconds: float = HEAR_SECONDS) -> None:
        """Wait until the nodes that are being asked have answered, for this long at most."""
        end = time.monotonic() + seconds
        for nodes in [*self._nodes.values()]:
            nodes.wait(max(0.0, end - time.monotonic()))
        with self._lock:
            self._tree = self._new_tree()

    def look_again(self) -> None:
        """Look for runs now: something was not where it was found."""
        self._looking.look_now()
        self.refresh()

    def _take(self, look: Look) -> None:
        with self._lock:
            self._look, self._read = look, float("-inf")
            self._arrange(list(look.groups))
            known = self._changed | look.changed  # of nodes that have gone, too
            self._changed = {id_: at for id_, at in known.items() if id_ in self._groups}

    def _arrange(self, groups: list[FoundGroup]) -> None:
        seen = {group.id for group in groups}
        for id_, nodes in self._nodes.items():  # nodes that were there and have gone are still shown
            if id_ not in seen and nodes.answers:
                groups.append(self._groups[id_])
        self._groups = {group.id: group for group in groups}
        self._runs = {run.id: _Found(group, run) for group in groups for run in group.runs}
        self._runs |= {group.id: _Found(group, None) for group in groups if group.kind == "nodes"}
        wanted = {
            run.live
            for group in groups
            for run in group.runs
            if run.live and not (run.is_complete and group.is_complete)
        }
        self._live = {path: self._live.get(path) or LiveSource(path) for path in wanted}
        of_nodes = [group.id for group in groups if group.kind == "nodes"]
        self._nodes = {id_: self._nodes.get(id_) or NodeSource() for id_ in of_nodes}

    # What pages get

    @property
    def tree(self) -> Tree:
        """Everything that was found."""
        return self._tree

    def has_group(self, group: str) -> bool:
        """Return whether there is such a group."""
        return group in self._groups

    def has_run(self, run: str) -> bool:
        """Return whether there is such a run."""
        return run in self._runs

    def final(self, run: str) -> Hashable | None:
        """Return the generation of the tables of a run that has been complete for a while. No file is read.

        None: the run is being made, was complete just now, or is not there.
        """
        with self._lock:
            found = self._runs.get(run)
            if found is None or found.run is None or not found.run.is_complete:
                return None
            tables = self._look.tables[found.run.folder]
            return tables.stamp if tables.is_final else None

    def runs_of(self, group: str) -> list[str]:
        """Return the ids of the runs of a group; none of a group that is not there."""
        with self._lock:
            return [id_ for id_, found in self._runs.items() if found.group.id == group]

    def curves(self, group: str) -> dict[str, Curve] | None:
        """Return the curve of each run of a group that can be read. None: there is no such group."""
        if group not in self._groups:
            return None
        curves = {}
        for run in self.runs_of(group):
            with suppress(EfhcError), readable(self.root):
                if (source := self.source(run)) is not None:
                    curves[run] = curve_of(source)
        return curves

    def source(self, run: str) -> Source | None:
        """Return where to read what is known of a run. None: there is no such run."""
        with self._lock:
            found = self._runs.get(run)
            if found is None:
                return None
            if found.run is None:
                return self._nodes[found.group.id]
            if not found.run.is_complete:
                live = self._live.get(found.run.live) if found.run.live else None
                return live or NothingYet()
            return self._table(found.run)

    def detail(self, run: str) -> RunDetail | None:
        """Return one run in full. None: there is no such run. Raises `EfhcError` if its files cannot be read."""
        source, found = self.source(run), self._runs.get(run)
        if source is None or found is None:
            return None
        with readable(found.group.folder):
            config, facts = self._described(found)
            return {
                "id": run,
                "facts": facts | source.notes,
                "config": config,
                "repeat": repeat_command(found.run, found.group),
                "devices": source.devices,
                "network": network_of(source),
                "curve": curve_of(source),
                "samples": samples_of(source),
                "events": events_of(source),
            }

    def _described(self, found: _Found) -> tuple[str, dict[str, str]]:
        if found.run is None:
            return "", describe_nodes(found.group)
        return found.run.config_text, describe_run(found.run)

    def config(self, run: str) -> str | None:
        """Return the config file of a run as text. None: there is no such run, or it has none."""
        found = self._runs.get(run)
        if found is None or found.run is None:
            return None
        with readable(found.run.folder):
            return self._described(found)[0]

    def metrics_csv(self, run: str) -> str | None:
        """Return all rows of the metrics or the timeline of a run as CSV; of an unfinished one, those in its live file.

        None: there is no such run.
        """
        source, found = self.source(run), self._runs.get(run)
        if source is None or found is None:
            return None
        if isinstance(source, TableSource) and found.run is not None:
            with readable(found.run.folder):
                table = source.scan(curve_table(found.run)).collect()
        elif isinstance(source, LiveSource):
            table = pl.DataFrame(source.evaluated, infer_schema_length=None)
        else:
            table = pl.DataFrame(curve_of(source), strict=False)
        content = io.StringIO()
        table.write_csv(content)
        return content.getvalue()

    def _table(self, run: FoundRun) -> TableSource:
        stamp = self._look.tables[run.folder].stamp
        key = run.id, stamp
        if key not in self._tables:
            self._tables[key] = TableSource(run, stamp)
        self._tables.move_to_end(key)
        while len(self._tables) > MOST_TABLES:
            self._tables.popitem(last=False)
        return self._tables[key]

    # The tree

    def _new_tree(self) -> Tree:
        name = self.root.name or self.root.absolute().name or str(self.root)
        groups = [self._shown(group) for group in self._groups.values()]
        return {"title": name, "version": __version__, "groups": groups, "left_out": self._look.left_out}

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
        place = self._discovery.place(group.folder)
        state = self._state(group, runs)
        return {
            "id": group.id, "name": group.name, "kind": group.kind, "place": place, "state": state,
            "changed": self._changed.get(group.id), "runs": runs, "problem": group.problem,
        }  # fmt: skip

    def _line(self, group: FoundGroup, run: FoundRun) -> RunSummary:
        try:
            return self._by_nodes(group, run) or self._summary(run)
        except Exception as error:
            return self._summary(replace(run, problem=in_one_line(error)))

    def _by_nodes(self, group: FoundGroup, run: FoundRun) -> RunSummary | None:
        """Return how the nodes are that make a run of `efhc launch`. None: it is not being made by nodes."""
        if run.is_complete or run.problem:
            return None
        nodes = self._groups.get(
            self._discovery.id("nodes", group.folder / "nodes" / file_name(run.strategy, run.seed))
        )
        if nodes is None or nodes.id not in self._nodes:
            return None
        told = self._nodes[nodes.id].summary(run.id, nodes.folder)
        return {**told, "strategy": run.strategy, "seed": run.seed, "iterations": run.iterations}

    def _state(self, group: FoundGroup, runs: list[RunSummary]) -> State:
        states = [run["state"] for run in runs]
        if group.problem or (states and set(states) == {"failed"}):
            return "failed"
        if "running" in states:
            return "running"
        if group.is_complete and not {"waiting", "stopped"} & set(states):
            return "done"
        if set(states) <= {"waiting"}:
            return "waiting"
        # Between two of its runs, only the process that makes them knows whether it goes on. If it has ended since the
        # last look began, all may be complete: the next look tells.
        if any(map(self._is_being_made, group.runs)):
            self._made[group.id] = time.monotonic()
        return "running" if self._made.get(group.id, float("-inf")) > self._look.began else "stopped"

    def _is_being_made(self, run: FoundRun) -> bool:
        live = self._live.get(run.live) if run.live else None
        about = live.run.about if live and live.run else None
        return about is not None and is_running(about.pid, about.host, about.process) is True

    def _summary(self, run: FoundRun) -> RunSummary:
        summary: RunSummary = {
            "id": run.id,
            "strategy": run.strategy,
            "seed": run.seed,
            "state": "waiting",
            "k": 0,
            "iterations": run.iterations,
            "accuracy": None,
            "iterations_per_second": None,
            "seconds_left": None,
            "problem": run.problem,
        }
        if run.problem:
            summary["state"] = "failed"
        elif run.is_complete:
            summary["state"], summary["k"] = "done", run.iterations
            last = self._look.tables[run.folder].last
            if isinstance(last, str):
                summary["problem"] = last
            elif (row := last.get((run.strategy_there, run.seed))) is not None:
                summary["accuracy"] = row.accuracy
                if run.seconds is not None:
                    summary["k"] = summary["iterations"] = row.k
        elif run.live is not None and (live := self._live[run.live].run) is not None:
            summary["state"] = live.state()
            summary["iterations"] = _expected(run, live)
            summary["k"] = min(live.k, summary["iterations"])
            summary["accuracy"] = live.rows[-1].row.get("accuracy") if live.rows else None
            summary["problem"] = live.end.problem if live.end else None
            if summary["state"] == "running":
                speed = summary["iterations_per_second"] = live.iterations_per_second
                summary["seconds_left"] = (summary["iterations"] - summary["k"]) / speed if speed else None
        return summary


def _expected(run: FoundRun, live: LiveRun) -> int:
    """Return how many iterations a run will have: of one that ends after some seconds, at its pace up to now."""
    if run.seconds is None:
        return run.iterations
    now = live.rows[-1].row.get("seconds") if live.rows else None
    return max(live.k, round(live.rows[-1].k * run.seconds / now) if now else run.iterations)
