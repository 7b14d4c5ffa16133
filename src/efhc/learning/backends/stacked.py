"""All devices at once, layer by layer where the module can be traced, else the whole of it by `torch.func.vmap`.

Layer by layer, a value that differs between devices is one tensor in one of two forms: devices first, (devices,
samples, ...), or devices among the channels, (samples, devices * channels, height, width), device by device. A
convolution of the latter is one grouped convolution, and normalising its channels is normalising more channels; a
linear layer of the former is one product of batches of matrices. Whatever has no such form is computed by
`torch.func.vmap`.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from torch.fx.node import map_aggregate
from torch.nn import functional

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import EfhcError, InputError
from efhc.core.state import Local
from efhc.learning.backends.backend import Batch
from efhc.learning.backends.module_backend import Modes, ModuleBackend, Tensors, functional_call, has_hooks, shared_copy
from efhc.learning.pytorch import nn, torch

_TRACING = threading.RLock()

ELEMENTWISE: set[Any] = {
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh,
    nn.Identity, nn.Dropout,
    functional.relu, functional.relu6, functional.leaky_relu, functional.elu, functional.gelu, functional.silu,
    functional.tanh, functional.sigmoid, functional.softplus, functional.hardtanh, functional.dropout,
    torch.relu, torch.tanh, torch.sigmoid, torch.abs, torch.exp,
    operator.add, operator.iadd, operator.sub, operator.mul, operator.truediv, operator.neg, torch.add, torch.mul,
    "relu", "relu_", "tanh", "sigmoid", "abs", "exp", "add", "add_", "mul", "contiguous",
}  # fmt: skip
"""Modules, functions and methods that compute with a value of either form directly."""

BY_CHANNEL: set[Any] = {
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Dropout2d,
    functional.max_pool2d, functional.avg_pool2d, functional.adaptive_avg_pool2d, functional.adaptive_max_pool2d,
    torch.max_pool2d,
}  # fmt: skip
"""Modules and functions that treat each channel of an image alone."""


@dataclass(frozen=True)
class Stacked:
    """One value for each device."""

    tensor: torch.Tensor
    devices: int
    among_channels: bool = False

    @property
    def shape(self) -> torch.Size:
        """The shape of one device's value."""
        if not self.among_channels:
            return self.tensor.shape[1:]
        samples, channels, *image = self.tensor.shape
        return torch.Size([samples, channels // self.devices, *image])

    def devices_first(self) -> torch.Tensor:
        if not self.among_channels:
            return self.tensor
        return _unflattened(self.tensor, 1, (self.devices, -1)).transpose(0, 1)

    def channels_of_all(self) -> torch.Tensor:
        """(samples, devices * channels, ...), for images channels last in memory: the faster order for convolutions."""
        if self.among_channels:
            return self.tensor
        channels = self.tensor.transpose(0, 1).flatten(1, 2)
        return _channels_last(channels) if channels.ndim == 4 else channels


def _channels_last(images: torch.Tensor) -> torch.Tensor:
    """Return the images channels last. With one channel both orders are equal, so only a copy sets the order."""
    if images.shape[1] == 1:
        return images.clone(memory_format=torch.channels_last)
    return images.contiguous(memory_format=torch.channels_last)


def traced(module: nn.Module) -> torch.fx.GraphModule | None:
    """Return the graph of layers of a module, or None if it cannot be traced."""
    try:
        with _TRACING:
            return torch.fx.GraphModule(module, _Tracer().trace(module))
    except Exception:  # control flow on values, unusual signatures ...: whatever stops the tracer
        return None


class _Tracer(torch.fx.Tracer):
    """Traces one thread only: torch shows a tracer the calls of all modules in the process."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        traces = threading.get_ident() == self._thread
        return super().call_module(m, forward, args, kwargs) if traces else forward(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        traces = threading.get_ident() == self._thread
        return super().getattr(attr, attr_val, parameter_proxy_cache) if traces else attr_val

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        """Return whether a module is one of torch's layers, or one of yours that cannot be traced."""
        return super().is_leaf_module(module, name) or traced(module) is None


class StackedLayers(torch.fx.Interpreter):
    """Runs the graph with the devices' own parameters and buffers; for one thread at a time."""

    def __init__(self, graph: torch.fx.GraphModule, aliases: dict[str, str]) -> None:
        super().__init__(graph)
        self._aliases = aliases
        self._tensors_of: dict[str, tuple[nn.Module, list[str]]] = {}

    def scores(self, parameters: Tensors, buffers: Tensors, x: torch.Tensor, *, shared: bool) -> torch.Tensor:
        """(devices, samples, classes). Inputs that all devices share are computed once as long as they are the same."""
        self._parameters, self._buffers = parameters, buffers
        self._devices = len(next(iter(parameters.values())))
        outputs = self.run(x if shared else Stacked(x, self._devices))
        return self._stacked(outputs).devices_first()

    def _stacked(self, value: Any) -> Stacked:
        if isinstance(value, Stacked):
            return value
        return Stacked(value.expand(self._devices, *value.shape), self._devices)

    def _own(self, name: str) -> torch.Tensor | None:
        """The devices' parameter or buffer of that name, (devices, *shape); None if it is the same for all."""
        return self._parameters.get(self._aliases.get(name, name), self._buffers.get(name))

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target not in self._tensors_of:
            found = self.fetch_attr(target)
            named = (*found.named_parameters(remove_duplicate=False), *found.named_buffers())
            self._tensors_of[target] = found, [name for name, _ in named]
        module, names = self._tensors_of[target]
        own = {name: tensor for name in names if (tensor := self._own(f"{target}.{name}")) is not None}
        x = args[0] if args else None
        layer = LAYERS.get(type(module))
        if layer and len(args) == 1 and not kwargs:
            outputs = layer(self, module, own, x)
            if outputs is not None:
                return outputs
        if not own:
            return self._call(type(module), module, args, kwargs)
        changing = [name for name in own if f"{target}.{name}" in self._buffers]

        def of_device(tensors: Tensors, *args: Any, **kwargs: Any) -> Any:
            outputs = torch.func.functional_call(module, tensors, args, kwargs)
            return outputs, {name: tensors[name] for name in changing}

        tensors = {name: Stacked(tensor, self._devices) for name, tensor in own.items()}
        outputs, after = self._by_device(of_device, (tensors, *args), kwargs)
        self._buffers.update({f"{target}.{name}": value.tensor for name, value in after.items()})
        return outputs

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        first = args[0] if args else None
        if target is getattr and isinstance(first, Stacked) and args[1] in ("shape", "ndim", "dtype", "device"):
            return first.shape if args[1] == "shape" else getattr(first.devices_first()[0], args[1])
        if target is torch.flatten:
            return self.call_method("flatten", args, kwargs)
        return self._call(target, target, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        first, *rest = args
        if isinstance(first, Stacked):
            if target == "size":
                return first.shape[rest[0]] if rest else first.shape
            if target == "dim":
                return len(first.shape)
            if target == "flatten" and rest == [1] and not kwargs:
                return _flat(self, None, {}, first)
        return self._call(target, lambda x, *rest, **options: getattr(x, target)(*rest, **options), args, kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        own = self._own(target)
        return super().get_attr(target, args, kwargs) if own is None else Stacked(own, self._devices)

    def _call(self, key: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function without parameters. Some of its arguments may differ between devices."""
        values = _found((args, kwargs))
        if not values or (function is operator.getitem and not isinstance(args[0], Stacked)):
            return function(*args, **kwargs)
        among_channels = values[0].among_channels or key in BY_CHANNEL
        forms = {(value.among_channels, value.tensor.ndim) for value in values}
        numbers_only = not any(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values()))
        if key in ELEMENTWISE and len(forms) == 1 and numbers_only:
            chosen: Callable[[Stacked], torch.Tensor] = operator.attrgetter("tensor")
        elif key in BY_CHANNEL and len(values) == 1 and len(values[0].shape) == 4:
            chosen = Stacked.channels_of_all
        else:
            return self._by_device(function, args, kwargs)
        args, kwargs = _replaced((args, kwargs), [chosen(value) for value in values])
        return Stacked(function(*args, **kwargs), self._devices, among_channels)

    def _by_device(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        tensors = [value.devices_first().contiguous() for value in _found((args, kwargs))]

        def of_device(*own: torch.Tensor) -> Any:
            own_args, own_kwargs = _replaced((args, kwargs), list(own))
            return function(*own_args, **own_kwargs)

        outputs = torch.func.vmap(of_device, randomness="different")(*tensors)

        def stacked(output: Any) -> Any:
            return Stacked(output, self._devices) if isinstance(output, torch.Tensor) else output

        return map_aggregate(outputs, stacked)


def _unflattened(tensor: torch.Tensor, axis: int, sizes: tuple[int, ...]) -> torch.Tensor:
    view: torch.Tensor = tensor.unflatten(axis, sizes)  # type: ignore[no-untyped-call]
    return view


def _found(values: Any) -> list[Stacked]:
    found: list[Stacked] = []
    _mapped(values, found.append)
    return found


def _replaced(values: Any, tensors: list[torch.Tensor]) -> Any:
    remaining = iter(tensors)
    return _mapped(values, lambda _: next(remaining))


def _mapped(value: Any, change: Callable[[Stacked], Any]) -> Any:
    """The same lists, tuples and dicts with every stacked value changed."""
    if isinstance(value, Stacked):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([_mapped(each, change) for each in value]) if type(value) in (list, tuple) else value
    return {key: _mapped(each, change) for key, each in value.items()} if isinstance(value, dict) else value


# Layers with parameters: (run, module, the devices' own tensors, input) -> output, or None where there is no such form.


def _convolution(run: StackedLayers, layer: nn.Conv2d, own: Tensors, x: Any) -> Stacked | None:
    if len(x.shape) != 4 or layer.padding_mode != "zeros" or own.keys() != dict(layer.named_parameters()).keys():
        return None
    weight, bias = own["weight"], own.get("bias")
    one_position = tuple(x.shape[2:]) == layer.kernel_size and layer.padding == (0, 0) and layer.groups == 1
    if one_position and isinstance(x, Stacked):  # then it is a linear layer, and faster as one
        flat = Stacked(x.devices_first().flatten(2), run._devices)
        scores = _product(flat, weight.flatten(2), bias).tensor
        return Stacked(scores[..., None, None], run._devices)
    shared = not isinstance(x, Stacked)
    if shared and layer.groups > 1:
        x, shared = run._stacked(x), False
    images = _channels_last(x) if shared else x.channels_of_all()
    groups = 1 if shared else run._devices * layer.groups
    stride = layer.stride
    if layer.kernel_size == (1, 1) and layer.padding == (0, 0) and stride != (1, 1):
        # Channels last and on one core, torch 2.13 writes past the end of its gradient; without a stride it does not.
        images, stride = images[..., :: stride[0], :: stride[1]], (1, 1)
    filters, biases = weight.flatten(0, 1), None if bias is None else bias.flatten()
    outputs = functional.conv2d(images, filters, biases, stride, layer.padding, layer.dilation, groups)
    return Stacked(outputs, run._devices, among_channels=True)


def _linear(run: StackedLayers, layer: nn.Linear, own: Tensors, x: Any) -> Stacked | None:
    if own.keys() != dict(layer.named_parameters()).keys():
        return None
    weight, bias = own["weight"], own.get("bias")
    if isinstance(x, Stacked):
        return _product(x, weight, bias)
    biases = None if bias is None else bias.flatten()
    of_all = functional.linear(x, weight.flatten(0, 1), biases)
    return Stacked(_unflattened(of_all, -1, weight.shape[:2]).movedim(-2, 0), run._devices)


def _product(x: Stacked, weight: torch.Tensor, bias: torch.Tensor | None) -> Stacked:
    """x @ weight.T + bias, for each device."""
    inputs = x.devices_first()
    rows, matrices = inputs.flatten(1, -2), weight.transpose(1, 2)
    outputs = torch.bmm(rows, matrices) if bias is None else torch.baddbmm(bias[:, None], rows, matrices)
    return Stacked(_unflattened(outputs, 1, inputs.shape[1:-1]), x.devices)


def _group_norm(run: StackedLayers, layer: nn.GroupNorm, own: Tensors, x: Any) -> Stacked | None:
    if len(x.shape) != 4 or own.keys() != dict(layer.named_parameters()).keys():
        return None
    weight, bias = (own[name].flatten() if name in own else None for name in ("weight", "bias"))
    channels, groups = run._stacked(x).channels_of_all(), run._devices * layer.num_groups
    return Stacked(functional.group_norm(channels, groups, weight, bias, layer.eps), run._devices, among_channels=True)


def _batch_norm(run: StackedLayers, layer: nn.BatchNorm1d | nn.BatchNorm2d, own: Tensors, x: Any) -> Stacked | None:
    names = {*dict(layer.named_parameters()), *dict(layer.named_buffers())}
    if len(x.shape) not in (2, 4) or layer.momentum is None or own.keys() != names:
        return None
    if layer.training and "num_batches_tracked" in own:
        own["num_batches_tracked"].add_(1)
    mean, variance, weight, bias = (
        own[name].view(-1) if name in own else None for name in ("running_mean", "running_var", "weight", "bias")
    )
    of_batch = layer.training or mean is None
    channels = run._stacked(x).channels_of_all()
    outputs = functional.batch_norm(channels, mean, variance, weight, bias, of_batch, layer.momentum, layer.eps)
    stacked = Stacked(outputs, run._devices, among_channels=True)
    return stacked if len(x.shape) == 4 else Stacked(stacked.devices_first(), run._devices)


def _flat(run: StackedLayers, layer: nn.Flatten | None, own: Tensors, x: Any) -> Stacked | None:
    if not isinstance(x, Stacked) or (layer and (layer.start_dim, layer.end_dim) != (1, -1)):
        return None
    return Stacked(x.devices_first().flatten(2), run._devices)


LAYERS: dict[Any, Callable[[StackedLayers, Any, Tensors, Any], Stacked | None]] = {
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    nn.GroupNorm: _group_norm,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.Flatten: _flat,
}


# The backend


MOST_AT_ONCE = 6
"""Devices per part: more no longer pay for the cache that they need."""


ALLOWED = "the loop over devices, backend = 'loop'"
"""What an error tells the user to take instead."""


class UnstackableError(InputError):
    """A module that can only be computed one device after the other."""


class StackedBackend(ModuleBackend):
    """A device's answers depend on its own model, samples and iteration and on the number of devices (on the CPU).

    Devices whose batches differ in length are computed one by one. The devices of a part share one stream of noise, so
    a module that draws noise needs all devices in one iteration.
    """

    name = "stacked"

    def grads(self, models: Floats, batch: Batch, local: Local, out: Floats) -> tuple[Floats, Local]:
        if not batch.is_lockstep:
            self.check_devices_may_part()
        return super().grads(models, batch, local, out)

    def check_devices_may_part(self) -> None:
        """Raise `InputError` if the devices cannot be in iterations of their own, because they share noise."""
        if self.draws_noise:
            given = f"stacked, with devices in iterations of their own and a {self._name} that draws random numbers"
            raise InputError("backend", given, "loop, or auto, which takes loop for it")

    def _parts(self, samples: Ints | Sequence[Ints]) -> list[slice]:
        devices = len(samples)
        if len({len(of_device) for of_device in samples}) > 1:
            return [slice(i, i + 1) for i in range(devices)]
        parts = min(devices, 2 * math.ceil(devices / (2 * MOST_AT_ONCE)))  # an even number, for an even number of cores
        cuts = [devices * part // parts for part in range(parts + 1)]
        return [slice(low, high) for low, high in pairwise(cuts)]

    def _leaf(self, columns: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        return columns.view(-1, *shape)

    def _scores(self, network: nn.Module, parameters: Tensors, buffers: Tensors, x: torch.Tensor) -> torch.Tensor:
        shared = x.ndim == len(self._shape) + 1
        if isinstance(network, torch.fx.GraphModule):
            if network not in self._layers:
                self._layers[network] = StackedLayers(network, self._aliases)
            return self._layers[network].scores(parameters, buffers, x, shared=shared)

        def of_device(own: Tensors, own_buffers: Tensors, x: torch.Tensor) -> tuple[torch.Tensor, Tensors]:
            tensors = {**own, **own_buffers}
            scores = functional_call(network, tensors, x)
            return scores, {name: tensors[name] for name in own_buffers}

        in_dims = (0, 0, None if shared else 0)
        scores, after = torch.func.vmap(of_device, in_dims, randomness="different")(parameters, buffers, x)
        buffers.update(after)
        result: torch.Tensor = scores
        return result

    def _chosen(self, modes: Modes) -> Modes:
        """The first way that gives two different devices what each gives alone."""
        start = self._values_of(self._built())
        if any(has_hooks(part, "backward") for part in self._module.modules()):  # both ways would leave them out
            raise UnstackableError("module", f"a {self._name} with backward hooks", ALLOWED)
        names = {id(parameter): name for name, parameter in self._module.named_parameters()}
        all_names = self._module.named_parameters(remove_duplicate=False)
        self._layers: dict[nn.Module, StackedLayers] = {}
        self._aliases = {name: names[id(parameter)] for name, parameter in all_names}
        problem: Exception | str = "its scores differ from those of one device at a time"
        layers: Modes = {mode: graph for mode, module in modes.items() if (graph := traced(shared_copy(module)))}
        for way in (layers, modes):
            try:
                if way.keys() == modes.keys() and all(self._agrees(start, modes[mode], way[mode]) for mode in modes):
                    return way
            except EfhcError:  # of a loss of the user's own, which is wrong for every backend
                raise
            except Exception as error:  # tracing and vmap refuse in many ways
                problem = error
        given = (
            f"a {self._name} that cannot be computed for all devices at once ({str(problem).strip().splitlines()[0]})"
        )
        raise UnstackableError("module", given, ALLOWED)

    def _agrees(self, start: Tensors, alone: nn.Module, at_once: nn.Module) -> bool:
        count = len(self.data.y_train)
        x, y = self._inputs([np.array([0, count - 1]), np.array([count - 1, 1 % count])])
        pairs = {name: torch.stack([value, 0.9 * value]).requires_grad_() for name, value in start.items()}
        buffers = {name: torch.stack([value, value]) for name, value in self._buffers.items()}
        after: dict[str, Any] = dict(buffers)
        buffers = {name: value.clone() for name, value in buffers.items()}
        inputs = x if alone.training else x[0]
        scores = self._scores(at_once, pairs, buffers, inputs)
        if alone.training:
            torch.autograd.backward(self._objective.losses(scores, y, lambda row: (row, 0)).sum())
        if self.draws_noise and alone.training:
            return True
        for device in range(2):
            own = {name: value[device] for name, value in pairs.items()}
            own_buffers = {name: value[device].clone() for name, value in after.items()}
            tensors = {**own, **own_buffers}
            want = functional_call(alone, tensors, x[device] if alone.training else x[0])
            got = {name: buffers[name][device] for name in own_buffers}
            if not _close(scores[device], want) or not all(_close(got[name], tensors[name]) for name in got):
                return False
        return True


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= 1e-3 * (1 + b.abs().max()))
