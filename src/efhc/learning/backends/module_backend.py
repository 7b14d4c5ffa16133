"""Gradients and accuracies of a `torch.nn.Module`: what every backend of modules needs, and the loop over devices.

Devices are cut into parts, which `threads` threads work on with one core each. The cut depends on the number of
devices alone, so no answer depends on the number of threads; and since the last bits of a product of matrices depend on
where in memory they begin, a part's parameters are copied to where torch would put them. On the CPU the same call
therefore gives the same bits. A parameter's gradient goes to its columns of `out` as soon as it is there.

Images stay channels first in memory: in the loop, channels last was no faster (ResNet-18, one core).
"""

from __future__ import annotations

import copy
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, TypeVar

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.errors import EfhcError, InputError
from efhc.base.own_code import in_one_line
from efhc.core.randomness import Purpose, Randomness
from efhc.core.state import Local
from efhc.kernels.linear_loops import gather_rows
from efhc.learning.backends.backend import Backend, Batch, ParameterPart, inputs_of
from efhc.learning.backends.objective import Objective, objective_of
from efhc.learning.data.dataset import Dataset
from efhc.learning.models.modules import ModuleModel, input_shape, trainable
from efhc.learning.pytorch import drawing, nn, torch

Tensors = dict[str, torch.Tensor]

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, *filter(None, [getattr(nn, "RMSNorm", None)]))
"""The classes of normalisation layers; older versions of torch have no RMSNorm."""


class BuiltModule(Backend):
    """The module of a model, tried on two samples."""

    draws_noise: bool
    """Whether gradients take random numbers besides the batches, as dropout does."""

    def __init__(self, model: ModuleModel, data: Dataset, randomness: Randomness, *, device: str = "cpu") -> None:
        self.data, self.device, self._randomness = data, device, randomness
        self._shape = input_shape(data)
        self._model = model
        module = self._built()
        start = self._values_of(module)
        self.parameters = sum(parameter.numel() for parameter in trainable(module))
        self._shapes = {name: parameter.shape for name, parameter in start.items()}
        self._sizes = [shape.numel() for shape in self._shapes.values()]
        self._module = _without_memory(module)
        self.draws_noise, self._buffers, self._objective = self._probed(start)
        self.metrics = self._objective.metrics

    def _built(self) -> nn.Module:
        return built(self._model, self.data, self._randomness).to(self.device)

    @staticmethod
    def _values_of(module: nn.Module) -> Tensors:
        return {name: parameter.detach() for name, parameter in module.named_parameters() if parameter.requires_grad}

    def layout(self) -> list[ParameterPart]:
        norms = {name for name, part in self._module.named_modules() if isinstance(part, NORMS)}
        return [
            ParameterPart(name, size, name.rpartition(".")[0] in norms)
            for name, size in zip(self._shapes, self._sizes, strict=True)
        ]

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
        """x, (devices, samples, *shape), and y, (devices, samples, ...)."""
        data, rows = self.data, np.stack(samples)
        x = torch.empty((rows.size, data.features), dtype=getattr(torch, data.precision))
        gather_rows(*inputs_of(data, data.x_train, data.y_train)[:3], rows.ravel(), x.numpy())
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

    def _probed(self, start: Tensors) -> tuple[bool, Tensors, Objective]:
        """Two samples through the module: whether it draws noise, the buffers that training changes, the objective."""
        x, y = self._inputs([np.array([0, len(self.data.y_train) - 1])])
        before = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        with drawing(np.random.default_rng(0)), torch.no_grad(), self._quoting():
            scores = functional_call(self._module.eval(), {**start, **_cloned(before)}, x[0])
            objective = objective_of(self._model, self.data, scores, y[0])
            state, after = torch.get_rng_state(), _cloned(before)
            functional_call(self._module.train(), {**start, **after}, x[0])
            draws = not torch.equal(state, torch.get_rng_state())
        owners = {name.rpartition(".")[0] for name in before if not torch.equal(before[name], after[name])}
        buffers = {name: buffer for name, buffer in before.items() if name.rpartition(".")[0] in owners}
        return draws, buffers, objective


def built(model: ModuleModel, data: Dataset, randomness: Randomness) -> nn.Module:
    """The module of a model, in the precision of the data."""
    with drawing(randomness.stream(Purpose.NOISE)):  # constants that a module draws: alike in every session
        return model.network(data).to(getattr(torch, data.precision))


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


# Several devices


TESTED_AT_ONCE = 128
"""Test samples per pass: few enough for a part's activations to stay in fast memory."""

Modes = dict[bool, nn.Module]
"""The network in training mode (True) and in evaluation mode (False)."""


class ModuleBackend(BuiltModule):
    """Gradients and accuracies of all devices for a model that is a module."""

    def __init__(
        self, model: ModuleModel, data: Dataset, randomness: Randomness, *, device: str = "cpu", threads: int = 1
    ) -> None:
        super().__init__(model, data, randomness, device=device)
        self._threads, self._of_thread, self._of_caller = threads, threading.local(), threading.local()
        modes = {training: shared_copy(self._module).train(training) for training in (True, False)}
        with drawing(np.random.default_rng(0)):
            self._networks = self._chosen(modes)

    @abstractmethod
    def _chosen(self, modes: Modes) -> Modes:
        """Return what `_scores` computes with, given the module in both modes."""

    @abstractmethod
    def _parts(self, samples: Ints | Sequence[Ints]) -> list[slice]:
        """Return the groups of devices that are computed together."""

    @abstractmethod
    def _leaf(self, columns: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """A parameter of the devices of a part, given as (devices, numbers), as `_scores` wants it: a view."""

    @abstractmethod
    def _scores(self, network: nn.Module, parameters: Tensors, buffers: Tensors, x: torch.Tensor) -> torch.Tensor:
        """Scores (devices, samples, ...) for x, (devices, samples, *shape), or (samples, *shape) for all alike.

        `buffers`, (devices, *shape) each, are replaced by what they are after it.
        """

    def initial_local(self, devices: int, first: int = 0) -> Local:
        return {name: np.repeat(buffer.cpu().numpy()[None], devices, axis=0) for name, buffer in self._buffers.items()}

    def grads(self, models: Floats, batch: Batch, local: Local, out: Floats) -> tuple[Floats, Local]:
        losses = np.empty(len(models), models.dtype)
        after = {name: np.empty_like(rows) for name, rows in local.items()}

        def compute(part: slice) -> None:
            x, y = self._inputs([batch.samples[i] for i in range(part.start, part.stop)])
            leaves = {name: leaf.requires_grad_() for name, leaf in self._leaves(models[part]).items()}
            buffers = {name: self._copied(rows[part]) for name, rows in local.items()}
            noise = self._randomness.stream(Purpose.NOISE, *batch.place(part.start)) if self.draws_noise else None
            with self._quoting():
                with drawing(noise) if noise else nullcontext():
                    scores = self._scores(self._network(training=True), leaves, buffers, x)
                of_part = self._objective.losses(scores, y, lambda row: batch.place(part.start + row))
                gradients = torch.autograd.grad(
                    of_part.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
                )
            for place, gradient in zip(self._views(out[part]), gradients, strict=True):
                place.copy_(gradient)
            losses[part] = of_part.detach().cpu().numpy()
            for name, rows in after.items():
                rows[part] = buffers[name].detach().cpu().numpy()

        self._workers().each(compute, self._parts(batch.samples))
        return losses, after

    def _scored(self, models: Floats, local: Local) -> tuple[dict[str, Floats], Flags]:
        samples, is_bad = len(self.data.y_test), np.zeros(len(models), bool)
        values = {name: np.empty((len(models), samples), models.dtype) for name in self.metrics}

        @torch.no_grad()
        def test(part: slice) -> None:
            leaves = self._leaves(models[part])
            for first in range(0, len(self.data.y_test), TESTED_AT_ONCE):
                several = slice(first, first + TESTED_AT_ONCE)
                x = self._copied(self.data.inputs(self.data.x_test[several])).reshape(-1, *self._shape)
                buffers = {name: self._copied(rows[part]) for name, rows in local.items()}
                with self._quoting():
                    scores = self._scores(self._network(training=False), leaves, buffers, x)
                    y = self._copied(self.data.y_test[several])
                    found = self._objective.values(scores, y.expand(len(scores), *y.shape))
                largest = self._objective.largest(scores).flatten(1)
                is_bad[part] |= ~torch.isfinite(largest).all(dim=1).cpu().numpy()
                for name, of_part in found.items():
                    values[name][part, several] = of_part.cpu().numpy()

        self._workers().each(test, self._parts(np.empty((len(models), 1), np.int64)))
        return values, is_bad

    @property
    def processor_seconds(self) -> float:
        """The processor time that calls from this thread have taken."""
        return self._workers().seconds

    def _workers(self) -> Workers:
        """The worker threads of the calling thread: runs that share a backend do not wait for one another."""
        if not hasattr(self._of_caller, "workers"):
            self._of_caller.workers = Workers(self._threads)
        workers: Workers = self._of_caller.workers
        return workers

    def _network(self, *, training: bool) -> nn.Module:
        """Return a network of the calling thread: while a module computes, it holds the parameters of a part."""
        if not hasattr(self._of_thread, "networks"):
            self._of_thread.networks = {key: shared_copy(network) for key, network in self._networks.items()}
        network: nn.Module = self._of_thread.networks[training]
        return network

    def _views(self, models: Floats) -> Iterator[torch.Tensor]:
        """Each parameter of the devices of a part, where it is in their flat models."""
        parts: Any = torch.from_numpy(models)
        for columns, shape in zip(parts.split(self._sizes, dim=1), self._shapes.values(), strict=True):
            yield self._leaf(columns, shape)

    def _leaves(self, models: Floats) -> Tensors:
        """Return copies of the parameters of a part."""
        views = zip(self._shapes, self._views(models), strict=True)
        return {name: view.to(self.device, copy=True, memory_format=torch.contiguous_format) for name, view in views}


def shared_copy(module: nn.Module) -> nn.Module:
    """Return a copy with the same tensors, for another thread or another mode."""
    return copy.deepcopy(module, {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())})


_STARTING = threading.Lock()

Item = TypeVar("Item")


class Workers:
    """`threads` threads with one core each; they end with this object."""

    def __init__(self, threads: int) -> None:
        self.seconds = 0.0
        """The processor time of all tasks."""
        set_before: list[int] = []

        def take_one_core() -> None:
            set_before.append(torch.get_num_threads())  # asking is also what makes a later setting stay
            torch.set_num_threads(1)

        all_started = threading.Barrier(threads)
        with _STARTING:
            self._pool = ThreadPoolExecutor(threads, "efhc-torch", initializer=take_one_core)
            list(self._pool.map(lambda _: all_started.wait(), range(threads)))
            put_back = threading.Thread(target=torch.set_num_threads, args=(set_before[0],))
            put_back.start()
            put_back.join()

    def each(self, task: Callable[[Item], Any], items: Iterable[Item]) -> None:
        """Run `task` for every item. Raises the first error."""

        def timed(item: Item) -> float:
            started = time.thread_time()
            task(item)
            return time.thread_time() - started

        for done in [self._pool.submit(timed, item) for item in items]:
            self.seconds += done.result()


# One device after the other


FEW_POSITIONS = 16
"""Outputs per channel up to which one product of matrices takes two thirds of the time of a convolution."""


class LoopBackend(ModuleBackend):
    """A device's answers depend on nothing but its own model, samples and iteration, to the last bit (on the CPU)."""

    name = "loop"

    def _chosen(self, modes: Modes) -> Modes:
        for module in modes.values():
            for layer in module.modules():
                if type(layer) is nn.Conv2d and layer.groups == 1 and isinstance(layer.padding, tuple):
                    layer.__class__ = _Convolution
        return modes

    def _parts(self, samples: Ints | Sequence[Ints]) -> list[slice]:
        return [slice(i, i + 1) for i in range(len(samples))]

    def _leaf(self, columns: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        return columns.view(shape)

    def _scores(self, network: nn.Module, parameters: Tensors, buffers: Tensors, x: torch.Tensor) -> torch.Tensor:
        tensors = {**parameters, **{name: buffer[0] for name, buffer in buffers.items()}}
        scores: torch.Tensor = functional_call(network, tensors, x.reshape(-1, *self._shape))
        buffers.update({name: tensors[name][None] for name in buffers})
        return scores[None]


class _Convolution(nn.Conv2d):
    """The same layer; on small images its windows become columns of one matrix."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.ndim != 4 or self.padding_mode != "zeros":
            return super().forward(images)
        height, width = (
            (
                images.shape[axis + 2]
                + 2 * int(self.padding[axis])
                - self.dilation[axis] * (self.kernel_size[axis] - 1)
                - 1
            )
            // self.stride[axis]
            + 1
            for axis in range(2)
        )
        if not 1 < height * width <= FEW_POSITIONS:
            return super().forward(images)
        options = {"dilation": self.dilation, "padding": self.padding, "stride": self.stride}
        windows = nn.functional.unfold(images, self.kernel_size, **options)  # type: ignore[arg-type]
        columns = windows.transpose(0, 1).flatten(1)
        products = self.weight.flatten(1) @ columns
        if self.bias is not None:
            products = products + self.bias[:, None]
        return products.view(-1, len(images), height, width).transpose(0, 1).contiguous()
