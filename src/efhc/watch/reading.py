"""Files of runs that are damaged, or deleted while they are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from efhc.base.errors import EfhcError


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Raise an `EfhcError` if the body cannot read files of a run: they are damaged, or were deleted meanwhile.

    Whatever it raises, the data has caused it: a damaged table makes Polars raise anything, even panic.
    """
    try:
        yield
    except EfhcError:
        raise
    except (Exception, pl.exceptions.PanicException) as error:
        text = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise EfhcError(f"{folder.name}: its files cannot be read ({text})") from error
