"""The report as one HTML file: document.py fills the templates, plots.py describes its plots."""

from efhc.report.page.document import page

__all__ = ["page"]
