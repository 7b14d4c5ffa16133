"""Telling followers of a run, whichever driver makes it. A follower that fails never harms the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from threading import RLock

from efhc.base.arrays import Ints
from efhc.experiments.runs.live.followers import (
    About,
    DeviceSample,
    EndState,
    EventSample,
    Follower,
    FollowerFactory,
    Row,
)
from efhc.experiments.runs.live.reading import LIVE
from efhc.experiments.runs.live.writing import LiveFile
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.tables import driver_of
from efhc.scenarios.scenario import Scenario


def about_run(run: Run, scenario: Scenario) -> About:
    """Return the facts about a run that do not change."""
    return About(
        run.whole.name,
        *run.pair,
        run.key,
        driver_of(run.experiment),
        run.experiment.devices,
        scenario.learner.backend.parameters,
        run.experiment.iterations,
        scenario.bandwidths.values.tolist(),
        pairs(scenario.network.graph(0).links),
    )


def pairs(links: Ints) -> list[tuple[int, int]]:
    """Return links (links, 2) as pairs of devices."""
    return list(zip(*links.T.tolist(), strict=True)) if len(links) else []


class Followers(Follower):
    """Tells several followers, one call at a time. One that raises is warned of and left out."""

    def __init__(
        self, run: Run, kept: Sequence[Follower], factories: Sequence[FollowerFactory], warn: Callable[[str], None]
    ) -> None:
        """`kept` are the followers that the run's keeper brings; `factories` create the others."""
        self._run, self._warn, self._lock = run, warn, RLock()
        self._followers = list(kept)
        self._has_begun = False
        for factory in factories:
            try:
                self._followers.append(factory(run))
            except Exception as error:  # whatever is wrong with it, the run goes on
                self._leave_out(factory, error)

    def begin(self, about: About, k: int) -> None:
        self._has_begun = True
        self._tell(lambda follower: follower.begin(about, k))

    def recalled(self, rows: Callable[[], Iterable[Row]]) -> None:
        self._tell(lambda follower: follower.recalled(rows))

    def reached(self, k: int) -> None:
        self._tell(lambda follower: follower.reached(k))

    def evaluated(self, row: Row) -> None:
        self._tell(lambda follower: follower.evaluated(row))

    def sampled(self, devices: DeviceSample) -> None:
        self._tell(lambda follower: follower.sampled(devices))

    def happened(self, events: Sequence[EventSample]) -> None:
        self._tell(lambda follower: follower.happened(events))

    def rewired(self, k: int, links: Sequence[tuple[int, int]]) -> None:
        self._tell(lambda follower: follower.rewired(k, links))

    def end(self, state: EndState, problem: str | None) -> None:
        if self._has_begun:
            self._tell(lambda follower: follower.end(state, problem))

    def __len__(self) -> int:
        return len(self._followers)

    def _tell(self, tell: Callable[[Follower], None]) -> None:
        with self._lock:  # models may be evaluated in a thread of their own
            for follower in [*self._followers]:
                try:
                    tell(follower)
                except Exception as error:  # whatever is wrong with it, the run goes on
                    self._followers.remove(follower)
                    self._leave_out(follower, error)

    def _leave_out(self, who: object, error: Exception) -> None:
        name = getattr(who, "__name__", type(who).__name__)
        is_file = isinstance(who, LiveFile)
        what = f"{LIVE} is no longer written" if is_file else f"the follower {name} gets no further updates"
        self._warn(f"{self._run.name}: {what} ({str(error) or type(error).__name__}); the run continues")


class Allowance:
    """Says how many samples may be told now: `per_second` on average, and fewer if they are large."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._clock = per_second, clock
        self._left, self._at = per_second, clock()  # short runs are told of, too

    def left(self) -> int:
        """Return the number of samples that may be told now."""
        now = self._clock()
        self._left = min(self._left + (now - self._at) * self._per_second, self._per_second)
        self._at = now
        return max(0, int(self._left))

    def spend(self, entries: int) -> None:
        """One sample with this number of `entries` was told. Every hundred entries count as one more sample."""
        self._left = max(self._left - 1 - entries / 100, -10 * self._per_second)
