"""Pictures for files: one module per picture, and the look that all of them share (style.py)."""

from efhc.report.figures.comparison_figure import comparison_figure
from efhc.report.figures.seconds_figure import seconds_figure
from efhc.report.figures.style import DOTS_PER_INCH, LAYOUT, Picture, run_title, save_figure

__all__ = [
    "DOTS_PER_INCH",
    "LAYOUT",
    "Picture",
    "comparison_figure",
    "run_title",
    "save_figure",
    "seconds_figure",
]
