"""Experiments: what to run (config), running it, and the directory that holds a run."""
