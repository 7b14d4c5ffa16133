"""The page that shows runs, live or offline: its scripts and styles, and the HTML around them."""

from efhc.report.page.live.document import files, live_html, offline_html

__all__ = ["files", "live_html", "offline_html"]
