"""The estimate of how long runs take: it counts what the runs do, and times what they are made of."""

from __future__ import annotations

import pytest

from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import build_experiment
from efhc.experiments.runs.run import Runs
from efhc.experiments.studies import estimate as estimating
from efhc.experiments.studies.estimate import estimate
from efhc.strategies.paper import EventTriggered, ZeroThreshold

STRATEGIES = {"EF-HC": EventTriggered(), "ZT": ZeroThreshold()}


def test_it_counts_iterations_evaluations_and_runs(monkeypatch: pytest.MonkeyPatch):
    timed = []
    monkeypatch.setattr(estimating, "_timed", lambda run, scenario: timed.append(run.strategy) or (0.5, 100.0))
    experiment = Experiment(iterations=45, evaluate_every=10, seeds=[0, 1, 2], strategies=STRATEGIES)
    experiment = experiment.model_copy(update={"evaluate_at": "multiples"})
    found = estimate(Runs().of(experiment))
    assert found == (0.5 * 45 * 6 + 100.0 * 6 * 6, 6)  # evaluated after 1, 10, 20, 30, 40, 45
    assert sorted(timed) == ["EF-HC", "ZT"]  # seeds alike are timed once
    assert found.on_cores(2) == found.seconds / 2
    assert found.on_cores(100) == found.seconds / 6


def test_what_is_done_once_is_not_counted_again_and_again(monkeypatch: pytest.MonkeyPatch):
    """Compiling, and laying out the test samples. After that, each unit takes 0.125 s."""
    clock, done = 0.0, 0

    def advance() -> int:
        nonlocal clock, done
        clock += 0.125 if done else 40.0
        done += 1
        return done

    monkeypatch.setattr(estimating.time, "process_time", lambda: clock)
    assert estimating._seconds_per_unit(advance) == 0.125
    assert clock == 40.0 + estimating.PROCESSOR_SECONDS
    clock, done = 0.0, 0
    assert estimating._seconds_per_unit(advance, end=1) == 0


def test_runs_in_lockstep_and_on_clocks_are_timed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(estimating, "PROCESSOR_SECONDS", 0.0)
    for driver in ("lockstep", {"kind": "event-driven", "seconds": 2.0}):
        experiment = build_experiment({"iterations": 3, "seeds": [0], "strategies": {"ZT": "zt"}, "driver": driver})
        found = estimate(Runs().of(experiment))
        assert (found.runs, found.seconds) == (1, 0.0)
    assert estimate([]) == (0, 0)
