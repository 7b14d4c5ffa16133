"""Tables of samples: a row per sample, a column per feature, one column with the label.

All formats have the same rules. They differ in how a file becomes columns; see also `huggingface.py`.
"""

from __future__ import annotations

import csv
import io
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from efhc.base.arrays import Ints
from efhc.base.errors import InputError, Unusable, did_you_mean
from efhc.base.inputs import InputContent, InputFile, read_input, refuse_beyond_memory
from efhc.core.randomness import Purpose
from efhc.learning.data.dataset import (
    LARGEST,
    DataPolicy,
    Dataset,
    LabelKind,
    Numbers,
    Standardize,
    share_of_each_label,
)

if TYPE_CHECKING:
    import polars as pl


TEST_SHARE = 0.2
MOST_EXACT = 2.0**53
"""Up to here every whole number is a floating-point number."""
PARTS = ("train", "test")
NAMED = ("label", "group", "split")
"""The settings that name a column which is no feature; not every kind of data has all of them."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table as it was read, with the names that errors need to point to a place in it."""

    origin: object
    """The file, or whatever else it was read from, as errors name it."""
    field: str
    """The setting that names the origin."""
    header: Sequence[str]
    """The names of all columns of the origin."""
    columns: pl.DataFrame
    """The columns that were read."""

    def row(self, number: int) -> str:
        """Return where a row is, in words."""
        return f"row {number}, counted from 0"

    def is_feature(self, series: pl.Series) -> bool:
        """Return whether a column that no setting names is a feature."""
        import polars as pl

        return series.dtype.is_numeric() or series.dtype == pl.Boolean

    def place(self, row: int, column: str) -> str:
        """Return where a value is, in words."""
        return f"in {self.row(row)}, column {column}, of {self.origin}"

    def require(self, uses: Mapping[str, str]) -> None:
        """Raise `InputError` if a column is missing. `uses` says by column which setting names it."""
        known = set(self.header)
        for column, setting in uses.items():
            if column in known:
                continue
            given = f"{column!r}, which is no column of {self.origin}{did_you_mean(column, self.header)}"
            raise InputError(setting, given, f"one of {_listed(self.header)}")

    def feature_names(self, others: Collection[str]) -> list[str]:
        """Return the names of all columns of numbers, without `others`."""
        return [series.name for series in self.columns if series.name not in others and self.is_feature(series)]

    def features(self, names: Sequence[str]) -> Numbers:
        """Return the values of these columns, a row per sample. What is no finite number is refused."""
        import polars as pl

        x: Numbers = pl.DataFrame([as_numbers(self.columns[name]) for name in names]).to_numpy()
        if not (x.min() >= -LARGEST and x.max() <= LARGEST):  # also where a value is NaN
            row, column = map(int, np.argwhere(~(np.abs(x) <= LARGEST))[0])
            value = self.columns[names[column]][row]
            allowed = f"a number in every row of a feature, none beyond {LARGEST:g}"
            if np.isfinite(x[row, column]):
                given = f"{short(value)}, which is too large to compute with,"
            elif value is None or not str(value).strip():
                given = "a missing value"
            else:
                given = f"{short(value)}, which is no finite number,"
            raise InputError(self.field, f"{given} {self.place(row, names[column])}", allowed)
        return x

    def names(self, column: str, setting: str) -> tuple[np.ndarray, Callable[[str], Any]]:
        """Return the values of a column as texts, and what to sort them by. No value may be missing."""
        import polars as pl

        series = self.columns[column]
        allowed = "a column of names or of whole numbers" + (", or label_kind = 'number'" if setting == "label" else "")
        named = (pl.String, pl.Boolean, pl.Categorical, pl.Enum, pl.Date)
        if not series.dtype.is_numeric() and series.dtype not in named:
            raise InputError(setting, f"{column!r}, a column of {series.dtype}", allowed)
        if series.dtype == pl.String:
            series = series.str.strip_chars().replace("", None)
            series = next(
                (cast for kind in (pl.Int64, pl.Float64) if (cast := _whole_cast(series, kind)) is not None), series
            )
        if series.dtype.is_float() or series.dtype.is_decimal():
            numbers = series.cast(pl.Float64).fill_null(0.0)
            if (odd := ((numbers != numbers.round()) | (numbers.abs() > MOST_EXACT)).arg_true()).len():
                row = int(odd[0])
                given = f"{short(self.columns[column][row])} {self.place(row, column)}"
                raise InputError(setting, given, allowed)
            series = series.cast(pl.Float64).cast(pl.Int64)
        if (missing := series.is_null().arg_true()).len():
            given = f"a missing {setting} {self.place(int(missing[0]), column)}"
            raise InputError(self.field, given, f"a {setting} in every row")
        return series.cast(pl.String).to_numpy(), int if series.dtype.is_integer() else str


class LabelledColumns(DataPolicy):
    """Data whose samples are rows of a table: one column is the label, others are the features."""

    label: str
    """The column with the labels: names or whole numbers, sorted into the classes 0, 1, ..."""
    features: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = None
    """The columns with the features. Default: all columns of numbers that no other setting names."""
    label_kind: LabelKind = "class"
    """Whether labels are classes, or numbers to predict ("number"), as in regression."""
    group: str | None = None
    """The column with the group (user, hospital, ...) of a sample, for partition.kind = "groups"."""
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of every label that becomes test samples, the same for every seed. Default: 0.2, unless the data have a
    test set."""

    @property
    def _uses(self) -> dict[str, str]:
        """The columns that are no features, each with the setting that names it."""
        return {column: name for name in NAMED if (column := getattr(self, name, None)) is not None}

    @model_validator(mode="after")
    def _each_column_has_one_use(self) -> Self:
        settings, features = [(name, getattr(self, name, None)) for name in NAMED], self.features or ()
        uses: dict[str, str] = {}
        for setting, column in [*settings, *(("features", name) for name in features)]:
            if column is not None and uses.setdefault(column, setting) != setting:
                raise Unusable(setting, f"{column!r}, which is {uses[column]} too", "a column of its own")
        if len(set(features)) < len(features):
            raise Unusable("features", list(features), "each column once")
        return self

    def _samples(self, table: Table, test: Table | None, is_test: NDArray[np.bool_] | None = None) -> Dataset:
        """Return the samples, not scaled yet. `is_test` says which rows of `table` are for the test, without `test`.

        Default: `test_share` of every label.
        """
        columns = self.features or table.feature_names(self._uses)
        if not columns:
            raise InputError(
                "features", f"{table.origin}, which has no column of numbers", "data with one or more of them"
            )
        if self.label_kind == "number":
            return self._with_numbers(table, test, is_test, columns)
        labels, order = table.names(self.label, "label")
        if test is not None:
            is_test = np.zeros(len(labels), dtype=bool)
        elif is_test is None:
            is_test = self._chosen(labels)
        classes = sorted(set(labels[~is_test].tolist()), key=order)
        if len(classes) < 2:
            constant = f"{self.label!r} with {classes[0]!r} in every training sample" if classes else None
            given = constant or "data without a training sample"
            raise InputError("label", given, "training samples of two classes or more")
        x, y = table.features(columns), numbers_of(labels, classes)
        tested, rows, x_test, y_test = table, np.flatnonzero(is_test), x[is_test], y[is_test]
        if test is not None:
            labels, _ = test.names(self.label, "label")
            tested, rows = test, np.arange(len(labels))
            x_test, y_test = test.features(columns), numbers_of(labels, classes)
        if (unknown := rows[y_test < 0]).size:
            given = f"{short(labels[unknown[0]])} {tested.place(int(unknown[0]), self.label)}"
            raise InputError("label", given, f"the labels of the training samples: {_listed(classes)}")
        groups, test_groups = self._groups(table, test, is_test)
        used = {*self._uses, *columns}
        return Dataset(
            *(x[~is_test], y[~is_test], x_test, y_test),
            groups=groups,
            test_groups=test_groups,
            class_names=tuple(classes),
            feature_names=tuple(columns),
            unused=tuple(name for name in table.header if name not in used),
        )

    def _with_numbers(
        self, table: Table, test: Table | None, is_test: NDArray[np.bool_] | None, columns: Sequence[str]
    ) -> Dataset:
        """Return what `_samples` does, with numbers as labels."""
        x, y = table.features(columns), table.features([self.label])[:, 0]
        if is_test is None:
            is_test = np.zeros(len(y), dtype=bool) if test is not None else self._chosen(np.zeros(len(y)))
        if is_test.all():
            raise InputError("label", "data without a training sample", "one or more of them")
        x_test, y_test = x[is_test], y[is_test]
        if test is not None:
            x_test, y_test = test.features(columns), test.features([self.label])[:, 0]
        groups, test_groups = self._groups(table, test, is_test)
        used = {*self._uses, *columns}
        return Dataset(
            *(x[~is_test], y[~is_test], x_test, y_test),
            groups=groups,
            test_groups=test_groups,
            feature_names=tuple(columns),
            unused=tuple(name for name in table.header if name not in used),
            label_kind="number",
        )

    def _groups(self, table: Table, test: Table | None, is_test: NDArray[np.bool_]) -> tuple[Ints | None, Ints | None]:
        """Return the groups of the training and of the test samples, numbered alike; None where they are not known."""
        if self.group is None:
            return None, None
        names = table.names(self.group, "group")[0]
        known = test is None or self.group in test.columns
        others = test.names(self.group, "group")[0] if test is not None and known else names[is_test]
        numbers = np.unique(np.concatenate([names[~is_test], others]), return_inverse=True)[1]
        groups, test_groups = np.split(numbers, [np.count_nonzero(~is_test)])
        return groups, test_groups if known else None

    def _chosen(self, labels: np.ndarray) -> NDArray[np.bool_]:
        """Choose the test samples by their share; return a flag per sample."""
        share = self.test_share or TEST_SHARE
        chosen = share_of_each_label(np.unique(labels, return_inverse=True)[1], share, Purpose.TEST_SAMPLES)
        if not chosen.any():
            given = f"{share} of {len(labels)} samples"
            raise InputError("test_share", given, "a share that is at least one sample of some label")
        return chosen


class TableFile(LabelledColumns):
    """Samples in the rows of a file, whatever its format."""

    path: InputFile
    """The file."""
    test_path: InputFile | None = None
    """A second file with the test samples. Default: `test_share` of `path`."""
    split: str | None = None
    """The column that says "train" or "test" for each sample."""
    shape: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, strict=False)] | None = None
    """The shape of a sample, row by row, such as [28, 28] for images."""
    standardize: Standardize = "features"
    """As for all data sets."""

    @abstractmethod
    def read(self, file: InputContent, field: str, wanted: Sequence[str] | None) -> Table:
        """Return the table in a file, with the columns `wanted`, which may be missing, or all of them."""

    @model_validator(mode="after")
    def _test_samples_are_chosen_one_way(self) -> Self:
        ways = [name for name in ("test_path", "split", "test_share") if getattr(self, name) is not None]
        if len(ways) > 1:
            raise Unusable(ways[1], f"both {ways[0]} and {ways[1]}", "one of test_path, split and test_share")
        return self

    def load(self, precision: str = "float32") -> Dataset:
        files = [read_input(self.path, "path")]
        table, test = self._table(files[0], "path", self._uses, self.features), None
        if self.test_path is not None:
            files.append(read_input(self.test_path, "test_path"))
            features = self.features or table.feature_names(self._uses)
            test = self._table(files[1], "test_path", {self.label: "label"}, features)
        data = self._samples(table, test, None if self.split is None else self._said_to_be_test(table, self.split))
        if self.shape and math.prod(self.shape) != data.features:
            allowed = f"numbers whose product is {data.features}, the number of features"
            raise InputError("shape", list(self.shape), allowed)
        named = replace(data, name=self.path.stem, shape=self.shape or (), sha256=_checksums(files))
        return named.prepared(self.standardize, precision)

    def _table(self, file: InputContent, field: str, uses: Mapping[str, str], features: Sequence[str] | None) -> Table:
        """Return a table with the columns that have a use, by setting, and these features. Default: all columns."""
        table = self.read(file, field, None if features is None else [*features, *uses])
        table.require({**dict.fromkeys(features or (), "features"), **uses})
        if not len(table.columns):
            raise InputError(field, f"{file.path} without a row", "a row for every sample")
        return table

    @staticmethod
    def _said_to_be_test(table: Table, split: str) -> NDArray[np.bool_]:
        """Return which rows are test samples by the column `split`."""
        parts, _ = table.names(split, "split")
        if (wrong := np.flatnonzero(~np.isin(parts, PARTS))).size:
            given = f"{short(parts[wrong[0]])} {table.place(int(wrong[0]), split)}"
            raise InputError("split", given, "'train' or 'test' in every row")
        if not (parts == "test").any():
            raise InputError(
                "split", f"column {split} of {table.origin}, which has no 'test'", "one test sample or more"
            )
        return np.asarray(parts == "test")


def numbers_of(labels: np.ndarray, classes: Sequence[str]) -> Ints:
    """Return the number of the class of each label, or -1 if it is none of them."""
    number = {name: n for n, name in enumerate(classes)}
    return np.array([number.get(name, -1) for name in labels], dtype=np.int64)


def as_numbers(series: pl.Series) -> pl.Series:
    """Return a column as numbers; null where a value is none. A text such as "1e-3" is a number."""
    import polars as pl

    if series.dtype == pl.String:
        if (plain := _whole_cast(series, pl.Float64)) is not None:  # fast: a table may have many thousands of columns
            return plain
        texts = series.str.strip_chars()
        numbers = texts.cast(pl.Float64, strict=False)
        if numbers.null_count() == len(texts) > texts.null_count():  # no number at all: perhaps true and false
            lower = texts.str.to_lowercase()
            return (lower == "true").cast(pl.Float64) if lower.is_in(["true", "false"]).all() else numbers
        return numbers
    if series.dtype.is_numeric() or series.dtype == pl.Boolean:
        return series.cast(pl.Float64)
    return pl.Series(series.name, [None] * len(series), dtype=pl.Float64)


def _whole_cast(texts: pl.Series, kind: type[pl.DataType]) -> pl.Series | None:
    """Return the texts as numbers of this kind, or None if one of them is none."""
    numbers = texts.cast(kind, strict=False)
    return numbers if numbers.null_count() == texts.null_count() else None


def _checksums(files: Sequence[InputContent]) -> dict[str, str]:
    """Return the SHA-256 of each file by its name, with its folder where two files have the same name."""
    same = len({file.path.name for file in files}) < len(files)
    return {f"{file.path.parent.name}/{file.path.name}" if same else file.path.name: file.sha256 for file in files}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")


def short(value: object) -> str:
    """Return a value as errors quote it."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


# CSV and Parquet files


BYTES_PER_TEXT, BYTES_PER_VALUE = 16, 16
"""Memory that a value takes: as a text in a CSV file; and as a number in a column and in the samples."""
ROW = "row of the file"
"""The name of a column of our own."""


class CsvFile(TableFile):
    """A CSV file with a row per sample: a column with labels, and columns of numbers.

    UTF-8 with a header. A column with both numbers and other texts is refused unless a setting names it. Empty lines
    are skipped.
    """

    kind: Literal["csv"] = "csv"
    separator: Literal[",", ";", "\t", "|", " "] = ","
    """The character between two values."""

    def read(self, file: InputContent, field: str, wanted: Sequence[str] | None) -> CsvTable:
        import polars as pl

        end = "\r" if b"\r" in file.content and b"\n" not in file.content else "\n"
        try:
            _ = str(file.content, "utf-8")
            header = next(csv_rows(file.content, self.separator), (0, list[str]()))[1]
            refuse_beyond_memory((BYTES_PER_TEXT + BYTES_PER_VALUE) * len(header) * file.content.count(end.encode()))
            # As texts: inference would take a column of numbers with one typing error for a column of texts.
            source = io.BytesIO(file.content)
            columns = pl.read_csv(source, separator=self.separator, infer_schema=False, eol_char=end)
        except UnicodeDecodeError:
            raise InputError(field, f"{file.path} (not UTF-8 text)", "a CSV file") from None
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, csv.Error, MemoryError) as error:
            reason = _too_long(file.content, self.separator) or str(error).partition("\n")[0]
            raise InputError(field, f"{file.path} ({reason})", "a CSV file with a header") from None
        if len(known := set(header)) < len(header):
            twice = next(name for n, name in enumerate(header) if name in header[:n])
            raise InputError(field, f"{file.path} with two columns {twice!r}", "each name once in the header")
        if columns.columns != header:
            given = f"{file.path}, whose header can be read in two ways"
            allowed = "a first line of plain names, and lines that all end alike (LF, CR LF or CR)"
            raise InputError(field, given, allowed)
        if len(header) == 1 and (other := next((one for one in ";\t|," if one in header[0]), None)):
            raise InputError("separator", f"{self.separator!r}, which {file.path} lacks", f"{other!r}, which it has")
        columns = columns.with_row_index(ROW).filter(~pl.all_horizontal(pl.exclude(ROW).is_null()))
        chosen = header if wanted is None else [name for name in wanted if name in known]
        return CsvTable(file.path, field, header, columns.select(chosen), columns[ROW], file.content, self.separator)


def csv_rows(content: bytes, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line at which each row begins and its values, also of the header and of empty rows.

    Texts in quotes may span lines. This is slower than polars: it finds places in a file in which something is wrong.
    """
    lines = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")
    reader, begins = csv.reader(lines, delimiter=separator), 1
    for row in reader:
        yield begins, row
        begins = reader.line_num + 1


def _too_long(content: bytes, separator: str) -> str | None:
    """Return which line has more values than the header, in words; None if there is none."""
    rows = csv_rows(content, separator)
    try:
        length = len(next(rows, (0, []))[1])
        begins, values = next(((begins, len(row)) for begins, row in rows if len(row) > length), (0, 0))
    except csv.Error:
        return None
    return f"{values} values in line {begins}, {length} in the header" if values else None


@dataclass(frozen=True, eq=False)
class CsvTable(Table):
    """Columns of texts."""

    rows: pl.Series
    """The row of the file that each row of the columns was, where empty lines count."""
    content: bytes
    separator: str

    def row(self, number: int) -> str:
        begins, _ = next(islice(csv_rows(self.content, self.separator), self.rows[number] + 1, None))
        return f"line {begins}"

    def is_feature(self, series: pl.Series) -> bool:
        numbers = as_numbers(series)
        if numbers.null_count() == series.null_count():
            return True
        is_text = numbers.is_null() & (series.str.strip_chars() != "").fill_null(value=False)
        if is_text.any() and numbers.null_count() < len(numbers):
            row = int(is_text.arg_true()[0])
            given = f"{short(series[row])} among numbers {self.place(row, series.name)}"
            raise InputError("features", given, "only numbers; or features = [...] without this column")
        return not is_text.any()


class ParquetFile(TableFile):
    """A Parquet file with a row per sample: a column with labels, and columns of numbers.

    Which columns are numbers, the file says; true and false count as 1 and 0.
    """

    kind: Literal["parquet"] = "parquet"

    def read(self, file: InputContent, field: str, wanted: Sequence[str] | None) -> Table:
        import polars as pl

        try:
            # A damaged file may have wrong sizes: they have to fit into memory before anything is unpacked.
            names = list(pl.read_parquet_schema(io.BytesIO(file.content)))
            rows = pl.scan_parquet(io.BytesIO(file.content)).select(pl.len()).collect().item()
            chosen = names if wanted is None else [name for name in wanted if name in names]
            refuse_beyond_memory(BYTES_PER_VALUE * rows * len(chosen))
            columns = pl.read_parquet(io.BytesIO(file.content), columns=chosen)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, MemoryError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(field, f"{file.path} ({reason})", "a whole Parquet file") from None

        return Table(file.path, field, names, columns)
