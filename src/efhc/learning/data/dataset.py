"""What every data set is once it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

from efhc.core.arrays import Floats, Ints
from efhc.core.errors import InputError
from efhc.core.policy import Policy

MOST_CLASSES = 100_000
"""A label beyond this is taken for a damaged one: a model has a row for every class."""


class Moments(TypedDict):
    """Scale inputs by these."""

    mean: float
    std: Annotated[float, Field(gt=0)]


class DataPolicy(Policy):
    """How inputs are scaled, for every data set."""

    standardize: bool | Moments = True
    """Scale inputs to (x - mean) / std: by the training set's own mean and deviation (true), by given ones, or not."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples as rows of flat features, labels 0 .. classes-1. May be given to `efhc.simulate` as it is."""

    x_train: Floats
    y_train: Ints
    x_test: Floats
    y_test: Ints
    name: str = "your arrays"
    shape: tuple[int, ...] = ()
    """The shape of one sample before it was flattened."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """The checksum of every file it came from."""

    @property
    def features(self) -> int:
        """Numbers per sample."""
        return int(self.x_train.shape[1])

    @property
    def classes(self) -> int:
        """Labels run from 0 to classes - 1."""
        return int(max(self.y_train.max(), self.y_test.max())) + 1

    def load(self, precision: str = "float32") -> Dataset:
        """A data set in memory is its own source; its numbers are used as they are."""
        return self.prepared(False, precision)

    def prepared(self, standardize: bool | Moments, precision: str) -> Dataset:
        """Checked, flat, in floating point of that precision, and scaled."""
        x_train, x_test = (self._checked_inputs(name, getattr(self, name), precision) for name in ("x_train", "x_test"))
        if x_train.shape[1:] != x_test.shape[1:]:
            raise InputError("x_test", f"samples of shape {x_test.shape[1:]}", f"x_train's, {x_train.shape[1:]}")
        y_train, y_test = (
            self._checked_labels(name, getattr(self, name), len(x))
            for name, x in (("y_train", x_train), ("y_test", x_test))
        )
        shape = self.shape or x_train.shape[1:]
        x_train, x_test = x_train.reshape(len(x_train), -1), x_test.reshape(len(x_test), -1)
        if standardize:
            if isinstance(standardize, dict):
                mean, std = standardize["mean"], standardize["std"]
            else:
                mean, std = float(x_train.mean(dtype=np.float64)), float(x_train.std(dtype=np.float64))
            if std == 0:
                raise InputError("standardize", "a constant x_train", "inputs that vary, or standardize = false")
            x_train, x_test = ((x - x.dtype.type(mean)) / x.dtype.type(std) for x in (x_train, x_test))
        return Dataset(x_train, y_train, x_test, y_test, self.name, shape, self.sha256)

    @staticmethod
    def _checked_inputs(name: str, x: Floats, precision: str) -> Floats:
        if x.ndim < 2 or not x.size or x.dtype.kind not in "fiub":
            raise InputError(name, f"{x.dtype} of shape {x.shape}", "numbers, one row or image per sample")
        if x.dtype.kind == "f" and (bad := np.argwhere(~np.isfinite(x))).size:
            raise InputError(
                name, f"{len(bad)} values that are NaN or infinite, the first in sample {bad[0][0]}", "finite numbers"
            )
        with np.errstate(over="ignore"):
            cast = x.astype(precision)
        if not np.isfinite(cast).all():
            raise InputError(name, f"values too large for {precision}", "smaller numbers, or precision = 'float64'")
        return cast

    @staticmethod
    def _checked_labels(name: str, y: Ints, samples: int) -> Ints:
        if y.shape != (samples,):
            raise InputError(name, f"shape {y.shape}", f"one label per sample, ({samples},)")
        if y.dtype.kind not in "fiu":
            raise InputError(name, f"labels of type {y.dtype}", "whole numbers from 0")
        wrong = ~((y >= 0) & (y < MOST_CLASSES) & (y == np.floor(y)))
        if wrong.any():
            raise InputError(
                name, f"label {y[wrong][0]} of sample {np.argmax(wrong)}", f"whole numbers from 0, below {MOST_CLASSES}"
            )
        return y.astype(np.int64)
