"""The pictures of docs/concepts.md: `python docs/concepts/pictures.py`, from one real run on the digits."""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib as mpl
import networkx as nx
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

import efhc
from efhc.report.figures.style import LAYOUT, strategy_styles

HERE = Path(__file__).parent
SHOWN = range(20, 200)
"""Iterations of the picture of drifts: after the first ones, in which models still differ by a lot."""
FIRED, QUIET = "#c2410c", "#64748b"
STRATEGIES = {
    "EF-HC": efhc.EventTriggered(r=1500.0),
    "GT": efhc.GlobalThreshold(r=1500.0),
    "ZT": efhc.ZeroThreshold(),
    "RG": efhc.RandomizedGossip(),
}
STYLE = {
    **LAYOUT,
    "font.size": 8,
    "svg.fonttype": "none",
    "svg.hashsalt": "efhc",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches."""
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def write(made: Figure, name: str) -> None:
    """Write an SVG that is the same whenever it is made from the same run."""
    made.savefig(HERE / f"{name}.svg", metadata={"Date": None, "Creator": None})


def bandwidths(result: efhc.Result) -> np.ndarray:
    """Return b_i of the devices of seed 0."""
    return result.devices.filter(seed=0).sort("device")["bandwidth"].to_numpy()


def fired(result: efhc.Result, strategy: str) -> np.ndarray:
    """Return (iterations, devices): who fired when, of seed 0."""
    rows = result.events.filter(strategy=strategy, seed=0).sort("iteration")["fired"].to_list()
    table = np.zeros((len(rows), result.experiment.devices), dtype=bool)
    for k, devices in enumerate(rows):
        table[k, devices] = True
    return table


def draw_drift(axes: Axes, result: efhc.Result, device: int) -> None:
    """Draw the drift of a device and its threshold: where they meet, it fires, and the drift is 0 again."""
    snapshots, fires = result.snapshots("EF-HC", 0), fired(result, "EF-HC")[:, device]
    b, step_size = bandwidths(result)[device], result.experiment.step_size
    drift, last = np.zeros(SHOWN.stop), snapshots[0][device]
    for k in range(SHOWN.stop):
        drift[k] = np.sqrt(np.mean((snapshots[k][device] - last) ** 2))
        last = snapshots[k][device] if fires[k] else last
    sent = [k for k in SHOWN if fires[k]]
    axes.plot(SHOWN, [1500.0 * step_size(k) / b for k in SHOWN], "--", color=QUIET, label="threshold r γ(k) / b")  # noqa: RUF001
    axes.plot(SHOWN, drift[SHOWN.start :], color="#0f766e", linewidth=1.2, label="drift since the last broadcast")
    axes.plot(sent, drift[sent], "o", color=FIRED, markersize=4, label="fires: broadcasts its model")
    axes.set_ylabel(f"device {device}, b = {b:,.0f}")
    axes.set_ylim(bottom=0)


def drift_picture(result: efhc.Result) -> Figure:
    """Draw the drift of the device with the most and of that with the least bandwidth."""
    made = figure(6.4, 3.6)
    order = np.argsort(bandwidths(result))
    panels = made.subplots(2, sharex=True)
    for axes, device in zip(panels, (order[-1], order[0]), strict=True):
        draw_drift(axes, result, int(device))
    panels[1].set_xlabel("iteration k")
    made.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="outside upper center", ncols=3)
    return made


def events_picture(result: efhc.Result) -> Figure:
    """Draw the network in one iteration: who fires, and which links are used therefore."""
    table = fired(result, "EF-HC")
    k = int(np.flatnonzero((table.sum(axis=1) >= 1) & (table.sum(axis=1) <= 2))[4])
    (row,) = result.events.filter(strategy="EF-HC", seed=0, iteration=k).iter_rows(named=True)
    used = {tuple(sorted(link)) for link in zip(row["link_from"], row["link_to"], strict=True)}
    (wiring,) = result.network.filter(seed=0).head(1).iter_rows(named=True)
    links = [tuple(sorted(link)) for link in zip(wiring["link_from"], wiring["link_to"], strict=True)]
    graph = nx.Graph(links)
    places = nx.kamada_kawai_layout(graph)
    made = figure(6.4, 3.2)
    axes = made.subplots()
    for chosen, color, width in ((False, "#cbd5e1", 1.0), (True, FIRED, 2.2)):
        ends = [(places[i], places[j]) for i, j in links if ((i, j) in used) == chosen]
        axes.add_collection(LineCollection(ends, colors=color, linewidths=width, zorder=1))
    for device, b in enumerate(bandwidths(result)):
        color = FIRED if table[k, device] else QUIET
        axes.scatter(*places[device], s=60 + 0.06 * b, color=color, zorder=2, edgecolors="white")
        axes.annotate(str(device), places[device], ha="center", va="center", color="white", fontsize=7, zorder=3)
    axes.set_title(f"iteration {k}: the orange devices fire, and exchange models over all their links", fontsize=8)
    axes.set_axis_off()
    axes.margins(0.1)
    return made


def thresholds_picture(result: efhc.Result) -> Figure:
    """Draw how often each device fires, against its bandwidth: with a threshold of its own, and with one for all."""
    made = figure(6.4, 2.4)
    styles = strategy_styles([*STRATEGIES])
    b = bandwidths(result)
    for axes, name in zip(made.subplots(1, 2, sharey=True), ("EF-HC", "GT"), strict=True):
        axes.bar(range(len(b)), fired(result, name).mean(axis=0)[np.argsort(b)], color=styles[name][0])
        axes.set_xticks(range(len(b)), [f"{value:,.0f}" for value in np.sort(b)], rotation=60, fontsize=6)
        axes.set_xlabel("bandwidth b of the device")
        axes.set_title("EF-HC: a threshold per device" if name == "EF-HC" else "GT: one threshold for all", fontsize=8)
    made.axes[0].set_ylabel("fires in this share\nof all iterations")
    return made


def cost_picture(result: efhc.Result) -> Figure:
    """Draw the same accuracies against iterations and against what they cost."""
    made = figure(6.4, 2.6)
    styles = strategy_styles([*STRATEGIES])
    panels = made.subplots(1, 2, sharey=True)
    rows = result.metrics.filter(pl.col("accuracy").is_not_null())
    means = rows.group_by("strategy", "iteration").agg(pl.col("accuracy", "transmission_time_total").mean())
    for name in STRATEGIES:
        line, (color, dash) = means.filter(strategy=name).sort("iteration"), styles[name]
        panels[0].plot(line["iteration"], line["accuracy"], dash, color=color, label=name)
        panels[1].plot(line["transmission_time_total"], line["accuracy"], dash, color=color)
    panels[0].set_ylabel("accuracy, mean over devices")
    panels[0].set_xlabel("iteration")
    panels[1].set_xlabel("transmission time spent")
    panels[1].set_xlim(0, float(means.filter(strategy="EF-HC")["transmission_time_total"].max()) * 1.05)
    made.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="outside upper center", ncols=4)
    return made


def main() -> None:
    """Make the run and draw the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        result = efhc.simulate(
            iterations=400,
            seeds=[0, 1, 2],
            evaluate_every=10,
            keep_models_every=1,
            bandwidths=efhc.UniformBandwidth(nominal=5000, spread=0.9),
            strategies=STRATEGIES,
            out=folder,
        )
        with mpl.rc_context(STYLE):
            write(events_picture(result), "events")
            write(drift_picture(result), "drift")
            write(thresholds_picture(result), "thresholds")
            write(cost_picture(result), "cost")


if __name__ == "__main__":
    main()
