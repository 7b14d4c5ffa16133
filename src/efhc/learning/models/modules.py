"""Neural networks. PyTorch is imported only when one is built: in a config they are policies like all others.

The flat model w_i of a device holds the parameters of a `torch.nn.Module` that require a gradient, in the order of the
module, as `torch.nn.utils.parameters_to_vector` returns them. Other parameters are constants.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import TypedDict

from efhc.base.arrays import Floats
from efhc.base.errors import InputError, Unusable
from efhc.base.inputs import InputFile
from efhc.base.own_code import YourOwn, imported, in_one_line
from efhc.base.policy import Policy
from efhc.learning.data.dataset import Dataset
from efhc.learning.measures import Better

if TYPE_CHECKING:
    from torch import nn


class Metric(TypedDict):
    """A metric of one's own."""

    function: YourOwn
    better: Better


def input_shape(data: Dataset) -> tuple[int, ...]:
    """Return the shape in which a module sees one sample: an image without a channel axis gets one."""
    return (1, *data.shape) if len(data.shape) == 2 else data.shape


class ModuleModel(Policy):
    """A network that maps a batch, (samples, *shape), to scores, such as (samples, classes)."""

    loss: Literal["cross-entropy", "multi-margin", "mean-squared-error", "binary-cross-entropy"] | YourOwn = (
        "cross-entropy"
    )
    """"cross-entropy" (of a class per sample or per position), "multi-margin" (as the SVM), "mean-squared-error" (of
    numbers), "binary-cross-entropy" (of several labels per sample), or your own function (scores, labels) -> mean loss
    of a batch."""
    metrics: dict[str, Metric] | None = None
    """Your own metrics by name, {NAME = {function = "file.py:function", better = "higher"}}: functions (scores, labels)
    -> one value per sample. Default: only those of the loss."""
    class_weights: (
        Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(strict=False)] | Literal["balanced"] | None
    ) = None
    """Weight of each class in the cross-entropy that devices train by, or "balanced": N / (classes N_c), with N_c of
    all N training labels. Test losses have no weights. Default: none."""

    weights: InputFile | None = None
    """A file of tensors by the names of the module's parameters and buffers, for all devices: .safetensors, .npz, or
    what torch.save wrote of a state_dict (.pt, .pth). What it lacks is drawn. Default: everything is drawn."""

    @model_validator(mode="after")
    def _settings_go_with_the_loss(self) -> Self:
        if self.class_weights is not None and self.loss != "cross-entropy":
            raise Unusable("class_weights", f"class weights with loss = {_name(self.loss)!r}", "loss = 'cross-entropy'")
        for name in self.metrics or {}:
            if not (name.isascii() and name.isidentifier() and name.islower() and name[0] != "_"):
                allowed = "a name of small letters, digits and _ that begins with a letter"
                raise Unusable("metrics", repr(name), allowed)
        return self

    @abstractmethod
    def build(self, data: Dataset) -> nn.Module:
        """Return the network for this data, with parameters that torch draws."""

    def network(self, data: Dataset) -> nn.Module:
        """Return the network for this data, with the weights of the file, if there is one."""
        module = self.build(data)
        if self.weights is not None:
            from efhc.learning.models.weights import load_weights

            load_weights(module, self.weights)
        return module

    def parameters(self, data: Dataset) -> int:
        """Return n, the number of trainable parameters."""
        with _drawing(np.random.default_rng(0)):
            return sum(parameter.numel() for parameter in trainable(self.build(data)))

    def initial(self, data: Dataset, stream: np.random.Generator) -> Floats:
        """Return an initial model (n,), as the layers initialise themselves, drawn from `stream` alone."""
        with _drawing(stream):
            parameters = trainable(self.network(data))
        return np.concatenate([parameter.detach().numpy().ravel() for parameter in parameters])

    def outputs(self, data: Dataset) -> int:
        """Return the number of scores of a sample: one per class, or per number or label to predict."""
        several = data.label_kind == "number" or self.loss == "binary-cross-entropy"
        return data.outputs if several else data.classes

    def weights_by_class(self, data: Dataset) -> Floats | None:
        """Return the weight of each class, (classes,), if there are any. Raises `InputError` if they do not fit."""
        if self.class_weights is None:
            return None
        if self.class_weights != "balanced":
            if len(self.class_weights) != data.classes:
                given = f"{len(self.class_weights)} weights"
                raise InputError("class_weights", given, f"{data.classes}, one per class of the data")
            return np.array(self.class_weights)
        counts = data.counts_of_labels()
        if not len(counts) or not counts.all():
            given = f"'balanced', with no training sample of class {np.argmin(counts) if len(counts) else 0}"
            raise InputError("class_weights", given, "a list of weights, one per class")
        return np.asarray(counts.sum() / (len(counts) * counts))


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that make up the flat model of a device, in order."""
    found = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not sum(parameter.numel() for parameter in found):
        raise InputError(
            "module",
            f"a {type(module).__name__} without trainable parameters",
            "a module with parameters that require a gradient",
        )
    return found


def _drawing(stream: np.random.Generator) -> Any:
    from efhc.learning.pytorch import drawing

    return drawing(stream)


class LeNet5(ModuleModel):
    """Three convolutions and two linear layers, ReLU, max pooling; for images of 28x28 or 32x32."""

    kind: Literal["lenet5"] = "lenet5"

    def build(self, data: Dataset) -> nn.Module:
        from efhc.learning.pytorch import nn

        channels, side = _square_image(data, self.kind, (28, 32))
        # ReLU follows the pooling: max and ReLU commute, and only a quarter of the numbers are left.
        return nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=(32 - side) // 2), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(16, 120, 5), nn.ReLU(), nn.Flatten(),
            nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, self.outputs(data)),
        )  # fmt: skip


class ResNet18(ModuleModel):
    """The ResNet-18 for images of 32x32: a 3x3 stem without pooling.

    With norm = "batch", running statistics are neither sent nor mixed, and a device is tested with its own.
    """

    kind: Literal["resnet18"] = "resnet18"
    norm: Literal["group", "batch"] = "group"
    """GroupNorm ("group") or BatchNorm ("batch")."""
    groups: Literal[1, 2, 4, 8, 16, 32, 64] = 32
    """Number of groups of GroupNorm. No effect with norm = "batch"."""

    def build(self, data: Dataset) -> nn.Module:
        from efhc.learning.pytorch import ResNet

        channels, _ = _square_image(data, self.kind, (32,))
        return ResNet(channels, self.outputs(data), self.norm, self.groups)


class MLP(ModuleModel):
    """Linear layers with ReLU between them, for inputs of any shape; hidden = [] is a linear classifier."""

    kind: Literal["mlp"] = "mlp"
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(128,), strict=False)
    """The widths of the hidden layers."""

    def build(self, data: Dataset) -> nn.Module:
        from efhc.learning.pytorch import nn

        layers: list[nn.Module] = [nn.Flatten()]
        try:
            for inputs, outputs in pairwise(self._widths(data)):
                layers += [nn.Linear(inputs, outputs), nn.ReLU()]
            return nn.Sequential(*layers[:-1])
        except (RuntimeError, TypeError, OverflowError, MemoryError) as error:  # as torch and the size have it
            given = f"{list(self.hidden)}, {self.parameters(data):,} parameters ({in_one_line(error)})"
            raise InputError("hidden", given, "widths for which the parameters fit into memory") from error

    def parameters(self, data: Dataset) -> int:
        """Return n; it is computed, not built, so that a network beyond memory can be refused by its size."""
        import efhc.learning.pytorch  # noqa: F401 - where PyTorch is missing, say so as early as other networks do

        return sum((inputs + 1) * outputs for inputs, outputs in pairwise(self._widths(data)))

    def _widths(self, data: Dataset) -> list[int]:
        return [data.features, *self.hidden, self.outputs(data)]


class Module(ModuleModel):
    """Your own network: anything that returns a `torch.nn.Module` when called without arguments."""

    kind: Literal["module"] = "module"
    module: YourOwn
    """A function or class; in a config, "package.module:name" or "file.py:name"."""
    arguments: dict[str, Any] | None = None
    """Keyword arguments of `module`."""

    def build(self, data: Dataset) -> nn.Module:
        from efhc.learning.pytorch import nn

        allowed = "something that returns a torch.nn.Module when it is called without arguments"
        factory = imported(self.module, "module")
        if isinstance(factory, nn.Module):
            raise InputError("module", f"a {type(factory).__name__}, which is a module already", allowed)
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
    """Return the number of channels and the side of the images, which must be one of `sides`."""
    shape = input_shape(data)
    if len(shape) != 3 or shape[1] != shape[2] or shape[1] not in sides:
        allowed = " or ".join(f"{side}x{side}" for side in sides)
        raise InputError("kind", f"{kind} for samples of shape {data.shape}", f"images of {allowed}, or kind = 'mlp'")
    return shape[0], shape[1]
