"""What the devices train: a model is a flat vector of n numbers to everything but its backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from efhc.base.errors import InputError
from efhc.base.own_code import load
from efhc.base.registry import Family
from efhc.learning.models.linear import SVM, LeastSquares, LinearModel, Softmax
from efhc.learning.models.modules import MLP, LeNet5, Module, ModuleModel, ResNet18

__all__ = [
    "MLP",
    "SVM",
    "AnyModel",
    "LeNet5",
    "LeastSquares",
    "LinearModel",
    "Module",
    "ModuleModel",
    "ResNet18",
    "Softmax",
]


def _from_python(given: Any) -> Any:
    """A callable makes a torch module; so does a table that names one."""
    if isinstance(given, dict) and "module" in given:
        return {"kind": "module", **given}
    is_factory = callable(given) and not any(hasattr(given, method) for method in METHODS)
    return {"kind": "module", "module": given} if is_factory else given


def _from_code(reference: str, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """Code without a model's methods makes a torch module; settings of a model are its own, others the module's."""
    try:
        found, _ = load(reference, "kind")
    except InputError:
        return None  # raised again where the part is made
    if not callable(found) or any(hasattr(found, method) for method in METHODS):
        return None
    settings = {name: value for name, value in parameters.items() if name in ModuleModel.model_fields}
    arguments = {name: value for name, value in parameters.items() if name not in settings}
    return {"kind": "module", "module": reference, **settings, **({"arguments": arguments} if arguments else {})}


METHODS = ("loss_and_gradient", "build")
MODELS = Family(
    (LinearModel, ModuleModel),
    ("efhc.learning.models.linear", "efhc.learning.models.modules"),
    METHODS,
    default="svm",
    from_python=_from_python,
    python_types=("Callable[..., Any]",),
    from_code=_from_code,
)
AnyModel = Annotated[LinearModel | ModuleModel, MODELS]
