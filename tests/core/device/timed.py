"""Devices with a clock: a model takes one unit of time on every link, all else is instant, and nothing goes wrong."""

from __future__ import annotations

import heapq
from itertools import count

from witness import Weights, combine

from efhc.core.device import Device, react, steps_in_order
from efhc.core.protocol import Begin, Body, LinkUp, Received, Send, Stepped


class Clockwork:
    """All devices always fire (ZT) and compute for `compute` units; there are no gradients."""

    def __init__(self, values, links, *, compute):
        self.compute, self.now, self.numbers = compute, 0.0, count()
        self.cores = [Device(i, 0, model, model) for i, model in enumerate(map(Weights, values))]
        self.due = []
        self.silent = set()
        """Directed links over which nothing arrives."""
        self.exchanges = 0
        """Steps made, two per exchange."""
        for i, j in links:
            self.do(i, LinkUp(j))
            self.do(j, LinkUp(i))
        for i in range(len(self.cores)):
            self.begin(i)

    def do(self, i, event):
        for effect in react(self.cores[i], event, combine):
            if isinstance(effect, Send) and (i, effect.neighbour) not in self.silent:
                takes = 1.0 if isinstance(effect.message, Body) else 0.0
                self.after(takes, self.do, effect.neighbour, Received(i, effect.message))

    def begin(self, i):
        self.do(i, Begin(0.0, 0.0))
        self.after(self.compute, self.step, i)

    def step(self, i):
        core = self.cores[i]
        self.exchanges += len(core.steps)
        moved = sum(step.beta * (step.received.value - step.sent.value) for step in steps_in_order(core))
        self.do(i, Stepped(Weights(core.model.value + moved), len(core.steps)))
        self.begin(i)

    def after(self, seconds, action, *arguments):
        heapq.heappush(self.due, (self.now + seconds, next(self.numbers), action, arguments))

    def run(self, until):
        """Let time pass; yields the spread of the models after each instant."""
        while self.due and self.due[0][0] <= until:
            self.now = self.due[0][0]
            while self.due and self.due[0][0] == self.now:
                _, _, action, arguments = heapq.heappop(self.due)
                action(*arguments)
            values = [core.model.value for core in self.cores]
            yield max(values) - min(values)
