"""What the devices train."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import BeforeValidator, Field

from efhc.base.arrays import Floats
from efhc.base.policy import or_your_own
from efhc.learning.data.dataset import Dataset
from efhc.learning.models.linear import SVM, LeastSquares, LinearModel, Softmax
from efhc.learning.models.modules import MLP, LeNet5, Module, ModuleModel, ResNet18

__all__ = [
    "MLP",
    "SVM",
    "AnyModel",
    "LeNet5",
    "LeastSquares",
    "LinearModel",
    "Model",
    "Module",
    "ModuleModel",
    "ResNet18",
    "Softmax",
]


class Model(Protocol):
    """A model is a flat vector of n numbers to everything but its backend."""

    def parameters(self, data: Dataset) -> int:
        """n, the number of parameters."""
        ...

    def initial(self, data: Dataset, stream: np.random.Generator) -> Floats:
        """A first model (n,), drawn from `stream` alone."""
        ...


def _with_kind(given: Any) -> Any:
    """A table without a kind is an SVM, or the module it names; a bare word is a kind; a callable makes a module."""
    if isinstance(given, dict):
        return {"kind": "module" if "module" in given else "svm", **given}
    if isinstance(given, str):
        return {"kind": given}
    return {"kind": "module", "module": given} if callable(given) else given


AnyModel = Annotated[
    SVM | Softmax | LeastSquares | MLP | LeNet5 | ResNet18 | Module,
    Field(discriminator="kind"),
    BeforeValidator(_with_kind),
    or_your_own("loss_and_gradient"),
]
