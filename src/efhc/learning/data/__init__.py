"""Data sets. Adding one: a policy with a `kind` and a `load`, and its name in the union below."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from efhc.base.policy import default_kind, or_your_own
from efhc.learning.data.cifar10 import CIFAR10
from efhc.learning.data.dataset import Dataset
from efhc.learning.data.digits import Digits
from efhc.learning.data.fashion_mnist import FashionMNIST
from efhc.learning.data.femnist import FEMNIST
from efhc.learning.data.image_folder import ImageFolder
from efhc.learning.data.npz import NpzFile
from efhc.learning.data.store import StoredData

__all__ = [
    "ARCHIVES",
    "CIFAR10",
    "FEMNIST",
    "STORED",
    "AnyData",
    "Dataset",
    "Digits",
    "FashionMNIST",
    "ImageFolder",
    "NpzFile",
]

STORED: dict[str, type[StoredData]] = {policy.archive.name: policy for policy in (FashionMNIST, CIFAR10, FEMNIST)}
"""Data sets made of files that are looked for, by name."""

ARCHIVES = {name: policy.archive for name, policy in STORED.items()}

AnyData = Annotated[
    Digits | FashionMNIST | CIFAR10 | FEMNIST | ImageFolder | NpzFile,
    Field(discriminator="kind"),
    default_kind("digits"),
    or_your_own("load"),
]
