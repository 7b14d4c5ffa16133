"""A run that is stopped and resumed, beside the same run without a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from polars.testing import assert_frame_equal

from efhc.drivers.observers import LookAt, Observer
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.engines.local import make_run
from efhc.experiments.runs.folder import RunFolder
from efhc.experiments.runs.keeping import RunOptions, Stopped
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.store import RunStore


class StopAt(LookAt):
    """Stops a run after a given number of iterations."""

    def look(self, state: Any) -> None:
        raise Stopped


class Begin(Observer):
    """Keeps the iteration that a run goes on from."""

    def begin(self, state: Any) -> None:
        self.k = state.k


def assert_same_bits_if_stopped_after(k: int, run: Run, folder: Path) -> None:
    memory, store, begin = RunStore(None), RunStore(folder, with_models=True), Begin()
    scenario = draw_scenario(run.whole, run.data, run.seed)
    with memory.keeper(run) as keeper:
        make_run(scenario, keeper)
    with pytest.raises(Stopped), store.keeper(run) as keeper:
        make_run(scenario, keeper, RunOptions(observers=[StopAt([k])]))
    with store.keeper(run) as keeper:
        make_run(scenario, keeper, RunOptions(observers=[begin]))
    assert begin.k == k
    kept = RunFolder(store.directory(run))
    for name, table in memory.made[run.key].tables.items():
        assert_frame_equal(kept.table(name), table, check_exact=True)
    (models,) = kept.models().values()
    assert np.array_equal(models, memory.made[run.key].models)
