"""When models are evaluated: after the first iteration, once in every window of `evaluate_every`, and at the end.

With t_j uniform on 1, ..., E, drawn from the seed, the window of iterations j E + 1, ..., (j + 1) E has its evaluation
after j E + t_j of them. So no strategy that does something at multiples of a number is always met at the same point of
its period. The last window has its evaluation at the end of the run.

A strategy with a known period of T iterations (`Form.period`) is evaluated at the end, and at each budget, after every
iteration of one period. These rows make up one evaluation, whose measures are their means: they name the iteration of
the first of them in the column `evaluation` (see `learning.measures.evaluated`).

Budgets are shares of the transmission time that ZT spends in the whole run. An evaluation begins with the first
iteration after which as much is spent.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from efhc.core.cost import transmission_time
from efhc.core.randomness import BlockReader, Purpose, Randomness
from efhc.drivers.record import Record
from efhc.experiments.config.experiment import Experiment
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import form_of

BLOCK = 256
"""Windows whose moments are drawn at once. Part of a run's identity."""
MOST_OF_PERIOD = 32
"""Largest number of evaluations in a period. Of a longer one, so many at equal distances are taken."""
MOST_OF_NEXT = 2
"""How much more than in any iteration so far, and than ZT, the next one may spend without missing a budget."""


class Moments:
    """The iterations after which the models of one run in lockstep are evaluated."""

    def __init__(self, experiment: Experiment, scenario: Scenario) -> None:
        """`experiment` has one strategy and one seed."""
        self._every, self._iterations = experiment.evaluate_every, experiment.iterations
        (strategy,) = experiment.strategies.values()
        (seed,) = experiment.seeds
        is_drawn = experiment.evaluate_at != "multiples"
        self._period = min(form_of(strategy).period, self._iterations) if is_drawn else 1
        stream = Randomness(seed).stream

        def draw(block: int) -> np.ndarray:
            if not is_drawn:
                return np.full(BLOCK, self._every)
            return stream(Purpose.EVALUATIONS, block).integers(1, self._every, BLOCK, endpoint=True)

        self._place = BlockReader(draw, BLOCK)
        """t_j"""
        self._last = sorted(self._iterations - after for after in self._in_period)
        """The evaluations at the end, of one period."""
        self._of_period = dict.fromkeys(self._last, self._last[0] - 1)
        """The first iteration of the evaluation that a number of iterations belongs to, at the end or a budget."""
        self._budgets: list[float] = []
        self._most = 0.0
        if experiment.evaluate_at == "budgets":
            total, self._most = spent_by_zero_threshold(scenario, self._iterations)
            self._budgets = [share * total for share in sorted(experiment.budgets)]
        self._passed = 0
        """The number of budgets that are spent."""

    @property
    def _in_period(self) -> list[int]:
        count = min(self._period, MOST_OF_PERIOD)
        return [place * self._period // count for place in range(count)]

    def next(self, k: int, record: Record) -> int:
        """Return the least number of iterations above k after which the driver must stop for `evaluation_after`."""
        after = self._regular(k)
        if place := min((moment for moment in self._of_period if moment > k), default=None):
            after = min(after, place)
        if self._passed < len(self._budgets):
            most = MOST_OF_NEXT * max(self._most, record.largest_time)
            left = self._budgets[self._passed] - record.time_total
            after = min(after, k + max(1, int(left / most))) if most > 0 else after
        return after

    def _regular(self, k: int) -> int:
        if k == 0:
            return 1
        window = k // self._every
        for number in (window, window + 1):
            moment = number * self._every + int(self._place(number))
            if moment > k:
                break
        return moment if (number + 1) * self._every < self._iterations else self._iterations

    def evaluation_after(self, k: int, record: Record) -> int | None:
        """Return the first iteration of the evaluation that the models after k iterations are part of, if any.

        Call it at every k where `next` stops, in order, when the record has the iteration.
        """
        if self._pass_budgets(record.time_total) and k not in self._of_period:
            self._of_period |= {k + after: k - 1 for after in self._in_period if k + after < self._last[0]}
        return self._first_of(k)

    def _first_of(self, k: int) -> int | None:
        """Return what `evaluation_after` does, with the periods that are known."""
        if k in self._of_period:
            return self._of_period[k]
        within = any(first < k < moment for moment, first in self._of_period.items())
        return k - 1 if self._regular(k - 1) == k and not within else None

    def _pass_budgets(self, spent: float) -> bool:
        """Note which budgets are spent. Returns whether there is a new one."""
        before = self._passed
        while self._passed < len(self._budgets) and spent >= self._budgets[self._passed]:
            self._passed += 1
        return self._passed > before

    @property
    def planned(self) -> Iterator[int]:
        """The numbers of iterations after which models are evaluated, but for those at budgets."""
        k = 0
        while k < self._iterations:
            k = min(self._regular(k), min((last for last in self._last if last > k), default=self._iterations))
            if self._first_of(k) is not None:
                yield k

    @property
    def at_budgets(self) -> int:
        """The largest number of evaluations at budgets."""
        return len(self._budgets) * len(self._in_period)

    def end_after(self, k: int) -> int:
        """Return when a run ends that is to end after k iterations or as soon as it is evaluated over one period."""
        if self._period == 1:
            return k
        end = min(k + self._period, self._iterations)
        last = sorted(end - after for after in self._in_period)
        if end < self._iterations and last[0] not in self._of_period:
            self._of_period |= dict.fromkeys(last, last[0] - 1)
        return end

    # Checkpoints

    @property
    def pending(self) -> np.ndarray:
        """The moments of periods, with the first iteration of each: what a checkpoint keeps, (moments, 2)."""
        return np.array(sorted(self._of_period.items()), dtype=np.int64).reshape(-1, 2)

    def restore(self, pending: np.ndarray, record: Record) -> None:
        """Go on from what `pending` was, with the record of that moment."""
        self._of_period = {int(moment): int(first) for moment, first in pending}
        self._pass_budgets(record.time_total)


def spent_by_zero_threshold(scenario: Scenario, iterations: int) -> tuple[float, float]:
    """Return what ZT spends in these iterations, which use every link, in all and in the most expensive one."""
    total = most = 0.0
    k, parameters = 0, scenario.learner.backend.parameters
    while k < iterations:
        count, (_, graph) = scenario.iterations_on_graph(k, iterations - k), scenario.graphs(k)
        used = np.ones(len(graph.links), dtype=bool)
        spent = float(transmission_time(graph, used, scenario.bandwidths.values, parameters))
        total, most, k = total + count * spent, max(most, spent), k + count
    return total, most
