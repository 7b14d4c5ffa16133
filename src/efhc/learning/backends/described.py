"""A torch module as a list of layers for `efhc.kernels.network`, if it is one: a chain of simple layers.

Only torch's own classes are taken, not their subclasses, and only if nothing was added that computes something else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from efhc.kernels.network import Convolution, Layer, Linear, Network, Pooling, ReLU
from efhc.learning.backends.hooks import has_backward_hooks, has_forward_hooks, has_own_methods
from efhc.learning.models.modules import BUILT_IN_LOSSES
from efhc.learning.pytorch import nn

LAYERS = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.ReLU, nn.Linear, nn.Flatten, nn.Identity)


class NotAChain(Exception):
    """A module that is not such a list. Its text says why."""


def network_of(module: nn.Module, shape: tuple[int, ...], loss: Any, precision: str) -> Network:
    """Return what the module computes for samples of that shape. Raises `NotAChain`."""
    named = list(module.named_parameters(remove_duplicate=False))
    if len(named) != len(list(module.parameters())):
        raise NotAChain("parameters that layers share")
    if not all(parameter.requires_grad for _, parameter in named):
        raise NotAChain("parameters that do not require a gradient")
    if loss not in BUILT_IN_LOSSES:
        raise NotAChain("a loss of its own")
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
    network = Network(image, tuple(layers), loss, precision)
    if network.parameters != sum(parameter.numel() for _, parameter in named):
        raise NotAChain("parameters that no layer uses")
    return network


def _chain(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of a Sequential, and of those in it."""
    if has_forward_hooks(module) or has_backward_hooks(module):
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
    """Whether its parameters are weights of that shape and then biases, as those of a new layer are."""
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
