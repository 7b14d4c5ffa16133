"""What is said about a prediction: seconds and bytes until the target, and errors relative to what was measured."""

from __future__ import annotations

import polars as pl
import pytest

from efhc.report.figure_data import ACCURACY
from efhc.report.figures.runs import Curves, prediction_figure
from efhc.report.timelines import compare_timelines, error_words


def timeline(accuracies: dict[str, list[float]], step: float = 1.0, size: int = 100) -> pl.DataFrame:
    rows = [
        {"strategy": name, "seed": 0, "seconds": step * place, "bytes": size * place, "accuracy": accuracy}
        for name, each in accuracies.items()
        for place, accuracy in enumerate(each)
    ]
    return pl.DataFrame(rows)


MEASURED = timeline({"EF-HC": [0.1, 0.3, 0.5, 0.6], "ZT": [0.1, 0.2, 0.3, 0.4]})
PREDICTED = timeline({"EF-HC": [0.1, 0.3, 0.4, 0.5], "ZT": [0.1, 0.6, 0.6, 0.6]}, size=50)


def test_both_are_compared_at_the_first_sample_that_reaches_the_target():
    table = compare_timelines(MEASURED, PREDICTED, ACCURACY, 0.5)
    efhc, zt = table.iter_rows(named=True)
    assert (efhc["seconds_measured"], efhc["seconds_predicted"]) == (2.0, 3.0)
    assert efhc["seconds_error"] == pytest.approx(0.5)
    assert (efhc["bytes_measured"], efhc["bytes_predicted"]) == (200.0, 150.0)
    assert efhc["bytes_error"] == pytest.approx(-0.25)
    assert (zt["seconds_measured"], zt["seconds_predicted"], zt["seconds_error"]) == (None, 1.0, None)


def test_the_error_is_stated_in_one_line_with_what_was_not_reached():
    table = compare_timelines(MEASURED, PREDICTED, ACCURACY, 0.5)
    line = error_words(table)
    assert "seconds 50 % in the mean, 50 % at most, bytes 25 % in the mean, 25 % at most" in line
    assert "1 of 2 runs did not reach the target in both" in line
    assert "not reach" not in error_words(compare_timelines(MEASURED, PREDICTED, ACCURACY, 0.3))


def test_if_no_run_reaches_the_target_there_is_no_error_to_state():
    table = compare_timelines(MEASURED, PREDICTED, ACCURACY, 0.9)
    assert "seconds unknown, bytes unknown; 2 of 2 runs" in error_words(table)


def test_the_figure_has_a_solid_and_a_dashed_line_per_run():
    figure = prediction_figure({"one": Curves(MEASURED, PREDICTED, 0.5), "two": Curves(MEASURED, PREDICTED, 0.6)})
    assert len(figure.axes) == 4
    left, right = figure.axes[:2]
    lines = left.get_lines()
    assert [line.get_linestyle() for line in lines] == ["-", "-", "--", "--", "-"]  # the last one is the target
    assert lines[0].get_color() == lines[2].get_color() != lines[1].get_color()
    assert list(lines[0].get_ydata()) == [0.1, 0.3, 0.5, 0.6]
    assert max(right.get_lines()[0].get_xdata()) == pytest.approx(300 / 1e6)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "EF-HC", "ZT", "measured: nodes", "predicted: simulator", "target"
    ]  # fmt: skip
