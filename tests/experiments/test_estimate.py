"""The estimate of how long runs take: it counts what the runs do, and times what they are made of."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.store import RunStore
from efhc.experiments.studies import estimate as estimating
from efhc.experiments.studies.estimate import estimate
from efhc.strategies.paper import EventTriggered, ZeroThreshold

STRATEGIES = {"EF-HC": EventTriggered(), "ZT": ZeroThreshold()}


def test_it_counts_iterations_evaluations_and_runs(monkeypatch: pytest.MonkeyPatch):
    timed = []
    monkeypatch.setattr(estimating, "_timed", lambda run: timed.append(run.strategy) or (0.5, 100.0))
    experiment = Experiment(iterations=45, evaluate_every=10, seeds=[0, 1, 2], strategies=STRATEGIES)
    found = estimate(Runs().of(experiment))
    assert found == (0.5 * 45 * 6 + 100.0 * 6 * 6, 6)  # evaluated after 1, 10, 20, 30, 40, 45
    assert sorted(timed) == ["EF-HC", "ZT"]  # seeds alike are timed once
    assert found.on_cores(2) == found.seconds / 2
    assert found.on_cores(100) == found.seconds / 6


@pytest.mark.slow
def test_what_is_done_once_is_not_counted_again_and_again(tmp_path: Path):
    """Compiling, and laying out the test samples."""
    code = (
        "from efhc.experiments.config.experiment import Experiment\n"
        "from efhc.experiments.runs.run import Runs\n"
        "from efhc.experiments.studies.estimate import _timed\n"
        "run = Runs().of(Experiment(seeds=[0]))[0]\n"
        "print(*_timed(run), *_timed(run))"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    cold, cold_evaluation, warm, warm_evaluation = map(float, done.stdout.split())
    assert 0.3 < cold / warm < 3
    assert 0.3 < cold_evaluation / warm_evaluation < 3


@pytest.mark.slow
def test_it_is_near_what_the_runs_take(tmp_path: Path):
    runs = Runs().of(Experiment(iterations=20_000, evaluate_every=200, seeds=[0], strategies=STRATEGIES))
    store = RunStore(tmp_path)
    expected = estimate(store.find_missing(runs)).seconds
    started = time.process_time()
    store.complete(runs, LocalEngine(1), lambda run, share: None)
    assert 0.3 < expected / (time.process_time() - started) < 3
    assert store.find_missing(runs) == []
    assert estimate(store.find_missing(runs)) == (0, 0)
