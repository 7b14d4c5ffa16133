"""Strategies beyond the paper's, which are in `core/triggers.py`. A new one is a `Strategy` with a `kind`, in a file here."""
