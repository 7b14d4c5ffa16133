"""A `torch.nn.Module` and the data that it is for: what every backend of modules needs, however it computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import EfhcError, InputError
from efhc.base.own_code import in_one_line
from efhc.core.randomness import Purpose, Randomness
from efhc.core.state import Local
from efhc.kernels.linear_loops import gather_rows
from efhc.learning.backends.backend import Backend
from efhc.learning.data.dataset import Dataset
from efhc.learning.models.modules import BUILT_IN_LOSSES, ModuleModel, input_shape, trainable
from efhc.learning.pytorch import drawing, nn, torch

Tensors = dict[str, torch.Tensor]


class BuiltModule(Backend):
    """The module of a model, tried on two samples."""

    draws_noise: bool
    """Whether gradients take random numbers besides the batches, as dropout does."""

    def __init__(self, model: ModuleModel, data: Dataset, randomness: Randomness, *, device: str = "cpu") -> None:
        self.data, self.device, self._randomness = data, device, randomness
        self._shape = input_shape(data)
        self._loss, self._loss_is_built_in = model.loss_function(), model.loss in BUILT_IN_LOSSES
        self._model = model
        module = self._built()
        start = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
        self.parameters = sum(parameter.numel() for parameter in trainable(module))
        self._shapes = {name: parameter.shape for name, parameter in start.items()}
        self._sizes = [shape.numel() for shape in self._shapes.values()]
        self._module = _without_memory(module)
        self.draws_noise, self._buffers = self._probed(start)
        self._prepare(start)

    def _prepare(self, start: Tensors) -> None:
        """Prepare what the backend computes with, given parameters to try it with, which are not kept.

        The constructor calls it last, so subclasses set the fields that it needs before they call the constructor.
        """

    def _built(self) -> nn.Module:
        return built(self._model, self.data, self._randomness).to(self.device)

    def module_for(self, model: Floats, local: Local) -> nn.Module:
        """Return a new module in evaluation mode, with one device's parameters (n,) and buffers, a row of `local`."""
        module = self._built()
        whole: Any = torch.tensor(model)
        with torch.no_grad():
            for (name, shape), values in zip(self._shapes.items(), whole.split(self._sizes), strict=True):
                module.get_parameter(name).copy_(values.view(shape))
            for name, values in local.items():
                module.get_buffer(name).copy_(torch.tensor(values))
        return module.eval()

    def _inputs(self, samples: Sequence[Ints]) -> tuple[torch.Tensor, torch.Tensor]:
        """x, (devices, samples, *shape), and y, (devices, samples)."""
        data, rows = self.data, np.stack(samples)
        x = torch.empty((rows.size, data.features), dtype=getattr(torch, data.precision))
        kind = np.dtype(data.precision).type
        gather_rows(data.x_train, kind(data.scale), kind(data.shift), rows.ravel(), x.numpy())
        return x.to(self.device).view(*rows.shape, *self._shape), self._copied(data.y_train[rows])

    def _copied(self, array: Any) -> torch.Tensor:
        return torch.tensor(array, device=self.device)

    @contextmanager
    def _quoting(self) -> Iterator[None]:
        """Turn an error in the user's module into an `InputError`."""
        try:
            yield
        except EfhcError:
            raise
        except Exception as error:
            given = f"a {self._name} that fails on samples of shape {self._shape} ({in_one_line(error)})"
            raise InputError("module", given, "a network and a loss for this data and batch size") from error

    @property
    def _name(self) -> str:
        return type(self._module).__name__

    def _probed(self, start: Tensors) -> tuple[bool, Tensors]:
        """Two samples through the module: whether it draws random numbers, and the buffers that training changes."""
        x, y = self._inputs([np.array([0, len(self.data.y_train) - 1])])
        before = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        with drawing(np.random.default_rng(0)), torch.no_grad(), self._quoting():
            scores = functional_call(self._module.eval(), {**start, **_cloned(before)}, x[0])
            self._check(scores, y)
            state, after = torch.get_rng_state(), _cloned(before)
            functional_call(self._module.train(), {**start, **after}, x[0])
            draws = not torch.equal(state, torch.get_rng_state())
        owners = {name.rpartition(".")[0] for name in before if not torch.equal(before[name], after[name])}
        return draws, {name: buffer for name, buffer in before.items() if name.rpartition(".")[0] in owners}

    def _check(self, scores: Any, y: torch.Tensor) -> None:
        shape = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        if not isinstance(scores, torch.Tensor) or scores.ndim != 2 or len(scores) != 2:
            raise InputError("module", f"outputs {shape} for 2 samples", "scores (samples, classes)")
        if scores.shape[1] < self.data.classes:
            raise InputError("module", f"{scores.shape[1]} outputs", f"{self.data.classes}, one per class of the data")
        loss = self._loss(scores, y[0])
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            raise InputError("loss", f"a function that returns a {type(loss).__name__}", "the batch's mean, one number")


def built(model: ModuleModel, data: Dataset, randomness: Randomness) -> nn.Module:
    """The module of a model, in the precision of the data."""
    with drawing(randomness.stream(Purpose.NOISE)):  # constants that a module draws: alike in every session
        return model.build(data).to(getattr(torch, data.precision))


def functional_call(module: nn.Module, tensors: Tensors, x: torch.Tensor) -> Any:
    """Return `module(x)` with these parameters and buffers. The new buffers are in `tensors` afterwards."""
    return torch.func.functional_call(module, tensors, (x,))


def _cloned(tensors: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _without_memory(module: nn.Module) -> nn.Module:
    """The module with trainable parameters that have a shape only: their values always come from a device's model."""
    shapes: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.requires_grad:
                empty = nn.Parameter(torch.empty_like(parameter, device="meta"))
                part.register_parameter(name, shapes.setdefault(id(parameter), empty))
    return module


# Additions by which a module of a known class computes something else. Submodules are not checked.


def has_hooks(module: nn.Module, way: Literal["forward", "backward"]) -> bool:
    """Whether a hook of the module, or of all modules, may change values (forward) or gradients (backward)."""
    of_all = vars(nn.modules.module)
    return any(vars(module)[f"_{way}{kind}"] or of_all[f"_global_{way}{kind}"] for kind in ("_hooks", "_pre_hooks"))


def has_own_methods(module: nn.Module) -> bool:
    """Whether a method was set on the module in place of one of its class."""
    return any(callable(getattr(type(module), name, None)) for name in vars(module))
