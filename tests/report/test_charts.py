"""Drawings of the report: plain JSON that says what the tables say."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import efhc
from efhc.report.claims.panels import panels
from efhc.report.figure_data import BUDGETS, FigureData, Illustration
from efhc.report.page.charts import (
    MAX_BINS,
    fired_shares,
    network_drawing,
    paper_charts,
    raster_drawings,
)

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


def test_panels_show_mean_and_band_of_each_strategy(data: FigureData):
    charts = {chart["key"]: chart for chart in paper_charts(data)}
    frames = panels(data)
    assert list(charts) == list(frames) == ["i", "ii", "iii", "iv"]
    for key, column in (("i", "iteration"), ("ii", "iteration"), ("iii", "transmission_time")):
        assert len(charts[key]["lines"]) == 4
        for line in charts[key]["lines"]:
            rows = frames[key].filter(strategy=line["name"])
            assert line["x"] == pytest.approx(rows[column].to_list(), rel=1e-5)
            for name, of_table in (("y", "mean"), ("low", "low"), ("high", "high")):
                assert line[name] == pytest.approx(rows[of_table].to_list(), rel=1e-5)
    assert charts["i"]["y"]["fromZero"]
    assert [key for key, chart in charts.items() if chart.get("maySwitchToLog")] == ["iii"]


def test_panel_iv_has_all_budgets_and_shows_ten_percent(data: FigureData):
    chart = paper_charts(data)[3]
    assert tuple(chart["budgets"]) == BUDGETS
    assert chart["budget"] == 0.1
    assert {line["budget"] for line in chart["lines"]} == set(BUDGETS)
    assert chart["x"]["ticks"] == [0.4, 0.7]


def test_one_seed_has_no_bands(data: FigureData):
    alone = FigureData("fig3b", "3(b)", "", data.curves.filter(seed=data.curves["seed"][0]))
    charts = paper_charts(alone)
    assert [len(chart["lines"]) for chart in charts] == [4, 4, 4]
    assert not any("low" in line for chart in charts for line in chart["lines"])


def test_zt_of_an_ablation_is_a_line_without_a_band(data: FigureData):
    values = {"EF-HC": 1.0, "GT": 2.0, NAMES["RG"]: 0.5}
    lines = paper_charts(FigureData("fig5a", "5(a)", "", data.curves, None, values))[0]["lines"]
    assert [line["name"] for line in lines] == [NAMES["RG"], "EF-HC", "GT", "ZT"]
    assert ["low" in line for line in lines] == [True, True, True, False]


def test_the_network_is_that_of_the_start(illustration: Illustration):
    drawing = network_drawing(illustration)
    row = illustration.network.row(0, named=True)
    assert drawing["links"] == list(zip(row["link_from"], row["link_to"], strict=True))
    assert [one["bandwidth"] for one in drawing["devices"]] == illustration.devices["bandwidth"].to_list()
    assert [one["labels"] for one in drawing["devices"]] == illustration.devices["labels"].to_list()


def test_a_network_that_changes_says_so():
    network = pl.DataFrame({"seed": 0, "iteration": [0, 7], "link_from": [[0], [1]], "link_to": [[1], [2]]})
    devices = pl.DataFrame({"seed": 0, "device": range(3), "bandwidth": [0.0] * 3, "samples": 5, "labels": [[1]] * 3})
    drawing = network_drawing(Illustration(0, network, devices, {}))
    assert drawing["links"] == [(0, 1)]
    assert "change at 1 iterations" in drawing["note"]


def test_rasters_have_a_row_per_device_by_bandwidth(illustration: Illustration):
    drawings = raster_drawings(illustration)
    assert [drawing["strategy"] for drawing in drawings] == ["EF-HC", "GT", "ZT", "RG"]
    by_bandwidth = illustration.devices.sort("bandwidth", descending=True)["device"].to_list()
    data = drawings[0]
    assert [row["device"] for row in data["rows"]] == by_bandwidth
    fired = illustration.events["EF-HC"]["fired"].to_list()
    assert data["shares"] == [[float(device in now) for now in fired] for device in by_bandwidth]
    assert (data["end"], data["last"]) == (20, 19)
    assert np.all(np.array(drawings[2]["shares"]) == 1)
    assert "100 %" in drawings[2]["note"]


def test_many_iterations_are_put_together():
    events = pl.DataFrame({"iteration": range(1001), "fired": [[0] if k % 4 == 0 else [] for k in range(1001)]})
    shares, width = fired_shares(events, [1, 0])
    assert width == 6
    assert shares.shape == (2, 167)
    assert shares.shape[1] <= MAX_BINS
    assert shares[0].max() == 0
    assert shares[1, 0] == 2 / 6
    assert shares[1, -1] == 2 / 5  # iterations 996 .. 1000
