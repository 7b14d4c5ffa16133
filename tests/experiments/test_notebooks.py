"""The notebooks in examples/notebooks, executed by a real kernel: they compute what they say."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

import efhc

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"


def test_notebooks_are_kept_without_outputs():
    notebooks = sorted(FOLDER.glob("*.ipynb"))
    assert [path.stem for path in notebooks] == ["01-first-run", "02-own-strategy", "03-frontier"]
    for path in notebooks:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert all(not cell.outputs and cell.execution_count is None for cell in code)
        assert notebook.cells[0].source.startswith("# ")


@pytest.fixture
def computed(executed):
    """Execute a notebook, and return the value of an expression in the end, and the outputs of all cells."""

    def compute(name: str, expression: str):
        notebook = nbformat.read(FOLDER / name, as_version=4)
        done = executed(notebook, f"import json\nprint(json.dumps({expression}))")
        *cells, last = (cell for cell in done.cells if cell.cell_type == "code")
        return json.loads(last.outputs[0].text), [output for cell in cells for output in cell.outputs]

    return compute


@pytest.mark.slow
def test_first_run(computed, tmp_path):
    expression = '[dict(at_budget.iter_rows()), result.summary()["accuracy"].to_list()]'
    (at_budget, accuracies), outputs = computed("01-first-run.ipynb", expression)
    others = [at_budget.pop(name) for name in ("EF-HC", "GT", "ZT", "RG")]
    assert max(others) - min(others) < 0.1
    assert at_budget["entrywise"] > max(others) + 0.3
    assert sum("text/html" in output.data and "<img" in output.data["text/html"] for output in outputs) == 1
    assert sum("image/png" in output.data for output in outputs) == 1
    strategies = {
        "EF-HC": efhc.EventTriggered(r=1500.0),
        "GT": efhc.GlobalThreshold(r=1500.0),
        "ZT": efhc.ZeroThreshold(),
        "RG": efhc.RandomizedGossip(),
        "entrywise": efhc.Entrywise(r=1500.0),
    }
    assert efhc.simulate(iterations=400, evaluate_every=10, strategies=strategies).summary()["accuracy"].to_list() == (
        accuracies
    )
    assert efhc.Result.load(tmp_path / "runs" / "failing-links").experiment.name == "links that fail"


@pytest.mark.slow
def test_own_strategy(computed):
    shares, _ = computed("02-own-strategy.ipynb", "dict(shares.iter_rows())")
    assert shares["steady"] == pytest.approx(0.1, abs=0.015)
    assert shares["ZT"] == 1.0


@pytest.mark.slow
def test_frontier(computed):
    (leader, rows), outputs = computed("03-frontier.ipynb", "[leader, table.filter(share=1.0).rows(named=True)]")
    assert leader == "entrywise"
    assert [row["strategy"] for row in rows] == ["ZT", "EF-HC", "RG", "CHOCO-SGD", "entrywise"]
    assert rows[0]["spends"] == pytest.approx(1.0)
    assert rows[-1]["spends"] < 0.05
    assert sum("image/png" in output.data for output in outputs) == 1
