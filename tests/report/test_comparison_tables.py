"""Tables for papers: what is bold, what is marked, what their notes say, and what LaTeX gets."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import efhc
from efhc.learning.measures import CLASSIFICATION, measures_of
from efhc.report.claims.intervals import interval
from efhc.report.tables import SettingRuns, comparison_table, phases


def runs(ends: dict[str, list[float]], **more: Any) -> SettingRuns:
    """Runs of two evaluations, with an accuracy at the end per seed; each strategy spends half of what ZT spends."""
    rows = [
        (name, seed, k, (k + 1) * (1.0 if name == "ZT" else 0.5), end * share, 1 - end * share)
        for name, per_seed in ends.items()
        for seed, end in enumerate(per_seed)
        for k, share in ((9, 0.5), (19, 1.0))
    ]
    columns = ["strategy", "seed", "iteration", "transmission_time_total", "accuracy", "loss"]
    curves = pl.DataFrame(rows, schema=columns, orient="row").with_columns(loss_p90=pl.col("loss"))
    given = {"lost": {}, "devices": 4, "tested_on": "50 test samples", "strategies": list(ends)} | more
    return SettingRuns("mine", curves, **given)


def test_a_cell_is_the_mean_and_half_the_interval_that_claims_use():
    values = [0.5, 0.52, 0.6, 0.55, 0.51]
    (column,) = comparison_table([runs({"A": values, "ZT": [0.1] * 5})], ["accuracy"], [None]).columns
    mean, low, high = interval(np.array(values))
    cell = column.cells["A"]
    assert (cell.mean, cell.low, cell.high) == (pytest.approx(mean), low, high)
    assert cell.half == pytest.approx((high - low) / 2)
    assert cell.after == (20, 20)


def test_the_best_is_bold_and_what_is_not_distinguishable_from_it_is_marked_seed_by_seed():
    luck = np.array([0.0, 0.1, 0.2, 0.3, 0.4])  # of seeds, which all strategies share
    ends = {"A": luck + 0.5, "close": luck + np.array([0.51, 0.49, 0.49, 0.5, 0.5]), "far": luck + 0.49, "ZT": luck}
    setting = runs({name: list(values) for name, values in ends.items()})
    cells = comparison_table([setting], ["accuracy"], [None]).columns[0].cells
    assert [name for name, cell in cells.items() if cell.is_best] == ["A"]
    assert [name for name, cell in cells.items() if cell.is_close] == [
        "close"
    ]  # far has a wider interval, and always less
    loss = comparison_table([setting], ["loss"], [None]).columns[0].cells
    assert [name for name, cell in loss.items() if cell.is_best] == ["A"]
    few = runs({name: list(values[:4]) for name, values in ends.items()})
    table = comparison_table([few], ["accuracy"], [None])
    assert not any(cell.is_close for cell in table.columns[0].cells.values())
    assert any("not judged below 5 seeds" in note for note in table.notes)
    assert any("range" in note for note in table.notes)


def test_a_strategy_that_lacks_seeds_does_not_compete_and_what_is_lost_is_said():
    setting = runs({"A": [0.9] * 4, "ZT": [0.5] * 5}, lost={("A", 4): "training diverged"})
    table = comparison_table([setting], ["accuracy"], [None])
    cells = table.columns[0].cells
    assert (cells["A"].lacks_seeds, cells["A"].is_best) == (True, False)
    assert any("A, seed 4 (training diverged)" in note for note in table.notes)
    gone = runs({"ZT": [0.5] * 5}, lost={("A", 0): "waiting"}, strategies=["A", "ZT"])
    table = comparison_table([gone], ["accuracy"], [None])
    assert dict(table.texts(lambda cell, digits: str(cell.mean)))["A"] == ["None"]
    assert "none" in table.markdown()


def test_budgets_are_shares_of_the_time_of_zt_and_say_after_how_many_iterations():
    table = comparison_table([runs({"A": [0.8] * 5, "ZT": [0.4] * 5})], ["accuracy"], [0.375, 0.5, 1.0])
    at = {column.budget: column.cells for column in table.columns}
    assert at[0.5]["A"].mean == pytest.approx(0.8)  # all that it spends
    assert at[1.0]["A"].mean == pytest.approx(0.8)  # it ends before
    assert at[0.375]["A"].mean == pytest.approx(0.6)  # between its evaluations
    assert at[0.375]["A"].after == (15, 15)
    assert at[0.375]["ZT"].mean is None  # it had spent more when it was first evaluated
    assert at[0.5]["ZT"].after == (10, 10)
    assert table.heads == [("at 37.5 %",), ("at 50 %",), ("at 100 %",)]


@pytest.mark.parametrize(
    ("measures", "budgets", "field"),
    [
        (["own_accuracy"], [None], "measure"),
        (["loss"], [0.0], "budget"),
        (["loss"], [float("nan")], "budget"),
        (["loss"], [2.0], "budget"),
    ],
)
def test_what_was_not_recorded_is_refused_with_what_was(measures, budgets, field):
    with pytest.raises(efhc.InputError) as caught:
        comparison_table([runs({"ZT": [0.5]})], measures, budgets)
    assert caught.value.field == field
    if field == "measure":
        assert {"accuracy", "loss"} <= set(str(caught.value).replace(".", "").replace(",", "").split())


def test_a_budget_needs_the_strategy_that_it_is_a_share_of():
    with pytest.raises(efhc.InputError) as caught:
        comparison_table([runs({"A": [0.5]})], ["accuracy"], [0.1])
    assert (caught.value.field, caught.value.given) == ("of", "ZT")


def test_latex_has_no_character_that_latex_reads_as_a_command():
    setting = runs({"50% & more_$x$ {a}~^\\#": [0.5] * 5, "ZT": [0.4] * 5})
    text = comparison_table([setting], ["accuracy", "loss"], [0.5, None]).latex()
    assert r"50\% \& more\_\$x\$ \{a\}\textasciitilde{}\textasciicircum{}\textbackslash{}\#" in text
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert all(row.replace(r"\&", "").count("&") == (4 if "multicolumn" not in row else 2) for row in rows)
    assert r"\multicolumn{2}{c}{accuracy}" in text
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}" in text
    assert text.count("{") == text.count("}")
    assert r"$\mathbf{0.500} \pm 0.000$" in text
    assert text.isascii()


def test_csv_has_the_numbers_as_they_are_and_a_file_is_written_by_its_ending(tmp_path: Path):
    table = comparison_table([runs({"A": [1 / 3] * 5, "ZT": [0.4] * 5})], ["accuracy"], [0.5, None])
    read = pl.read_csv(io.StringIO(table.csv()))
    assert read.equals(table.frame)
    assert read.filter(strategy="A", budget=0.5)["mean"].item() == pytest.approx(1 / 3, abs=1e-12)
    for ending, start in ((".tex", "% needs"), (".csv", "setting,strategy"), (".md", "| strategy")):
        table.save(tmp_path / f"t{ending}")
        assert (tmp_path / f"t{ending}").read_text().startswith(start)
    with pytest.raises(efhc.InputError, match="pdf"):
        table.save(tmp_path / "t.pdf")


def used(period: int, seeds: int = 2, length: int = 20) -> pl.DataFrame:
    """Metrics of a strategy whose links are used every `period` iterations, from the first on."""
    rows = [("local", seed, k, 3 * (k % period == 0)) for seed in range(seeds) for k in range(length)]
    return pl.DataFrame(rows, schema=["strategy", "seed", "iteration", "links_used"], orient="row")


def test_of_periodic_strategies_the_phase_of_the_evaluation_is_said():
    metrics = used(8)
    at_end = metrics.filter(iteration=19)
    assert "every 8 iterations" in phases(metrics, at_end)["local"]
    assert "3 iterations after" in phases(metrics, at_end)["local"]  # 16 + 3
    assert phases(used(1), at_end) == {}
    both = metrics.filter(pl.col("iteration").is_in([9, 19]))
    assert "1 to 3 iterations after" in phases(metrics, both, at_end=False)["local"]  # 8 + 1
    together = metrics.with_columns(evaluation=pl.when(pl.col("iteration") >= 12).then(12))
    assert "mean over 8 iterations" in phases(together, at_end)["local"]


def test_a_result_makes_a_table_of_every_measure_that_runs_record():
    result = efhc.simulate(iterations=20, seeds=(0, 1), evaluate_every=10, strategies={"EF-HC": "ef-hc", "ZT": "zt"})
    names = list(measures_of(CLASSIFICATION))
    table = result.table(names, [0.5, 1.0])
    assert len(table.columns) == 2 * len(names)
    own = table.frame.filter(measure="own_accuracy_min", budget=1.0, strategy="ZT")["mean"].item()
    ends = result.metrics.filter(strategy="ZT", iteration=19)["own_accuracy_min"]
    assert own == pytest.approx(ends.mean())
    assert result.table().columns[0].measure == "accuracy"
    assert any("10 devices" in note and "359 test samples" in note for note in table.notes)
    assert "**" in result.table()._repr_markdown_()


def test_the_default_is_the_measure_of_the_experiment():
    settings: Any = {"iterations": 4, "seeds": [0], "strategies": {"ZT": "zt"}}
    assert efhc.simulate(**settings, measure="own_loss").table().columns[0].measure == "own_loss"


def test_event_driven_runs_are_compared_at_the_end_and_by_what_a_target_costs():
    driver = efhc.EventDriven(target=0.3)
    result = efhc.simulate(
        iterations=30, seeds=(0, 1), devices=5, strategies={"EF-HC": "ef-hc", "ZT": "zt"}, driver=driver
    )
    table = result.table()
    assert [column.measure for column in table.columns] == ["accuracy", "seconds_to_target", "bytes_to_target"]
    summary = {row["strategy"]: row for row in result.summary().iter_rows(named=True)}
    for name, cell in table.columns[1].cells.items():
        assert cell.mean == summary[name]["seconds_to_target"]
        assert cell.seeds == summary[name]["reached"]
    with pytest.raises(efhc.InputError, match="budget"):
        result.table(budget=0.1)
