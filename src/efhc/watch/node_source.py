"""What nodes of the network runtime say of themselves, remembered while somebody watches."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from efhc.experiments.nodes.status_query import Answer, ask
from efhc.report.views import Device, RunSummary
from efhc.watch.checking import check_content
from efhc.watch.sources import PARTS, Part, Rows, as_columns

MOST_LOOKS = 1_000
"""Half of the largest number of looks that are remembered. At that number, every other look is forgotten."""
MOST_DEVICES = 100_000
"""The largest number of devices among which a node can be."""
NAMED = re.compile(r"(.+)\.seed(\d+)")
"""The folder of the nodes of one run of `efhc launch`."""

Statuses = Mapping[int, Mapping[str, Any]]


class NodeSource:
    """The nodes of one folder. Each look at them adds a row to every part but the network, whose rows are changes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.answers: dict[str, Answer] = {}
        """The last answer of each node, by its place."""
        self._rows: dict[Part, list[tuple[Any, ...]]] = {part: [] for part in PARTS}
        self._generation = 0
        self._before: Statuses = {}
        self._count = 0
        self._began = time.monotonic()
        self._asking: Thread | None = None

    def look(self, sockets: Sequence[Path]) -> None:
        """Ask all nodes how they are, in a thread of its own, unless they are still being asked."""
        if self._asking is None or not self._asking.is_alive():
            self._asking = Thread(target=self._ask, args=(sockets,), name="efhc-ask", daemon=True)
            self._asking.start()

    def _ask(self, sockets: Sequence[Path]) -> None:
        with ThreadPoolExecutor(max_workers=16) as threads:
            answers = list(map(_checked, threads.map(ask, sockets)))
        self.hear(answers, time.monotonic() - self._began)

    def hear(self, answers: Sequence[Answer], seconds: float) -> None:
        """Add what the nodes answered `seconds` after the first look. A node that was there and has gone is silent."""
        with self._lock:
            self._hear(answers, seconds)

    def _hear(self, answers: Sequence[Answer], seconds: float) -> None:
        gone = {place: Answer(place, None, "does not answer any more; it was stopped") for place in self.answers}
        self.answers = gone | {answer.place: answer for answer in answers}
        found = {int(answer.status["device"]): answer.status for answer in answers if answer.status is not None}
        count = max([self._count, *(device + 1 for device in self._mentioned(found))])
        if count != self._count:  # inner lists have an entry per device, so rows before are of another length
            self._count, self._generation = count, self._generation + 1
            self._rows["samples"] = []
        if not found:
            return
        k = round(sum(status["iteration"] for status in found.values()) / len(found))
        self._rows["curve"].append(self._curve_row(k, seconds, found))
        drifts = [[found.get(device, {}).get(name) for device in range(count)] for name in ("drift", "threshold")]
        self._rows["samples"].append((k, [], *drifts))
        fired = sorted(i for i, status in found.items() if _grew(self._before.get(i), status, _broadcasts))
        used = sorted(
            {
                (min(i, one["device"]), max(i, one["device"]))
                for i, status in found.items()
                for one in status["neighbours"]
                if _grew(_link(self._before.get(i), one["device"]), one, _committed)
            }
        )
        self._rows["events"].append((k, fired, used))
        up = sorted(
            {
                (min(i, one["device"]), max(i, one["device"]))
                for i, status in found.items()
                for one in status["neighbours"]
                if one["up"]
            }
        )
        if not self._rows["network"] or self._rows["network"][-1][1] != up:
            self._rows["network"].append((k, up))
        self._before = found
        self._forget()

    def _mentioned(self, found: Statuses) -> set[int]:
        return {*found, *(one["device"] for status in found.values() for one in status["neighbours"])}

    @staticmethod
    def _curve_row(k: int, seconds: float, found: Statuses) -> tuple[Any, ...]:
        losses = [status["loss"] for status in found.values() if status["loss"] is not None]
        loss = sum(losses) / len(losses) if losses else None
        sent = sum(one["bytes_sent"] for status in found.values() for one in status["neighbours"])
        broadcasts = float(sum(map(_broadcasts, found.values())))
        return k, None, None, None, None, None, loss, None, 8.0 * sent, broadcasts, round(seconds, 3)

    def _forget(self) -> None:
        """Drop every other look. Links stay as they were in the looks that are left."""
        if len(self._rows["curve"]) < 2 * MOST_LOOKS:
            return
        for part in ("curve", "samples", "events"):
            self._rows[part] = self._rows[part][::-2][::-1]  # the last one stays
        self._rows["network"] = _in_force(self._rows["network"], [row[0] for row in self._rows["events"]])
        self._generation += 1

    @property
    def generation(self) -> Hashable:
        return "nodes", self._generation

    @property
    def devices(self) -> list[Device]:
        told = {answer.status["device"]: answer.status for answer in self.answers.values() if answer.status}
        elsewhere = {"state": "elsewhere", "problem": "it is known from its neighbours only"}
        return [
            {
                "device": device,
                "bandwidth": told.get(device, {}).get("bandwidth"),
                "samples": None,
                "labels": None,
                "node": dict(told.get(device, elsewhere)),
            }
            for device in range(self._count)
        ]

    leaves_out_events = True

    @property
    def notes(self) -> dict[str, str]:
        silent = [f"{Path(one.place).name}: {one.problem}" for one in self.answers.values() if one.status is None]
        notes = {"nodes": f"{len(self.answers) - len(silent)} answer, of {len(self.answers)}"}
        notes |= {"over time": "since this page was first opened; seconds count from then"}
        return notes | ({"silent": "; ".join(silent)} if silent else {})

    def rows(self, part: Part, generation: Hashable = None, start: int = 0) -> Rows:
        with self._lock:
            first = start if generation == self.generation else 0
            return Rows(self.generation, first, as_columns(part, self._rows[part][first:]))

    def summary(self, run: str, folder: Path) -> RunSummary:
        """Return how all nodes are, in one line."""
        named = NAMED.fullmatch(folder.name)
        statuses = [answer.status for answer in self.answers.values() if answer.status is not None]
        states = {status["state"] for status in statuses}
        silent = len(self.answers) - len(statuses)
        speeds = [status["steps_per_second"] for status in statuses if status["steps_per_second"] is not None]
        return {
            "id": run,
            "strategy": named[1] if named else folder.name,
            "seed": int(named[2]) if named else 0,
            "state": "stopped" if not statuses else "done" if states == {"finished"} else "running",
            "k": round(sum(status["iteration"] for status in statuses) / len(statuses)) if statuses else 0,
            "iterations": max((status["iterations"] for status in statuses), default=0),
            "accuracy": None,
            "iterations_per_second": sum(speeds) / len(speeds) if speeds else None,
            "seconds_left": None,
            "problem": f"{silent} of {len(self.answers)} nodes do not answer" if silent else None,
        }


def _in_force(changes: Sequence[tuple[Any, ...]], iterations: Iterable[int]) -> list[tuple[Any, ...]]:
    """Return the changes that hold in any of these iterations, given changes by the iteration of each."""
    at = [change[0] for change in changes]
    places = {bisect_right(at, k) - 1 for k in iterations}
    return [change for place, change in enumerate(changes) if place in places or place == len(changes) - 1]


def _checked(answer: Answer) -> Answer:
    """Return an answer. Of something else that listens on the socket: that it is no node."""
    if answer.status is None:
        return answer
    try:
        check_content(answer.status)
        trial = NodeSource()
        if not all(0 <= device < MOST_DEVICES for device in trial._mentioned({answer.status["device"]: answer.status})):
            raise ValueError("it names a device that cannot be")
        trial.hear([answer], 0.0)
        trial.summary("", Path())
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return Answer(answer.place, None, "what answers there is not an efhc node")
    return answer


def _broadcasts(status: Mapping[str, Any]) -> int:
    return int(status["broadcasts"])


def _committed(link: Mapping[str, Any]) -> int:
    return int(link["exchanges"]["committed"])


def _link(status: Mapping[str, Any] | None, device: int) -> Mapping[str, Any] | None:
    return next((one for one in status["neighbours"] if one["device"] == device), None) if status else None


def _grew(before: Mapping[str, Any] | None, now: Mapping[str, Any], count: Any) -> bool:
    """Return whether a count is larger than it was. A node that was not there before has not grown."""
    return before is not None and count(now) > count(before)
