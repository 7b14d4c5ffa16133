"""A data set in memory: checked, flat, scaled, and split into training and test samples; and the .npz file of one."""

from __future__ import annotations

import io
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict

from efhc.base.arrays import Floats, Ints, read_only
from efhc.base.errors import InputError
from efhc.base.inputs import InputFile, parse_numpy, read_bytes, sha256
from efhc.base.policy import Policy
from efhc.core.randomness import Purpose, Randomness

MOST_CLASSES = 100_000
"""Larger labels are refused as damaged: a model has a row for every class."""

LARGEST = 1e150
"""Inputs beyond it cannot be scaled: the sum of their squares overflows even in float64."""

ROWS_AT_ONCE = 4096
"""Rows that are converted to float64 at a time."""

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
GROUPS = ("groups", "test_groups")
"""The arrays of a data set: those that every one has, and those that some have."""

VARYING = "inputs that vary, or standardize = false"

Numbers = NDArray[Any]
"""Samples as bytes or as floating-point numbers."""


class Moments(TypedDict):
    """The mean and the standard deviation to scale all inputs by."""

    mean: float
    std: Annotated[float, Field(gt=0)]


LabelKind = Literal["class", "number"]

Standardize = bool | Literal["features", "minmax"] | Moments
"""How inputs are scaled; see `DataPolicy.standardize`."""


class Column(NamedTuple):
    """What became of one column of a table."""

    name: str
    levels: tuple[str, ...]
    """The categories of a column of categories, each a feature of 0 and 1. Empty for a column of numbers."""
    missing: int
    """Number of missing values of training samples."""
    missing_in_test: int
    filled_with: str
    """What stands for missing values; empty if nothing does."""
    unseen: int
    """Number of test samples with a category that no training sample has."""


class DataPolicy(Policy, ABC):
    """The settings that all data sets share."""

    standardize: Standardize = True
    """Scaling by the training samples: true (one mean and std), "features" (per feature), "minmax", {mean = M, std = S}
    or false."""

    @abstractmethod
    def load(self, precision: str = "float32") -> Dataset:
        """The data set, prepared for models of this precision."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples as rows of features, with labels 0 .. classes-1, or with numbers. `efhc.simulate` accepts one as `data`.

    A sample has one label, or an array of them: y has further axes (a class per position, 0 or 1 for each of several
    labels, a vector to predict). Lists become arrays. After `prepared`, samples are flat rows. Images of bytes stay
    bytes; `inputs` scales the rows it is given.
    """

    x_train: Numbers
    y_train: Numbers
    x_test: Numbers
    y_test: Numbers
    name: str = "your arrays"
    shape: tuple[int, ...] = ()
    """The shape of one sample before it was flattened."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of every file that the data set was read from, by file name."""
    groups: Ints | None = None
    """The group of each training sample (its writer, user, hospital, ...), numbered from 0. Default: unknown."""
    test_groups: Ints | None = None
    """The group of each test sample, numbered as `groups`. Default: unknown."""
    class_names: tuple[str, ...] = ()
    """The names of the labels. Named classes count even if no sample has their label. Default: unknown."""
    feature_names: tuple[str, ...] = ()
    """The columns of a table that the features were read from. Default: none."""
    unused: tuple[str, ...] = ()
    """The columns of a table that nothing was read from."""
    columns: tuple[Column, ...] = ()
    """What became of each column of a table that is a feature."""
    dropped: tuple[int, int] = (0, 0)
    """Numbers of training and of test samples that were left out because a value is missing."""
    label_kind: LabelKind = "class"
    """Whether labels are classes, which are whole numbers from 0, or any numbers ("number"), as in regression."""
    label_counts: Ints | None = None
    """The number of training labels of each class. Default: they are counted in `y_train`."""
    precision: str = "float32"
    """The floating-point type of the numbers that models see."""
    scale: float = 1.0
    shift: float = 0.0
    """Models see scale * x + shift."""

    def __post_init__(self) -> None:
        for name in (*ARRAYS, *GROUPS):
            given = getattr(self, name)
            if given is not None and not isinstance(given, np.ndarray):
                try:
                    object.__setattr__(self, name, np.asarray(given))
                except ValueError as error:  # rows of different lengths
                    raise InputError(name, f"a {type(given).__name__} ({error})", "an array, or lists of one") from None

    def __repr__(self) -> str:
        counts = f"{len(self.y_train):,} training and {len(self.y_test):,} test samples"
        shape = " x ".join(map(str, self.shape or self.x_train.shape[1:]))
        return f"<Dataset {self.name}: {counts} of shape {shape}>"

    @property
    def features(self) -> int:
        """The number of features of one sample."""
        return math.prod(self.x_train.shape[1:])

    @property
    def classes(self) -> int:
        """The number of classes: labels run from 0 to classes - 1. It is 0 if labels are numbers."""
        if self.label_kind == "number":
            return 0
        return max(len(self.class_names), int(max(self.y_train.max(), self.y_test.max())) + 1)

    @property
    def has_classes(self) -> bool:
        """Whether each sample is of one class."""
        return self.label_kind == "class" and self.y_train.ndim == 1

    @property
    def label_words(self) -> str:
        """What labels are that are no classes: "numbers" or "several per sample"."""
        return "numbers" if self.label_kind == "number" else "several per sample"

    @property
    def outputs(self) -> int:
        """The number of labels of a sample."""
        return math.prod(self.y_train.shape[1:])

    def counts_of_labels(self) -> Ints:
        """Return the number of training labels of each class."""
        return (
            np.bincount(self.y_train.ravel(), minlength=self.classes)
            if self.label_counts is None
            else self.label_counts
        )

    @property
    def label_names(self) -> tuple[str, ...]:
        """The name of each label, or its number if it has no name."""
        return (*self.class_names, *map(str, range(len(self.class_names), self.classes)))

    def inputs(self, rows: Numbers) -> Floats:
        """Return what models see of `rows`, which are rows of x_train or x_test."""
        if rows.dtype == self.precision:
            return rows
        kind = np.dtype(self.precision).type
        scaled: Floats = rows.astype(kind) * kind(self.scale) + kind(self.shift)
        return scaled

    def tested_on(self, samples: int) -> Dataset:
        """Return the data set with `samples` test samples, spread evenly over the test set; all if it has no more."""
        count = min(samples, len(self.y_test))
        rows = np.arange(count) * len(self.y_test) // count
        names = self.label_names  # the classes stay as they are, whichever of them are tested
        groups = None if self.test_groups is None else self.test_groups[rows]
        return replace(self, x_test=self.x_test[rows], y_test=self.y_test[rows], test_groups=groups, class_names=names)

    def read_only(self) -> Dataset:
        """Return the same data set, for code that must not write to it."""
        arrays = {name: array for name in (*ARRAYS, *GROUPS) if (array := getattr(self, name)) is not None}
        return replace(self, **{name: read_only(array) for name, array in arrays.items()})

    def with_test_samples(self, samples: Ints) -> Dataset:
        """Return the data set with these training samples as its test samples."""
        groups = None if self.groups is None else self.groups[samples]
        return replace(
            self,
            x_test=self.x_train[samples],
            y_test=self.y_train[samples],
            test_groups=groups,
            class_names=self.label_names,  # the classes stay as they are, whichever of them are tested
        )

    def _is_prepared_for(self, precision: str) -> bool:
        """Whether the data set is what `prepared` returns."""
        kinds = np.dtype(np.uint8), np.dtype(precision)
        return (
            self.precision == precision
            and all(x.ndim == 2 and x.flags.c_contiguous and x.dtype in kinds for x in (self.x_train, self.x_test))
            and all(y.dtype == self._label_type(precision) for y in (self.y_train, self.y_test))
            and math.prod(self.shape) == self.features
        )

    def _label_type(self, precision: str) -> str:
        return "int64" if self.label_kind == "class" else precision

    def load(self, precision: str = "float32") -> Dataset:
        """Return the data set itself, checked and flat. Its numbers are used as they are."""
        checked = self.prepared(False, precision)
        return self if self._is_prepared_for(precision) else checked

    def prepared(self, standardize: Standardize, precision: str, *, unit: float = 1.0) -> Dataset:
        """Return the data set checked, flat and scaled.

        Inputs are divided by `unit`, which makes pixels 0 .. 1, and then standardized; `DataPolicy.standardize` says
        how. Bytes stay bytes unless they are standardized per feature. Raises an `InputError` for samples or labels
        that cannot be used.
        """
        by_feature = standardize in ("features", "minmax")
        first = "float64" if by_feature else precision  # a time in seconds has no digits to spare before it is scaled
        x_train, x_test = (self._checked_inputs(name, getattr(self, name), first) for name in ("x_train", "x_test"))
        if x_train.shape[1:] != x_test.shape[1:]:
            raise InputError("x_test", f"samples of shape {x_test.shape[1:]}", f"x_train's, {x_train.shape[1:]}")
        y_train, y_test = (
            self._checked_labels(name, getattr(self, name), len(x), precision)
            for name, x in (("y_train", x_train), ("y_test", x_test))
        )
        if y_train.shape[1:] != y_test.shape[1:]:
            raise InputError("y_test", f"labels of shape {y_test.shape[1:]}", f"y_train's, {y_train.shape[1:]}")
        groups, test_groups = (
            None if given is None else self._checked_classes(name, given, (len(x),))
            for name, given, x in zip(GROUPS, (self.groups, self.test_groups), (x_train, x_test), strict=True)
        )
        shape = self.shape or x_train.shape[1:]
        x_train, x_test = x_train.reshape(len(x_train), -1), x_test.reshape(len(x_test), -1)
        is_measured = standardize is not False and not isinstance(standardize, dict)
        if is_measured and (largest := max(float(x_train.max()), -float(x_train.min()))) > LARGEST:
            given = f"values up to {largest:g}, too large to be scaled"
            raise InputError("x_train", given, f"none beyond {LARGEST:g}, or standardize = false")
        checked = replace(
            self, y_train=y_train, y_test=y_test, groups=groups, test_groups=test_groups, shape=shape,
            precision=precision,
        )  # fmt: skip
        if by_feature:
            offset, unit_of_feature = _ranges(x_train) if standardize == "minmax" else _moments_by_feature(x_train)
            scaled_by_feature = (_scaled(x, offset, unit_of_feature, precision) for x in (x_train, x_test))
            return checked._with_inputs(*scaled_by_feature)
        scale, shift = self.scale / unit, self.shift
        if standardize:
            if isinstance(standardize, dict):
                mean, std = standardize["mean"], standardize["std"]
            else:
                mean, std = (value / unit for value in _moments(x_train))
            if std == 0:
                raise InputError("standardize", "a constant x_train", VARYING)
            scale, shift = 1 / (unit * std), -mean / std
        if x_train.dtype == x_test.dtype == np.uint8:
            return replace(checked, x_train=x_train, x_test=x_test, scale=scale, shift=shift)
        kind = np.dtype(precision).type
        with np.errstate(over="ignore"):
            scaled = (x.astype(kind, copy=False) * kind(scale) + kind(shift) for x in (x_train, x_test))
            return checked._with_inputs(*scaled)

    def _with_inputs(self, x_train: Floats, x_test: Floats) -> Dataset:
        """The data set with inputs as models see them; a scale that made one of them overflow is refused."""
        for name, x in (("x_train", x_train), ("x_test", x_test)):
            if not np.isfinite(x).all():
                given = f"values too large for {self.precision} once they are scaled"
                raise InputError(name, given, "smaller numbers, another standardize, or precision = 'float64'")
        return replace(self, x_train=x_train, x_test=x_test, scale=1.0, shift=0.0)

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

    def _checked_labels(self, name: str, y: Numbers, samples: int, precision: str) -> Numbers:
        shape = (samples, *y.shape[1:])
        if y.shape != shape or not y.size:
            allowed = f"one label per sample, ({samples},), or one array of them, ({samples}, ...)"
            raise InputError(name, f"shape {y.shape}", allowed)
        if self.label_kind == "class":
            return self._checked_classes(name, y, shape)
        if y.dtype.kind not in "fiub":
            raise InputError(name, f"values of type {y.dtype}", "numbers")
        with np.errstate(over="ignore"):
            numbers: Floats = np.ascontiguousarray(y, precision)
        if (wrong := np.argwhere(~np.isfinite(numbers))).size:
            raise InputError(name, f"{y[tuple(wrong[0])]} for sample {wrong[0][0]}", f"finite numbers in {precision}")
        return numbers

    @staticmethod
    def _checked_classes(name: str, y: Numbers, shape: tuple[int, ...]) -> Ints:
        if y.shape != shape:
            raise InputError(name, f"shape {y.shape}", f"one number per sample, {shape}")
        if y.dtype.kind not in "fiu":
            raise InputError(name, f"values of type {y.dtype}", "whole numbers from 0")
        wrong = ~((y >= 0) & (y < MOST_CLASSES) & (y == np.floor(y)))
        if wrong.any():
            first = tuple(np.argwhere(wrong)[0])
            numbers = "" if name in GROUPS else ", or label_kind = 'number'"
            raise InputError(
                name, f"{y[first]} for sample {first[0]}", f"whole numbers from 0, below {MOST_CLASSES}{numbers}"
            )
        return y.astype(np.int64)


def share_of_each_label(labels: Ints, share: float, purpose: Purpose) -> NDArray[np.bool_]:
    """Choose `share` of the samples of every label, rounded, and never all of them; return a flag per sample.

    The choice is random and depends on the labels, the share and the purpose only: it is the same for every seed.
    """
    chosen = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        samples = np.flatnonzero(labels == label)
        count = min(math.floor(share * len(samples) + 0.5), len(samples) - 1)
        chosen[Randomness(0).stream(purpose, int(label)).permutation(samples)[:count]] = True
    return chosen


def _moments(x: Numbers) -> tuple[float, float]:
    """Return the mean and the standard deviation of all numbers. Bytes are counted, so that theirs are exact."""
    if x.dtype != np.uint8:
        return float(x.mean(dtype=np.float64)), float(x.std(dtype=np.float64))
    counts, values = np.bincount(x.ravel(), minlength=256), np.arange(256)
    mean = float(counts @ values) / x.size
    return mean, float(np.sqrt(counts @ (values - mean) ** 2 / x.size))


def _varying(x_train: Numbers) -> NDArray[np.bool_]:
    """Return which features vary. A deviation would not say, because rounding may keep it from being 0."""
    varies: NDArray[np.bool_] = x_train.max(axis=0) > x_train.min(axis=0)
    if not varies.any():
        raise InputError("standardize", "a constant x_train", VARYING)
    return varies


def _moments_by_feature(x_train: Numbers) -> tuple[Floats, Floats]:
    """Return the mean and the standard deviation of each feature; a constant one has its value and 1."""
    varies = _varying(x_train)
    mean = np.where(varies, x_train.mean(axis=0, dtype=np.float64), x_train[0])
    starts = range(0, len(x_train), ROWS_AT_ONCE)
    squares = sum(np.square(x_train[start : start + ROWS_AT_ONCE] - mean).sum(axis=0) for start in starts)
    return mean, np.where(varies, np.sqrt(squares / len(x_train)), 1.0)


def _ranges(x_train: Numbers) -> tuple[Floats, Floats]:
    """Return the smallest value of each feature and the distance to its largest; a constant one has its value and 1."""
    varies, smallest = _varying(x_train), x_train.min(axis=0).astype(np.float64)
    return smallest, np.where(varies, x_train.max(axis=0) - smallest, 1.0)


def _scaled(x: Numbers, offset: Floats, unit: Floats, precision: str) -> Floats:
    """Return (x - offset) / unit with each feature's own offset and unit."""
    result = np.empty(x.shape, precision)
    for start in range(0, len(x), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        with np.errstate(over="ignore", divide="ignore"):
            result[rows] = (x[rows] - offset) / unit
    return result


# Data of your own in an .npz file


def npz_content(data: Dataset) -> bytes | None:
    """Return the content of an .npz file from which `NpzFile` loads the same numbers, without the names of classes.

    Returns None if classes that only their name tells of would be lost.
    """
    if data.label_kind == "class" and len(data.class_names) > max(data.y_train.max(), data.y_test.max()) + 1:
        return None
    arrays = {name: getattr(data, name) for name in ARRAYS}
    arrays |= {name: array for name in GROUPS if (array := getattr(data, name)) is not None}
    if (data.scale, data.shift) != (1.0, 0.0):
        arrays |= {name: data.inputs(arrays[name]) for name in ("x_train", "x_test")}
    if data.shape:
        arrays |= {name: arrays[name].reshape(-1, *data.shape) for name in ("x_train", "x_test")}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


class NpzFile(DataPolicy):
    """Your arrays x_train, y_train, x_test, y_test: one sample (of any shape) per row, labels from 0 or numbers.

    An optional array `groups` (or `writers`) holds the group of each training sample, from 0, and `test_groups` that of
    each test sample.
    """

    kind: Literal["npz"] = "npz"
    path: InputFile
    """The .npz file."""
    label_kind: LabelKind = "class"
    """Whether labels are classes, which are whole numbers from 0, or any numbers ("number"), as in regression."""
    standardize: Standardize = False
    """As for all data sets. Default: no scaling."""

    @classmethod
    def of(cls, data: Any, path: Path) -> NpzFile:
        """Return the file of a data set that was made in Python, whose `npz_content` is at `path`."""
        return cls(path=path, label_kind=data.label_kind)

    def load(self, precision: str = "float32") -> Dataset:
        allowed = f"a complete .npz file with {', '.join(ARRAYS)}, made by numpy.savez"
        content = read_bytes(self.path)
        file = parse_numpy(content, self.path, allowed)
        if missing := [name for name in ARRAYS if name not in file]:
            raise InputError("path", f"{self.path} without {missing[0]}", allowed)
        x_train, y_train, x_test, y_test = (file[name] for name in ARRAYS)
        groups, checksum = file.get("groups", file.get("writers")), {self.path.name: sha256(content)}
        data = Dataset(x_train, y_train, x_test, y_test, self.path.stem, sha256=checksum, groups=groups)
        data = replace(data, test_groups=file.get("test_groups"), label_kind=self.label_kind)
        return data.prepared(self.standardize, precision)
