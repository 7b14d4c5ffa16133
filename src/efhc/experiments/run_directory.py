"""The directory that holds a run. Every file in it is whole or absent, whenever the run is killed.

config.toml          the complete config: `efhc run config.toml` does the same again
meta.json            versions, git state, seeds, machine, times, checksums of the data; status running or complete
metrics.parquet      a row per strategy, seed and iteration
events.parquet       who fired and which links were used, a row per strategy, seed and iteration
network.parquet      the physical links, a row per seed and iteration at which they changed
devices.parquet      bandwidth, samples and labels, a row per seed and device
models.safetensors   the final models, one (m, n) tensor "strategy/seed" each
figures/
checkpoints/         only while the run is unfinished: one file per strategy and seed
"""

from __future__ import annotations

import io
import json
import shutil
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import safetensors
import safetensors.numpy

from efhc.core.errors import EfhcError, InputError
from efhc.core.iteration import State
from efhc.experiments.config import Experiment
from efhc.experiments.config_files import build_experiment, first_difference, to_tables, to_toml
from efhc.experiments.provenance import provenance
from efhc.saving import write_safely
from efhc.simulation.record import Record


class RunDirectory:
    """A run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def start(cls, path: Path, experiment: Experiment, data_sha256: Mapping[str, str], *, resume: bool) -> RunDirectory:
        """A new directory for this experiment, or with `resume` the one that it was begun in."""
        directory = cls(path)
        if not resume and path.exists() and (not path.is_dir() or any(path.iterdir())):
            what = "another run" if (path / "config.toml").exists() else "other files"
            raise InputError(
                "--out", f"{path}, which holds {what}", "a new or empty directory, or --resume to go on with its run"
            )
        if resume and (path / "config.toml").exists():
            directory._check_same(experiment, data_sha256)
        else:
            write_safely(path / "config.toml", to_toml(experiment).encode())
            directory._write_meta(
                {
                    "status": "running",
                    **provenance(),
                    "seeds": experiment.seeds,
                    "data_sha256": dict(data_sha256),
                    "wall_seconds": 0.0,
                }
            )
        return directory

    def _check_same(self, experiment: Experiment, data_sha256: Mapping[str, str]) -> None:
        now = to_tables(experiment)
        before = tomllib.loads((self.path / "config.toml").read_text())
        if difference := first_difference(before, now):
            key, old, new = difference
            raise InputError(
                key,
                f"{new!r} to resume {self.path}",
                f"{old!r}, as that run was begun; a changed run needs another --out",
            )
        if (self.path / "meta.json").exists():
            for name, old in self.meta["data_sha256"].items():
                if data_sha256.get(name) != old:
                    raise InputError(
                        "data", f"a changed {name}", f"the file with SHA-256 {old[:12]}... that the run was begun with"
                    )

    @property
    def meta(self) -> dict[str, Any]:
        """meta.json"""
        meta: dict[str, Any] = json.loads((self.path / "meta.json").read_text())
        return meta

    def _write_meta(self, meta: Mapping[str, Any]) -> None:
        write_safely(self.path / "meta.json", json.dumps(meta, indent=2).encode() + b"\n")

    @property
    def is_complete(self) -> bool:
        """Whether the run has finished."""
        return (self.path / "meta.json").exists() and bool(self.meta["status"] == "complete")

    # Checkpoints

    def _checkpoint(self, strategy: str, seed: int) -> Path:
        return self.path / "checkpoints" / f"{strategy}.seed{seed}.safetensors"

    def save_checkpoint(self, strategy: str, seed: int, state: State, record: Record) -> None:
        """Keep where a strategy and seed has got to."""
        tensors = {"models": state.models, "last_broadcast": state.last_broadcast, **record.to_arrays()}
        content = safetensors.numpy.save({name: np.ascontiguousarray(t) for name, t in tensors.items()})
        write_safely(self._checkpoint(strategy, seed), content)

    def load_checkpoint(self, strategy: str, seed: int) -> tuple[State, Record] | None:
        """Where a strategy and seed had got to."""
        path = self._checkpoint(strategy, seed)
        if not path.exists():
            return None
        try:
            tensors = safetensors.numpy.load(path.read_bytes())
            record = Record.from_arrays(tensors)
            return State(len(record), tensors["models"], tensors["last_broadcast"]), record
        except (safetensors.SafetensorError, KeyError, ValueError) as error:
            raise EfhcError(f"{path} is corrupt ({error}); remove it to do that part of the run again") from error

    # Results

    def save_table(self, name: str, table: pl.DataFrame) -> None:
        """NAME.parquet"""
        buffer = io.BytesIO()
        table.write_parquet(buffer)
        write_safely(self.path / f"{name}.parquet", buffer.getvalue())

    def load_table(self, name: str) -> pl.DataFrame:
        """NAME.parquet"""
        return pl.read_parquet(self.path / f"{name}.parquet")

    def save_models(self, models: Mapping[tuple[str, int], np.ndarray]) -> None:
        """models.safetensors"""
        tensors = {f"{strategy}/{seed}": np.ascontiguousarray(w) for (strategy, seed), w in models.items()}
        write_safely(self.path / "models.safetensors", safetensors.numpy.save(tensors))

    def load_models(self) -> dict[tuple[str, int], np.ndarray]:
        """models.safetensors"""
        tensors = safetensors.numpy.load((self.path / "models.safetensors").read_bytes())
        names = {name: name.rsplit("/", 1) for name in tensors}
        return {(names[name][0], int(names[name][1])): tensor for name, tensor in tensors.items()}

    def load_experiment(self) -> Experiment:
        """config.toml"""
        return build_experiment(tomllib.loads((self.path / "config.toml").read_text()), self.path)

    def finish(self, wall_seconds: float) -> None:
        """Say that all is there, and let go of the checkpoints."""
        finished = datetime.now(UTC).isoformat(timespec="seconds")
        total = self.meta["wall_seconds"] + wall_seconds
        self._write_meta(self.meta | {"status": "complete", "finished": finished, "wall_seconds": round(total, 3)})
        shutil.rmtree(self.path / "checkpoints", ignore_errors=True)

    def pause(self, wall_seconds: float) -> None:
        """Note the time spent by a run that stops before its end."""
        self._write_meta(self.meta | {"wall_seconds": round(self.meta["wall_seconds"] + wall_seconds, 3)})
