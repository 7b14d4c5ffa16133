"""The pictures and the table of docs/strategies.md: `python docs/strategies/pictures.py`, from real runs on the digits.

Every strategy is drawn beside EF-HC and ZT: accuracy against the share of ZT's total transmission time that was spent.
Lines are means over three seeds. A dot ends what a strategy spends; the dotted line after it is its accuracy at larger
budgets.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import polars as pl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from PIL import Image

import efhc
from efhc.report.claims.leads import SHARES, frontier_curves, mean_table
from efhc.report.figure_data import SettingData
from efhc.report.figures.style import DOTS_PER_INCH, LAYOUT
from efhc.report.looks import strategy_styles
from efhc.report.numbers import percent

HERE = Path(__file__).parent

# r of EF-HC, GT, one-way and SPARQ-SGD is that of `efhc demo`. All other parameters are the defaults, unless a name
# says otherwise. Nothing was tuned.
BUDGETED: Any = {
    "local": efhc.DriftCorrected(correction=0.1),
    "trigger": efhc.EntrywiseTrigger(),
    "codec": efhc.LevelsCodec(),
    "budget": efhc.Budget(share=0.01),
}
STRATEGIES = {
    "ZT": efhc.ZeroThreshold(),
    "EF-HC": efhc.EventTriggered(r=1500.0),
    "GT": efhc.GlobalThreshold(r=1500.0),
    "RG": efhc.RandomizedGossip(),
    "Never": efhc.Never(),
    "periodic": efhc.PeriodicBroadcast(),
    "ZT + momentum": efhc.Composed(trigger=efhc.AlwaysTrigger(), local=efhc.QuasiGlobalMomentum()),
    "entrywise": efhc.Entrywise(),
    "entrywise + momentum": efhc.Entrywise(momentum=0.9),
    "entrywise, budget 0.01, always": efhc.Composed(**BUDGETED, mixing=efhc.EstimatesMixing(rate=0.25)),
    "entrywise, budget 0.01, sent": efhc.Composed(**BUDGETED, mixing=efhc.EstimatesMixing(rate=0.25, when="sent")),
    "one-way": efhc.OneWay(r=1500.0),
    "one-way, 8 bits": efhc.OneWay(r=1500.0, bits=8),
    "CHOCO-SGD": efhc.ChocoSGD(),
    "CHOCO-SGD, top-k, rate 0.3": efhc.ChocoSGD(rate=0.3, codec=efhc.TopKCodec()),
    "CHOCO-SGD, top-k, rate 0.1": efhc.ChocoSGD(rate=0.1, codec=efhc.TopKCodec()),
    "SPARQ-SGD": efhc.SparqSGD(r=1500.0),
    "BEER": efhc.Beer(),
    "D2": efhc.ExactDiffusion(),
    "NIDS": efhc.ExactDiffusion(rate=0.5),
    "DSGT": efhc.GradientTracking(),
    "RelaySGD": efhc.RelaySGD(),
    "MATCHA": efhc.Matcha(),
    "centralised": efhc.CentralSGD(),
}
PICTURES = {
    "paper": ("GT", "RG", "Never"),
    "periodic": ("periodic",),
    "momentum": ("ZT + momentum",),
    "entrywise": ("entrywise", "entrywise + momentum"),
    "budget": ("entrywise, budget 0.01, sent", "entrywise"),
    "one-way": ("one-way", "one-way, 8 bits"),
    "choco": ("CHOCO-SGD", "CHOCO-SGD, top-k, rate 0.1"),
    "sparq": ("SPARQ-SGD",),
    "beer": ("BEER",),
    "d2": ("D2", "NIDS"),
    "dsgt": ("DSGT",),
    "relay": ("RelaySGD",),
    "matcha": ("MATCHA",),
    "central": ("centralised",),
}
BESIDE = ("EF-HC", "ZT")


def picture(curves: pl.DataFrame, names: tuple[str, ...]) -> Figure:
    """Draw these strategies in front of those that are drawn beside all of them."""
    styles = strategy_styles([*BESIDE, *names])
    with mpl.rc_context({**LAYOUT, "font.size": 8}):
        figure = Figure(figsize=(4.2, 2.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for name in (*BESIDE, *names):
            rows, (color, dash) = curves.filter(strategy=name), styles[name]
            if not rows["spends"].max():  # it sends nothing at all: a level to look at
                axes.axhline(rows["mean"][-1], color=color, linestyle=":", label=name)
                continue
            until = rows.filter(pl.col("share") <= pl.col("spends"))
            beyond = rows.filter(pl.col("share") >= pl.col("spends"))
            axes.plot(until["share"], until["mean"], dash, color=color, linewidth=1.6, label=name)
            axes.plot(beyond["share"], beyond["mean"], ":", color=color, linewidth=1.0)
            if len(until) and len(beyond):
                axes.plot(until["share"][-1], until["mean"][-1], "o", color=color, markersize=3)
        axes.set_xscale("log")
        axes.set_xlim(SHARES[0], SHARES[-1])
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))
        axes.set_xlabel("transmission time, as a share of ZT's")
        axes.set_ylabel("accuracy")
        figure.legend(fontsize=7, frameon=False, loc="outside upper center", ncols=5)
        return figure


def write(figure: Figure, path: Path) -> None:
    """Write the figure with 48 colours, which makes the file a third as large."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    Image.open(buffer).convert("RGB").quantize(48, Image.Quantize.MEDIANCUT).save(path, optimize=True)


def as_markdown(table: pl.DataFrame) -> str:
    """Return the table of the page."""
    budgets = [column for column in table.columns if column.startswith("at ")]
    lines = [["strategy", *budgets, "spends"], ["---"] * (len(budgets) + 2)]
    for row in table.iter_rows(named=True):
        told = ["-" if row[budget] is None else f"{row[budget]:.2f}" for budget in budgets]
        lines.append([row["strategy"], *told, f"{100 * row['spends']:.3g} %"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Make the runs, draw the pictures, and print the table of the page."""
    result = efhc.simulate(
        iterations=400,
        seeds=[0, 1, 2],
        evaluate_every=4,
        evaluate_at="budgets",
        initial_models=efhc.Shared(),
        strategies=STRATEGIES,
    )
    curves = result.evaluations
    drawn = frontier_curves(SettingData("digits", "digits", curves))
    for name, strategies in PICTURES.items():
        write(picture(drawn, strategies), HERE / f"{name}.png")
    sys.stdout.write(as_markdown(mean_table(curves, "accuracy")))


if __name__ == "__main__":
    main()
