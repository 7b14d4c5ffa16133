"""Pictures of sweeps, of tunings, and of how data is divided among devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.ticker import MaxNLocator

from efhc.base.arrays import Ints
from efhc.learning.data import Dataset
from efhc.learning.measures import Measure
from efhc.report.claims.intervals import bounds_words
from efhc.report.figure_data import ACCURACY
from efhc.report.figures.style import LAYOUT, SMALL, WIDTHS, Line, Picture, grid_of, strategy_lines
from efhc.report.looks import STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PANELS = 12
WIDE_RANGE = 50
"""A ratio of the largest to the smallest value from which the horizontal axis is logarithmic."""


def sweep_figure(
    means: pl.DataFrame,
    settings: Sequence[str],
    left_alone: Collection[str] = (),
    title: str = "",
    measure: Measure = ACCURACY,
) -> Picture:
    """Draw `means`, which has the columns `settings`, strategy, seeds, that of the measure, low and high.

    The setting with the most values is on the horizontal axis, a setting with numbers before one with texts. Every
    combination of the other settings has a panel of its own, up to `MOST_PANELS`. A null means that the strategy does
    not depend on the setting, or for the settings `left_alone` that the point has the value of the experiment. A row in
    which the horizontal setting is null is a line across its panel.

    If `means` has the column seconds_to_target (with _low and _high), every panel is drawn a second time with these;
    then a point at which not all seeds reach the target is left out.
    """
    varying = [setting for setting in settings if means[setting].drop_nulls().n_unique() > 1] or list(settings[:1])
    across = max(varying, key=lambda setting: (means.schema[setting].is_numeric(), means[setting].n_unique()))
    others = [setting for setting in varying if setting != across]
    panels = _panels(means, others, left_alone)
    shown = panels[:MOST_PANELS]
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)
    styles = strategy_lines(means["strategy"].unique(maintain_order=True).to_list())
    drawings = _drawings(means, measure)
    with mpl.rc_context(LAYOUT):
        height = (3.2 if columns == 1 else 2.1) * lines * len(drawings)
        figure = Picture((WIDTHS["page"], 0.6 + height))
        parts = [figure] if len(drawings) == 1 else list(figure.subfigures(len(drawings), 1, squeeze=False).flat)
        for part, (words, drawn_means) in zip(parts, drawings.items(), strict=True):
            grid = grid_of(part, len(shown), columns, sharey=True)
            for axes, panel in zip(grid, shown, strict=True):
                matching = [
                    pl.col(key).eq_missing(value) | (pl.col(key).is_null() & (key not in left_alone))
                    for key, value in panel.items()
                ]
                _draw_sweep(axes, drawn_means.filter(*matching), across, means[across], styles)
                panel_title = ", ".join(f"{key} = {value}" for key, value in panel.items() if value is not None)
                axes.set_title(panel_title, parse_math=False)
            for axes in grid[::columns]:
                axes.set_ylabel(words)
        drawn: dict[str, Any] = {}
        for axes in figure.axes:
            handles, labels = axes.get_legend_handles_labels()
            drawn.update(zip(labels, handles, strict=True))
        names = [name for name in styles if name in drawn]
        left_out = f"the first {len(shown)} of {len(panels)} panels" if len(panels) > len(shown) else ""
        words = ": ".join(filter(None, (title, left_out)))
        figure.finish([drawn[name] for name in names], names, words, figure.columns_for(names))
        if means["low"].count():
            figure.legends[0].set_title(f"points: means; bars: {bounds_words(means['seeds'])} over seeds", prop=SMALL)
        return figure


def _drawings(means: pl.DataFrame, measure: Measure) -> dict[str, pl.DataFrame]:
    """Return what to draw by the name of its vertical axis: tables with the columns mean, low and high."""
    drawings = {f"{measure.label} at the end": means.rename({measure.name: "mean"})}
    if "seconds_to_target" in means.columns and (means["reached"] == means["seeds"]).any():
        seconds, all_reach = pl.col("seconds_to_target"), pl.col("reached") == pl.col("seeds")
        drawings["seconds to the target,\nwhere all seeds reach it"] = means.with_columns(
            mean=pl.when(all_reach).then(seconds), low="seconds_to_target_low", high="seconds_to_target_high"
        )
    return drawings


def _panels(means: pl.DataFrame, others: Sequence[str], left_alone: Collection[str]) -> list[dict[str, Any]]:
    """Return every combination of the other settings that some point has."""
    if not others:
        return [{}]
    shared = [key for key in others if key not in left_alone]
    points = means.drop_nulls(shared) if shared else means
    # All rows may be of strategies that do not depend on a setting; then one panel shows them.
    return points.select(others).unique(maintain_order=True).to_dicts() or [{}]


def _draw_sweep(axes: Axes, rows: pl.DataFrame, across: str, values: pl.Series, styles: Mapping[str, Line]) -> None:
    numeric = values.dtype.is_numeric()
    labels = values.drop_nulls().unique(maintain_order=True).to_list()
    for name, line in styles.items():
        of_strategy = rows.filter(pl.col("strategy") == name).drop_nulls("mean")
        look: dict[str, Any] = {**line.look, "label": name}
        for row in of_strategy.filter(pl.col(across).is_null()).iter_rows(named=True):
            axes.axhline(row["mean"], **look)
            if row["low"] is not None:
                axes.axhspan(row["low"], row["high"], color=line.color, alpha=0.08, linewidth=0)
        points = of_strategy.drop_nulls(across)
        if not len(points):
            continue
        places = points[across].to_list() if numeric else [labels.index(value) for value in points[across]]
        points = points.with_columns(pl.Series("place", places, pl.Float64)).sort("place")
        mean = points["mean"].to_numpy()
        # Rounding can put the mean slightly outside of its interval; one seed has no interval.
        low, high = (points[bound].fill_null(points["mean"]).to_numpy() for bound in ("low", "high"))
        reach = np.stack([np.maximum(mean - low, 0), np.maximum(high - mean, 0)])
        axes.errorbar(points["place"], mean, reach, marker=line.marker, capsize=2, **look)
    if numeric and labels and min(labels) > 0 and max(labels) / min(labels) >= WIDE_RANGE:
        axes.set_xscale("log")
    if not numeric:
        axes.set_xticks(range(len(labels)), labels, parse_math=False)
    axes.set_xlabel(across)


COMPLETE, BEST = STYLES[0][0], STYLES[1][0]
PRUNED = "#8a8a8a"


def tuning_figure(
    trials: pl.DataFrame,
    best_values: Mapping[str, float],
    title: str = "",
    bounds: str = "95 %",
    measure: Measure = ACCURACY,
) -> Picture:
    """Draw a panel per parameter of `best_values`.

    `trials` has a column per parameter, and those of the measure, low and high (its `bounds` over seeds, or null),
    state. The trials of a single parameter are joined by a line; with several, neighbours in one of them differ in the
    others.
    """
    with mpl.rc_context(LAYOUT):
        panels = len(best_values)
        figure = Picture((WIDTHS["column" if panels == 1 else "page"], 3.0 * -(-panels // 3)))
        grid = grid_of(figure, panels, 3, sharey=True)
        for axes, parameter in zip(grid, best_values, strict=True):
            _draw_trials(axes, trials, parameter, best_values, bounds, measure)
        for axes in grid[::3]:
            axes.set_ylabel(measure.label)
        handles, labels = grid[0].get_legend_handles_labels()
        figure.finish(handles, labels, title, columns=2)
        return figure


def _draw_trials(
    axes: Axes,
    trials: pl.DataFrame,
    parameter: str,
    best_values: Mapping[str, float],
    bounds: str,
    measure: Measure,
) -> None:
    name = measure.name
    complete = trials.filter(state="complete").sort(parameter)
    pruned = trials.filter(state="pruned").sort(parameter)
    is_best = [pl.col(other) == value for other, value in best_values.items()]
    best = complete.filter(*is_best).sort(measure.sign * pl.col(name)).row(-1, named=True)
    sure = complete.drop_nulls(["low", "high"])
    # The mean lies within its interval but for rounding.
    below, above = (sure[name] - sure["low"]).clip(0), (sure["high"] - sure[name]).clip(0)
    bars = f"{bounds} over seeds" if len(sure) else None
    reach = np.stack([below, above])
    axes.errorbar(sure[parameter], sure[name], reach, fmt="none", color=COMPLETE, alpha=0.5, label=bars)
    joined = "o-" if len(best_values) == 1 else "o"
    axes.plot(complete[parameter], complete[name], joined, color=COMPLETE, markersize=5, linewidth=1, label="complete")
    if len(pruned):
        axes.plot(
            pruned[parameter],
            pruned[name],
            "o",
            color=PRUNED,
            markerfacecolor="none",
            markersize=5,
            label="stopped early, so after fewer iterations",
        )
    words = ", ".join(f"{other} = {value:.4g}" for other, value in best_values.items())
    label = f"best: {words}, {measure.label} {best[name]:.3f}"
    axes.plot([best[parameter]], [best[name]], "*", color=BEST, markersize=14, zorder=3, label=label)
    axes.set_xscale("log")
    axes.set_xlabel("threshold scale r" if parameter == "r" else parameter, parse_math=False)


LEGIBLE = 15
"""Largest number of devices and of labels for which the counts are written into the map."""

# From pale to dark blue; a label that a device lacks stays white.
SHADES = ListedColormap(mpl.colormaps["Blues"](np.linspace(0.1, 1, 256)))


def label_counts(data: Dataset, parts: Sequence[Ints]) -> Ints:
    """Return the number of training samples by device (row) and label (column; one if labels are no classes)."""
    labels, classes = (data.y_train, data.classes) if data.has_classes else (np.zeros(len(data.y_train), np.int64), 1)
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


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
