"""EF-HC: decentralized federated learning with personalized event-triggered communication.

import efhc
result = efhc.simulate(devices=10, network=efhc.Geometric(radius=0.4))
print(result.summary())
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

__version__ = _version("efhc")

# Names and where they live. Loaded when first used: `import efhc` and `efhc --help` stay quick.
_HOMES = {
    "efhc.experiments.runs.execute": ["simulate"],
    "efhc.experiments.config.experiment": ["Experiment"],
    "efhc.experiments.config.files": ["load_experiment"],
    "efhc.experiments.runs.result": ["Result"],
    "efhc.base.errors": ["EfhcError", "InputError"],
    "efhc.core.schedules": ["Constant", "Diminishing"],
    "efhc.core.triggers": ["EventTriggered", "GlobalThreshold", "Never", "RandomizedGossip", "ZeroThreshold"],
    "efhc.learning.data": ["CIFAR10", "FEMNIST", "Dataset", "Digits", "FashionMNIST", "ImageFolder", "NpzFile"],
    "efhc.learning.initial": ["ModelFile", "PerDevice", "Shared", "Zeros"],
    "efhc.learning.models": ["MLP", "SVM", "LeNet5", "LeastSquares", "Module", "ResNet18", "Softmax"],
    "efhc.learning.partition": ["IID", "Dirichlet", "IndexFile", "LabelsPerDevice", "Writers"],
    "efhc.network.bandwidths": [
        "BandwidthFile",
        "BetaBandwidth",
        "ConstantBandwidth",
        "GivenBandwidths",
        "UniformBandwidth",
    ],
    "efhc.network.changing": ["RandomLinks", "RandomWaypoint", "Rotating"],
    "efhc.network.graph_files": ["EdgeListFile", "EdgeSequenceFile", "GraphMLFile"],
    "efhc.network.topologies": ["Complete", "ErdosRenyi", "Geometric", "Grid", "InternetAS", "Ring", "Star"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605

if TYPE_CHECKING:
    from efhc.base.errors import EfhcError as EfhcError
    from efhc.base.errors import InputError as InputError
    from efhc.core.schedules import Constant as Constant
    from efhc.core.schedules import Diminishing as Diminishing
    from efhc.core.triggers import EventTriggered as EventTriggered
    from efhc.core.triggers import GlobalThreshold as GlobalThreshold
    from efhc.core.triggers import Never as Never
    from efhc.core.triggers import RandomizedGossip as RandomizedGossip
    from efhc.core.triggers import ZeroThreshold as ZeroThreshold
    from efhc.experiments.config.experiment import Experiment as Experiment
    from efhc.experiments.config.files import load_experiment as load_experiment
    from efhc.experiments.runs.execute import simulate as simulate
    from efhc.experiments.runs.result import Result as Result
    from efhc.learning.data import CIFAR10 as CIFAR10
    from efhc.learning.data import FEMNIST as FEMNIST
    from efhc.learning.data import Dataset as Dataset
    from efhc.learning.data import Digits as Digits
    from efhc.learning.data import FashionMNIST as FashionMNIST
    from efhc.learning.data import ImageFolder as ImageFolder
    from efhc.learning.data import NpzFile as NpzFile
    from efhc.learning.initial import ModelFile as ModelFile
    from efhc.learning.initial import PerDevice as PerDevice
    from efhc.learning.initial import Shared as Shared
    from efhc.learning.initial import Zeros as Zeros
    from efhc.learning.models import MLP as MLP
    from efhc.learning.models import SVM as SVM
    from efhc.learning.models import LeastSquares as LeastSquares
    from efhc.learning.models import LeNet5 as LeNet5
    from efhc.learning.models import Module as Module
    from efhc.learning.models import ResNet18 as ResNet18
    from efhc.learning.models import Softmax as Softmax
    from efhc.learning.partition import IID as IID
    from efhc.learning.partition import Dirichlet as Dirichlet
    from efhc.learning.partition import IndexFile as IndexFile
    from efhc.learning.partition import LabelsPerDevice as LabelsPerDevice
    from efhc.learning.partition import Writers as Writers
    from efhc.network.bandwidths import BandwidthFile as BandwidthFile
    from efhc.network.bandwidths import BetaBandwidth as BetaBandwidth
    from efhc.network.bandwidths import ConstantBandwidth as ConstantBandwidth
    from efhc.network.bandwidths import GivenBandwidths as GivenBandwidths
    from efhc.network.bandwidths import UniformBandwidth as UniformBandwidth
    from efhc.network.changing import RandomLinks as RandomLinks
    from efhc.network.changing import RandomWaypoint as RandomWaypoint
    from efhc.network.changing import Rotating as Rotating
    from efhc.network.graph_files import EdgeListFile as EdgeListFile
    from efhc.network.graph_files import EdgeSequenceFile as EdgeSequenceFile
    from efhc.network.graph_files import GraphMLFile as GraphMLFile
    from efhc.network.topologies import Complete as Complete
    from efhc.network.topologies import ErdosRenyi as ErdosRenyi
    from efhc.network.topologies import Geometric as Geometric
    from efhc.network.topologies import Grid as Grid
    from efhc.network.topologies import InternetAS as InternetAS
    from efhc.network.topologies import Ring as Ring
    from efhc.network.topologies import Star as Star


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _HOME_OF:
            return getattr(import_module(_HOME_OF[name]), name)
        raise AttributeError(f"module 'efhc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
