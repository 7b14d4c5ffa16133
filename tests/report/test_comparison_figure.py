from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

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


def scored(at: dict[int, list[int]], strategies: Sequence[str] = ("A",)) -> pl.DataFrame:
    """Metrics whose accuracy is the iteration / 100, evaluated with each seed at iterations of its own."""
    rows = [
        (name, seed, k, float(k), k / 100, 1.0)
        for name in strategies
        for seed, iterations in at.items()
        for k in iterations
    ]
    columns = ["strategy", "seed", "iteration", "transmission_time_total", "accuracy", "consensus_error"]
    return pl.DataFrame(rows, schema=columns, orient="row")


def test_seeds_that_are_evaluated_at_different_iterations_are_interpolated():
    figure = comparison_figure(scored({0: [0, 10, 40, 99], 1: [3, 30, 70, 95]}))
    line = figure.axes[1].lines[0]
    places = np.asarray(line.get_xdata(), float)
    assert (places[0], places[-1]) == (3, 95)  # where both seeds are known
    assert np.allclose(line.get_ydata(), places / 100)


def test_one_panel_at_column_width_has_letters_that_can_be_read_in_print():
    figure = comparison_figure(scored({0: [0, 50, 99], 1: [0, 50, 99]}), width="column", against="iterations")
    assert figure.get_figwidth() == 3.3
    (axes,) = figure.axes
    texts = [axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *figure.legends[0].get_texts()]
    assert min(text.get_fontsize() for text in texts) >= 7
    assert (axes.get_title(), figure.get_suptitle()) == ("", "")
    assert "range over 2 seeds" in figure.legends[0].get_title().get_text()
    figure.draw_without_rendering()
    for text in (axes.xaxis.label, axes.yaxis.label):
        box, (width, height) = text.get_window_extent(), figure.bbox.size
        assert 0 <= box.x0 < box.x1 <= width
        assert 0 <= box.y0 < box.y1 <= height


def test_of_many_strategies_eight_can_be_told_apart_and_the_rest_is_one_entry():
    names = [f"s{n}" for n in range(12)]
    table = scored({0: [0, 99], 1: [0, 99]}, ["EF-HC", *names]).with_columns(
        accuracy=pl.when(strategy="EF-HC").then(0.0).otherwise(pl.col("accuracy") + pl.col("strategy").rank("dense"))
    )
    figure = comparison_figure(table, against="iterations")
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words[0] == "EF-HC"  # always
    assert set(words[1:8]) == set(sorted(names)[-7:])  # the best
    assert words[8:] == ["5 others"]
    assert len(figure.axes[0].collections) == 8


def test_another_panel_or_measure_is_refused():
    table = scored({0: [0, 99]})
    with pytest.raises(efhc.InputError, match="against"):
        comparison_figure(table, against="seconds")
    with pytest.raises(efhc.InputError, match="own_accuracy"):
        comparison_figure(table, measure="own_accuracy")
