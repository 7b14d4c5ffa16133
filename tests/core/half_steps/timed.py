"""Devices with half-steps and clocks: messages take time on every link, nothing is lost, there are no gradients."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from efhc.core.half_step_messages import Effect, Send
from efhc.core.half_steps import Arithmetic, HalfSteps, LinkLaw
from efhc.core.step_limits import NoLimit, StepLimit

WHOLE = Arithmetic(lambda model, told, threshold: (model, 32 * len(model)))
Delay = Callable[[int, int], float]
"""Seconds of a message from one device to another."""


class Clockwork:
    """All devices start at these values, and send whole models on all free links after each `compute` time."""

    def __init__(
        self,
        values: Sequence[float],
        links: Sequence[tuple[int, int]],
        *,
        law: LinkLaw,
        delay: Delay,
        compute: Sequence[float],
        limit: StepLimit | None = None,
    ) -> None:
        self.limit, self.delay, self.compute = limit or NoLimit(), delay, compute
        self.now, self.numbers = 0.0, count()
        self.due: list[tuple[float, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.touched: set[int] = set()
        self.frames = 0
        self.cores = [HalfSteps(i, 0, law, np.array([value])) for i, value in enumerate(values)]
        for i, j in links:
            self.cores[i].link_up(j)
            self.cores[j].link_up(i)
        for i, core in enumerate(self.cores):
            self.do(i, core.announce())
            self.after(compute[i], 0, self.step, i)

    def do(self, i: int, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.after(self.delay(i, effect.neighbour), 1, self.receive, effect.neighbour, i, effect.message)

    def receive(self, i: int, j: int, message: Any) -> None:
        self.touched.add(i)
        self.do(i, self.cores[i].received(j, message, WHOLE))

    def step(self, i: int) -> None:
        self.touched.add(i)
        core = self.cores[i]
        effects = core.stepped(core.model, 1.0, lambda told: [0.0] * len(told), WHOLE, limit=self.limit)
        self.frames += len(effects)
        self.do(i, effects)
        self.after(self.compute[i], 0, self.step, i)

    def after(self, seconds: float, order: int, action: Callable[..., None], *arguments: Any) -> None:
        """At one instant, steps come before messages."""
        heapq.heappush(self.due, (self.now + seconds, order, next(self.numbers), action, arguments))

    def run(self, until: float) -> Iterator[np.ndarray]:
        """Let time pass; yields all models after each instant, when what links have added is in them."""
        while self.due[0][0] <= until:
            self.now = self.due[0][0]
            while self.due[0][0] == self.now:
                *_, action, arguments = heapq.heappop(self.due)
                action(*arguments)
            for i in sorted(self.touched):
                core = self.cores[i]
                pulled = core.take_pull()
                if pulled is not None:
                    core.model = core.model + pulled[0]
            self.touched.clear()
            yield np.array([core.model[0] for core in self.cores])
