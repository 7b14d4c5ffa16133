"""Bad strategies: one line that says what was given and what is allowed; and one that diverges ends alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import efhc

SMALL = """
iterations = 12
seeds = [0]
evaluate_every = 5
devices = 6

[strategies.S]
kind = "composed"
local = { kind = "corrected", correction = 0.1 }
trigger = { kind = "entrywise", r = 1000.0 }
codec = { kind = "levels", bits = 3 }
mixing = { kind = "estimates", rate = 0.25 }
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


S = "strategies.S"

PARTS = {
    "an unknown part": ([f"{S}.triger.kind=norm"], [f"{S}.triger", "did you mean 'trigger'?"]),
    "a parameter of another kind": ([f"{S}.codec.share=0.1"], [f"{S}.codec.share", "bits"]),
    "a rate of 0": ([f"{S}.mixing.rate=0.0"], [f"{S}.mixing.rate", "0.0", "greater than 0"]),
    "NaN": ([f"{S}.mixing.rate=nan"], [f"{S}.mixing.rate", "nan", "finite"]),
    "a rate of half-steps above 1/2": (
        [f"{S}.mixing={{kind='half-steps', rate=0.6}}"],
        [f"{S}.mixing", "rate", "0.6 without a guard", "0.5", "guard = 'degree'"],
    ),
    "a codec that an exchange has no use for": (
        [f"{S}.mixing={{kind='exchange'}}", f"{S}.trigger=norm"],
        [f"{S}.codec", "'levels'", "exchange", "'full'", "half-steps"],
    ),
    "an entrywise trigger that an exchange has no use for": (
        [f"{S}.mixing={{kind='exchange'}}", f"{S}.codec=full"],
        [f"{S}.trigger", "'entrywise'", "exchange", "half-steps"],
    ),
    "estimates with loss": (["driver.loss=0.01"], ["driver.loss", "0.01", "S needs every message", "event-driven"]),
    "half-steps with loss in lockstep": (
        ["driver.loss=0.01", f"{S}.mixing={{kind='half-steps'}}"],
        ["driver.loss", "0.01", "S needs every message", "event-driven"],
    ),
    "half-steps that cannot take back, on a changing graph": (
        [f"{S}.mixing={{kind='half-steps', take_back=false}}", "network.kind=random-links"],
        ["take_back", "strategies.S", "a network that changes", "k = 1", "true"],
    ),
    "half-steps that cannot take back, with churn": (
        [
            "driver.kind=event-driven",
            "driver.churn.leave_every=5.0",
            f"{S}.mixing={{kind='half-steps', take_back=false}}",
        ],
        [f"{S}.mixing.take_back", "churn", "true"],
    ),
    "a tree on a changing graph": (
        [f"{S}.links=tree", "network.kind=random-links"],
        ["a network that changes", "k = 1", "strategies.S", "tree"],
    ),
    "links that are drawn anew with estimates": (
        [f"{S}.links=sampled"],
        [f"{S}.links", "'sampled'", "estimates", "half-steps"],
    ),
    "a budget of 0": ([f"{S}.budget.share=0.0"], [f"{S}.budget.share", "0.0", "greater than 0"]),
    "estimates of devices on their own clocks": (
        ["driver.kind=event-driven"],
        [S, "estimates", "event-driven", "driver.kind = 'lockstep'"],
    ),
    "chosen links of devices on their own clocks": (
        ["driver.kind=event-driven", f"{S}.mixing={{kind='half-steps'}}", f"{S}.links=sampled"],
        [S, "links", "event-driven", "driver.kind = 'lockstep'"],
    ),
    "a drift correction by exchange, of devices on their own clocks": (
        ["driver.kind=event-driven", f"{S}.mixing={{kind='exchange'}}", f"{S}.trigger=norm", f"{S}.codec=full"],
        [S, "half-steps", "event-driven", "driver.kind = 'lockstep'"],
    ),
}


@pytest.mark.parametrize("what", PARTS)
def test_a_combination_without_meaning_is_one_line(what, config, tmp_path, refused):
    overrides, parts = PARTS[what]
    line = refused("run", config, *overrides, "--out", tmp_path / "out")
    for part in parts:
        assert part in line
    assert "Use " in line
    assert not (tmp_path / "out").exists()


# Strategies of one's own

OWN = """
import numpy as np
import efhc


class Whole(efhc.Strategy):
    memory = {MEMORY}

    def step(self, now, models, gradients, memory):
        {STEP}
        return efhc.Moved(models - now.step_size * gradients, np.zeros(now.graph.devices))


class Firing(efhc.Strategy):
    def fires(self, seen, memory):
        return {FIRES}
"""


def own(folder: Path, memory: str = "{}", step: str = "pass", fires: str = "seen.drift > 0") -> None:
    code = OWN.replace("{MEMORY}", memory).replace("{STEP}", step).replace("{FIRES}", fires)
    (folder / "own.py").write_text(code)


WHOLE = {
    "models of a wrong shape": ("return efhc.Moved(models[:, :3], np.zeros(6))", ["(6, 3)", "(6, 650)"]),
    "models of a wrong type": (
        "return efhc.Moved(models.astype(complex), np.zeros(6))",
        ["complex128", "float32"],
    ),
    "no models at all": ("return None", ["NoneType", "Moved"]),
    "bits of a wrong shape": ("return efhc.Moved(models, np.zeros(5))", ["(5,)", "(6,) with per = 'device'", "k = 0"]),
    "negative bits": ("return efhc.Moved(models, np.full(6, -1.0))", ["-1", "bits"]),
    "fired of a wrong shape": (
        "return efhc.Moved(models, np.zeros(6), np.ones(3, bool))",
        ["(3,)", "bool of shape (6,)"],
    ),
    "NaN in a model": (
        "models = models.copy(); models[4, 7] = np.nan if now.k == 3 else 0.0",
        ["model of device 4", "k = 3"],
    ),
    "an array of the driver's written to": ("models[0] = 0.0", ["read-only"]),
    "a step that fails": ("1 / (now.k - 2)", ["ZeroDivisionError"]),
    "a memory of another shape": ("memory['a'] = np.zeros(3)", ["a", "(3,)", "(6,)"]),
    "a memory of another type": ("memory['a'] = np.zeros(6, complex)", ["complex128"]),
    "NaN in a memory": (
        "memory['a'][2] = np.nan if now.k == 3 else 0.0",
        ["memory a of device 2", "k = 3"],
    ),
    "a memory that was not declared": ("memory['b'] = np.zeros(6)", ["b"]),
    "a memory that is removed": ("del memory['a']", ["a"]),
    "state of its own": ("self.count = now.k", ["frozen"]),
}


@pytest.mark.parametrize("what", WHOLE)
def test_an_own_strategy_whose_step_is_wrong_is_one_line_that_names_it(what, config, tmp_path, refused):
    step, parts = WHOLE[what]
    own(tmp_path, "{'a': efhc.Memory()}", step)
    line = refused("run", config, "strategies={ mine = { kind = 'own.py:Whole' } }", "--out", tmp_path / "out")
    for part in ["mine", *parts]:
        assert part in line


@pytest.mark.parametrize(
    ("memory", "parts"),
    [
        ("[1]", ["list", "efhc.Memory"]),
        ("{'a': 3}", ["'a'", "int"]),
        ("{'a': efhc.Memory(per='planet')}", ["a", "planet"]),
        ("{'a': efhc.Memory(size=-1)}", ["a", "size = -1"]),
        ("{'a': efhc.Memory(dtype='float16')}", ["a", "float16"]),
        ("{'a': efhc.Memory(start='models')}", ["a", "start = 'models'"]),
        ("{'a': efhc.Memory(start=float('nan'))}", ["a", "start = nan"]),
    ],
    ids=str,
)
def test_a_memory_that_cannot_be_made_is_one_line(memory, parts, config, tmp_path, refused):
    own(tmp_path, memory)
    line = refused("run", config, "strategies={ mine = { kind = 'own.py:Whole' } }", "--out", tmp_path / "out")
    for part in ["strategies.mine", "memory", *parts]:
        assert part in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fires", "parts"),
    [
        ("seen.drift[:3] > 0", ["(3,)", "bool of shape (6,)"]),
        ("seen.drift", ["float64", "bool"]),
        ("None", ["object", "bool"]),
        ("1 / 0", ["ZeroDivisionError"]),
    ],
    ids=str,
)
def test_an_own_trigger_that_returns_something_else_is_one_line(fires, parts, config, tmp_path, refused):
    own(tmp_path, fires=fires)
    line = refused("run", config, "strategies={ mine = { kind = 'own.py:Firing' } }", "--out", tmp_path / "out")
    for part in ["mine", *parts]:
        assert part in line


# Divergence

UNSTABLE = [
    *("iterations=200", f"{S}.local.correction=1.0", f"{S}.mixing.rate=1.0"),
    *(f"{S}.codec={{kind='full'}}", f"{S}.trigger={{kind='period', every=3}}"),
]
"""A correction that grows in every iteration while what is known of the neighbours stays the same."""


def test_a_strategy_that_diverges_is_named_and_the_others_go_on_to_their_end(config, tmp_path, command):
    done = command("run", config, *UNSTABLE, "strategies.ZT=zt", "--out", tmp_path / "out", "--no-figure")
    assert re.search(r"^efhc: S, seed 0: training diverged at iteration \d+: the model of device \d", done.stderr, re.M)
    metrics = efhc.Result.load(tmp_path / "out").metrics
    assert metrics.filter(strategy="ZT")["iteration"].to_list() == list(range(200))
    assert not len(metrics.filter(strategy="S"))
