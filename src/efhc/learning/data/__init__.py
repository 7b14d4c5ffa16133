"""Data sets. Adding one: a policy with a `kind` and a `load`, and its name in the union below."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from efhc.core.policy import default_kind, or_your_own
from efhc.learning.data.dataset import Dataset
from efhc.learning.data.digits import Digits
from efhc.learning.data.fashion_mnist import FashionMNIST
from efhc.learning.data.npz import NpzFile

__all__ = ["ARCHIVES", "AnyData", "Dataset", "Digits", "FashionMNIST", "NpzFile"]

ARCHIVES = {policy.archive.name: policy.archive for policy in (FashionMNIST,)}
"""Data sets made of files that can be fetched and verified, by name."""

AnyData = Annotated[
    Digits | FashionMNIST | NpzFile, Field(discriminator="kind"), default_kind("digits"), or_your_own("load")
]
