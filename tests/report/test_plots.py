"""Plots of the page: plain JSON that says what the tables say."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

import efhc
from efhc.report.claims.panels import panels
from efhc.report.figure_data import BUDGETS, FigureData, Illustration
from efhc.report.page.drawings import MAX_BINS, fired_shares, network_drawing, raster_drawings
from efhc.report.page.plots import curve_plots

NAMES = {"RG": '<b>&"x"'}


@pytest.fixture(scope="module")
def result() -> efhc.Result:
    return efhc.simulate(iterations=20, seeds=(3, 4), evaluate_every=5)


@pytest.fixture(scope="module")
def data(result: efhc.Result) -> FigureData:
    curves = result.metrics.drop_nulls("accuracy").with_columns(pl.col("strategy").replace(NAMES))
    connectivity = pl.concat(curves.with_columns(radius=pl.lit(radius)) for radius in (0.4, 0.7))
    return FigureData("fig2a", "2(a)", "digits", curves, connectivity)


@pytest.fixture(scope="module")
def illustration(result: efhc.Result) -> Illustration:
    network, devices, events = (table.filter(seed=3) for table in (result.network, result.devices, result.events))
    by_strategy = events.partition_by("strategy", as_dict=True, maintain_order=True)
    return Illustration(3, network, devices, {str(name): rows for (name,), rows in by_strategy.items()})


def test_every_plot_is_plain_json_and_the_same_each_time(data: FigureData, illustration: Illustration):
    def made() -> list[str]:
        plots, drawings = curve_plots(data), [network_drawing(illustration), *raster_drawings(illustration)]
        assert len({one.key for one in (*plots, *drawings)}) == len(plots) + len(drawings)
        contents = [*(plot.spec for plot in plots), *(drawing.data for drawing in drawings)]
        return [json.dumps(content, allow_nan=False) for content in contents]

    assert made() == made()


def test_panels_show_mean_and_band_of_each_strategy(data: FigureData):
    plots = {plot.key: plot for plot in curve_plots(data)}
    frames = panels(data)
    assert list(plots) == list(frames) == ["i", "ii", "iii", "iv"]
    for key, column in (("i", "iteration"), ("ii", "iteration"), ("iii", "transmission_time")):
        traces = plots[key].spec["data"]
        assert len(traces) == 8
        for band, mean in zip(traces[::2], traces[1::2], strict=True):
            rows = frames[key].filter(strategy=mean["meta"]["strategy"])
            assert mean["x"] == pytest.approx(rows[column].to_list(), rel=1e-5)
            assert mean["y"] == pytest.approx(rows["mean"].to_list(), rel=1e-5)
            assert band["y"] == pytest.approx([*rows["high"], *rows["low"].reverse()], rel=1e-5)
            assert band["fill"] == "toself"
            assert band["meta"] == mean["meta"]
    assert plots["i"].spec["layout"]["yaxis"]["rangemode"] == "tozero"


def test_a_logarithmic_axis_starts_where_every_strategy_has_a_point(data: FigureData):
    plots = curve_plots(data)
    assert [plot.log_range is not None for plot in plots] == [False, False, True, False]
    low, high = (10**power for power in plots[2].log_range)
    times = [np.array(trace["x"]) for trace in plots[2].spec["data"][1::2]]
    assert low == pytest.approx(max(x[x > 0].min() for x in times), rel=1e-3)
    assert high == pytest.approx(max(x.max() for x in times), rel=1e-3)
    silent = data.curves.with_columns(transmission_time_total=pl.lit(0.0))
    assert curve_plots(FigureData("f", "1", "", silent))[2].log_range is None


def test_names_are_escaped_where_plotly_would_read_tags(data: FigureData):
    named = curve_plots(data)[0].spec["data"][-1]
    assert named["name"] == '&lt;b&gt;&amp;"x"'
    assert named["meta"]["strategy"] == NAMES["RG"]


def test_panel_iv_has_all_budgets_and_shows_ten_percent(data: FigureData):
    plot = curve_plots(data)[3]
    assert plot.budgets == BUDGETS
    assert plot.budget == 0.1
    assert "10 %" in plot.title
    assert {trace["meta"]["budget"] for trace in plot.spec["data"]} == set(BUDGETS)
    assert {trace["meta"]["budget"] for trace in plot.spec["data"] if trace["visible"]} == {0.1}


def test_one_seed_has_no_bands(data: FigureData):
    seed = data.curves["seed"][0]
    alone = FigureData("fig3b", "3(b)", "", data.curves.filter(seed=seed))
    plots = curve_plots(alone)
    assert [len(plot.spec["data"]) for plot in plots] == [4, 4, 4]


def test_zt_of_an_ablation_is_a_line_without_a_band(data: FigureData):
    values = {"EF-HC": 1.0, "GT": 2.0, NAMES["RG"]: 0.5}
    traces = curve_plots(FigureData("fig5a", "5(a)", "", data.curves, None, values))[0].spec["data"]
    assert [trace["meta"]["strategy"] for trace in traces[1::2]] == [NAMES["RG"], "EF-HC", "GT"]
    assert traces[-1]["meta"]["strategy"] == "ZT"
    assert len(traces) == 7


def test_the_network_is_that_of_the_start(illustration: Illustration):
    drawing = network_drawing(illustration)
    row = illustration.network.row(0, named=True)
    assert drawing.data["links"] == list(zip(row["link_from"], row["link_to"], strict=True))
    assert [one["bandwidth"] for one in drawing.data["devices"]] == illustration.devices["bandwidth"].to_list()
    assert [one["labels"] for one in drawing.data["devices"]] == illustration.devices["labels"].to_list()


def test_a_network_that_changes_says_so():
    network = pl.DataFrame({"seed": 0, "iteration": [0, 7], "link_from": [[0], [1]], "link_to": [[1], [2]]})
    devices = pl.DataFrame({"seed": 0, "device": range(3), "bandwidth": [0.0] * 3, "samples": 5, "labels": [[1]] * 3})
    drawing = network_drawing(Illustration(0, network, devices, {}))
    assert drawing.data["links"] == [(0, 1)]
    assert "change at 1 iterations" in drawing.note


def test_rasters_have_a_row_per_device_by_bandwidth(illustration: Illustration):
    drawings = raster_drawings(illustration)
    assert [drawing.title for drawing in drawings] == ["EF-HC", "GT", "ZT", "RG"]
    by_bandwidth = illustration.devices.sort("bandwidth", descending=True)["device"].to_list()
    data = drawings[0].data
    assert [row["device"] for row in data["rows"]] == by_bandwidth
    fired = illustration.events["EF-HC"]["fired"].to_list()
    assert data["shares"] == [[float(device in now) for now in fired] for device in by_bandwidth]
    assert (data["end"], data["last"]) == (20, 19)
    assert np.all(np.array(drawings[2].data["shares"]) == 1)
    assert "100 %" in drawings[2].note


def test_many_iterations_are_put_together():
    events = pl.DataFrame({"iteration": range(1001), "fired": [[0] if k % 4 == 0 else [] for k in range(1001)]})
    shares, width = fired_shares(events, [1, 0])
    assert width == 6
    assert shares.shape == (2, 167)
    assert shares.shape[1] <= MAX_BINS
    assert shares[0].max() == 0
    assert shares[1, 0] == 2 / 6
    assert shares[1, -1] == 2 / 5  # iterations 996 .. 1000
