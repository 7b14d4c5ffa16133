"""The samples of each device: a map of labels by devices, shaded by count, below each device's total."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.ticker import MaxNLocator

from efhc.base.arrays import Ints
from efhc.learning.data import Dataset
from efhc.report.figures.style import LAYOUT, Picture
from efhc.report.looks import STYLES

LEGIBLE = 15
"""Largest number of devices and of labels for which the counts are written into the map."""

# From pale to dark blue; a label that a device lacks stays white.
SHADES = ListedColormap(mpl.colormaps["Blues"](np.linspace(0.1, 1, 256)))


def label_counts(data: Dataset, parts: Sequence[Ints]) -> Ints:
    """Return the number of training samples by device (row) and label (column)."""
    return np.stack([np.bincount(data.y_train[part], minlength=data.classes) for part in parts])


def partition_figure(counts: Ints, label_names: Sequence[str], title: str = "") -> Picture:
    """Draw `counts`, which has a row per device and a column per label.

    The shade grows with the square root of the count, so that even a single sample is visible.
    """
    devices, labels = counts.shape
    width, height = np.clip([0.18 * devices, 0.16 * labels], [5.0, 3.5], [14.0, 10.0])
    device_edges, label_edges = np.arange(devices + 1) - 0.5, np.arange(labels + 1) - 0.5
    with mpl.rc_context({**LAYOUT, "axes.grid": False}):
        figure = Picture((width + 1.8, height + 2.0))
        totals, chart = figure.subplots(2, 1, sharex=True, height_ratios=[1.0, height])
        totals.stairs(counts.sum(axis=1), device_edges, fill=True, color=STYLES[0][0])
        if devices <= 100:  # with more devices the gaps would cover the bars
            totals.vlines(device_edges, 0, counts.sum(axis=1).max(), color="white", linewidth=1)
        totals.set_ylabel("samples")
        totals.tick_params(bottom=False, labelbottom=False)
        cells = chart.pcolormesh(
            device_edges,
            label_edges,
            np.ma.masked_equal(counts.T, 0),
            cmap=SHADES,
            norm=PowerNorm(0.5, vmin=0, vmax=counts.max()),
            edgecolors="white",
            linewidth=1 if devices <= 100 else 0,
        )
        colours = figure.colorbar(cells, ax=chart, label="samples of a label on a device", pad=0.01, aspect=8 * height)
        colours.locator = MaxNLocator(integer=True)
        chart.set(xlabel="device", ylabel="label", xlim=(-0.5, devices - 0.5), ylim=(-0.5, labels - 0.5))
        chart.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
        if labels <= 100:
            chart.set_yticks(range(labels), label_names, fontsize=min(9, 420 / labels), parse_math=False)
        if max(devices, labels) <= LEGIBLE:
            for (device, label), count in np.ndenumerate(counts):
                colour = "white" if count > 0.4 * counts.max() else "black"
                chart.text(device, label, str(count or ""), color=colour, ha="center", va="center", fontsize=7)
        if title:
            figure.suptitle(title, parse_math=False)
        return figure
