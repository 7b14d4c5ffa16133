"""What trackers have of runs, read back from their real files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from efhc.experiments.trackers.wandb import offline_records, offline_rows

Rows = list[tuple[int, dict[str, float]]]
"""Step and values of each evaluation, in the order in which they were logged."""


def tensorboard_rows(folder: Path) -> Rows:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return _rows_of({name: events.Scalars(name) for name in events.Tags()["scalars"]})


def mlflow_runs(database: Path) -> tuple[Any, list[Any]]:
    """A client of an MLflow database, and the runs of all its experiments."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{database}")
    return client, client.search_runs([one.experiment_id for one in client.search_experiments()])


def mlflow_rows(client: Any, run: Any) -> Rows:
    return _rows_of({name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics})


def _rows_of(columns: dict[str, list[Any]]) -> Rows:
    """The rows of columns whose values have a step; a step that was logged twice is two rows."""
    rows: dict[tuple[int, int], dict[str, float]] = {}
    for name, values in columns.items():
        seen: dict[int, int] = {}
        for value in values:
            seen[value.step] = seen.get(value.step, 0) + 1
            rows.setdefault((value.step, seen[value.step]), {})[name] = value.value
    return [(step, row) for (step, _), row in sorted(rows.items())]


def finished_wandb_files(folder: Path, *, at_least: int) -> list[Path]:
    """The files of offline runs, in the order of their times. W&B writes the last records just after a run's end."""
    for _ in range(100):
        files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
        if sum(any(record.HasField("exit") for record in offline_records(file)) for file in files) >= at_least:
            return files
        time.sleep(0.1)
    raise AssertionError(f"W&B did not finish {files}")


def wandb_rows(files: list[Path]) -> Rows:
    rows = []
    for row in (row for file in files for row in offline_rows(file)):
        values = {name: value for name, value in row.items() if not name.startswith("_")}
        rows.append((values.pop("iterations"), values))
    return rows
