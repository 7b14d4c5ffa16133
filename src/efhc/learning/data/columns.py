"""How columns of a table become features: what is missing is filled in, and categories become 0 and 1.

Whatever is filled in, and which categories there are, the training samples say; test samples never do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from efhc.base.arrays import Flags, Floats
from efhc.base.errors import InputError
from efhc.base.inputs import refuse_beyond_memory
from efhc.learning.data.dataset import Column, Numbers

if TYPE_CHECKING:
    import polars as pl

Missing = Literal["refuse", "drop", "mean", "median", "most-frequent"]

MISSING_TEXTS = ("", "na", "nan", "null", "?")
"""Texts that stand for a missing value, in small letters."""
MOST_LEVELS = 1000
"""The largest number of levels of a column."""
BYTES_PER_NUMBER = 16
"""Memory that a feature of a sample takes while features are put together."""


def without_missing(series: pl.Series) -> pl.Series:
    """Return a column with null wherever a value is missing, and texts without spaces around them."""
    import polars as pl

    if series.dtype in (pl.Categorical, pl.Enum):
        series = series.cast(pl.String)
    if series.dtype == pl.String:
        texts = series.str.strip_chars()
        return texts.set(texts.str.to_lowercase().is_in(MISSING_TEXTS), None)
    return series.fill_nan(None) if series.dtype.is_float() else series


def levels_of(series: pl.Series) -> pl.Series:
    """Return a column as texts, with null wherever a value is missing. Whole numbers have no decimal point."""
    import polars as pl

    values = without_missing(series)
    if values.dtype.is_float() and (values == values.round()).all():
        values = values.cast(pl.Int64, strict=False)
    return values.cast(pl.String)


WHOLE = re.compile(r"[-+]?[0-9]+")


def naturally_sorted(names: Iterable[str]) -> list[str]:
    """Return names in the order in which people list them: whole numbers by size, and "item 9" before "item 10"."""
    found = list(names)
    if all(map(WHOLE.fullmatch, found)):
        return sorted(found, key=lambda name: (int(name), name))
    # The parts are texts and numbers by turns, so that a text is never compared with a number.
    return sorted(found, key=lambda name: ([int(p) if n % 2 else p for n, p in enumerate(PARTS.split(name))], name))


PARTS = re.compile(r"([0-9]+)")


class Encoded(NamedTuple):
    """Features of training and test samples."""

    x_train: Numbers
    x_test: Numbers
    names: tuple[str, ...]
    columns: tuple[Column, ...]


def encode(train: Sequence[pl.Series], test: Sequence[pl.Series], missing: Missing) -> Encoded:
    """Return the features that these columns make. Numbers are float64 and categories are texts; missing is null.

    Raises `InputError` for a column that cannot be used.
    """
    blocks, names, columns = [], list[str](), []
    levels = {one.name: naturally_sorted(one.drop_nulls().unique()) for one in train if not one.dtype.is_float()}
    for name, found in levels.items():
        if len(found) > MOST_LEVELS:
            given = f"{name!r} with {len(found):,} levels"
            raise InputError(
                "categories", given, f"columns of at most {MOST_LEVELS:,} levels; name the others in features"
            )
    width = len(train) - len(levels) + sum(map(len, levels.values()))
    refuse_beyond_memory(BYTES_PER_NUMBER * width * (len(train[0]) + len(test[0])))
    for known, other in zip(train, test, strict=True):
        absent = known.null_count(), other.null_count()
        if known.null_count() == len(known):
            given = f"{known.name!r}, which has no value in any training sample"
            raise InputError("features", given, "features = [...] without this column")
        fill = _filling(known, missing) if any(absent) else None
        filled = [one if fill is None else one.fill_null(fill) for one in (known, other)]
        if found := levels.get(known.name, []):
            blocks.append([_one_hot(one, found) for one in filled])
            names += [f"{known.name}={level}" for level in found]
        else:
            blocks.append([one.to_numpy()[:, None] for one in filled])
            names.append(known.name)
        unseen = int((~filled[1].is_in(found)).sum()) if found else 0
        said = "" if fill is None else f"{fill:g}" if isinstance(fill, float) else str(fill)
        columns.append(Column(known.name, tuple(found), *absent, said, unseen))
    if len(set(names)) < len(names):
        twice = next(name for n, name in enumerate(names) if name in names[:n])
        allowed = "other names of columns: a level of a category is a feature COLUMN=LEVEL"
        raise InputError("features", f"two features named {twice!r}", allowed)
    x_train, x_test = (np.concatenate(both, axis=1) for both in zip(*blocks, strict=True))
    return Encoded(x_train, x_test, tuple(names), tuple(columns))


def _filling(known: pl.Series, missing: Missing) -> float | str:
    """Return what stands for a missing value of a column. Categories have no mean: the most frequent one stands."""
    if known.dtype.is_float() and missing in ("mean", "median"):
        return float(known.mean() if missing == "mean" else known.median())  # type: ignore[arg-type]
    counts = known.drop_nulls().value_counts(name="count of rows")
    modes = counts.filter(counts["count of rows"] == counts["count of rows"].max())[known.name].to_list()
    return min(modes) if known.dtype.is_float() else naturally_sorted(modes)[0]


def _one_hot(series: pl.Series, levels: Sequence[str]) -> Floats:
    """Return a column per level: 1 where a sample has it. A sample with another level has 0 in all."""
    place = {level: n for n, level in enumerate(levels)}
    numbers = np.array([place.get(one, -1) for one in series], dtype=np.int64)
    made: Floats = np.zeros((len(numbers), len(levels)))
    rows = np.flatnonzero(numbers >= 0)
    made[rows, numbers[rows]] = 1.0
    return made


def rows_without_missing(columns: Iterable[pl.Series], rows: int) -> Flags:
    """Return which rows have a value in all columns."""
    whole = np.ones(rows, dtype=bool)
    for one in columns:
        if one.null_count():
            whole &= one.is_not_null().to_numpy()
    return whole
