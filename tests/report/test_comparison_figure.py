from __future__ import annotations

from itertools import pairwise

import polars as pl

import efhc
from efhc.report.claims.panels import within_budgets
from efhc.report.figures import comparison_figure


def test_panels_show_one_line_per_strategy(tmp_path):
    result = efhc.simulate(iterations=30, seeds=(0, 1), evaluate_every=10)
    figure = result.plot(tmp_path / "picture.pdf")
    assert (tmp_path / "picture.pdf").read_bytes().startswith(b"%PDF")
    assert [len(axes.lines) for axes in figure.axes] == [4, 4, 4, 4]
    accuracy = figure.axes[1].lines[2].get_ydata()
    expected = result.metrics.filter(pl.col("iteration").is_in([0, 29]), strategy="ZT").group_by("iteration")
    assert sorted([accuracy[0], accuracy[-1]]) == sorted(expected.agg(pl.col("accuracy").mean())["accuracy"])
    assert figure.axes[3].get_yscale() == "log"


def test_fourth_panel_shows_connectivity_where_there_is_some():
    result = efhc.simulate(iterations=10, seeds=(0, 1), evaluate_every=5)
    tables = [
        within_budgets(result.metrics, "accuracy", {0: 0.1, 1: 0.1}).with_columns(radius=pl.lit(radius))
        for radius in (0.3, 0.5)
    ]
    figure = comparison_figure(result.metrics, pl.concat(tables))
    assert figure.axes[3].lines[0].get_xdata().tolist() == [0.3, 0.5]
    assert "budget" in figure.axes[3].get_title()


def spending(**totals: float) -> pl.DataFrame:
    """Metrics of runs of two iterations that spend so much in all."""
    rows = [
        (name, seed, k, total / 2, total * (k + 1) / 2, 0.5 + k / 4, 0.1)
        for name, total in totals.items()
        for seed in (0, 1)
        for k in (0, 1)
    ]
    columns = ["strategy", "seed", "iteration", "transmission_time", "transmission_time_total", "accuracy"]
    return pl.DataFrame(rows, schema=[*columns, "consensus_error"], orient="row")


def test_totals_that_lie_far_apart_are_drawn_over_a_logarithmic_axis():
    near, far, nothing = spending(ZT=100.0, RG=10.0), spending(ZT=100.0, RG=2.0), spending(ZT=100.0, Never=0.0)
    assert [comparison_figure(rows).axes[2].get_xscale() for rows in (near, far, nothing)] == [
        "linear",
        "log",
        "linear",
    ]
    line = comparison_figure(far).axes[2].lines[1]
    assert (line.get_xdata()[0], line.get_xdata()[-1]) == (1.0, 2.0)
    assert (line.get_ydata()[0], line.get_ydata()[-1]) == (0.5, 0.75)


def test_numbers_of_long_runs_do_not_run_together():
    long = spending(ZT=3e6, RG=1e6).with_columns(iteration=pl.col("iteration") * 199_999)
    figure = comparison_figure(long)
    figure.draw_without_rendering()
    for axes in figure.axes:
        shown = [text for text in axes.get_xticklabels() if 0 <= text.get_position()[0] <= axes.get_xlim()[1]]
        boxes = [text.get_window_extent() for text in shown]
        assert all(box.x1 < after.x0 for box, after in pairwise(boxes))
    assert "100,000" in [text.get_text() for text in figure.axes[1].get_xticklabels()]
