"""Data sets. A new one is a `DataPolicy` with a `kind` and a `load`, in any file of this folder."""

from __future__ import annotations

from typing import Annotated

from efhc.base.registry import Family
from efhc.learning.data.archives import StoredData
from efhc.learning.data.dataset import DataPolicy, Dataset, NpzFile
from efhc.learning.data.huggingface import HuggingFace
from efhc.learning.data.images import CIFAR10, Digits, FashionMNIST, ImageFolder
from efhc.learning.data.leaf import FEMNIST, Sent140, Shakespeare
from efhc.learning.data.tables import CsvFile, ParquetFile

__all__ = [
    "ARCHIVES",
    "CIFAR10",
    "FEMNIST",
    "STORED",
    "AnyData",
    "CsvFile",
    "Dataset",
    "Digits",
    "FashionMNIST",
    "HuggingFace",
    "ImageFolder",
    "NpzFile",
    "ParquetFile",
    "Sent140",
    "Shakespeare",
]

STORED: dict[str, type[StoredData]] = {
    policy.archive.name: policy for policy in (FashionMNIST, CIFAR10, FEMNIST, Shakespeare, Sent140)
}
"""By name, the data sets whose files are searched for in known folders."""

ARCHIVES = {name: policy.archive for name, policy in STORED.items()}

DATA = Family(DataPolicy, ("efhc.learning.data",), ("load",), default="digits")
AnyData = Annotated[DataPolicy, DATA]
