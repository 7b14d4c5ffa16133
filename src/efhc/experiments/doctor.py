"""Is this installation sound?"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from efhc.drivers.agreement import difference_from_reference
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.experiments.runs.provenance import machine, provenance
from efhc.learning.data import ARCHIVES
from efhc.learning.data.store import cache_folder
from efhc.network.changing import RandomLinks


def checks() -> Iterator[tuple[str, bool, str]]:
    """Name of the check, whether all is well, what was found."""
    yield "Python", sys.version_info >= (3, 11), sys.version.split()[0]
    for name, found in provenance()["versions"].items():
        if name != "python":
            yield name, True, found
    facts = machine()
    memory = f"{facts['memory_bytes'] / 2**30:.0f} GiB" if facts["memory_bytes"] else "unknown"
    yield "machine", True, f"{facts['cores']} cores, {memory}, {facts['system']}"
    existing = next(folder for folder in (cache_folder(), *cache_folder().parents) if folder.exists())
    yield "cache", os.access(existing, os.W_OK), str(cache_folder())
    for archive in ARCHIVES.values():
        place = archive.find()
        yield archive.name, True, str(place[1]) if place else f"not here; {archive.remedy}"
    difference = engine_difference()
    yield "engine", difference < 1e-12, f"differs from Alg. 1 in plain loops by at most {difference:.1e}"


def engine_difference(iterations: int = 20) -> float:
    """How far the engine ends from `reference.py` on failing links; infinite if it fired or used others."""
    experiment = Experiment(precision="float64", network=RandomLinks())
    scenario = draw_scenario(experiment, load_data(experiment), seed=0)
    return difference_from_reference(scenario, experiment.strategies["EF-HC"], iterations)
