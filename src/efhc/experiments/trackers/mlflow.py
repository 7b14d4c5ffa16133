"""MLflow: a server, or a database in the run directory."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from efhc.base.errors import EfhcError
from efhc.base.extras import importing
from efhc.base.inputs import sha256
from efhc.experiments.trackers.tracker import Point, TrackedRun, Tracker

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

DATABASE = "mlflow.db"

STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
AT_ONCE = 1000
"""The most metrics that MLflow takes in one request."""
PARAMETERS_AT_ONCE = 100
WHICH = "efhc.run"
"""The tag by which a run that goes on is found: the hash of its key and directory."""
LONGEST_VALUE = 6000
REACHED_SECONDS = 5.0
"""How long to wait for a server to accept a connection. MLflow itself would try for minutes."""


class MLflow(Tracker):
    """The MLflow server of MLFLOW_TRACKING_URI. Default: DIR/mlflow.db. Needs efhc[mlflow].

    See docs/trackers.md. Telemetry of MLflow is off unless MLFLOW_DISABLE_TELEMETRY is set.
    """

    kind: Literal["mlflow"] = "mlflow"

    def open(self, run: TrackedRun) -> MLflowEntry:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # MLflow reads it when it is imported
        with importing("mlflow"):
            import mlflow
            from mlflow.tracking import MlflowClient
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it logs each table that it creates
        if run.folder is None or mlflow.is_tracking_uri_set():  # type: ignore[no-untyped-call]
            uri = mlflow.get_tracking_uri()
        else:
            uri = f"sqlite:///{(run.folder / DATABASE).absolute()}"
        _check_reachable(uri)
        return MLflowEntry(MlflowClient(tracking_uri=uri), run)


def _check_reachable(uri: str) -> None:
    """Raise `EfhcError` if no server listens there. A server behind a proxy is not checked."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return
    from requests.utils import get_environ_proxies

    if get_environ_proxies(uri):
        return
    host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]
    try:
        socket.create_connection((host, port), timeout=REACHED_SECONDS).close()
    except OSError as error:
        raise EfhcError(f"MLflow at {parts.scheme}://{host}:{port} cannot be reached ({error})") from error


class MLflowEntry:
    """One run in MLflow."""

    def __init__(self, client: MlflowClient, run: TrackedRun) -> None:
        from mlflow.entities import Param

        self._client, self._order = client, run.order
        self._last = float("-inf")
        """Where the points end that MLflow has."""
        experiment = _experiment(client, os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.group)
        directory = str(run.folder.absolute() if run.folder else "")
        which = sha256(f"{run.key} {directory}".encode("utf-8", "surrogateescape"))  # no quotes, for the search
        wanted = f"tags.`{WHICH}` = '{which}'"
        latest_first = ["start_time DESC"]
        found = [] if run.folder is None else client.search_runs([experiment], wanted, order_by=latest_first)
        if run.k > 0 and found:
            self._id = found[0].info.run_id
            client.update_run(self._id, status="RUNNING")
            history = client.get_metric_history(self._id, run.order)
            self._last = max((metric.value for metric in history), default=self._last)
            return
        for killed in found:  # this is the only process in the directory, so they were killed, which MLflow cannot know
            if killed.info.status == "RUNNING":
                client.set_terminated(killed.info.run_id, STATUS["stopped"])
        tags = {WHICH: which, "efhc.key": run.key, "efhc.directory": directory}
        tags |= {"strategy": run.strategy, "seed": str(run.seed), "experiment": run.group}
        self._id = str(client.create_run(experiment, run_name=run.name, tags=tags).info.run_id)
        parameters = [Param(name, str(value)[:LONGEST_VALUE]) for name, value in run.settings.items()]
        for first in range(0, len(parameters), PARAMETERS_AT_ONCE):
            client.log_batch(self._id, params=parameters[first : first + PARAMETERS_AT_ONCE])

    def has(self, point: Point) -> bool:
        return point.values[self._order] <= self._last

    def add(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        per_request = AT_ONCE // max(len(point.values) for point in points)
        for some in (points[first : first + per_request] for first in range(0, len(points), per_request)):
            metrics = [
                Metric(name, value, int(point.at * 1000), point.step)
                for point in some
                for name, value in point.values.items()
            ]
            self._client.log_batch(self._id, metrics=metrics)
            self._last = some[-1].values[self._order]

    def close(self, state: str, problem: str | None) -> None:
        if problem:
            self._client.set_tag(self._id, "efhc.problem", problem)
        self._client.set_terminated(self._id, STATUS[state])


def _experiment(client: MlflowClient, name: str) -> str:
    """Return the id of MLflow's experiment of this name, which is created if it is missing."""
    from mlflow.exceptions import MlflowException

    if (found := client.get_experiment_by_name(name)) is None:
        with suppress(MlflowException):  # another process created it meanwhile
            return str(client.create_experiment(name))
        found = client.get_experiment_by_name(name)
    if found is None or found.lifecycle_stage == "deleted":
        raise EfhcError(f"MLflow has deleted the experiment '{name}'; restore it there, or give yours another name")
    return str(found.experiment_id)
