"""Small networks in compiled loops, one device after the other, with samples side by side in vectors."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints, read_only
from efhc.base.errors import InputError
from efhc.base.threads import in_ranges
from efhc.core.randomness import Randomness
from efhc.core.state import Local
from efhc.kernels.linear_loops import Batches
from efhc.kernels.network_layers import CompiledNetwork, Convolution, Layer, Linear, Pooling, ReLU
from efhc.kernels.network_loops import TESTED_AT_ONCE, Kernels, kernels
from efhc.learning.backends.backend import RangeBackend, inputs_of
from efhc.learning.backends.module_backend import BuiltModule, built, has_hooks, has_own_methods
from efhc.learning.backends.objective import KINDS
from efhc.learning.data.dataset import Dataset
from efhc.learning.models.modules import ModuleModel, input_shape
from efhc.learning.pytorch import nn

ALIGNED = 64
"""The bytes of a cache line: vectors that begin with one do not lie across two."""

MOST_WEIGHTS, MOST_WITH_FEW_SAMPLES = 20_000, 4_000
"""Weights of a convolution up to which compiled loops are faster than torch."""

_kernels = cache(kernels)


def is_faster(network: CompiledNetwork, batch_size: int | None) -> bool:
    """Whether compiled loops were measured to be faster than `stacked`. Only shapes count: a run keeps its backend.

    They are, but for convolutions of many channels, for which torch has larger tiles; and the fewer the samples, the
    emptier the vectors.
    """
    weights = [
        layer.parameters(shape) - layer.outputs * layer.bias
        for layer, shape in network.in_order()
        if isinstance(layer, Convolution)
    ]
    few_samples = batch_size is not None and batch_size < network.lanes
    return max(weights, default=0) <= (MOST_WITH_FEW_SAMPLES if few_samples else MOST_WEIGHTS)


class NotCompiledError(InputError):
    """A module that compiled loops do not know."""


def network_for(model: ModuleModel, data: Dataset, randomness: Randomness) -> CompiledNetwork:
    """Return the network to compile for a model. Raises `NotCompiledError`."""
    module = built(model, data, randomness)
    try:
        if model.class_weights is not None or model.metrics:
            raise NotAChain("class weights, or metrics of its own")
        return network_of(module, input_shape(data), model.loss, data.precision)
    except NotAChain as reason:
        names, losses = ", ".join(layer.__name__ for layer in LAYERS), " or ".join(map(repr, LOSSES))
        allowed = f"for backend = 'compiled', a Sequential of {names}, with loss = {losses}; else 'auto'"
        raise NotCompiledError("module", f"a {type(module).__name__} with {reason}", allowed) from None


class CompiledBackend(BuiltModule, RangeBackend):
    """A device's answers depend on nothing but its own model and samples, to the last bit."""

    name = "compiled"

    def __init__(
        self,
        model: ModuleModel,
        data: Dataset,
        randomness: Randomness,
        *,
        batch_size: int | None = None,
        threads: int = 1,
    ) -> None:
        """`batch_size` is that of all devices. Default: it is not known, or they differ.

        Raises `NotCompiledError` before anything is computed.
        """
        network = network_for(model, data, randomness)
        super().__init__(model, data, randomness)
        self.threads, self._of_thread = threads, threading.local()
        in_one_vector = batch_size is not None and batch_size <= network.lanes
        self._training, self._testing = _kernels(network, 1 if in_one_vector else 2), _kernels(network, 2)
        given = data.read_only()  # numba compiles anew for what may be written to: here nothing may
        self._train = inputs_of(data, given.x_train, given.y_train)
        self._test = inputs_of(data, given.x_test, given.y_test)

    def _compute(
        self, models: Floats, every: Ints, batches: Batches, losses: Floats, out: Floats, low: int, high: int
    ) -> None:
        given = read_only(models), every, self._train, *batches, losses, out, every
        self._training.picked(*given, self._room(self._training), low, high)

    def _scored(self, models: Floats, local: Local) -> tuple[dict[str, Floats], Flags]:
        samples = len(self.data.y_test)
        right, losses = (np.empty((len(models), samples), models.dtype) for _ in range(2))
        bad = np.zeros((len(models), -(-samples // TESTED_AT_ONCE)), bool)

        def test(low: int, high: int) -> None:
            given = read_only(models), self._test, right, losses, bad
            self._testing.answers(*given, self._room(self._testing), low, high)

        in_ranges(test, (), bad.size, self.threads)
        return {"accuracy": right, "loss": losses}, np.asarray(bad.any(axis=1))

    def _room(self, kernels: Kernels) -> Floats:
        """Return the working memory of the calling thread."""
        rooms = self._of_thread.__dict__
        name, size = f"room {id(kernels)}", kernels.size
        if name not in rooms:
            numbers = np.zeros(size + ALIGNED, self.data.precision)
            first = -numbers.ctypes.data % ALIGNED // numbers.itemsize
            rooms[name] = numbers[first : first + size]
        room: Floats = rooms[name]
        return room


LOSSES = ("cross-entropy", "multi-margin")
"""Losses that compiled loops know, for one class per sample."""
LAYERS = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.ReLU, nn.Linear, nn.Flatten, nn.Identity)


class NotAChain(Exception):
    """Raised when a module is not a chain of simple layers. Its text says why."""


def network_of(module: nn.Module, shape: tuple[int, ...], loss: Any, precision: str) -> CompiledNetwork:
    """Return the module as a list of layers for samples of that shape. Raises `NotAChain`.

    Only torch's own classes are taken, not their subclasses, and only if nothing was added that computes something
    else.
    """
    named = list(module.named_parameters(remove_duplicate=False))
    if len(named) != len(list(module.parameters())):
        raise NotAChain("parameters that layers share")
    if not all(parameter.requires_grad for _, parameter in named):
        raise NotAChain("parameters that do not require a gradient")
    if loss not in LOSSES:
        raise NotAChain(f"the loss {loss}" if loss in KINDS else "a loss of its own")
    if type(module) not in (nn.Sequential, *LAYERS):
        raise NotAChain("layers in an order of its own: it is not a Sequential")
    seen, layers = shape, []
    for part in _chain(module):
        layer, seen = _described(part, seen)
        if layer is not None:
            layers.append(layer)
    if len(seen) != 1 or not any(isinstance(layer, Convolution | Linear) for layer in layers):
        raise NotAChain(f"outputs of shape {seen}")
    image = shape if len(shape) == 3 else (math.prod(shape), 1, 1)
    network = CompiledNetwork(image, tuple(layers), loss, precision)
    if network.parameters != sum(parameter.numel() for _, parameter in named):
        raise NotAChain("parameters that no layer uses")
    return network


def _chain(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of a Sequential, including nested ones."""
    if has_hooks(module, "forward") or has_hooks(module, "backward"):
        raise NotAChain(f"hooks on the layer {type(module).__name__}")
    if has_own_methods(module):
        raise NotAChain(f"methods set on the layer {type(module).__name__}")
    if type(module) is not nn.Sequential:
        yield module
        return
    for part in module:
        yield from _chain(part)


def _described(part: Any, shape: tuple[int, ...]) -> tuple[Layer | None, tuple[int, ...]]:
    """A layer, and the shape of what comes out of it; no layer where numbers stay as they are."""
    kind = type(part)
    layer: Layer | None = None
    if kind is nn.ReLU:
        layer = ReLU()
    elif kind is nn.Linear and shape == (part.in_features,) and _holds(part, (part.out_features, *shape)):
        return Linear(part.out_features, part.bias is not None), (part.out_features,)
    elif kind is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1):
        return None, (math.prod(shape),)
    elif kind is nn.Conv2d and len(shape) == 3 and shape[0] == part.in_channels and _is_plain(part):
        layer = Convolution(part.out_channels, part.kernel_size, part.padding, part.bias is not None)
        if shape[1:] == part.kernel_size and part.padding == (0, 0):
            layer = Linear(layer.outputs, layer.bias)
    elif kind in (nn.MaxPool2d, nn.AvgPool2d) and len(shape) == 3 and _is_side_by_side(part):
        layer = Pooling("max" if kind is nn.MaxPool2d else "mean", _pair(part.kernel_size))
    elif kind is not nn.Identity:
        raise _Unknown(part, shape)
    after = layer.after(shape) if layer is not None and len(shape) == 3 else shape
    if min(after) < 1:
        raise _Unknown(part, shape)
    return layer, after


class _Unknown(NotAChain):
    def __init__(self, layer: nn.Module, shape: tuple[int, ...]) -> None:
        settings = layer.extra_repr() if type(layer).__module__.startswith("torch.nn.") else "..."
        super().__init__(f"the layer {type(layer).__name__}({settings}) for values of shape {shape}")


def _is_plain(layer: nn.Conv2d) -> bool:
    return (
        (layer.stride, layer.dilation, layer.groups) == ((1, 1), (1, 1), 1)
        and isinstance(layer.padding, tuple)
        and layer.padding_mode == "zeros"
        and _holds(layer, (layer.out_channels, layer.in_channels, *layer.kernel_size))
    )


def _holds(layer: nn.Conv2d | nn.Linear, shape: tuple[int, ...]) -> bool:
    """Return whether the parameters are weights of that shape and then biases, as in a new layer."""
    expected = [("weight", shape)] if layer.bias is None else [("weight", shape), ("bias", shape[:1])]
    return [(name, tuple(parameter.shape)) for name, parameter in layer.named_parameters()] == expected


def _is_side_by_side(layer: Any) -> bool:
    if isinstance(layer, nn.AvgPool2d):
        others = layer.divisor_override is None
    else:
        others = _pair(layer.dilation) == (1, 1) and not layer.return_indices
    windows = _pair(layer.stride) == _pair(layer.kernel_size) and _pair(layer.padding) == (0, 0)
    return windows and others and not layer.ceil_mode


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
