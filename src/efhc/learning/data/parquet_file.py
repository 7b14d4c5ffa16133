"""Samples of your own in a Parquet file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Literal

from efhc.base.errors import InputError
from efhc.base.inputs import InputContent, refuse_beyond_memory
from efhc.learning.data.tables import Table, TableFile

BYTES_PER_VALUE = 16
"""What a value takes in memory: in a column, and in the samples."""


class ParquetFile(TableFile):
    """A Parquet file with a row per sample: a column with labels, and columns of numbers.

    Which columns are numbers, the file says; true and false count as 1 and 0.
    """

    kind: Literal["parquet"] = "parquet"

    def read(self, file: InputContent, field: str, wanted: Sequence[str] | None) -> Table:
        import polars as pl

        try:
            # Of one that is damaged, these can be wrong; what they promise has to fit before anything is unpacked.
            names = list(pl.read_parquet_schema(io.BytesIO(file.content)))
            rows = pl.scan_parquet(io.BytesIO(file.content)).select(pl.len()).collect().item()
            chosen = names if wanted is None else [name for name in wanted if name in names]
            refuse_beyond_memory(BYTES_PER_VALUE * rows * len(chosen))
            columns = pl.read_parquet(io.BytesIO(file.content), columns=chosen)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, MemoryError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(field, f"{file.path} ({reason})", "a whole Parquet file") from None

        return Table(file.path, field, names, columns)
