"""The status of nodes of the network runtime over time, kept while a page is open."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from efhc.experiments.nodes.status_query import Answer, ask
from efhc.report.views import AboutRows, RunSummary, State
from efhc.watch.discovery import LARGEST, check_content
from efhc.watch.readers import Link, Part, Reader, Row, in_force

MOST_POLLS = 1_000
"""Half of the largest number of polls that are kept. At that number, every other poll is dropped."""
MOST_NUMBERS = 200_000
"""The largest number of numbers in the polls that are kept. Beyond that, every other poll is dropped."""
MOST_SHOWN = 5_000
"""The largest number of devices that are shown: nodes that answered and, while there is room, their neighbours."""
MOST_DEVICES = 100_000
"""The largest number of devices among which a node can be."""
NAMED = re.compile(r"(.+)\.seed(\d+)")
"""The folder of the nodes of one run of `efhc launch`."""
ELSEWHERE = {"state": "elsewhere", "problem": "it is known from its neighbours only"}
SILENT = {"state": "silent", "problem": "it does not answer any more; this is its last status"}

Status = Mapping[str, Any]


class _Poll(NamedTuple):
    """The answers of one poll. Devices are named by their numbers; those that did not answer are left out."""

    curve: Row
    """With `k`, the iteration of all nodes, and `seconds`, since the first poll."""
    found: Mapping[int, tuple[float | None, float | None]]
    """The drift and the threshold of each device."""
    fired: list[int]
    """The devices that have fired since the poll before."""
    used: list[Link]
    """The links over which models were exchanged since the poll before."""


class NodesReader(Reader):
    """The nodes of one folder. Each poll adds a row to every part but the network, whose rows are changes."""

    generation: int

    def __init__(self, most_numbers: int = MOST_NUMBERS) -> None:
        super().__init__()
        self._most_numbers = most_numbers
        self.answers: dict[str, Answer] = {}
        """The last answer of each node, by its place. Empty: no node has been polled yet."""
        self._statuses: dict[str, Status] = {}
        """The last status of each node that ever answered, by its place. The one that answered last comes last."""
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
        self._thread: Thread | None = None

    def poll(self, sockets: Sequence[Path]) -> None:
        """Request the status of all nodes in a thread of its own, unless the last poll has not ended yet."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._poll, args=(sockets,), name="efhc-poll", daemon=True)
            self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait for the end of a poll, for this long at most."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _poll(self, sockets: Sequence[Path]) -> None:
        with ThreadPoolExecutor(max_workers=16) as threads:
            answers = list(map(checked, threads.map(ask, sockets)))
        self.add(answers, time.monotonic() - self._began)

    def add(self, answers: Sequence[Answer], seconds: float) -> None:
        """Add the answers of a poll `seconds` after the first one. A node that was there and has gone is silent."""
        with self._lock:
            gone = {place: Answer(place, None, "does not answer any more; it was stopped") for place in self.answers}
            self.answers = gone | {answer.place: answer for answer in answers}
            before, new = self._last, {answer.place: answer.status for answer in answers if answer.status is not None}
            self._statuses = {place: status for place, status in self._statuses.items() if place not in new} | new
            if new:
                self._add({status["device"]: status for status in new.values()}, before, seconds)

    @property
    def _last(self) -> dict[int, Status]:
        """The last status of each device that ever answered."""
        return {status["device"]: status for status in self._statuses.values()}

    def _add(self, found: Mapping[int, Status], before: Mapping[int, Status], seconds: float) -> None:
        """Add a poll, given the nodes that answered, and the last status of all devices before."""
        last = self._last
        k = self._reach(found, last)
        broadcasts = {i: int(status["broadcasts"]) for i, status in before.items()}
        fired = sorted(i for i, status in found.items() if int(status["broadcasts"]) > broadcasts.get(i, LARGEST))
        committed = {(i, one["device"]): _committed(one) for i, one in _ends(before)}
        used = _links(
            (i, one) for i, one in _ends(found) if _committed(one) > committed.get((i, one["device"]), LARGEST)
        )
        up = _links((i, one) for i, one in _ends(found) if one["up"])
        drifts = {i: (_number(one.get("drift")), _number(one.get("threshold"))) for i, one in found.items()}
        self._polls.append(_Poll(_curve_row(k, seconds, last.values()), drifts, fired, used))
        if not self._networks or self._networks[-1][1] != up:
            self._networks.append((k, up))
        known = dict.fromkeys([*last, *(i for status in last.values() for i in _neighbours(status))])
        shown = sorted(islice(known, MOST_SHOWN))
        self._left_out = len(known) - len(shown)
        if shown != self._shown:  # places have moved
            self._shown, self.generation = shown, self.generation + 1
        self._thin()

    def _reach(self, found: Mapping[int, Status], last: Mapping[int, Status]) -> int:
        """Return the iteration that all nodes have reached: the mean of theirs, which does not decrease.

        If every node that answers is behind its earlier status, all were started again: polls after their iteration
        are dropped.
        """
        k = round(sum(int(status["iteration"]) for status in last.values()) / len(last))
        if k < self._k and all(status["iteration"] < self._furthest.get(i, 0) for i, status in found.items()):
            self._polls = [poll for poll in self._polls if poll.curve["k"] <= k]
            self._networks = [network for network in self._networks if network[0] <= k]
            self._k, self.generation = k, self.generation + 1
        self._k = max(self._k, k)
        for i, status in found.items():
            self._furthest[i] = max(self._furthest.get(i, 0), int(status["iteration"]))
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
            last, answers = self._last, list(self.answers.values())
        answered = {answer.status["device"] for answer in answers if answer.status}
        silent = [f"{Path(one.place).name}: {one.problem}" for one in answers if one.status is None]
        left_out = f"; {self._left_out:,} of their neighbours are not shown" if self._left_out else ""
        nodes = {i: dict(status) if i in answered else {**status, **SILENT} for i, status in last.items()}
        return {
            "devices": [
                {
                    "device": device,
                    "bandwidth": last.get(device, {}).get("bandwidth"),
                    "samples": None,
                    "labels": None,
                    "node": nodes.get(device) or dict(ELSEWHERE),
                }
                for device in self._shown
            ],
            "facts": {
                "nodes": f"{len(answers) - len(silent)} answer, of {len(answers)}{left_out}",
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
        polls = self._polls[first:]
        if part == "curve":
            return [poll.curve for poll in polls]
        if part == "samples":
            nothing = None, None
            found = [(poll.curve["k"], [poll.found.get(i, nothing) for i in self._shown]) for poll in polls]
            return [
                {"k": k, "accuracy": [], "drift": [one for one, _ in all_], "threshold": [one for _, one in all_]}
                for k, all_ in found
            ]
        return [
            {
                "k": poll.curve["k"],
                "fired": [places[i] for i in poll.fired if i in places],
                "used": placed(poll.used),
                "seconds": poll.curve["seconds"],
            }
            for poll in polls
        ]

    def summary(self, run: str, folder: Path) -> RunSummary:
        """Return the state of all nodes, in one line."""
        named, answers = NAMED.fullmatch(folder.name), self.answers
        statuses = [answer.status for answer in answers.values() if answer.status is not None]
        silent = len(answers) - len(statuses)
        speeds = [status["steps_per_second"] for status in statuses if status["steps_per_second"] is not None]
        state: State = "running"
        if not statuses:
            state = "stopped" if answers else "waiting"
        elif {status["state"] for status in statuses} == {"finished"}:
            state = "done"
        return {
            "id": run,
            "strategy": named[1] if named else folder.name,
            "seed": int(named[2]) if named else 0,
            "state": state,
            "k": self._k,
            "iterations": max((int(status["iterations"]) for status in self._statuses.values()), default=0),
            "accuracy": None,
            "iterations_per_second": sum(speeds) / len(speeds) if speeds else None,
            "seconds_left": None,
            "problem": f"{silent} of {len(answers)} nodes do not answer" if silent else None,
        }


def checked(answer: Answer) -> Answer:
    """Return an answer. Of something else that listens on the socket: that it is no node."""
    if answer.status is None:
        return answer
    try:
        check_content(answer.status)
        if not all(0 <= device < MOST_DEVICES for device in (answer.status["device"], *_neighbours(answer.status))):
            raise ValueError("it names a device that cannot be")
        trial = NodesReader()
        trial.add([answer], 0.0)
        trial.summary("", Path())
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return Answer(answer.place, None, "what answers there is not an efhc node")
    return answer


def _curve_row(k: int, seconds: float, last: Collection[Status]) -> Row:
    """Return a row of the curve, given the last status of each device."""
    losses = [status["loss"] for status in last if status["loss"] is not None]
    sent = sum(one["bytes_sent"] for status in last for one in status["neighbours"])
    return {
        "k": k,
        "train_loss": sum(losses) / len(losses) if losses else None,
        "bits": 8.0 * sent,
        "broadcasts": float(sum(int(status["broadcasts"]) for status in last)),
        "seconds": round(seconds, 3),
    }


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _neighbours(status: Status) -> list[int]:
    return [one["device"] for one in status["neighbours"]]


def _ends(statuses: Mapping[int, Status]) -> Iterator[tuple[int, Status]]:
    """Yield devices, each with its status of a link."""
    return ((i, one) for i, status in statuses.items() for one in status["neighbours"])


def _links(ends: Iterable[tuple[int, Status]]) -> list[Link]:
    return sorted({(min(i, one["device"]), max(i, one["device"])) for i, one in ends})


def _committed(link: Status) -> int:
    return int(link["exchanges"]["committed"])
