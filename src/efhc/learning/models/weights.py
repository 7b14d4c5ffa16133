"""The file of a module's weights. Nothing in it is executed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import safetensors.torch

from efhc.base.errors import InputError, did_you_mean
from efhc.base.inputs import parse_numpy, read_bytes
from efhc.learning.pytorch import nn, torch

FIELD = "weights"
ALLOWED = "a .safetensors or .npz file, or a .pt or .pth file of torch.save(module.state_dict(), ...)"


def load_weights(module: nn.Module, path: Path) -> None:
    """Set the parameters and buffers of the module that the file has.

    Raises `InputError` if the file cannot be read, or has a name, shape or number that the module cannot have.
    """
    state = module.state_dict()  # the module's own tensors
    found = _tensors(path)
    if not found:
        raise InputError(FIELD, f"{path}, which holds no tensor", ALLOWED)
    for name, values in found.items():
        if name not in state:
            given = f"{path}, which has {name!r}{did_you_mean(name, state)}"
            raise InputError(FIELD, given, f"names of a {type(module).__name__}: {_some(list(state))}")
        if values.shape != state[name].shape:
            given = f"{path}, whose {name} has shape {tuple(values.shape)}"
            raise InputError(FIELD, given, f"{tuple(state[name].shape)}, the module's")
        if values.is_complex() or values.is_quantized or values.layout != torch.strided:
            raise InputError(FIELD, f"{path}, whose {name} is no array of real numbers", ALLOWED)
        if not torch.isfinite(values).all():
            raise InputError(FIELD, f"{path}, whose {name} has numbers that are not finite", "finite numbers")
    with torch.no_grad():
        for name, values in found.items():
            state[name].copy_(values)


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    content, kind = read_bytes(path, FIELD), path.suffix
    if kind == ".npz":
        arrays = parse_numpy(content, path, ALLOWED, FIELD)
        if other := [name for name, array in arrays.items() if array.dtype.kind not in "fiub"]:
            raise InputError(FIELD, f"{path}, whose {other[0]} is no array of numbers", ALLOWED)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
    try:
        if kind == ".safetensors":
            return safetensors.torch.load(content)
        found: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises errors of many kinds
        # What torch says is not repeated: it advises to run the code that such a file may hold.
        raise InputError(FIELD, f"{path}, which is damaged or holds other things than tensors", ALLOWED) from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(one, torch.Tensor) for name, one in found.items()
    ):
        raise InputError(FIELD, f"{path}, which holds something else than tensors by name", ALLOWED)
    return found


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
