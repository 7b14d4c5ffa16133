"""What nodes of the network runtime say of themselves, remembered while somebody watches."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from threading import Lock, Thread
from typing import Any, NamedTuple

from efhc.experiments.nodes.status_query import Answer, ask
from efhc.report.views import Device, RunSummary, State
from efhc.watch.checking import LARGEST, check_content
from efhc.watch.sources import Columns, Part, Rows, as_columns, in_force

MOST_LOOKS = 1_000
"""Half of the largest number of looks that are remembered. At that number, every other look is forgotten."""
MOST_NUMBERS = 200_000
"""The largest number of numbers in the looks that are remembered. Beyond that, every other look is forgotten."""
MOST_SHOWN = 5_000
"""The largest number of devices that are shown: nodes that answered and, while there is room, their neighbours."""
MOST_DEVICES = 100_000
"""The largest number of devices among which a node can be."""
NAMED = re.compile(r"(.+)\.seed(\d+)")
"""The folder of the nodes of one run of `efhc launch`."""
ELSEWHERE = {"state": "elsewhere", "problem": "it is known from its neighbours only"}
SILENT = {"state": "silent", "problem": "it does not answer any more; this is what it said last"}

Status = Mapping[str, Any]
Link = tuple[int, int]


class _Look(NamedTuple):
    """What one look at the nodes has found. Devices are named by their numbers, those that did not answer are not."""

    k: int
    curve: tuple[Any, ...]
    """The row of the curve."""
    drifts: dict[int, float | None]
    thresholds: dict[int, float | None]
    fired: list[int]
    """The devices that have fired since the look before."""
    used: list[Link]
    """The links over which models were exchanged since the look before."""


class _Wiring(NamedTuple):
    """The links that are up from a look on."""

    k: int
    links: list[Link]


class NodeSource:
    """The nodes of one folder. Each look at them adds a row to every part but the network, whose rows are changes."""

    def __init__(self, most_numbers: int = MOST_NUMBERS) -> None:
        self._most_numbers = most_numbers
        self._lock = Lock()
        self.answers: dict[str, Answer] = {}
        """The last answer of each node, by its place. Empty: no node has been asked yet."""
        self.asked = 0
        """How many times all nodes were asked."""
        self._told: dict[str, Status] = {}
        """The last status of each node that ever answered, by its place. The one that answered last comes last."""
        self._furthest: dict[int, int] = {}
        """The largest iteration that each device told."""
        self._k = 0
        self._looks: list[_Look] = []
        self._wirings: list[_Wiring] = []
        self._shown: list[int] = []
        """The devices on the page, by number. The page names a device by its place here."""
        self._left_out = 0
        """The number of devices that are known and not on the page."""
        self._generation = 0
        self._began = time.monotonic()
        self._asking: Thread | None = None

    def look(self, sockets: Sequence[Path]) -> None:
        """Ask all nodes how they are, in a thread of its own, unless they are still being asked."""
        if self._asking is None or not self._asking.is_alive():
            self._asking = Thread(target=self._ask, args=(sockets,), name="efhc-ask", daemon=True)
            self._asking.start()

    def wait(self, seconds: float) -> None:
        """Wait for the answers of all nodes that are being asked, for this long at most."""
        if self._asking is not None:
            self._asking.join(seconds)

    def _ask(self, sockets: Sequence[Path]) -> None:
        with ThreadPoolExecutor(max_workers=16) as threads:
            answers = list(map(_checked, threads.map(ask, sockets)))
        self.hear(answers, time.monotonic() - self._began)

    def hear(self, answers: Sequence[Answer], seconds: float) -> None:
        """Add what the nodes answered `seconds` after the first look. A node that was there and has gone is silent."""
        with self._lock:
            gone = {place: Answer(place, None, "does not answer any more; it was stopped") for place in self.answers}
            self.answers = gone | {answer.place: answer for answer in answers}
            before, told = self._last, {answer.place: answer.status for answer in answers if answer.status is not None}
            self._told = {place: status for place, status in self._told.items() if place not in told} | told
            if told:
                self._add({status["device"]: status for status in told.values()}, before, seconds)
            self.asked += 1

    @property
    def _last(self) -> dict[int, Status]:
        """The last status of each device that ever answered."""
        return {status["device"]: status for status in self._told.values()}

    def _add(self, found: Mapping[int, Status], before: Mapping[int, Status], seconds: float) -> None:
        """Add a look, given the nodes that answered, and the last status of all devices before."""
        last = self._last
        k = self._reach(found, last)
        broadcasts = {i: int(status["broadcasts"]) for i, status in before.items()}
        fired = sorted(i for i, status in found.items() if int(status["broadcasts"]) > broadcasts.get(i, LARGEST))
        committed = {(i, one["device"]): _committed(one) for i, one in _ends(before)}
        used = _links(
            (i, one) for i, one in _ends(found) if _committed(one) > committed.get((i, one["device"]), LARGEST)
        )
        up = _links((i, one) for i, one in _ends(found) if one["up"])
        drifts, thresholds = (
            {i: _number(status.get(name)) for i, status in found.items()} for name in ("drift", "threshold")
        )
        self._looks.append(_Look(k, _curve_row(k, seconds, last.values()), drifts, thresholds, fired, used))
        if not self._wirings or self._wirings[-1].links != up:
            self._wirings.append(_Wiring(k, up))
        known = dict.fromkeys([*last, *(i for status in last.values() for i in _neighbours(status))])
        shown = sorted(islice(known, MOST_SHOWN))
        self._left_out = len(known) - len(shown)
        if shown != self._shown:  # places have moved
            self._shown, self._generation = shown, self._generation + 1
        self._forget()

    def _reach(self, found: Mapping[int, Status], last: Mapping[int, Status]) -> int:
        """Return the iteration that all nodes have reached: the mean of theirs, which does not decrease.

        If every node that answers is behind what it told before, all were started again: looks after their iteration
        are forgotten.
        """
        k = round(sum(int(status["iteration"]) for status in last.values()) / len(last))
        if k < self._k and all(status["iteration"] < self._furthest.get(i, 0) for i, status in found.items()):
            self._looks = [look for look in self._looks if look.k <= k]
            self._wirings = [wiring for wiring in self._wirings if wiring.k <= k]
            self._k, self._generation = k, self._generation + 1
        self._k = max(self._k, k)
        for i, status in found.items():
            self._furthest[i] = max(self._furthest.get(i, 0), int(status["iteration"]))
        return self._k

    def _forget(self) -> None:
        """Drop every other look while there are too many. Links stay as they were in the looks that are left."""
        while len(self._looks) > 1 and (len(self._looks) >= 2 * MOST_LOOKS or self._numbers() > self._most_numbers):
            self._looks = self._looks[::-2][::-1]  # the last one stays
            kept = {*in_force([wiring.k for wiring in self._wirings], (look.k for look in self._looks))}
            kept.add(len(self._wirings) - 1)
            self._wirings = [self._wirings[place] for place in sorted(kept)]
            self._generation += 1

    def _numbers(self) -> int:
        of_looks = sum(2 * len(self._shown) + len(look.fired) + 2 * len(look.used) for look in self._looks)
        return of_looks + sum(2 * len(wiring.links) for wiring in self._wirings)

    @property
    def generation(self) -> Hashable:
        return "nodes", self._generation

    @property
    def devices(self) -> list[Device]:
        last = self._last
        told = {answer.status["device"]: answer.status for answer in self.answers.values() if answer.status}
        nodes = {i: dict(told[i]) if i in told else {**last[i], **SILENT} for i in last}
        return [
            {
                "device": device,
                "bandwidth": last.get(device, {}).get("bandwidth"),
                "samples": None,
                "labels": None,
                "node": nodes.get(device) or dict(ELSEWHERE),
            }
            for device in self._shown
        ]

    leaves_out_events = True

    @property
    def notes(self) -> dict[str, str]:
        """Facts about the nodes, always by the same names."""
        silent = [f"{Path(one.place).name}: {one.problem}" for one in self.answers.values() if one.status is None]
        left_out = f"; {self._left_out:,} of their neighbours are not shown" if self._left_out else ""
        return {
            "nodes": f"{len(self.answers) - len(silent)} answer, of {len(self.answers)}{left_out}",
            "over time": "since this page was first opened; seconds count from then",
            "silent": "; ".join(silent) or "none",
        }

    def rows(self, part: Part, generation: Hashable = None, start: int = 0) -> Rows:
        with self._lock:
            first = start if generation == self.generation else 0
            return Rows(self.generation, first, self._columns(part, first))

    def _columns(self, part: Part, first: int) -> Columns:
        places = {device: place for place, device in enumerate(self._shown)}

        def placed(links: Iterable[Link]) -> list[Link]:
            return [(places[i], places[j]) for i, j in links if i in places and j in places]

        if part == "network":
            return as_columns(part, [(wiring.k, placed(wiring.links)) for wiring in self._wirings[first:]])
        rows: list[tuple[Any, ...]] = []
        for look in self._looks[first:]:
            if part == "curve":
                rows.append(look.curve)
            elif part == "samples":
                rows.append(
                    (look.k, [], *([known.get(i) for i in self._shown] for known in (look.drifts, look.thresholds)))
                )
            else:
                rows.append((look.k, [places[i] for i in look.fired if i in places], placed(look.used)))
        return as_columns(part, rows)

    def summary(self, run: str, folder: Path) -> RunSummary:
        """Return how all nodes are, in one line."""
        named = NAMED.fullmatch(folder.name)
        answers = self.answers
        statuses = [answer.status for answer in answers.values() if answer.status is not None]
        silent = len(answers) - len(statuses)
        speeds = [status["steps_per_second"] for status in statuses if status["steps_per_second"] is not None]
        state: State = "running"
        if not answers:
            state = "waiting"
        elif not statuses:
            state = "stopped"
        elif {status["state"] for status in statuses} == {"finished"}:
            state = "done"
        return {
            "id": run,
            "strategy": named[1] if named else folder.name,
            "seed": int(named[2]) if named else 0,
            "state": state,
            "k": self._k,
            "iterations": max((int(status["iterations"]) for status in self._told.values()), default=0),
            "accuracy": None,
            "iterations_per_second": sum(speeds) / len(speeds) if speeds else None,
            "seconds_left": None,
            "problem": f"{silent} of {len(answers)} nodes do not answer" if silent else None,
        }


def _checked(answer: Answer) -> Answer:
    """Return an answer. Of something else that listens on the socket: that it is no node."""
    if answer.status is None:
        return answer
    try:
        check_content(answer.status)
        if not all(0 <= device < MOST_DEVICES for device in (answer.status["device"], *_neighbours(answer.status))):
            raise ValueError("it names a device that cannot be")
        trial = NodeSource()
        trial.hear([answer], 0.0)
        trial.summary("", Path())
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return Answer(answer.place, None, "what answers there is not an efhc node")
    return answer


def _curve_row(k: int, seconds: float, last: Collection[Status]) -> tuple[Any, ...]:
    """Return a row of the curve, given the last status of each device."""
    losses = [status["loss"] for status in last if status["loss"] is not None]
    loss = sum(losses) / len(losses) if losses else None
    sent = sum(one["bytes_sent"] for status in last for one in status["neighbours"])
    broadcasts = float(sum(int(status["broadcasts"]) for status in last))
    return k, None, None, None, None, None, loss, None, 8.0 * sent, broadcasts, round(seconds, 3)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _neighbours(status: Status) -> list[int]:
    return [one["device"] for one in status["neighbours"]]


def _ends(statuses: Mapping[int, Status]) -> Iterator[tuple[int, Status]]:
    """Yield devices, and what each says of a neighbour."""
    return ((i, one) for i, status in statuses.items() for one in status["neighbours"])


def _links(ends: Iterable[tuple[int, Status]]) -> list[Link]:
    return sorted({(min(i, one["device"]), max(i, one["device"])) for i, one in ends})


def _committed(link: Status) -> int:
    return int(link["exchanges"]["committed"])
