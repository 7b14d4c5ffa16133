"""Accuracy against the swept setting, one line per strategy."""

from __future__ import annotations

import polars as pl
import pytest

from efhc.report.figures.studies import MOST_PANELS, sweep_figure
from efhc.report.looks import KNOWN


def means(rows: list[tuple[object, ...]], *settings: str) -> pl.DataFrame:
    columns = [*settings, "strategy", "accuracy", "low", "high", "seeds"]
    return pl.DataFrame([(*row, 0.5, 0.4, 0.7, 5) for row in rows], schema=columns, orient="row")


@pytest.mark.parametrize(("seeds", "words"), [(5, "95 %"), (3, "min to max")])
def test_the_legend_says_what_the_bars_are(seeds: int, words: str):
    table = means([(0.3, "ZT"), (0.5, "ZT")], "radius").with_columns(seeds=pl.lit(seeds))
    (legend,) = sweep_figure(table, ["radius"]).legends
    assert legend.get_title().get_text().endswith(f"bars: {words} over seeds")


def test_a_line_per_strategy_with_intervals_and_the_usual_colours():
    table = means([(r, name) for r in (0.5, 0.3) for name in ("ZT", "EF-HC")], "network.radius")
    (axes,) = sweep_figure(table, ["network.radius"]).axes
    assert axes.get_xlabel() == "network.radius"
    lines = dict(zip(("ZT", "EF-HC"), axes.containers, strict=True))
    for name, (line, _, (bars,)) in lines.items():
        assert line.get_color() == KNOWN[name][0]
        assert line.get_xdata().tolist() == [0.3, 0.5]
        assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [pytest.approx([0.4, 0.7])] * 2


def test_a_strategy_that_does_not_depend_on_the_setting_is_a_line_across():
    table = means([(None, "ZT"), (10.0, "EF-HC"), (1000.0, "EF-HC")], "strategies.EF-HC.r")
    (axes,) = sweep_figure(table, ["strategies.EF-HC.r"]).axes
    assert axes.get_xscale() == "log"
    assert [container.get_label() for container in axes.containers] == ["EF-HC"]
    assert [line.get_ydata() for line in axes.lines if line.get_label() == "ZT"] == [[0.5, 0.5]]


def test_other_settings_have_panels_and_texts_have_ticks():
    rows = [(kind, size, "ZT") for kind in ("ring", "star", "complete") for size in ("1", "full")]
    axes = sweep_figure(means(rows, "network", "batch_size"), ["network", "batch_size"]).axes
    assert [one.get_title() for one in axes] == ["batch_size = 1", "batch_size = full"]
    assert [tick.get_text() for tick in axes[0].get_xticklabels()] == ["ring", "star", "complete"]


def test_a_null_in_another_setting_is_drawn_everywhere_or_has_a_panel_of_its_own():
    rows = [(0.3, 1, "EF-HC"), (0.5, 1, "EF-HC"), (0.7, 1, "EF-HC"), (0.3, 2, "EF-HC"), (0.3, None, "ZT")]
    table = means(rows, "radius", "r")
    drawn = [len(axes.containers) for axes in sweep_figure(table, ["radius", "r"]).axes]
    assert drawn == [2, 2]
    titles = [axes.get_title() for axes in sweep_figure(table, ["radius", "r"], ["r"]).axes]
    assert titles == ["r = 1", "r = 2", ""]


def test_many_panels_are_cut_and_the_title_says_so():
    table = means([(n, kind, "ZT") for n in range(30) for kind in "abcdefghijklmnopqrst"], "n", "kind")
    figure = sweep_figure(table, ["n", "kind"])
    assert sum(axes.get_visible() for axes in figure.axes) == MOST_PANELS
    assert "12 of 20" in figure.get_suptitle()


def test_a_sweep_without_results_at_a_point_is_drawn():
    table = means([(0.3, "ZT"), (0.5, "ZT")], "radius").with_columns(
        pl.when(pl.col("radius") > 0.4).then(pl.lit(None)).otherwise(pl.col(name)).alias(name)
        for name in ("accuracy", "low", "high")
    )
    (axes,) = sweep_figure(table, ["radius"]).axes
    assert axes.containers[0][0].get_xdata().tolist() == [0.3]


def test_the_seconds_to_a_target_are_drawn_below_where_all_seeds_reach_it():
    table = means([(r, "ZT") for r in (0.3, 0.4, 0.5)], "radius").with_columns(
        pl.Series("reached", [5, 4, 5]),
        pl.Series("seconds_to_target", [20.0, 15.0, 10.0]),
        pl.Series("seconds_to_target_low", [18.0, None, 9.0]),
        pl.Series("seconds_to_target_high", [23.0, None, 11.0]),
    )
    accuracy, seconds = sweep_figure(table, ["radius"]).axes
    assert accuracy.get_ylabel() == "accuracy at the end"
    assert accuracy.containers[0][0].get_xdata().tolist() == [0.3, 0.4, 0.5]
    assert seconds.get_ylabel().startswith("seconds to the target")
    line, _, (bars,) = seconds.containers[0]
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([0.3, 0.5], [20.0, 10.0])
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [[18.0, 23.0], [9.0, 11.0]]
    (accuracy,) = sweep_figure(table.with_columns(reached=pl.lit(0)), ["radius"]).axes
    assert accuracy.get_ylabel() == "accuracy at the end"
