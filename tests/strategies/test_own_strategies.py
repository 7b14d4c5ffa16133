"""Strategies of one's own, with memory: from Python and from a file, resumed, swept, and made by Ray."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from polars.testing import assert_frame_equal
from resuming import assert_same_bits_if_stopped_after

import efhc
from efhc.drivers.general import GeneralLockstep
from efhc.experiments.config.files import load_experiment
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.experiments.runs.run import Runs

TYPICAL = '''
import numpy as np
import efhc


class Typical(efhc.Strategy):
    """A device fires when it has drifted more than is typical of it: than the running mean of its drifts."""

    share: float = 0.2
    """How much a drift counts in the mean."""
    memory = {"typical": efhc.Memory(per="device"), "fires": efhc.Memory(per="device", dtype="int64")}

    def fires(self, seen, memory):
        fires = seen.drift > memory["typical"]
        memory["typical"] += self.share * (seen.drift - memory["typical"])
        memory["fires"] += fires
        return fires
'''

PAIRS = '''
import numpy as np
import efhc


class Pairs(efhc.Strategy):
    """Every link is used once in `every` iterations, the one that was unused for longest first; with momentum."""

    every: int = 3
    memory = {"unused": efhc.Memory(per="link", dtype="int64"), "velocity": efhc.Memory(size="model")}

    def step(self, now, models, gradients, memory):
        memory["unused"] += 1
        used = memory["unused"] >= self.every
        memory["unused"][used] = 0
        velocity = memory["velocity"] = (0.5 * memory["velocity"] + gradients).astype(models.dtype)
        moved, links = models - now.step_size * velocity, now.graph.directed
        for i, j, w in zip(links.sender[used], links.receiver[used], now.graph.metropolis_weights[links.link[used]]):
            moved[i] += w * (models[j] - models[i])
        return efhc.Moved(moved.astype(models.dtype), 32 * models.shape[1] * used, per="link")
'''

CONFIG = """
name = "own"
devices = 6
iterations = 12
seeds = [0]
evaluate_every = 5

[strategies]
typical = { kind = "own.py:Typical", share = 0.3 }
pairs = { kind = "own.py:Pairs", every = 2 }
part = { kind = "composed", trigger = { kind = "own.py:Typical" }, mixing = { kind = "estimates", rate = 0.5 } }

[sweep]
strategies.typical.share = [0.1, 0.5]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(TYPICAL + PAIRS.replace("import numpy as np\nimport efhc\n", ""))
    (tmp_path / "own.toml").write_text(CONFIG)
    return tmp_path / "own.toml"


@pytest.fixture
def module(config: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(config.parent)
    import own

    yield own
    del sys.modules["own"]


def assert_same(a: efhc.Result, b: efhc.Result) -> None:
    """Bit for bit."""
    for table in ("metrics", "events", "network", "devices"):
        assert_frame_equal(getattr(a, table), getattr(b, table), check_exact=True)
    assert a.models.keys() == b.models.keys()
    for run, models in a.models.items():
        assert np.array_equal(models, b.models[run])


def test_from_python_and_from_a_file_a_run_has_the_same_bits(config, module):
    composed = efhc.Composed(trigger=module.Typical(), mixing={"kind": "estimates", "rate": 0.5})
    strategies = {"typical": module.Typical(share=0.3), "pairs": module.Pairs(every=2), "part": composed}
    from_python = efhc.simulate(
        name="own", devices=6, iterations=12, seeds=[0], evaluate_every=5, strategies=strategies
    )
    assert_same(efhc.simulate(load_experiment(config)), from_python)


def test_a_trigger_sees_its_drift_and_finds_what_it_remembered(module):
    """The drifts are worked out anew from models and last broadcasts, and the memory from them."""
    experiment = efhc.Experiment(devices=6, strategies={"typical": module.Typical(share=0.3)}, precision="float64")
    scenario = draw_scenario(experiment, load_data(experiment), 0)
    driver = GeneralLockstep(scenario, module.Typical(share=0.3))
    state = driver.initial_state()
    typical, fires = np.zeros(6), np.zeros(6, int)
    for _ in range(20):
        drift = np.sqrt(np.square(state.models - state.last_broadcast).mean(axis=1))
        state, steps = driver.advance(state, 1)
        np.testing.assert_array_equal(steps.fired[0], drift > typical)
        fires += drift > typical
        typical += 0.3 * (drift - typical)
        own = {name.rpartition("/")[2]: array for name, array in state.memory.items()}
        np.testing.assert_allclose(own["typical"], typical, rtol=1e-12)
        np.testing.assert_array_equal(own["fires"], fires)
    assert 0 < fires.min() <= fires.max() < 20


def test_a_whole_strategy_uses_the_links_that_it_remembers(config):
    result = efhc.simulate(load_experiment(config), strategies={"pairs": {"kind": f"{config.parent}/own.py:Pairs"}})
    bits = result.metrics["bits"].to_list()
    assert [b > 0 for b in bits] == [k % 3 == 2 for k in range(12)]
    assert max(bits) == 6 * 32 * 650  # what a device sends to all of its neighbours counts once


@pytest.mark.parametrize("k", [1, 5, 11])
@pytest.mark.parametrize("network", ["geometric", "random-links"])
def test_resumed_it_goes_on_with_what_it_remembered(config, tmp_path, k, network):
    for run in Runs().of(load_experiment(config, [f"network={network}"])):
        assert_same_bits_if_stopped_after(k, run, tmp_path / "runs")
