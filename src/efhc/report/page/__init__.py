"""The report as one HTML file: document.py fills the templates, plots.py describes its plots; live/ shows any run."""
