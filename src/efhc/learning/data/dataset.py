"""What every data set is once it is loaded."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict

from efhc.base.arrays import Floats, Ints
from efhc.base.errors import InputError
from efhc.base.policy import Policy

MOST_CLASSES = 100_000
"""A label beyond this is taken for a damaged one: a model has a row for every class."""


Numbers = NDArray[Any]
"""Bytes or floating point."""


class Moments(TypedDict):
    """Scale inputs by these."""

    mean: float
    std: Annotated[float, Field(gt=0)]


class DataPolicy(Policy, ABC):
    """How inputs are scaled, for every data set."""

    standardize: bool | Moments = True
    """Scale inputs to (x - mean) / std: by the training set's own mean and deviation (true), by given ones, or not."""

    @abstractmethod
    def load(self, precision: str = "float32") -> Dataset:
        """The data set, prepared for models of this precision."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples as rows of features, labels 0 .. classes-1. May be given to `efhc.simulate` as it is.

    Once prepared, samples are flat rows, and images of bytes stay bytes: `inputs` scales the rows that are looked at.
    """

    x_train: Numbers
    y_train: Ints
    x_test: Numbers
    y_test: Ints
    name: str = "your arrays"
    shape: tuple[int, ...] = ()
    """The shape of one sample before it was flattened."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """The checksum of every file it came from."""
    writers: Ints | None = None
    """Who each training sample is from, 0, 1, ..., where that is known."""
    class_names: tuple[str, ...] = ()
    """What the labels stand for, where that is known: then these are the classes, whether all of them occur or not."""
    precision: str = "float32"
    """Of the numbers that models see."""
    scale: float = 1.0
    shift: float = 0.0
    """Models see scale * x + shift."""

    @property
    def features(self) -> int:
        """Numbers per sample."""
        return math.prod(self.x_train.shape[1:])

    @property
    def classes(self) -> int:
        """Labels run from 0 to classes - 1."""
        return max(len(self.class_names), int(max(self.y_train.max(), self.y_test.max())) + 1)

    @property
    def label_names(self) -> tuple[str, ...]:
        """What to call each label: its name where it has one, else its number."""
        return (*self.class_names, *map(str, range(len(self.class_names), self.classes)))

    def inputs(self, rows: Numbers) -> Floats:
        """What models see of these rows of x_train or x_test."""
        if rows.dtype == self.precision:
            return rows
        kind = np.dtype(self.precision).type
        scaled: Floats = rows.astype(kind) * kind(self.scale) + kind(self.shift)
        return scaled

    def tested_on(self, samples: int) -> Dataset:
        """With only so many test samples, spread evenly over the test set, or all if it has no more."""
        count = min(samples, len(self.y_test))
        rows = np.arange(count) * len(self.y_test) // count
        names = self.label_names  # the classes stay as they are, whichever of them are tested
        return replace(self, x_test=self.x_test[rows], y_test=self.y_test[rows], class_names=names)

    def _is_prepared_for(self, precision: str) -> bool:
        """Whether it is as `prepared` leaves it."""
        kinds = np.dtype(np.uint8), np.dtype(precision)
        return (
            self.precision == precision
            and all(x.ndim == 2 and x.flags.c_contiguous and x.dtype in kinds for x in (self.x_train, self.x_test))
            and all(y.dtype == np.int64 for y in (self.y_train, self.y_test))
            and math.prod(self.shape) == self.features
        )

    def load(self, precision: str = "float32") -> Dataset:
        """A data set in memory is its own source; its numbers are used as they are."""
        return self if self._is_prepared_for(precision) else self.prepared(False, precision)

    def prepared(self, standardize: bool | Moments, precision: str, *, unit: float = 1.0) -> Dataset:
        """Checked, flat and scaled: first divided by `unit`, which makes pixels 0 .. 1, then standardized."""
        x_train, x_test = (self._checked_inputs(name, getattr(self, name), precision) for name in ("x_train", "x_test"))
        if x_train.shape[1:] != x_test.shape[1:]:
            raise InputError("x_test", f"samples of shape {x_test.shape[1:]}", f"x_train's, {x_train.shape[1:]}")
        y_train, y_test = (
            self._checked_labels(name, getattr(self, name), len(x))
            for name, x in (("y_train", x_train), ("y_test", x_test))
        )
        writers = None if self.writers is None else self._checked_labels("writers", self.writers, len(x_train))
        shape = self.shape or x_train.shape[1:]
        x_train, x_test = x_train.reshape(len(x_train), -1), x_test.reshape(len(x_test), -1)
        scale, shift = self.scale / unit, self.shift
        if standardize:
            if isinstance(standardize, dict):
                mean, std = standardize["mean"], standardize["std"]
            else:
                mean, std = (value / unit for value in _moments(x_train))
            if std == 0:
                raise InputError("standardize", "a constant x_train", "inputs that vary, or standardize = false")
            scale, shift = 1 / (unit * std), -mean / std
        checked = replace(self, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, writers=writers)
        scaled = replace(checked, shape=shape, precision=precision, scale=scale, shift=shift)
        if x_train.dtype == x_test.dtype == np.uint8:
            return scaled
        kind = np.dtype(precision).type
        x_train, x_test = (x.astype(kind, copy=False) * kind(scale) + kind(shift) for x in (x_train, x_test))
        return replace(scaled, x_train=x_train, x_test=x_test, scale=1.0, shift=0.0)

    @staticmethod
    def _checked_inputs(name: str, x: Numbers, precision: str) -> Numbers:
        if x.ndim < 2 or not x.size or x.dtype.kind not in "fiub":
            raise InputError(name, f"{x.dtype} of shape {x.shape}", "numbers, one row or image per sample")
        if x.dtype.kind == "f" and (bad := np.argwhere(~np.isfinite(x))).size:
            raise InputError(
                name, f"{len(bad)} values that are NaN or infinite, the first in sample {bad[0][0]}", "finite numbers"
            )
        if x.dtype == np.uint8:
            return np.ascontiguousarray(x)
        with np.errstate(over="ignore"):
            cast = np.ascontiguousarray(x, dtype=precision)
        if not np.isfinite(cast).all():
            raise InputError(name, f"values too large for {precision}", "smaller numbers, or precision = 'float64'")
        return cast

    @staticmethod
    def _checked_labels(name: str, y: Ints, samples: int) -> Ints:
        if y.shape != (samples,):
            raise InputError(name, f"shape {y.shape}", f"one number per sample, ({samples},)")
        if y.dtype.kind not in "fiu":
            raise InputError(name, f"values of type {y.dtype}", "whole numbers from 0")
        wrong = ~((y >= 0) & (y < MOST_CLASSES) & (y == np.floor(y)))
        if wrong.any():
            raise InputError(
                name, f"{y[wrong][0]} for sample {np.argmax(wrong)}", f"whole numbers from 0, below {MOST_CLASSES}"
            )
        return y.astype(np.int64)


def _moments(x: Numbers) -> tuple[float, float]:
    """Mean and standard deviation; those of bytes are counted, exactly."""
    if x.dtype != np.uint8:
        return float(x.mean(dtype=np.float64)), float(x.std(dtype=np.float64))
    counts, values = np.bincount(x.ravel(), minlength=256), np.arange(256)
    mean = float(counts @ values) / x.size
    return mean, float(np.sqrt(counts @ (values - mean) ** 2 / x.size))
