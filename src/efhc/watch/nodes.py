"""The status of nodes of the network runtime over time, kept while a page is open."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from efhc.experiments.nodes.status_query import Answer, query_status
from efhc.report.views import AboutRows, DeviceView, State
from efhc.runtime.status import NeighbourStatus, NodeStatus
from efhc.watch.discovery import FoundRun
from efhc.watch.readers import Link, Part, Reader, Row, in_force
from efhc.watch.repeating import Repeated
from efhc.watch.untrusted import LARGEST, check_content

POLL_SECONDS = 1.0
"""Least time between two polls."""
MOST_POLLS = 1_000
"""Half of the largest number of polls that are kept. At that number, every other poll is dropped."""
MOST_NUMBERS = 200_000
"""The largest number of numbers in the polls that are kept. Beyond that, every other poll is dropped."""
MOST_SHOWN = 5_000
"""The largest number of devices that are shown: nodes that answered and, while there is room, their neighbours."""
MOST_DEVICES = 100_000
"""The largest number of devices among which a node can be."""
ELSEWHERE: dict[str, Any] = {"state": "elsewhere", "problem": "it is known from its neighbours only"}
SILENT: dict[str, Any] = {"state": "silent", "problem": "it does not answer any more; this is its last status"}

_STATUS = TypeAdapter(NodeStatus)


class _Poll(NamedTuple):
    """The answers of one poll. Devices are named by their numbers; those that did not answer are left out."""

    curve: Row
    """With `k`, the iteration of all nodes, and `seconds`, since the first poll."""
    drift: Mapping[int, float | None]
    threshold: Mapping[int, float | None]
    fired: list[int]
    """The devices that have fired since the poll before."""
    used: list[Link]
    """The links over which models were exchanged since the poll before."""


class NodesReader(Reader):
    """The nodes of one folder. Each poll adds a row to every part but the network, whose rows are changes."""

    generation: int

    def __init__(self, run: FoundRun, most_numbers: int = MOST_NUMBERS) -> None:
        super().__init__(run)
        self._most_numbers = most_numbers
        self.polling = Repeated(self._poll, POLL_SECONDS)
        self._problems: dict[str, str] = {}
        """Why each node did not answer the last time, by its place; empty if it did."""
        self._statuses: dict[str, NodeStatus] = {}
        """The last status of each node that ever answered, by its place. The one that answered last comes last."""
        self._answers: dict[int, dict[str, Any]] = {}
        """The last answer of each device, as it came."""
        self._furthest: dict[int, int] = {}
        """The largest iteration that each device has reached."""
        self._k = 0
        self._polls: list[_Poll] = []
        self._networks: list[tuple[int, list[Link]]] = []
        """The links that are up from an iteration on."""
        self._shown: list[int] = []
        """The devices on the page, by number. The page names a device by its place here."""
        self._left_out = 0
        """The number of devices that are known and not on the page."""
        self._began = time.monotonic()

    @property
    def is_kept(self) -> bool:
        return bool(self._problems)

    def read(self) -> None:
        self.polling.begin()

    def _poll(self) -> None:
        with ThreadPoolExecutor(max_workers=16) as threads:
            answers = list(threads.map(query_status, self.run.sockets))
        self.add(answers, time.monotonic() - self._began)

    def add(self, answers: Sequence[Answer], seconds: float) -> None:
        """Add the answers of a poll `seconds` after the first one. A node that was there and has gone is silent."""
        found, given, problems = {}, {}, dict.fromkeys(self._problems, "does not answer any more; it was stopped")
        for answer in answers:
            status, problems[answer.place] = _status_in(answer)
            if status is not None and answer.status is not None:
                found[answer.place] = status
                given[status.device] = answer.status
        with self._lock:
            before, self._problems, self._answers = self._last, problems, self._answers | given
            self._statuses = {place: status for place, status in self._statuses.items() if place not in found} | found
            if found:
                self._add([*found.values()], before, seconds)

    @property
    def _last(self) -> dict[int, NodeStatus]:
        """The last status of each device that ever answered."""
        return {status.device: status for status in self._statuses.values()}

    def _add(self, found: Sequence[NodeStatus], before: Mapping[int, NodeStatus], seconds: float) -> None:
        """Add a poll, given the nodes that answered, and the last status of all devices before."""
        last = self._last
        k = self._reach(found)
        fired = {one.device for one in found if one.device in before and one.broadcasts > before[one.device].broadcasts}
        committed = {(i, link.device): _committed(link) for i, link in _ends(before.values())}
        used = _links(
            (i, link) for i, link in _ends(found) if _committed(link) > committed.get((i, link.device), LARGEST)
        )
        up = _links((i, link) for i, link in _ends(found) if link.up)
        losses = [status.loss for status in last.values() if status.loss is not None]
        curve = {
            "k": k,
            "train_loss": sum(losses) / len(losses) if losses else None,
            "bits": 8.0 * sum(link.bytes_sent for _, link in _ends(last.values())),
            "broadcasts": float(sum(status.broadcasts for status in last.values())),
            "seconds": round(seconds, 3),
        }
        drift, threshold = {one.device: one.drift for one in found}, {one.device: one.threshold for one in found}
        self._polls.append(_Poll(curve, drift, threshold, sorted(fired), used))
        if not self._networks or self._networks[-1][1] != up:
            self._networks.append((k, up))
        known = dict.fromkeys([*last, *(link.device for _, link in _ends(last.values()))])
        shown = sorted(islice(known, MOST_SHOWN))
        self._left_out = len(known) - len(shown)
        if shown != self._shown:  # places have moved
            self._shown, self.generation = shown, self.generation + 1
        self._thin()

    def _reach(self, found: Sequence[NodeStatus]) -> int:
        """Return the iteration that all nodes have reached: the mean of theirs, which does not decrease.

        If every node that answers is behind its earlier status, all were started again: polls after their iteration
        are dropped.
        """
        last = self._last
        k = round(sum(status.iteration for status in last.values()) / len(last))
        if k < self._k and all(status.iteration < self._furthest.get(status.device, 0) for status in found):
            self._polls = [poll for poll in self._polls if poll.curve["k"] <= k]
            self._networks = [network for network in self._networks if network[0] <= k]
            self._k, self.generation = k, self.generation + 1
        self._k = max(self._k, k)
        for status in found:
            self._furthest[status.device] = max(self._furthest.get(status.device, 0), status.iteration)
        return self._k

    def _thin(self) -> None:
        """Drop every other poll while there are too many. Links stay as they were in the polls that are left."""
        while len(self._polls) > 1 and (len(self._polls) >= 2 * MOST_POLLS or self._numbers() > self._most_numbers):
            self._polls = self._polls[::-2][::-1]  # the last one stays
            kept = in_force([k for k, _ in self._networks], (poll.curve["k"] for poll in self._polls))
            self._networks = [self._networks[place] for place in sorted({*kept, len(self._networks) - 1})]
            self.generation += 1

    def _numbers(self) -> int:
        of_polls = sum(2 * len(self._shown) + len(poll.fired) + 2 * len(poll.used) for poll in self._polls)
        return of_polls + sum(2 * len(links) for _, links in self._networks)

    def about(self) -> AboutRows:
        """Return the devices with what their nodes say, and facts about the nodes, always by the same names."""
        with self._lock:
            problems, answers, shown = self._problems, self._answers, self._shown
            answered = {status.device for place, status in self._statuses.items() if not problems[place]}
        silent = [f"{Path(place).name}: {problem}" for place, problem in problems.items() if problem]
        left_out = f"; {self._left_out:,} of their neighbours are not shown" if self._left_out else ""

        def view(device: int) -> DeviceView:
            node = answers.get(device, ELSEWHERE)
            if device in answers and device not in answered:
                node = node | SILENT
            return {"device": device, "bandwidth": node.get("bandwidth"), "samples": None, "labels": None, "node": node}

        return {
            "devices": [view(device) for device in shown],
            "facts": {
                "nodes": f"{len(problems) - len(silent)} answer, of {len(problems)}{left_out}",
                "over time": "since this page was first opened; seconds count from then",
                "silent": "; ".join(silent) or "none",
            },
            "is_sample": True,
        }

    def _rows(self, part: Part, first: int) -> Iterable[Row]:
        places = {device: place for place, device in enumerate(self._shown)}

        def placed(links: Iterable[Link]) -> list[Link]:
            return [(places[i], places[j]) for i, j in links if i in places and j in places]

        if part == "network":
            return [{"k": k, "links": placed(links)} for k, links in self._networks[first:]]
        rows = []
        for curve, drift, threshold, fired, used in self._polls[first:]:
            row = curve
            if part == "samples":
                row = {"drift": [*map(drift.get, places)], "threshold": [*map(threshold.get, places)]}
            elif part == "events":
                row = {"fired": [places[i] for i in fired if i in places], "used": placed(used)}
            rows.append({"k": curve["k"], "seconds": curve["seconds"], **row})
        return rows

    def _progress(self) -> Mapping[str, Any]:
        problems = self._problems
        statuses = [status for place, status in self._statuses.items() if not problems.get(place)]
        silent = sum(map(bool, problems.values()))
        speeds = [status.steps_per_second for status in statuses if status.steps_per_second is not None]
        state: State = "running"
        if not statuses:
            state = "stopped" if problems else "waiting"
        elif {status.state for status in statuses} == {"finished"}:
            state = "done"
        return {
            "state": state,
            "k": self._k,
            "iterations": max((status.iterations for status in self._statuses.values()), default=0),
            "iterations_per_second": sum(speeds) / len(speeds) if speeds else None,
            "problem": f"{silent} of {len(problems)} nodes do not answer" if silent else None,
        }


def _status_in(answer: Answer) -> tuple[NodeStatus | None, str]:
    """Return the status in an answer, or why it has none: something else may listen on a socket."""
    if answer.status is None:
        return None, answer.problem
    try:
        check_content(answer.status)
        status = _STATUS.validate_python(answer.status)
        if all(0 <= device < MOST_DEVICES for device in (status.device, *(link.device for link in status.neighbours))):
            return status, ""
    except ValueError:
        pass
    return None, "what answers there is not an efhc node"


def _ends(statuses: Iterable[NodeStatus]) -> Iterator[tuple[int, NeighbourStatus]]:
    """Yield devices, each with its status of a link."""
    return ((status.device, link) for status in statuses for link in status.neighbours)


def _links(ends: Iterable[tuple[int, NeighbourStatus]]) -> list[Link]:
    return sorted({(min(i, link.device), max(i, link.device)) for i, link in ends})


def _committed(link: NeighbourStatus) -> int:
    return link.exchanges.get("committed", 0)
