"""Pictures for files: one module per picture, and the look that all of them share (style.py)."""

from efhc.report.figures.comparison_figure import comparison_figure
from efhc.report.figures.seconds_figure import seconds_figure
from efhc.report.figures.style import (
    DOTS_PER_INCH,
    LAYOUT,
    STYLES,
    run_title,
    save_figure,
    strategy_colours,
    strategy_styles,
)

__all__ = [
    "DOTS_PER_INCH",
    "LAYOUT",
    "STYLES",
    "comparison_figure",
    "run_title",
    "save_figure",
    "seconds_figure",
    "strategy_colours",
    "strategy_styles",
]
