"""Pictures for files: of runs, of studies, of the paper; style.py has what they share."""

from efhc.report.figures.runs import comparison_figure, seconds_figure
from efhc.report.figures.style import DOTS_PER_INCH, LAYOUT, WIDTHS, Picture, Width, run_title, save_figure

__all__ = [
    "DOTS_PER_INCH",
    "LAYOUT",
    "WIDTHS",
    "Picture",
    "Width",
    "comparison_figure",
    "run_title",
    "save_figure",
    "seconds_figure",
]
