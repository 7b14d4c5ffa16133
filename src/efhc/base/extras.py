"""Packages that only some commands need, each installed by an extra of efhc."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

from efhc.base.errors import EfhcError


@dataclass(frozen=True)
class Extra:
    """An optional package, and what it is for."""

    module: str
    """The name to import."""
    package: str
    """The name that people call it by."""
    purpose: str

    def is_installed(self) -> bool:
        """Return whether the package can be found. This imports nothing, so it takes no time."""
        return find_spec(self.module) is not None


EXTRAS = {
    "deep": Extra("torch", "PyTorch", "a neural network"),
    "cluster": Extra("ray", "Ray", "--engine ray"),
    "node": Extra("cryptography", "cryptography", "making certificates"),
    "tune": Extra("optuna", "Optuna", "tuning"),
    "watch": Extra("starlette", "Starlette", "efhc watch"),
    "tensorboard": Extra("tensorboardX", "tensorboardX", "the tracker tensorboard"),
    "mlflow": Extra("mlflow", "MLflow", "the tracker mlflow"),
    "wandb": Extra("wandb", "W&B", "the tracker wandb"),
    "huggingface": Extra("datasets", "Hugging Face datasets", "reading data of Hugging Face"),
    "onnx": Extra("onnxscript", "onnxscript", "writing ONNX files"),
}
"""The optional dependencies of pyproject.toml, by the name of the extra."""


def extra_with(module: str) -> str | None:
    """Return the extra that brings a module, such as "torch.nn"; None if none does."""
    return next((name for name, extra in EXTRAS.items() if extra.module == module.partition(".")[0]), None)


def how_to_install(extra: str) -> str:
    """Return what to do about a missing extra. The command depends on where efhc was installed from."""
    return f"install the extra [{extra}] (docs/install.md)"


def require(extra: str, purpose: str | None = None) -> None:
    """Raise an `EfhcError` that says how to install `extra` if it is missing. `purpose` says what needs it."""
    needed = EXTRAS[extra]
    if not needed.is_installed():
        raise EfhcError(f"{purpose or needed.purpose} needs {needed.package}: {how_to_install(extra)}")


@contextmanager
def importing(extra: str) -> Iterator[None]:
    """Import an optional package in the body: if it is missing or broken, an `EfhcError` says so in one line."""
    needed = EXTRAS[extra]
    require(extra)
    try:
        yield
    except Exception as error:  # a broken installation may raise anything: ImportError, OSError, AttributeError, ...
        advice = f"reinstall it, for example with pip install --force-reinstall {needed.module}"
        raise EfhcError(f"{needed.package} is installed but cannot be imported ({error}); {advice}") from error
