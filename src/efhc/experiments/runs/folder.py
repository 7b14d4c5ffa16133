"""The files of a run, or of an experiment, as docs/files.md lists them.

Every file is whole or absent, whenever the process is killed, except live.jsonl, whose last line may be incomplete.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import polars as pl
import tomli_w
from pydantic import BaseModel, Field, ValidationError

from efhc.base.arrays import Floats
from efhc.base.errors import EfhcError, InputError
from efhc.base.inputs import sha256
from efhc.base.saving import SaveError, read_tensors, replacing, tensor_content, write_safely, write_tensors
from efhc.core.state import Local
from efhc.drivers.record import PIECE_ENTRIES
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import build_experiment, first_difference, removed_setting, to_tables
from efhc.experiments.runs.provenance import provenance
from efhc.experiments.runs.run import DATA, file_name, without_place

T = TypeVar("T")

CHECKPOINT, PIECES = "checkpoint.safetensors", "pieces"
"""The checkpoint and the folder of the pieces in that of an unfinished run."""
CHECKSUMS = ("table_sha256", "snapshot_sha256")
"""The checksums of the files of a complete run, in meta.json."""
AT_THE_END = ("finished", "failed", "problem", "warnings", *CHECKSUMS)
"""Facts that are written when a run or an experiment is completed, and left out when it goes on after that."""

Pair = tuple[str, int]
"""A strategy and a seed."""
Text = Annotated[str, Field(pattern=r"\A[^\x00]*\z")]
"""A text that can be part of a path."""
Final = Mapping[Pair, tuple[Floats, Local]]
"""The last models, and what devices keep to themselves."""


class DamagedError(EfhcError):
    """A file of a run is not what was written."""


class _Facts(BaseModel, strict=True):
    """The types of all that is read from a meta.json, which may come from another user."""


class _Session(_Facts):
    wall_seconds: float = 0.0
    store: Text = ""


class _OneRun(_Facts):
    strategy: Text
    seed: int


class _ListedRun(_OneRun):
    key: Text


class _FailedRun(_OneRun):
    reason: Text


class _Meta(_Facts):
    status: str
    sessions: list[_Session]
    problem: Text = ""
    backend: Text = ""
    warnings: list[str] = []
    runs: list[_ListedRun] = []
    failed: list[_FailedRun] = []
    table_sha256: dict[str, str] = {}
    snapshot_sha256: dict[str, str] = {}
    input_sha256: dict[str, str] = {}
    data_sha256: dict[str, str] = {}


class RunFolder:
    """The config, facts, tables and models in a folder. Each file is read once per object."""

    def __init__(self, path: Path, files: dict[str, bytes] | None = None) -> None:
        """With `files`, everything is written there by name, and nothing on the disk."""
        self.path, self._files = path, files
        self._meta: dict[str, Any] | None = None
        self._models: dict[Pair, Floats] | None = None
        self._checked: set[str] = set()
        """Files that are as they were written."""
        self.session_began = time.monotonic()

    # Reading

    def has(self, name: str) -> bool:
        """Return whether a file is there."""
        if self._files is not None:
            return name in self._files
        return os.path.exists(self.path / name)  # noqa: PTH110 - unlike Path.exists, it never fails

    def read(self, name: str, parse: Callable[[Path], T]) -> T:
        """Return what `parse` makes of a file. Raises `DamagedError` if it is missing or not as it was written."""
        try:
            if not stat.S_ISREG((self.path / name).stat().st_mode):
                raise ValueError("it is not a regular file")
            return parse(self.path / name)
        except FileNotFoundError as error:
            raise DamagedError(f"{self.path / name} is missing") from error
        except OSError as error:
            raise EfhcError(f"{self.path / name} cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, pl.exceptions.PolarsError) as error:
            raise DamagedError(f"{self.path / name} is damaged ({error})") from error

    @property
    def is_begun(self) -> bool:
        """Whether the folder holds a run or an experiment."""
        return self.has("config.toml")

    @property
    def is_complete(self) -> bool:
        return self.has("meta.json") and self.meta["status"] == "complete"

    @property
    def meta(self) -> dict[str, Any]:
        """The content of meta.json. Raises `DamagedError` if it is missing or damaged."""

        def parse(path: Path) -> dict[str, Any]:
            meta: dict[str, Any] = json.loads(path.read_bytes())
            try:
                _Meta.model_validate(meta)
            except ValidationError:
                raise ValueError("it does not describe a run") from None
            return meta

        if self._meta is None:
            self._meta = self.read("meta.json", parse)
        return self._meta

    @property
    def problem(self) -> str | None:
        """Why the run failed. None: it did not, or it was begun again."""
        if not self.has("meta.json") or self.meta["status"] != "failed":
            return None
        return str(self.meta.get("problem", ""))

    def forget(self) -> None:
        """Read meta.json again the next time: another process may have written it."""
        self._meta = None

    @property
    def config(self) -> dict[str, Any]:
        def parse(path: Path) -> dict[str, Any]:
            tables = tomllib.loads(path.read_bytes().decode())
            strategies, seeds = tables.get("strategies"), tables.get("seeds")
            if not (isinstance(strategies, dict) and strategies and isinstance(seeds, list) and seeds):
                raise ValueError("it is not the config of an experiment")
            return tables

        tables = self.read("config.toml", parse)
        if isinstance(tables.get("data"), dict) and tables["data"].get("path") == DATA:
            tables["data"]["path"] = str((self.path / DATA).absolute())
        return tables

    def read_experiment(self) -> Experiment:
        """Return the experiment of config.toml without running any code: parts of the user's own refuse to run."""
        return build_experiment(self.config, self.path, run_code=False)

    def load_experiment(self, *, trust_code: bool = True) -> Experiment:
        """Return the experiment of config.toml.

        Settings such as "file.py:Name" run the Python code that they name. With `trust_code` = False such a config is
        refused: use it for folders that come from another user.
        """
        tables = self.config
        if not trust_code and (code := named_code(tables)):
            allowed = "--trust-code, if you trust the author of this directory"
            raise InputError(next(iter(code)), f"code in {', '.join(sorted(set(code.values())))}", allowed)
        return build_experiment(tables, self.path)

    @property
    def failures(self) -> dict[Pair, str]:
        """The runs of an experiment that failed, and why."""
        return {(each["strategy"], each["seed"]): each["reason"] for each in self.meta.get("failed", [])}

    def check_same(self, experiment: Experiment, checksums: Mapping[str, Mapping[str, str]]) -> None:
        """Raise `InputError` unless the folder is that of this experiment, with this data and these input files."""
        if (removed := removed_setting(self.config)) is not None:
            problem = f"{self.path} was begun with efhc 0.2, which had {removed}. Choose another --out to start anew."
            raise InputError(removed, self.path, "another --out", problem)
        if difference := first_difference(*map(without_place, (self.config, to_tables(experiment)))):
            key, old, new = difference
            problem = f"{self.path} was begun with {old!r}, not {new!r}. Resume with {old!r}, or choose another --out."
            raise InputError(key, new, repr(old), problem)
        self.check_inputs(checksums)

    def check_inputs(self, checksums: Mapping[str, Mapping[str, str]]) -> None:
        """Raise `InputError` unless the data and input files are those that the run was made with."""
        meta = self.meta if self.has("meta.json") else {}
        for what, now in checksums.items():
            for name, old in meta.get(what, {}).items():
                if now.get(name) != old:
                    allowed = f"the file that the run was begun with (SHA-256 {old[:12]}...), or another --out"
                    setting = name if what == "input_sha256" else "data"
                    raise InputError(setting, f"a changed {self._file_of(name) or name}", allowed)

    def _file_of(self, setting: str) -> str | None:
        value: Any = self.config
        for key in setting.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return Path(value.rpartition(":")[0] or value).name if isinstance(value, str) else None

    def table(self, name: str) -> pl.DataFrame:
        """Return the table in NAME.parquet. Raises `DamagedError` if the file is not as it was written."""
        return self.read(f"{name}.parquet", lambda _: self.scan(name).collect())

    def scan(self, name: str) -> pl.LazyFrame:
        """Return NAME.parquet as a lazy table. Raises `DamagedError` if the file is not as it was written."""
        self.check_file(f"{name}.parquet")
        return self.read(f"{name}.parquet", pl.scan_parquet)

    def check_file(self, name: str) -> None:
        """Raise `DamagedError` unless the file is as it was written."""
        if name in self._checked:
            return
        tables, snapshots = (self.meta.get(one, {}) for one in CHECKSUMS)
        expected = tables.get(name.partition(".")[0]) or snapshots.get(name)
        found = self.read(name, _file_sha256)
        if expected and found != expected:
            raise DamagedError(f"{self.path / name} is damaged (its SHA-256 is not the one in meta.json)")
        self._checked.add(name)

    def check_files(self, tables: Sequence[str]) -> None:
        """Raise `DamagedError` unless all tables, snapshots and models are as they were written."""
        sums, snapshots = (self.meta.get(one, {}) for one in CHECKSUMS)
        models = [f"{name}.safetensors" for name in ("models", "local") if name in sums]
        for name in [*(f"{name}.parquet" for name in tables), *models, *snapshots]:
            self.check_file(name)

    def models(self) -> dict[Pair, Floats]:
        if self._models is None:
            self._models = self._tensors("models.safetensors", _by_pair)
        return self._models

    def local(self) -> dict[Pair, dict[str, np.ndarray]]:
        """Return what devices keep to themselves, by strategy and seed; most models: nothing."""
        return self._tensors("local.safetensors", _local_by_pair)

    def _tensors(self, name: str, sort: Callable[[Mapping[str, np.ndarray]], dict[Pair, T]]) -> dict[Pair, T]:
        if not self.has(name) and name.partition(".")[0] not in self.meta.get("table_sha256", {}):
            return {}
        self.check_file(name)
        return self.read(name, lambda path: sort(read_tensors(path)[0]))

    def snapshots(self, strategy: str, seed: int) -> Mapping[int, Floats]:
        """Return the models (m, n) of single iterations, by iteration. Each file is read when it is needed."""
        return Snapshots(self, file_name(strategy, seed))

    # Writing

    def write_meta(self, meta: Mapping[str, Any]) -> None:
        self._write("meta.json", json.dumps(meta, indent=2).encode() + b"\n")
        self._meta = dict(meta)

    def _write(self, name: str, *content: bytes | memoryview) -> None:
        if self._files is None:
            write_safely(self.path / name, *content)
        else:
            self._files[name] = b"".join(content)

    def begin_session(
        self,
        config: Mapping[str, Any],
        checksums: Mapping[str, Mapping[str, str]],
        *,
        store: Path | None = None,
        began: float | None = None,
        adds_models: bool = False,
        **facts: Any,
    ) -> None:
        """Write that this process works on the run, and its `config` if it is new.

        `checksums` are those of the data and of the input files, and `store` is where the runs of an experiment lie.
        `began` is when the work began, by `time.monotonic`; default: now. With `adds_models`, a run that is complete
        stays so while it is made again for its models.
        """
        self.session_began = time.monotonic() if began is None else began
        about = provenance(time.monotonic() - self.session_began)
        if not self.is_begun:
            if config["data"].get("path") == str((self.path / DATA).absolute()):  # so that the folder can be moved
                config = {**config, "data": {**config["data"], "path": DATA}}
            self._write("config.toml", tomli_w.dumps(config).encode())
        new = {"status": "running", "seeds": config["seeds"], **checksums, **about, "wall_seconds": 0.0}
        known = self.meta if self.has("meta.json") else {**new, "sessions": []}
        if not (adds_models and self.is_complete):
            known = {name: fact for name, fact in known.items() if name not in AT_THE_END} | {"status": "running"}
        session = about | ({"store": str(store.absolute())} if store is not None else {})
        self.write_meta({**known, **facts, "sessions": [*known["sessions"], session]})

    def end_session(self, **facts: Any) -> None:
        """Write how long this process has worked on the run, and `facts`."""
        *earlier, session = self.meta["sessions"]
        session = {**session, "wall_seconds": round(time.monotonic() - self.session_began, 3)}
        total = sum(one.get("wall_seconds", 0.0) for one in [*earlier, session])
        self.write_meta({**self.meta, "wall_seconds": round(total, 3), "sessions": [*earlier, session], **facts})

    def save_snapshot(self, strategy: str, seed: int, k: int, models: np.ndarray) -> None:
        folder = self.path / "snapshots" / file_name(strategy, seed)
        write_tensors(folder / f"{k:012d}.safetensors", {"models": models}, {})

    def remove_unfinished(self) -> None:
        """Remove the checkpoint and the pieces, if that is possible. Call it when the run is complete."""
        with suppress(OSError):
            (self.path / CHECKPOINT).unlink()
        shutil.rmtree(self.path / PIECES, ignore_errors=True)

    def finish_run(
        self, tables: Mapping[str, pl.LazyFrame | pl.DataFrame], final: Final, warnings: Sequence[str], **facts: Any
    ) -> None:
        """Write the tables and final models of a run, and that it is complete, with other `facts`."""
        for name, table in tables.items():
            self._save_table(name, table.lazy())
        for name, tensors in tensors_of(final).items():
            self._write(name, *tensor_content(tensors))
        names = [*(f"{name}.parquet" for name in tables), "models.safetensors", "local.safetensors"]
        checksums = {name.partition(".")[0]: self._sha256(name) for name in names if self.has(name)}
        snapshots = {
            str(file.relative_to(self.path)): _file_sha256(file)
            for file in sorted((self.path / "snapshots").glob("*/*.safetensors"))
        }
        some = {"snapshot_sha256": snapshots, "warnings": list(warnings)}
        some = {name: found for name, found in some.items() if found}
        self.end_session(**completed(), table_sha256=checksums, **some, **facts)
        self.remove_unfinished()

    def _save_table(self, name: str, table: pl.LazyFrame) -> None:
        """Write NAME.parquet. A large table is written in parts, so that it need not fit into memory."""
        target = self.path / f"{name}.parquet"
        if self._files is not None:
            self._files[target.name] = parquet(table.collect())
            return
        try:
            with replacing(target) as temporary:
                if (at_once := _rows_at_once(table)) is None:
                    table.collect().rechunk().write_parquet(temporary)  # the same bytes from whatever pieces
                else:
                    with _reading_little_ahead():
                        table.sink_parquet(temporary, row_group_size=at_once)
        except (OSError, pl.exceptions.ComputeError) as error:
            raise SaveError(f"{target} cannot be written ({getattr(error, 'strerror', None) or error})") from error

    def _sha256(self, name: str) -> str:
        return _file_sha256(self.path / name) if self._files is None else sha256(self._files[name])


def completed() -> dict[str, Any]:
    """Return the facts of a run or an experiment that ends now."""
    return {"finished": datetime.now(UTC).isoformat(timespec="seconds"), "status": "complete"}


def tensors_of(final: Final) -> dict[str, dict[str, np.ndarray]]:
    """Return the tensors of each .safetensors file. The models are last: where they are, all is."""
    own = {
        f"{strategy}/{seed}/{name}": rows for (strategy, seed), (_, of) in final.items() for name, rows in of.items()
    }
    models = {f"{strategy}/{seed}": models for (strategy, seed), (models, _) in final.items()}
    files = {"local.safetensors": own, "models.safetensors": models}
    return {name: tensors for name, tensors in files.items() if tensors}


def parquet(table: pl.DataFrame) -> bytes:
    """Return a table as the content of a Parquet file."""
    buffer = io.BytesIO()
    table.rechunk().write_parquet(buffer)  # the same bytes from whatever chunks
    return buffer.getvalue()


MANY_ENTRIES = 2 * PIECE_ENTRIES
"""Largest number of devices and links in the lists of a table that is written at once."""


@contextmanager
def _reading_little_ahead() -> Iterator[None]:
    """Let polars read one part of a table after the other in the body. By default it reads 128 parts ahead."""
    name = "POLARS_ROW_GROUP_PREFETCH_SIZE"
    before = os.environ.get(name)
    os.environ[name] = before or "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)  # other threads may have been here meanwhile


def _rows_at_once(table: pl.LazyFrame) -> int | None:
    """The number of rows of a large table that should be in memory at a time; None for all."""
    lists = [name for name, kind in table.collect_schema().items() if isinstance(kind, pl.List)]
    entries = pl.sum_horizontal(pl.col(lists).list.len()).sum() if lists else pl.lit(0)
    rows, total = table.select(pl.len(), entries.alias("entries")).collect(engine="streaming").row(0)
    return max(1, rows * PIECE_ENTRIES // total) if total > MANY_ENTRIES else None


class Snapshots(Mapping[int, Floats]):
    """The models of single iterations. Each file is read when its iteration is looked up."""

    def __init__(self, folder: RunFolder, run: str) -> None:
        self._run_folder, self._folder = folder, folder.path / "snapshots" / run
        listed = folder.meta.get("snapshot_sha256", {}) if folder.is_complete else {}
        place = f"snapshots/{run}/"
        found = (file.name for file in self._folder.glob("*.safetensors"))
        names = [name.removeprefix(place) for name in listed if name.startswith(place)] if listed else found
        numbers = {name: name.removesuffix(".safetensors") for name in sorted(names)}
        self._files = {int(number): place + name for name, number in numbers.items() if number.isdecimal()}

    def __getitem__(self, k: int) -> Floats:
        if self._run_folder.is_complete:
            self._run_folder.check_file(self._files[k])
        return self._run_folder.read(self._files[k], lambda path: read_tensors(path)[0]["models"])

    def __repr__(self) -> str:
        return f"<Snapshots of iterations {', '.join(map(str, self)) or 'none'}, in {self._folder}>"

    def __iter__(self) -> Iterator[int]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _by_pair(tensors: Mapping[str, np.ndarray]) -> dict[Pair, Floats]:
    pairs = {name: name.rsplit("/", 1) for name in tensors}
    if odd := [name for name, parts in pairs.items() if len(parts) != 2 or not parts[1].isdecimal()]:
        raise ValueError(f"a tensor is named {odd[0]!r} instead of STRATEGY/SEED")
    return {(pairs[name][0], int(pairs[name][1])): tensor for name, tensor in tensors.items()}


def _local_by_pair(tensors: Mapping[str, np.ndarray]) -> dict[Pair, dict[str, np.ndarray]]:
    local: dict[Pair, dict[str, np.ndarray]] = {}
    for name, rows in tensors.items():
        strategy, seed, buffer = name.split("/", 2)
        local.setdefault((strategy, int(seed)), {})[buffer] = rows
    return local


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


NO_CODE = {"name", "path", "description"}
"""Settings whose text may hold a colon without naming code."""


def named_code(tables: Any, setting: str = "") -> dict[str, str]:
    """Return the settings of a config that name Python code, by the rule of those who load it: a text with a colon."""
    if isinstance(tables, Mapping):
        inner = (named_code(value, f"{setting}.{key}" if setting else key) for key, value in tables.items())
        return {name: code for found in inner for name, code in found.items()}
    if isinstance(tables, list):
        return {name: code for one in tables for name, code in named_code(one, setting).items()}
    is_code = isinstance(tables, str) and ":" in tables and setting.rpartition(".")[2] not in NO_CODE
    return {setting: tables} if is_code else {}
