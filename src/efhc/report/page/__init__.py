"""The report as one HTML file: document.py fills the templates, charts.py describes charts, scripts/ draws."""
