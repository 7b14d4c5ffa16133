"""Neural networks. Only making one imports PyTorch: to a config they are policies like all others.

A device's flat model w_i is what of a `torch.nn.Module` is trained: its parameters that require a gradient, one after
the other in the module's order, as `torch.nn.utils.parameters_to_vector` has it. Other parameters are constants.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from efhc.base.arrays import Floats
from efhc.base.errors import InputError
from efhc.base.own_code import YourOwn, imported, in_one_line
from efhc.base.policy import Policy
from efhc.learning.data.dataset import Dataset

if TYPE_CHECKING:
    from torch import Tensor, nn

BUILT_IN_LOSSES = ("cross-entropy", "multi-margin")


def input_shape(data: Dataset) -> tuple[int, ...]:
    """The shape in which a module sees one sample: an image without channels has one."""
    return (1, *data.shape) if len(data.shape) == 2 else data.shape


class ModuleModel(Policy):
    """A network that maps a batch, (samples, *shape), to scores, (samples, classes); the largest is the answer."""

    loss: Literal["cross-entropy", "multi-margin"] | YourOwn = "cross-entropy"
    """"cross-entropy", "multi-margin" (that of the SVM), or your own: (scores, labels) -> mean loss of the batch."""

    @abstractmethod
    def build(self, data: Dataset) -> nn.Module:
        """The network for this data, with parameters that torch draws."""

    def parameters(self, data: Dataset) -> int:
        """n, the numbers that are trained."""
        with _drawing(np.random.default_rng(0)):
            return sum(parameter.numel() for parameter in trainable(self.build(data)))

    def initial(self, data: Dataset, stream: np.random.Generator) -> Floats:
        """A first model (n,) as the module's own layers initialise themselves, drawn from `stream` alone."""
        with _drawing(stream):
            parameters = trainable(self.build(data))
        return np.concatenate([parameter.detach().numpy().ravel() for parameter in parameters])

    def loss_function(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The mean loss of a batch."""
        from efhc.learning.pytorch import nn

        if self.loss == "cross-entropy":
            return nn.functional.cross_entropy
        if self.loss == "multi-margin":
            return nn.functional.multi_margin_loss
        return imported(self.loss, "loss")


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that make a device's flat model, in order."""
    found = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not sum(parameter.numel() for parameter in found):
        raise InputError("module", f"a {type(module).__name__} without trainable parameters", "something to train")
    return found


def _drawing(stream: np.random.Generator) -> Any:
    from efhc.learning.pytorch import drawing

    return drawing(stream)


class LeNet5(ModuleModel):
    """Three convolutions and two linear layers, ReLU, max pooling; for images of 28x28 or 32x32."""

    kind: Literal["lenet5"] = "lenet5"

    def build(self, data: Dataset) -> nn.Module:
        from efhc.learning.models.nets import lenet5

        channels, side = _square_image(data, self.kind, (28, 32))
        return lenet5(channels, side, data.classes)


class ResNet18(ModuleModel):
    """The ResNet-18 for images of 32x32: a 3x3 stem without pooling.

    With norm = "batch", the running statistics are a device's own: they are neither sent nor mixed, and a device is
    tested with its own.
    """

    kind: Literal["resnet18"] = "resnet18"
    norm: Literal["group", "batch"] = "group"
    groups: Literal[1, 2, 4, 8, 16, 32, 64] = 32
    """Groups of GroupNorm (32 is its authors' choice); without effect on norm = "batch"."""

    def build(self, data: Dataset) -> nn.Module:
        from efhc.learning.models import nets

        channels, _ = _square_image(data, self.kind, (32,))
        return nets.ResNet18(channels, data.classes, self.norm, self.groups)


class MLP(ModuleModel):
    """Linear layers with ReLU between them, for inputs of any shape; without a hidden one, a linear classifier."""

    kind: Literal["mlp"] = "mlp"
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(128,), strict=False)
    """The widths of the hidden layers."""

    def build(self, data: Dataset) -> nn.Module:
        from efhc.learning.models.nets import mlp

        return mlp(data.shape, self.hidden, data.classes)


class Module(ModuleModel):
    """Your own: anything that returns a `torch.nn.Module` when it is called without arguments."""

    kind: Literal["module"] = "module"
    module: YourOwn
    """From Python a function or class; in a config "package.module:name" or "file.py:name"."""
    arguments: dict[str, Any] | None = None
    """Keyword arguments with which `module` is called. Default: none."""

    def build(self, data: Dataset) -> nn.Module:
        from efhc.learning.pytorch import nn

        allowed = "something that returns a torch.nn.Module when it is called without arguments"
        factory = imported(self.module, "module")
        if isinstance(factory, nn.Module):
            raise InputError("module", f"a {type(factory).__name__} that is made already", allowed)
        try:
            module = factory(**(self.arguments or {}))
        except Exception as error:
            raise InputError("module", f"{_name(self.module)} ({in_one_line(error)})", allowed) from error
        if not isinstance(module, nn.Module):
            raise InputError("module", f"{_name(self.module)}, which returns a {type(module).__name__}", allowed)
        return module


def _name(given: Any) -> str:
    return given if isinstance(given, str) else getattr(given, "__qualname__", type(given).__name__)


def _square_image(data: Dataset, kind: str, sides: tuple[int, ...]) -> tuple[int, int]:
    """Channels and side."""
    shape = input_shape(data)
    if len(shape) != 3 or shape[1] != shape[2] or shape[1] not in sides:
        allowed = " or ".join(f"{side}x{side}" for side in sides)
        raise InputError("kind", f"{kind} for samples of shape {data.shape}", f"images of {allowed}, or kind = 'mlp'")
    return shape[0], shape[1]
