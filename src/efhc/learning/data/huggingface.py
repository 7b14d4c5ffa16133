"""Data sets of Hugging Face, from a folder or from the cache of this machine. Nothing here uses the network."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from efhc.base.errors import InputError, Unusable
from efhc.base.extras import importing
from efhc.base.inputs import InputFile, is_folder, sha256
from efhc.learning.data.dataset import Dataset, Numbers
from efhc.learning.data.images import pixels_of
from efhc.learning.data.tables import Categories, LabelledColumns, Sorting, Table

if TYPE_CHECKING:
    import datasets

TEST = "test"


class HuggingFace(LabelledColumns):
    """A data set of Hugging Face that is on this machine: in a folder (`path`) or in their cache (`name`).

    A run never downloads it. In Python, `datasets.load_dataset(NAME)` fills the cache, and `save_to_disk` writes a
    folder. The checksum is that of the samples as they were read.
    """

    kind: Literal["huggingface"] = "huggingface"
    path: InputFile | None = None
    """A folder that `save_to_disk` wrote."""
    name: str | None = None
    """The name in the cache, such as "ylecun/mnist". Give this or `path`."""
    subset: str | None = None
    """The configuration, for a `name` with several."""
    label: str = "label"
    """The column with the labels: names, whole numbers or a ClassLabel."""
    features: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] | None = None
    """The column of images or arrays, or the columns of numbers. Default: the only column of images, else the columns
    of numbers, else the only column of arrays."""
    train: str = "train"
    """The split with the training samples."""
    test: str | None = None
    """The split with the test samples. Default: "test" if it exists and `test_share` is not set."""

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if (self.path is None) == (self.name is None):
            given = "neither path nor name" if self.path is None else "both path and name"
            raise Unusable("path", given, "a path, for a folder; or a name, for the cache")
        if self.subset is not None and self.name is None:
            raise Unusable("subset", self.subset, "a subset of a data set that is given by its name")
        if self.test is not None and self.test_share is not None:
            raise Unusable("test_share", "both test and test_share", "one of test and test_share")
        return self

    def load(self, precision: str = "float32") -> Dataset:
        splits, origin = self._splits()
        for field, name in (("train", self.train), ("test", self.test)):
            if name is not None and name not in splits:
                raise InputError(field, f"{name!r}, which is no split of {origin}", f"one of {', '.join(splits)}")
        has_test = self.test_share is None and TEST in splits and self.train != TEST
        test = self.test or (TEST if has_test else None)
        table = self._table(splits[self.train], self.train, origin)
        data = self._samples(table, None if test is None else self._table(splits[test], test, origin))
        groups = [] if data.groups is None else [data.groups]  # those of the test samples follow from the test table
        arrays = [data.x_train, data.y_train, data.x_test, data.y_test, *groups]
        checksum = sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))
        name = self.name or (self.path.name if self.path else "")
        named = replace(data, name=name, sha256={name: checksum})
        return named.prepared(self.standardize, precision, unit=255 if data.x_train.dtype == np.uint8 else 1)

    def _splits(self) -> tuple[dict[str, datasets.Dataset], str]:
        """Return the splits by name, and where they were read from. A data set without splits is one split."""
        with importing("huggingface"):
            import datasets
            from datasets.packaged_modules.cache.cache import Cache
        field, given = ("path", str(self.path)) if self.path is not None else ("name", str(self.name))
        if self.path is not None and not is_folder(self.path):
            raise InputError("path", f"{self.path} (no such folder)", "a folder that datasets' save_to_disk wrote")
        try:
            if self.path is not None:
                found = datasets.load_from_disk(given)
            else:  # `load_dataset` would use the network first, even for a data set in its cache
                which = {"repo_id": given, "dataset_name": given.rpartition("/")[2], "config_name": self.subset}
                found = Cache(**which, version="auto", hash="auto").as_dataset()
        except Exception as error:  # a damaged folder raises whatever its first wrong byte leads datasets and arrow to
            reason = " ".join(str(error).split()) or type(error).__name__
            from_cache = f"one in the cache of this machine; datasets.load_dataset({given!r}) in Python puts it there"
            allowed = from_cache if self.path is None else "a folder that datasets' save_to_disk wrote"
            raise InputError(field, f"{given} ({reason})", allowed) from None
        is_one = isinstance(found, datasets.Dataset)
        return ({self.train: found} if is_one else {str(name): split for name, split in found.items()}), given

    def _table(self, split: datasets.Dataset, name: str, origin: str) -> HubTable:
        import polars as pl

        field, where = "path" if self.path is not None else "name", f"split {name} of {origin}"
        uses = {**dict.fromkeys(self.features or (), "features"), **self._uses}
        wanted = [one for one, kind in split.features.items() if _is_plain(kind) and (one in uses or not self.features)]
        columns = pl.DataFrame(split.select_columns(wanted).with_format("arrow")[:])
        table = HubTable(where, field, split.column_names, columns, split)
        table.require(uses)
        if not len(split):
            raise InputError(field, f"{where} without a row", "a row for every sample")
        return table


@dataclass(frozen=True, eq=False)
class HubTable(Table):
    """A split. Images and arrays are not in `columns`; they are read when they are used."""

    split: datasets.Dataset

    def feature_names(self, others: Collection[str], categories: Categories) -> list[str]:
        kinds = {name: kind for name, kind in self.split.features.items() if name not in others}
        images = [name for name, kind in kinds.items() if _is_image(kind)]
        arrays = [name for name, kind in kinds.items() if not _is_plain(kind) and name not in images]
        found = images or super().feature_names(others, categories) or arrays
        if len(found) > 1 and found[0] not in self.columns.columns:
            given = f"several columns of images or arrays in {self.origin}: {', '.join(found)}"
            raise InputError("features", given, "the name of one of them")
        return found

    def is_stacked(self, names: Sequence[str]) -> bool:
        beyond = [name for name in names if name not in self.columns.columns]
        if beyond and len(names) > 1:
            raise InputError("features", f"{beyond[0]!r}, a column of images or arrays, among others", "it alone")
        return bool(beyond)

    def stacked(self, name: str) -> Numbers:
        return self._images(name) if _is_image(self.split.features[name]) else self._arrays(name)

    def names(self, column: str, setting: str) -> tuple[np.ndarray, Sorting]:
        kind = self.split.features[column]
        if column not in self.columns.columns:
            raise InputError(setting, f"{column!r}, a column of {kind}", "a column of names or of whole numbers")
        if not (names := getattr(kind, "names", None)):  # of a ClassLabel
            return super().names(column, setting)
        numbers = self.columns[column].fill_null(-1).to_numpy()
        if (missing := np.flatnonzero(numbers < 0)).size:
            raise InputError(
                self.field, f"a missing {setting} {self.place(missing[0], column)}", f"a {setting} in every row"
            )
        return np.array(names, dtype=object)[numbers], lambda found: sorted(found, key=names.index)

    def _images(self, column: str) -> Numbers:
        """Return the pixels: (samples, height, width) of grey images, (samples, 3, height, width) of RGB ones."""
        alone = self.split.select_columns([column]).with_format(None)
        stacked: list[Numbers] = []
        for row in range(len(alone)):
            try:
                image = alone[row][column]
            except Exception as error:  # a damaged image raises whatever its first wrong byte leads the decoder to
                given = f"an image {self.place(row, column)} ({error})"
                raise InputError(self.field, given, "whole images") from None
            if image is None or (pixels := pixels_of(image)) is None:
                given = "a missing image" if image is None else f"an image of mode {image.mode}"
                allowed = "a grey (L) or RGB image of bytes in every row"
                raise InputError(self.field, f"{given} {self.place(row, column)}", allowed)
            if stacked and pixels.shape != stacked[0].shape:
                given = f"an image of shape {pixels.shape} {self.place(row, column)}"
                raise InputError(self.field, given, f"{stacked[0].shape}, as in row 0: one size, all grey or all RGB")
            stacked.append(pixels)
        return np.stack(stacked)

    def _arrays(self, column: str) -> Numbers:
        """Return arrays of one shape, (samples, *shape)."""
        try:
            rows = self.split.select_columns([column]).with_format(None)[:][column]
            return np.stack([np.array(row, dtype=np.float64) for row in rows])
        except (TypeError, ValueError) as error:
            given = f"{column!r} of {self.origin} ({error})"
            raise InputError("features", given, "a column of images, or of arrays of one shape") from None


def _is_plain(kind: object) -> bool:
    """Return whether a column has one name or number per row."""
    import datasets

    return isinstance(kind, datasets.Value | datasets.ClassLabel)


def _is_image(kind: object) -> bool:
    import datasets

    return isinstance(kind, datasets.Image)
