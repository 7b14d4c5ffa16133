"""The figure of event-driven runs: a line per strategy, up to where all its seeds got, and the target."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from efhc.report.figures import seconds_figure


def timeline(ends: dict[tuple[str, int], int]) -> pl.DataFrame:
    rows = [
        {
            "strategy": strategy,
            "seed": seed,
            "seconds": float(sample),
            "bytes": 10_000_000 * sample,
            "exchanges": 3 * sample,
            "accuracy": sample / 10,
            "consensus_error": 1.0 / (1 + sample),
        }
        for (strategy, seed), end in ends.items()
        for sample in range(end)
    ]
    return pl.DataFrame(rows)


def test_each_strategy_is_drawn_as_far_as_all_its_seeds_got():
    figure = seconds_figure(timeline({("EF-HC", 0): 6, ("EF-HC", 1): 5, ("ZT", 0): 8}), target=0.3, title="a $ title")
    by_seconds, by_bytes, errors, exchanges = figure.axes
    ends = {str(line.get_label()): np.max(np.asarray(line.get_xdata())) for line in by_seconds.lines[:2]}
    assert ends == {"EF-HC": 4.0, "ZT": 7.0}
    assert np.max(np.asarray(by_bytes.lines[1].get_xdata())) == 70.0
    assert errors.get_yscale() == "log"
    assert np.max(np.asarray(exchanges.lines[1].get_ydata())) == pytest.approx(21.0)
    assert np.allclose(np.asarray(by_seconds.lines[-1].get_ydata()), 0.3)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["EF-HC", "ZT", "target 0.3"]
    assert "range over 2 seeds" in figure.legends[0].get_title().get_text()


def test_without_a_target_there_is_no_line_across():
    figure = seconds_figure(timeline({("ZT", 0): 4}))
    assert [len(axes.lines) for axes in figure.axes] == [1, 1, 1, 1]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ZT"]
    assert not figure.legends[0].get_title().get_text()  # one seed has no band


def test_large_numbers_are_few_and_plain():
    figure = seconds_figure(timeline({("ZT", 0): 4}).with_columns(pl.col("seconds") * 1e5, pl.col("bytes") * 1000))
    figure.canvas.draw()
    for axes in figure.axes:
        words = [label.get_text() for label in axes.get_xticklabels()]
        assert "100,000" in words or "20,000" in words or "10,000" in words
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
        assert axes.xaxis.get_offset_text().get_text() == ""
