"""Runs with code of the user's own: from a file and from Python, resumed, swept, and refused with another version."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import efhc
from efhc.base.errors import InputError
from efhc.experiments.config.files import load_experiment, to_tables
from efhc.experiments.runs.run import Runs

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["devices=6", "iterations=6", "evaluate_every=3"]


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The example, where it can be edited."""
    for name in ("own-parts.toml", "own_parts.py"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text())
    return tmp_path / "own-parts.toml"


def test_a_run_from_a_file_is_that_from_python(example, tmp_path, monkeypatch):
    from_file = efhc.simulate(load_experiment(example, SMALL), out=tmp_path / "file")
    monkeypatch.syspath_prepend(tmp_path)
    import own_parts

    try:
        from_python = efhc.simulate(
            name="own-parts",
            devices=6,
            iterations=6,
            evaluate_every=3,
            seeds=0,
            network=own_parts.SmallWorld(moved=0.1),
            partition=own_parts.SharedCore(shared=10),
            strategies={
                "staggered": own_parts.Staggered(every=5),
                "EF-HC": efhc.EventTriggered(),
                "ZT": efhc.ZeroThreshold(),
            },
            out=tmp_path / "python",
        )
    finally:
        del sys.modules["own_parts"]
    assert from_file.metrics.equals(from_python.metrics)
    assert (tmp_path / "file" / "config.toml").read_text() == (tmp_path / "python" / "config.toml").read_text()
    fired = from_file.events.filter(strategy="staggered")["fired"].to_list()
    assert fired == [[0, 5], [1], [2], [3], [4], [0, 5]]
    with pytest.raises(InputError, match="staggered") as caught:
        efhc.simulate(load_experiment(example, [*SMALL, "strategies.staggered.every=0"]))
    assert caught.value.field == "strategies.staggered.every"


def test_another_version_of_the_file_is_another_run_and_refused_on_resume(example, tmp_path):
    experiment = load_experiment(example, [*SMALL, "iterations=2"])
    keys = [run.key for run in Runs().of(experiment)]
    efhc.simulate(experiment, out=tmp_path / "run")
    code = example.parent / "own_parts.py"
    code.write_text(code.read_text().replace("k % self.every, 0.0", "k % self.every, 0.5"))
    changed = load_experiment(example, [*SMALL, "iterations=2"])
    assert to_tables(changed) == to_tables(experiment)
    assert not set(keys) & {run.key for run in Runs().of(changed)}
    with pytest.raises(InputError) as caught:
        efhc.simulate(changed, out=tmp_path / "run", resume=True)
    assert caught.value.field in {"network.kind", "partition.kind", "strategies.staggered.kind"}
