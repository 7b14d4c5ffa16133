"""Moved: this file goes away with its last importer."""

from efhc.experiments.runs.engines.local import wait_for_all
from efhc.experiments.runs.simulate import RunProgress, simulate

Progress = RunProgress
__all__ = ["Progress", "simulate", "wait_for_all"]
