"""A compute model and a link model of your own, which docs/extending.md explains: virtual times, never waiting."""

from __future__ import annotations

import heapq
import math

from pydantic import Field

import efhc


class Stragglers(efhc.ComputeTimes):
    """A gradient takes `usual` seconds, and with this probability `slow` seconds."""

    usual: float = Field(default=1.0, gt=0)
    slow: float = Field(default=10.0, gt=0)
    probability: float = Field(default=0.05, ge=0, le=1)

    def over_time(self, devices, randomness):
        return StragglerClock(self, randomness)


class StragglerClock:
    """The compute times of one run."""

    def __init__(self, policy, randomness):
        self.policy, self.randomness = policy, randomness

    def seconds(self, device, k):
        coin = self.randomness.stream(efhc.Purpose.COMPUTE_TIMES, device, k).random()
        return self.policy.slow if coin < self.policy.probability else self.policy.usual


class Satellite(efhc.LinkPolicy):
    """A satellite passes every `period` seconds and delivers all messages that were sent completely by then."""

    period: float = Field(default=60.0, gt=0)

    def transfers(self, bandwidths, randomness):
        return Passes(self.period, bandwidths)


class Passes:
    """The messages of one run that are under way."""

    def __init__(self, period, bandwidths):
        self.period, self.bandwidths = period, bandwidths
        self.heap, self.ends = [], {}

    def send(self, now, sender, receiver, size, ticket):
        ready = now + size / self.bandwidths[sender]
        self.ends[ticket] = sender, receiver
        heapq.heappush(self.heap, (math.ceil(ready / self.period) * self.period, ticket))

    def next_time(self):
        return self.heap[0][0] if self.heap else math.inf

    def take(self, now):
        notices = []
        while self.heap and self.heap[0][0] <= now:
            ticket = heapq.heappop(self.heap)[1]
            del self.ends[ticket]
            notices.append(efhc.Notice(ticket, "arrived"))
        return notices

    def cancel(self, now, ticket):
        self.ends.pop(ticket, None)
        self.heap = sorted(entry for entry in self.heap if entry[1] != ticket)

    def cut(self, now, i, j):
        tickets = [ticket for ticket, ends in self.ends.items() if ends in ((i, j), (j, i))]
        for ticket in tickets:
            self.cancel(now, ticket)
        return tickets

    def is_stalled(self, ticket):
        return False

    def state(self):
        return {"heap": sorted(self.heap), "ends": [[ticket, *ends] for ticket, ends in self.ends.items()]}

    def restore(self, state):
        self.heap = [tuple(entry) for entry in state["heap"]]
        self.ends = {ticket: (sender, receiver) for ticket, sender, receiver in state["ends"]}
