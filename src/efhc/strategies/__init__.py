"""Strategies beyond those of the paper, which are in `core/triggers.py`. A new one is a `Strategy` with a `kind`."""
