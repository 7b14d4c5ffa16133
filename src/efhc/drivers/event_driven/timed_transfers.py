"""Messages that take time. Nothing here reads a clock; all random numbers come from the seed.

A message of n parameters first passes a pipe, which takes n / b seconds if it has the pipe for itself, and then takes
its latency. A header (n = 0) takes its latency only.
"""

from __future__ import annotations

import math
from dataclasses import asdict, astuple, dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from efhc.core.randomness import Purpose, Randomness, Sequences
from efhc.drivers.event_driven.rates import Rates
from efhc.drivers.event_driven.transfers import Carrier, Notice, WhenLost

BLOCK = 32
"""Numbers drawn at once, from one stream per link direction and block. Part of a run's identity."""


def link_draws(randomness: Randomness, purpose: Purpose) -> Sequences:
    """Return one uniform number per attempt on a link direction: a function of (seed, purpose, link, attempt)."""
    return Sequences(randomness, purpose, BLOCK, lambda stream, sender, receiver: stream.random(BLOCK))


@dataclass(slots=True, eq=False)
class _Message:
    """One message under way."""

    link: int
    size: float
    after: float  # seconds between the end of the pipe and the receiver
    lost: bool = False  # whether this attempt gets lost
    in_pipe: bool = False  # whether it is in a `_Pipe`
    serial: int = -1  # of its entry in the heap, or in the queue of its pipe; entries with another one are void


@dataclass(slots=True, eq=False)
class _Pipe:
    """Messages that share one rate equally (processor sharing).

    `done` is the number of parameters that a message has passed that was there from the beginning. A message of size n
    that enters at `done` = d leaves at `done` = d + n, whichever messages come or go meanwhile.
    """

    key: int
    device: int
    time: float  # at which `done` holds
    done: float = 0.0
    rate: float = 0.0  # from `time` on
    active: int = 0  # messages in it
    queue: list[tuple[float, int, int]] = field(default_factory=list)  # heap of (`done` as it leaves, serial, ticket)
    unsaid: dict[int, None] = field(default_factory=dict)  # tickets whose stall is not yet reported
    serial: int = -1  # of its entry in the heap; entries with another one are void
    finishing: bool = False  # whether a message leaves at that entry


class TimedTransfers(Carrier):
    """Messages that take time. Those of one link direction share a pipe; if `shared`, those of one sender.

    A message that has its pipe for itself until it leaves, at a rate that does not change before, costs one entry of
    the heap. A `_Pipe` is made when that does not hold.
    """

    def __init__(
        self,
        devices: int,
        rates: Rates,
        randomness: Randomness,
        *,
        shared: bool = False,
        latency: float = 0.0,
        jitter: float = 0.0,
        loss: float = 0.0,
        when_lost: WhenLost = "resend",
        at_once: bool = False,
    ) -> None:
        """With `at_once`, the rates are infinite, and there is no latency and no loss."""
        self._devices, self._rates, self._shared = devices, rates, shared
        self._latency, self._jitter, self._loss = latency, jitter, loss
        self.models_at_once = at_once
        self._resend, self._draws = when_lost == "resend", jitter > 0 or loss > 0
        self.is_orderly, self.headers_at_once = not self._draws, latency == 0 and not self._draws
        self._jitters, self._losses = (link_draws(randomness, p) for p in (Purpose.LINK_JITTER, Purpose.LINK_LOSS))
        self._serial = 0
        self._heap: list[tuple[float, int, int | _Pipe]] = []
        self._messages: dict[int, _Message] = {}
        self._on_link: dict[int, dict[int, None]] = {}  # sender * devices + receiver: tickets
        self._alone: dict[int, tuple[int, float, float]] = {}  # pipe: ticket, entered, leaves; only without a `_Pipe`
        self._pipes: dict[int, _Pipe] = {}
        self._latencies: dict[int, float] = {}  # of the tickets that `take` has just returned
        self._counts: dict[int, int] = {}  # attempts on a link direction so far

    # What the simulator calls

    def send(self, now: float, sender: int, receiver: int, size: float, ticket: int) -> None:
        messages = self._messages
        if ticket in messages:
            raise ValueError(f"ticket {ticket} is under way already")
        link = sender * self._devices + receiver
        messages[ticket] = message = _Message(link, size, self._latency)
        self._on_link.setdefault(link, {})[ticket] = None
        self._start(now, ticket, message)

    def next_time(self) -> float:
        heap = self._heap
        while heap and not self._is_live(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else math.inf

    def take(self, now: float) -> list[Notice]:
        heap, messages = self._heap, self._messages
        notices: list[Notice] = []
        self._latencies.clear()
        while heap and heap[0][0] <= now:
            time, serial, what = heappop(heap)
            if isinstance(what, _Pipe):
                if what.serial == serial:
                    self._serve(time, what, notices)
                continue
            message = messages.get(what)
            if message is None or message.serial != serial:
                continue
            if message.lost and self._resend:
                self._start(time, what, message)
                continue
            self._forget(what, message)
            notices.append(Notice(what, "lost" if message.lost else "arrived"))
            self._latencies[what] = message.after
        return notices

    def cancel(self, now: float, ticket: int) -> None:
        message = self._messages.get(ticket)
        if message is None:
            return
        if message.in_pipe:
            pipe = self._pipes[self._key(message)]
            self._advance(pipe, now)
            pipe.active -= 1
            pipe.unsaid.pop(ticket, None)
            self._forget(ticket, message)
            if len(pipe.queue) > 64 + 2 * pipe.active:
                pipe.queue = sorted(filter(self._is_live, pipe.queue))
            self._plan(pipe)
        else:
            self._forget(ticket, message)
        self._drop_void_entries()

    def cut(self, now: float, i: int, j: int) -> list[int]:
        links = (i * self._devices + j, j * self._devices + i)
        tickets = [ticket for link in links for ticket in self._on_link.get(link, ())]
        for ticket in tickets:
            self.cancel(now, ticket)
        return tickets

    def is_stalled(self, ticket: int) -> bool:
        message = self._messages.get(ticket)
        return message is not None and message.in_pipe and self._pipes[self._key(message)].rate == 0

    def could_send(self, device: int, since: float, now: float) -> bool:
        time = since
        while time <= now:
            if self._rates.rate(device, time) > 0:
                return True
            time = self._rates.next_change(device, time)
        return False

    def latency_of(self, ticket: int) -> float:
        return self._latencies.get(ticket, 0.0)

    def backlog(self, now: float, sender: int, receiver: int) -> float:
        """Return the seconds until all that waits has left the pipe of a sender, or of a link; infinity at rate 0."""
        key = sender if self._shared else sender * self._devices + receiver
        pipe, alone = self._pipes.get(key), self._alone.get(key)
        if pipe is None:
            return 0.0 if alone is None else max(0.0, alone[2] - now)
        passed = (now - pipe.time) * pipe.rate  # of all messages together
        waiting = sum(entry[0] - pipe.done for entry in pipe.queue if self._is_live(entry))
        return max(0.0, waiting - passed) / pipe.rate if pipe.rate > 0 else math.inf

    # How messages move

    def _start(self, now: float, ticket: int, message: _Message) -> None:
        """Let the message set out, for the first time or again."""
        if self._draws:
            self._draw(message)
        if message.size > 0:
            self._enter(now, ticket, message)
        else:
            self._arrive(now + message.after, ticket, message)

    def _draw(self, message: _Message) -> None:
        link = message.link
        count = self._counts.get(link, 0)
        self._counts[link] = count + 1
        sender, receiver = divmod(link, self._devices)
        if self._jitter > 0:
            message.after = self._latency + self._jitter * float(self._jitters(count, sender, receiver))
        if self._loss > 0:
            message.lost = bool(self._losses(count, sender, receiver) < self._loss)

    def _arrive(self, time: float, ticket: int, message: _Message) -> None:
        """Let the message be at its receiver (or be lost, so close to it) at `time`."""
        self._serial = message.serial = serial = self._serial + 1
        heappush(self._heap, (time, serial, ticket))

    def _enter(self, now: float, ticket: int, message: _Message) -> None:
        key, device = self._key(message), message.link // self._devices
        pipe = self._pipes.get(key)
        if pipe is None:
            other = self._alone.get(key)
            if other is None or other[2] <= now:
                rate = self._rates.rate(device, now)
                leaves = now + message.size / rate if rate > 0 else math.inf
                if leaves <= self._rates.next_change(device, now) and leaves < math.inf:
                    self._alone[key] = (ticket, now, leaves)
                    self._arrive(leaves + message.after, ticket, message)
                    return
                pipe = self._pipes[key] = _Pipe(key, device, now)
            else:  # as if the other had been in a `_Pipe` from its start
                del self._alone[key]
                pipe = self._pipes[key] = _Pipe(key, device, other[1])
                pipe.rate = self._rates.rate(device, other[1])
                self._join(pipe, other[0], self._messages[other[0]])
        self._advance(pipe, now)
        self._join(pipe, ticket, message)
        self._plan(pipe)

    def _key(self, message: _Message) -> int:
        """Return which pipe the message passes: the sender's, or that of its link direction."""
        return message.link // self._devices if self._shared else message.link

    def _forget(self, ticket: int, message: _Message) -> None:
        del self._messages[ticket]
        link = message.link
        on_link = self._on_link[link]
        del on_link[ticket]
        if not on_link:
            del self._on_link[link]
        if message.size > 0:
            key = self._key(message)
            alone = self._alone.get(key)
            if alone is not None and alone[0] == ticket:
                del self._alone[key]

    # Pipes

    def _join(self, pipe: _Pipe, ticket: int, message: _Message) -> None:
        self._serial = message.serial = serial = self._serial + 1
        message.in_pipe = True
        pipe.active += 1
        heappush(pipe.queue, (pipe.done + message.size, serial, ticket))
        if pipe.rate == 0:
            pipe.unsaid[ticket] = None

    def _first_to_leave(self, pipe: _Pipe) -> float:
        queue = pipe.queue
        while queue and not self._is_live(queue[0]):
            heappop(queue)
        return queue[0][0] if queue else math.inf

    def _advance(self, pipe: _Pipe, now: float) -> None:
        """Let time pass, at the rate and with the messages of before."""
        if pipe.active and now > pipe.time:
            done = pipe.done + (now - pipe.time) * pipe.rate / pipe.active
            pipe.done = min(done, self._first_to_leave(pipe))
        pipe.time = now

    def _plan(self, pipe: _Pipe) -> None:
        """Enter into the heap when something happens in the pipe next; remove it if it is empty."""
        self._serial = pipe.serial = serial = self._serial + 1
        if not pipe.active:
            del self._pipes[pipe.key]
            return
        rate = self._rates.rate(pipe.device, pipe.time)
        if rate > 0:
            pipe.unsaid.clear()
        elif pipe.rate > 0:
            pipe.unsaid = dict.fromkeys(entry[2] for entry in sorted(pipe.queue) if self._is_live(entry))
        pipe.rate = rate
        change = self._rates.next_change(pipe.device, pipe.time)
        leaves = math.inf
        if rate > 0:
            leaves = pipe.time + (self._first_to_leave(pipe) - pipe.done) * pipe.active / rate
        pipe.finishing = leaves <= change
        due = pipe.time if pipe.unsaid else min(leaves, change)
        if due < math.inf:
            heappush(self._heap, (due, serial, pipe))
        self._drop_void_entries()

    def _serve(self, now: float, pipe: _Pipe, notices: list[Notice]) -> None:
        """Carry out what `_plan` has planned for `now`."""
        if pipe.unsaid:
            notices.extend(Notice(ticket, "stalled") for ticket in pipe.unsaid)
            pipe.unsaid.clear()
        elif pipe.finishing:
            pipe.time, pipe.done = now, self._first_to_leave(pipe)  # exactly, whatever the sums of times say
            while self._first_to_leave(pipe) <= pipe.done:
                ticket = heappop(pipe.queue)[2]
                message = self._messages[ticket]
                message.in_pipe = False
                pipe.active -= 1
                self._arrive(now + message.after, ticket, message)
                if not pipe.active:
                    break
        else:
            self._advance(pipe, now)
        self._plan(pipe)

    def _is_live(self, entry: tuple[float, int, int | _Pipe]) -> bool:
        """Return whether an entry of a heap still stands. Entries that do not are left there until they come up."""
        what = entry[2]
        holder = what if isinstance(what, _Pipe) else self._messages.get(what)
        return holder is not None and holder.serial == entry[1]

    def _drop_void_entries(self) -> None:
        """Keep the heap from growing without end where many messages are cancelled."""
        if len(self._heap) > 64 + 2 * (len(self._messages) + len(self._pipes)):
            self._heap[:] = filter(self._is_live, self._heap)  # in place: `take` is at work on it
            heapify(self._heap)

    # Checkpoints

    def state(self) -> dict[str, Any]:
        live = sorted(entry for entry in self._heap if self._is_live(entry))
        return {
            "serial": self._serial,
            "counts": [[*pair] for pair in self._counts.items()],
            "messages": [[ticket, *astuple(message)] for ticket, message in self._messages.items()],
            "alone": [[key, *alone] for key, alone in self._alone.items()],
            "pipes": [self._pipe_state(pipe) for pipe in self._pipes.values()],
            "arrivals": [[time, serial, what] for time, serial, what in live if not isinstance(what, _Pipe)],
            "plans": [[time, serial, what.key] for time, serial, what in live if isinstance(what, _Pipe)],
        }

    def _pipe_state(self, pipe: _Pipe) -> dict[str, Any]:
        queue = [[*entry] for entry in sorted(pipe.queue) if self._is_live(entry)]
        return asdict(pipe) | {"queue": queue, "unsaid": [*pipe.unsaid]}

    def restore(self, state: dict[str, Any]) -> None:
        self._serial = state["serial"]
        self._counts = dict(state["counts"])
        self._messages, self._on_link = {}, {}
        for ticket, *values in state["messages"]:
            self._messages[ticket] = message = _Message(*values)
            self._on_link.setdefault(message.link, {})[ticket] = None
        self._alone = {key: (ticket, entered, leaves) for key, ticket, entered, leaves in state["alone"]}
        self._pipes = {}
        for plain in state["pipes"]:
            held = {"queue": [tuple(entry) for entry in plain["queue"]], "unsaid": dict.fromkeys(plain["unsaid"])}
            self._pipes[plain["key"]] = _Pipe(**plain | held)
        self._heap = [(time, serial, ticket) for time, serial, ticket in state["arrivals"]]
        self._heap += [(time, serial, self._pipes[key]) for time, serial, key in state["plans"]]
        heapify(self._heap)
