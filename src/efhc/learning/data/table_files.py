"""Samples of your own in a CSV or Parquet file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from efhc.base.errors import InputError
from efhc.base.inputs import InputContent, refuse_beyond_memory
from efhc.learning.data.tables import Table, TableFile, as_numbers, short

if TYPE_CHECKING:
    import polars as pl

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

        text = CsvText(file.content, self.separator)
        end = "\r" if b"\r" in file.content and b"\n" not in file.content else "\n"
        try:
            _ = str(file.content, "utf-8")
            header = text.header()
            refuse_beyond_memory((BYTES_PER_TEXT + BYTES_PER_VALUE) * len(header) * file.content.count(end.encode()))
            # As texts: inference would take a column of numbers with one typing error for a column of texts.
            source = io.BytesIO(file.content)
            columns = pl.read_csv(source, separator=self.separator, infer_schema=False, eol_char=end)
        except UnicodeDecodeError:
            raise InputError(field, f"{file.path} (not UTF-8 text)", "a CSV file") from None
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, csv.Error, MemoryError) as error:
            reason = text.too_long() or str(error).partition("\n")[0]
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
        return CsvTable(file.path, field, header, columns.select(chosen), columns[ROW], text)


@dataclass(frozen=True)
class CsvText:
    """The text of a file, to find places in it: slower than polars, and used when something is wrong."""

    content: bytes
    separator: str

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the line at which each row begins and its values, also of the header and of empty rows."""
        lines = io.TextIOWrapper(io.BytesIO(self.content), "utf-8-sig", newline="")
        reader, begins = csv.reader(lines, delimiter=self.separator), 1
        for row in reader:
            yield begins, row
            begins = reader.line_num + 1

    def header(self) -> list[str]:
        """Return the names of the columns; none of an empty file."""
        return next(self.rows(), (0, []))[1]

    def line(self, row: int) -> int:
        """Return the line at which a row begins, where row 0 follows the header; texts in quotes may span lines."""
        return next(begins for n, (begins, _) in enumerate(self.rows()) if n == row + 1)

    def too_long(self) -> str | None:
        """Return which line has more values than the header, in words; None if there is none."""
        try:
            length = len(self.header())
            begins, values = next(((begins, len(row)) for begins, row in self.rows() if len(row) > length), (0, 0))
        except csv.Error:
            return None
        return f"{values} values in line {begins}, {length} in the header" if values else None


@dataclass(frozen=True, eq=False)
class CsvTable(Table):
    """Columns of texts."""

    rows: pl.Series
    """The row of the file that each row of the columns was, where empty lines count."""
    text: CsvText

    def row(self, number: int) -> str:
        return f"line {self.text.line(self.rows[number])}"

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
