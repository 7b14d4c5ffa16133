"""What can be added to a module of a known class so that it computes something else. Its parts are not looked at."""

from __future__ import annotations

from efhc.learning.pytorch import nn

every = nn.modules.module


def has_backward_hooks(module: nn.Module) -> bool:
    """Whether a hook of the module, or of all modules, may change gradients."""
    of_all = every._global_backward_hooks or every._global_backward_pre_hooks
    return bool(module._backward_hooks or module._backward_pre_hooks or of_all)


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether a hook of the module, or of all modules, may change values."""
    of_all = every._global_forward_hooks or every._global_forward_pre_hooks
    return bool(module._forward_hooks or module._forward_pre_hooks or of_all)


def has_own_methods(module: nn.Module) -> bool:
    """Whether a method was set on the module in place of one of its class."""
    return any(callable(getattr(type(module), name, None)) for name in vars(module))
