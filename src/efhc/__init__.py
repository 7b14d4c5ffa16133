"""EF-HC: decentralized federated learning with personalized event-triggered communication.

import efhc
result = efhc.simulate(devices=10, network=efhc.Geometric(radius=0.4))
print(result.summary())
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version as _version
from typing import Any

__version__ = _version("efhc")

# Names besides the kinds, and where they live. All names are loaded when they are first used: `import efhc` and
# `efhc --help` stay quick. `__init__.pyi`, which type checkers read, is written by docs/reference_pages.py.
_HOMES = {
    "simulate": "efhc.experiments.runs.simulate",
    "Experiment": "efhc.experiments.config.experiment",
    "EarlyStopping": "efhc.experiments.config.early_stopping",
    "load_experiment": "efhc.experiments.config.files",
    "Result": "efhc.experiments.runs.result",
    "Study": "efhc.experiments.runs.study",
    "EfhcError": "efhc.base.errors",
    "InputError": "efhc.base.errors",
    "Dataset": "efhc.learning.data.dataset",
    # For kinds of your own: the base class of everything, and those of each family.
    "Policy": "efhc.base.policy",
    "Strategy": "efhc.core.parts",
    "TriggerPolicy": "efhc.core.triggers",
    "CodecPolicy": "efhc.strategies.parts.codecs",
    "LocalStep": "efhc.core.local_steps",
    "StepLimit": "efhc.core.step_limits",
    "Personal": "efhc.core.personal",
    "LinksPolicy": "efhc.strategies.parts.link_choices",
    "SchedulePolicy": "efhc.core.schedules",
    "Network": "efhc.network.topologies",
    "Topology": "efhc.network.topologies",
    "BandwidthPolicy": "efhc.network.bandwidths",
    "DataPolicy": "efhc.learning.data.dataset",
    "Partition": "efhc.learning.partition",
    "InitialModels": "efhc.learning.initial",
    "LinearModel": "efhc.learning.models.linear",
    "ModuleModel": "efhc.learning.models.modules",
    "DriverPolicy": "efhc.drivers.settings",
    "ComputeTimes": "efhc.drivers.event_driven.compute",
    "LinkPolicy": "efhc.drivers.event_driven.links",
    "RatePolicy": "efhc.drivers.event_driven.rates",
    "ChurnPolicy": "efhc.drivers.event_driven.churn",
    "Tracker": "efhc.experiments.trackers.tracker",
    # What their methods take and return.
    "Bandwidths": "efhc.core.triggers",
    "ChurnEvent": "efhc.drivers.event_driven.churn",
    "Budget": "efhc.core.parts",
    "ChosenLinks": "efhc.core.parts",
    "Graph": "efhc.core.graph",
    "Memory": "efhc.core.memory",
    "Moved": "efhc.core.parts",
    "Now": "efhc.core.parts",
    "Parts": "efhc.core.parts",
    "Seen": "efhc.core.parts",
    "Notice": "efhc.drivers.event_driven.transfers",
    "Purpose": "efhc.core.randomness",
    "Randomness": "efhc.core.randomness",
}


def _kinds() -> dict[str, Any]:
    """The built-in kinds by the names of their classes."""
    from efhc.experiments.config.experiment import built_in_kinds

    return built_in_kinds()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "__all__":
        return sorted({*_HOMES, *_kinds()})
    if name[0].isupper() and (kind := _kinds().get(name)):
        return kind
    raise AttributeError(f"module 'efhc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*sorted({*_HOMES, *_kinds()}), "__version__"]
