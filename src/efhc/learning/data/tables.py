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

from efhc.base.arrays import Flags, Ints
from efhc.base.errors import InputError, Unusable, did_you_mean
from efhc.base.inputs import InputContent, InputFile, read_input, refuse_beyond_memory
from efhc.core.randomness import Purpose
from efhc.learning.data.columns import (
    Encoded,
    Missing,
    encode,
    levels_of,
    naturally_sorted,
    rows_without_missing,
    without_missing,
)
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


Categories = Literal["refuse", "one-hot"] | Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
"""Which columns are categories; see `LabelledColumns.categories`."""
Sorting = Callable[[Collection[str]], list[str]]
WHOLE_TEXT = r"^[-+]?[0-9]+(\.0*)?$"
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
        """Return whether a column that no setting names is one of numbers."""
        import polars as pl

        return series.dtype.is_numeric() or series.dtype == pl.Boolean

    def is_text(self, series: pl.Series) -> bool:
        """Return whether a column is one of texts."""
        import polars as pl

        return series.dtype in (pl.String, pl.Categorical, pl.Enum) and not self.is_feature(series)

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

    def feature_names(self, others: Collection[str], categories: Categories) -> list[str]:
        """Return the names of all columns of numbers and of categories, without `others`."""
        return [
            one.name
            for one in self.columns
            if one.name not in others
            and (one.name in categories or self.is_feature(one) or (categories == "one-hot" and self.is_text(one)))
        ]

    def is_stacked(self, names: Sequence[str]) -> bool:
        """Return whether the features are not columns of numbers and texts, but one of images or arrays."""
        return False

    def stacked(self, name: str) -> Numbers:
        """Return the images or arrays of a column."""
        raise NotImplementedError

    def features(
        self, names: Sequence[str], categories: Categories, missing: Missing, *, are_labels: bool = False
    ) -> list[pl.Series]:
        """Return columns: numbers as float64, categories as texts, with null wherever a value is missing.

        What is no finite number is refused, and so is a missing value if `missing` says so.
        """
        found = []
        for name in names:
            series = self.columns[name]
            if name in categories or (categories == "one-hot" and self.is_text(series)):
                found.append(levels_of(series))
            else:
                found.append(as_numbers(series))
                self._check_numbers(found[-1], are_labels)
            if missing == "refuse" and found[-1].null_count():
                row = int(found[-1].is_null().arg_true()[0])
                allowed = 'a value in every row of a feature; or missing = "mean", "median", "most-frequent" or "drop"'
                if are_labels:
                    allowed = "a label in every row"
                raise InputError(self.field, f"a missing value {self.place(row, name)}", allowed)
        return found

    def _check_numbers(self, numbers: pl.Series, are_labels: bool) -> None:
        """Raise `InputError` if a value of the column of this name is neither missing nor a number that is usable."""
        series, is_bounded = self.columns[numbers.name], _is_bounded(numbers)
        if is_bounded and numbers.null_count() == series.null_count():
            return  # fast: a table may have many thousands of columns
        series = without_missing(series)
        if is_bounded and numbers.null_count() == series.null_count():
            return
        row = int(((numbers.is_null() & series.is_not_null()) | ~(numbers.abs() <= LARGEST)).arg_true()[0])
        is_finite = numbers[row] is not None and math.isfinite(numbers[row])
        what = "too large to compute with" if is_finite else "no finite number"
        given = f"{short(self.columns[numbers.name][row])}, which is {what}, {self.place(row, numbers.name)}"
        allowed = f"a number in every row of {'the label' if are_labels else 'a feature'}, none beyond {LARGEST:g}"
        if numbers[row] is None and not are_labels:
            allowed += '; or categories = "one-hot" for a column of texts'
        raise InputError(self.field, given, allowed)

    def names(self, column: str, setting: str) -> tuple[np.ndarray, Sorting]:
        """Return the values of a column as texts, and what sorts them. No value may be missing.

        Texts stay as they are, so that 01 and 1 are two names. Only if all are whole numbers, some perhaps written as
        1.0, those end before the point.
        """
        import polars as pl

        series = self.columns[column]
        allowed = "a column of names or of whole numbers" + (", or label_kind = 'number'" if setting == "label" else "")
        named = (pl.String, pl.Boolean, pl.Categorical, pl.Enum, pl.Date)
        if not series.dtype.is_numeric() and series.dtype not in named:
            raise InputError(setting, f"{column!r}, a column of {series.dtype}", allowed)
        if series.dtype == pl.String:
            series = series.str.strip_chars().replace("", None)
            if series.str.contains(WHOLE_TEXT).all():
                series = series.str.replace(r"\.0*$", "")
            elif (cast := _whole_cast(series, pl.Float64)) is not None:
                series = cast
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
        return series.cast(pl.String).to_numpy(), naturally_sorted


class LabelledColumns(DataPolicy):
    """Data whose samples are rows of a table: one column is the label, others are the features."""

    label: str
    """The column with the labels: names or whole numbers, sorted into the classes 0, 1, ..."""
    features: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = None
    """The columns with the features. Default: all columns of numbers that no other setting names."""
    missing: Missing = "refuse"
    """What becomes of a missing value of a feature (an empty one, NA, NaN, null or ?): an error, the mean or median of
    the training samples ("most-frequent" for categories), their most frequent value, or the sample is dropped."""
    categories: Categories = "refuse"
    """Columns of texts: not used ("refuse"), or each level of the training samples is a feature of 0 and 1 ("one-hot").
    A list names the columns of categories, which may be numbers."""
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
        for column in self._named_categories:
            if column in uses and uses[column] != "features":
                raise Unusable("categories", f"{column!r}, which is {uses[column]} too", "a column of its own")
            if self.features is not None and column not in features:
                raise Unusable("categories", f"{column!r}, which is none of the features", "columns of features")
        return self

    @property
    def _named_categories(self) -> tuple[str, ...]:
        return () if isinstance(self.categories, str) else self.categories

    def _features_of(self, table: Table) -> Sequence[str]:
        """Return the columns that are features. Default: those of numbers, and of texts with "one-hot"."""
        table.require(dict.fromkeys(self._named_categories, "categories"))
        return self.features or table.feature_names(self._uses, self.categories)

    def _samples(self, table: Table, test: Table | None, is_test: NDArray[np.bool_] | None = None) -> Dataset:
        """Return the samples, not scaled yet. `is_test` says which rows of `table` are for the test, without `test`.

        Default: `test_share` of every label.
        """
        columns = self._features_of(table)
        if not columns:
            raise InputError(
                "features", f"{table.origin}, which has no column of numbers", "data with one or more of them"
            )
        tables = [table] if test is None else [table, test]
        if self.label_kind == "number":
            all_labels = [one.features([self.label], (), "refuse", are_labels=True)[0].to_numpy() for one in tables]
        else:
            all_labels = [one.names(self.label, "label")[0] for one in tables]
        labels, stacked = all_labels[0], table.is_stacked(columns)
        read = [[] if stacked else one.features(columns, self.categories, self.missing) for one in tables]
        whole = [np.ones(len(those), dtype=bool) for those in all_labels]
        if self.missing == "drop":
            whole = [rows_without_missing(one, len(those)) for one, those in zip(read, all_labels, strict=True)]
            if not whole[0].any():
                allowed = (
                    '"mean", "median" or "most-frequent"; or features = [...] without columns that lack many values'
                )
                raise InputError("missing", f"'drop', with a missing value in every row of {table.origin}", allowed)
        if test is not None:
            is_test = np.zeros(len(labels), dtype=bool)
        elif is_test is None:
            is_test = np.zeros(len(labels), dtype=bool)
            alike = labels if self.label_kind == "class" else np.zeros(len(labels))
            is_test[whole[0]] = self._chosen(alike[whole[0]])
        trained, tested = ~is_test & whole[0], is_test & whole[0] if test is None else whole[1]
        if not trained.any():
            dropped = " that has no missing value" if self.missing == "drop" else ""
            raise InputError("label", f"data without a training sample{dropped}", "one or more of them")
        y_train, y_test, classes = labels[trained], all_labels[-1][tested], list[str]()
        if self.label_kind == "class":
            y_train, y_test, classes = self._classes(tables, all_labels, trained, tested)
        if stacked:
            x = [one.stacked(columns[0]) for one in tables]
            made = Encoded(x[0][trained], x[-1][tested], tuple(columns), ())
        else:
            samples = [one.filter(trained) for one in read[0]], [one.filter(tested) for one in read[-1]]
            made = encode(*samples, self.missing)
        groups, test_groups = self._groups(table, test, trained, tested)
        before, used = (~is_test, is_test if test is None else np.ones_like(tested)), {*self._uses, *columns}
        found = made.columns
        if self.missing == "drop":
            counts = [
                [one.filter(rows).null_count() for one in those]
                for rows, those in zip(before, (read[0], read[-1]), strict=True)
            ]
            found = tuple(
                one._replace(missing=known, missing_in_test=other, filled_with="dropped" if known or other else "")
                for one, known, other in zip(found, *counts, strict=True)
            )
        return Dataset(
            *(made.x_train, y_train, made.x_test, y_test),
            groups=groups,
            test_groups=test_groups,
            class_names=tuple(classes),
            feature_names=made.names,
            unused=tuple(name for name in table.header if name not in used),
            columns=found,
            dropped=(int(before[0].sum() - trained.sum()), int(before[1].sum() - tested.sum())),
            label_kind=self.label_kind,
        )

    def _classes(
        self, tables: Sequence[Table], all_labels: Sequence[np.ndarray], trained: Flags, tested: Flags
    ) -> tuple[Ints, Ints, list[str]]:
        """Return the classes of the training and of the test samples by number, and their names."""
        known, others = all_labels[0][trained], all_labels[-1][tested]
        classes = tables[0].names(self.label, "label")[1](set(known.tolist()))
        if len(classes) < 2:
            given = f"{self.label!r} with {classes[0]!r} in every training sample"
            raise InputError("label", given, "training samples of two classes or more")
        y_train, y_test = numbers_of(known, classes), numbers_of(others, classes)
        if (unknown := np.flatnonzero(tested)[y_test < 0]).size:
            given = f"{short(all_labels[-1][unknown[0]])} {tables[-1].place(int(unknown[0]), self.label)}"
            raise InputError("label", given, f"the labels of the training samples: {_listed(classes)}")
        return y_train, y_test, classes

    def _groups(
        self, table: Table, test: Table | None, trained: Flags, tested: Flags
    ) -> tuple[Ints | None, Ints | None]:
        """Return the groups of the training and of the test samples, numbered alike; None where they are not known."""
        if self.group is None:
            return None, None
        names = table.names(self.group, "group")[0]
        known = test is None or self.group in test.columns
        others = (names if test is None else test.names(self.group, "group")[0])[tested] if known else names[:0]
        numbers = np.unique(np.concatenate([names[trained], others]), return_inverse=True)[1]
        groups, test_groups = np.split(numbers, [np.count_nonzero(trained)])
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
            test = self._table(files[1], "test_path", {self.label: "label"}, self._features_of(table))
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
            return _without_nan(plain)
        texts = without_missing(series)
        numbers = texts.cast(pl.Float64, strict=False)
        if numbers.null_count() == len(texts) > texts.null_count():  # no number at all: perhaps true and false
            lower = texts.str.to_lowercase()
            return (lower == "true").cast(pl.Float64) if lower.is_in(["true", "false"]).all() else numbers
        return numbers
    if series.dtype.is_numeric() or series.dtype == pl.Boolean:
        return _without_nan(series.cast(pl.Float64))
    return pl.Series(series.name, [None] * len(series), dtype=pl.Float64)


def _is_bounded(numbers: pl.Series) -> bool:
    """Return whether no number is beyond `LARGEST`."""
    lowest: Any = numbers.min()
    highest: Any = numbers.max()
    return lowest is None or bool(lowest >= -LARGEST and highest <= LARGEST)


def _without_nan(numbers: pl.Series) -> pl.Series:
    """Return numbers with null in place of NaN. The sum, which is quick, says whether there may be any."""
    return numbers.fill_nan(None) if math.isnan(numbers.sum()) else numbers


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
            return True  # fast: a table may have many thousands of columns
        values = without_missing(series)
        if numbers.null_count() == values.null_count():
            return True
        is_text = numbers.is_null() & values.is_not_null()
        if is_text.any() and numbers.count():
            row = int(is_text.arg_true()[0])
            given = f"{short(series[row])} among numbers {self.place(row, series.name)}"
            allowed = "only numbers; or features = [...] without this column, or categories = [...] with it"
            raise InputError("features", given, allowed)
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
