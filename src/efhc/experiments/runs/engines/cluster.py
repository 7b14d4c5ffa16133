"""Runs as tasks of Ray: on the cores of this machine, one process each, or on all machines of a cluster.

A node needs efhc and nothing else. Data and input files are sent with the task, and the files of the run directory are
sent back; followers get the events of a run when it has come back. With the same processor and the same packages, a
node makes the tables that this machine would have made, bit for bit; only the version of efhc is checked. What a lost
worker or node was working on is made again elsewhere, from its start; what has come back is kept, whatever happens
later.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from efhc import __version__
from efhc.base.errors import EfhcError, InputError
from efhc.base.extras import importing
from efhc.base.inputs import InputContent
from efhc.base.saving import SaveError
from efhc.drivers.observers import ObserverFactory
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.events import Begin, Evaluated, EventStream, FollowerFactory, Reached, Row, evaluated_after
from efhc.experiments.runs.keeping import FAILURES
from efhc.experiments.runs.live_file import LIVE, read_live
from efhc.experiments.runs.lockstep_run import evaluated_rows
from efhc.experiments.runs.resources import plan, usable_cores
from efhc.experiments.runs.run import Inputs, Run
from efhc.experiments.runs.store import Progress, RunStore
from efhc.experiments.runs.tables import LOCKSTEP, RUN, tables_of
from efhc.learning.data import Dataset
from efhc.runtime.node_settings import Address
from efhc.scenarios.personal import parameter_counts

AHEAD = 4
"""Tasks per CPU that Ray knows of at a time: enough to keep all busy, and few enough for results to come in early."""
RETRIES = 20
"""Times that a run is made again because its worker or node was lost. One that ends its worker each time fails."""
IDLE_SECONDS = 60.0
"""Seconds without any CPU in the cluster after which the rest is given up."""
CONNECT_SECONDS, JOIN_SECONDS = 3.0, 15.0
"""Seconds in which an address must answer, and in which the cluster there must let us in."""
ALLOWED = "auto, for the cluster that `ray start` made this machine a node of, or the host:port of its head"

Made = dict[str, bytes]
"""The files of a run directory, by name."""


@dataclass
class ClusterEngine:
    """Makes runs in the Ray cluster at `address`: "auto" for the one this machine is in, or the head's host:port.

    Default: Ray is started on this machine for the time of the work. `jobs` is the number of cores to use. Default:
    all.
    """

    address: str | None = None
    jobs: int | None = None
    _session: Literal["none", "joined", "started"] = field(default="none", init=False, repr=False)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Connect to the cluster once for all calls of `make` in the body."""
        if self._session != "none":
            yield
            return
        if self.jobs is not None and self.jobs < 1:
            raise InputError("jobs", self.jobs, "at least 1, or nothing for all cores")
        ray = _imported_ray()
        starts = self.address is None and not ray.is_initialized()
        with self._connection(ray):
            self._session = "started" if starts else "joined"
            try:
                yield
            finally:
                self._session = "none"

    def _connection(self, ray: Any) -> AbstractContextManager[None]:
        """Return what connects to the cluster for the time of the body."""
        if self.address is None:
            if ray.is_initialized():  # the process has joined a cluster itself
                return nullcontext()
            return _connected(ray, "local", num_cpus=self.jobs or usable_cores(), include_dashboard=False)
        if ray.is_initialized():
            raise InputError("--address", self.address, "nothing, in a process that has called ray.init itself")
        _check_joinable(self.address)
        return _connected(ray, self.address)

    def make(
        self,
        runs: list[Run],
        store: RunStore,
        progress: Progress,
        observers: ObserverFactory | None = None,
        followers: Sequence[FollowerFactory] = (),
    ) -> dict[str, EfhcError]:
        if observers is not None:
            raise InputError("--engine", "ray for a run that is watched", "local, where observers see the runs")
        if store.path is None:
            raise InputError("engine", "ray for a result in memory", "an `out` directory, where results come in")
        with self.session():
            ray, at_most = _imported_ray(), self.jobs
            if self._session == "started":  # as many as there is memory for on this machine
                wholes = {id(run.whole): run for run in runs}.values()
                at_most = min(plan(run.whole, run.data, self.jobs, len(runs)).runs_at_once for run in wholes)
            try:
                return _Batch(ray, store, progress, followers, at_most).make(runs)
            except ray.exceptions.RayError as error:
                raise EfhcError(f"engine: Ray stopped working ({_first_line(error)})") from error


# Ray


def _imported_ray() -> Any:
    os.environ.update(SETTINGS)
    with importing("cluster"):
        import ray
    return ray


SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anyone
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # nor printed here: pages of logs whenever a node is lost
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # tasks see the GPUs; left out, some versions warn
}
QUIET = {"log_to_driver": False, "logging_level": logging.ERROR}


@contextmanager
def _connected(ray: Any, address: str, **options: Any) -> Iterator[None]:
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(address, **QUIET, **options)
        except Exception as error:  # of many kinds: a folder it cannot write to, no free port, ...
            raise EfhcError(f"engine: Ray cannot be used ({_first_line(error)})") from error
        with suppress(ValueError, TypeError):  # Ray takes this signal for itself, except in a thread
            signal.signal(signal.SIGTERM, on_sigterm)
        yield
    except ClusterGone:
        atexit.unregister(ray.shutdown)  # it would wait for what is gone until Ray ends the process
        raise
    except BaseException:
        ray.shutdown()
        raise
    else:
        ray.shutdown()


def _check_joinable(address: str) -> None:
    """Raise `InputError` unless a cluster at `address` can be joined within `JOIN_SECONDS`.

    Where there is no cluster, Ray waits for minutes and then ends the process, so another process tries first.
    """
    place = _found() if address == "auto" else address
    try:
        _connect(place)
    except OSError as error:
        raise InputError("--address", f"{place}, where nothing answers ({error})", ALLOWED) from None
    except ValueError:
        raise InputError("--address", place, ALLOWED) from None
    joining = f"import sys, ray; ray.init(sys.argv[1], log_to_driver=False, logging_level={logging.ERROR})"
    try:
        tried = subprocess.run(
            [sys.executable, "-c", joining, address],
            env=os.environ | {"RAY_NUM_REDIS_GET_RETRIES": "2"},  # of 20, for a cluster that does answer
            capture_output=True,
            text=True,
            timeout=JOIN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError("--address", f"{place}, which does not answer as a cluster does", ALLOWED) from None
    if "InvalidAuthToken" in tried.stderr:
        reason = "which wants its token: set RAY_AUTH_MODE=token, and put the token where Ray looks for it"
        raise InputError("--address", f"{place}, {reason}", ALLOWED)
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or ["?"])[-1]
        raise InputError("--address", f"{place}, which cannot be joined ({last})", ALLOWED)


def _connect(place: str) -> None:
    """Raise `OSError` unless something listens at host:port, `ValueError` if the text is none."""
    address = Address.of(place)
    if not address.port:
        raise ValueError("a port from 1 to 65535")
    socket.create_connection(address, CONNECT_SECONDS).close()


class ClusterGone(EfhcError):
    """The control process of the Ray cluster has ended: it answers no more requests."""

    cannot_clean_up = True


def _found() -> str:
    """Return the address of the cluster that this machine is a node of. Raises `InputError` if it is in none.

    Ray itself would join any cluster that has a process on this machine, even a short-lived one of another user.
    """
    if named := os.environ.get("RAY_ADDRESS"):
        return named
    folder = os.environ.get("RAY_TMPDIR") or (sys.platform != "darwin" and os.environ.get("TMPDIR")) or "/tmp"
    try:
        return (Path(folder) / "ray" / "ray_current_cluster").read_text().strip()
    except OSError:
        raise InputError("--address", "auto on a machine that is in no cluster", ALLOWED) from None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


# On the machine that wants the runs


@dataclass(frozen=True)
class _Batch:
    """Sends runs to the cluster as tasks, and keeps those that come back."""

    ray: Any
    store: RunStore
    progress: Progress
    followers: Sequence[FollowerFactory]
    """They get the events of a run when it has come back."""
    at_most: int | None
    """The largest number of tasks at a time."""
    _sent: dict[Any, Any] = field(default_factory=dict)
    """What tasks share, in Ray's memory, once each."""

    def make(self, runs: list[Run]) -> dict[str, EfhcError]:
        """Make all runs. Returns the errors of those that failed, by key.

        All stop if the user interrupts, or if an error concerns them all.
        """
        waiting, running = deque(runs), dict[Any, Run]()
        failures: dict[str, EfhcError] = {}
        options = {"num_cpus": 1, "max_retries": RETRIES, "retry_exceptions": [SaveError]}
        task, idle_since = self.ray.remote(**options)(make_there), None
        queries = ThreadPoolExecutor(1, "efhc-ray")
        try:
            while waiting or running:
                cores = self._cores(queries)
                while waiting and len(running) < min(self.at_most or sys.maxsize, AHEAD * max(1, int(cores))):
                    run = waiting.popleft()
                    running[task.remote(*self._arguments(run))] = run
                # Not for long: a signal is handled after the wait, and the cluster changes.
                done, _ = self.ray.wait(list(running), timeout=0.2)
                for answer in done:
                    if failure := self._keep(running[answer], answer):
                        failures[running[answer].key] = failure
                    del running[answer]
                idle_since = None if cores >= 1 else idle_since or time.monotonic()
                if idle_since and time.monotonic() - idle_since > IDLE_SECONDS:
                    left = len(waiting) + len(running)
                    raise EfhcError(f"engine: no node is left in the cluster; {left} runs are still to be made")
        except ClusterGone:
            raise
        except BaseException:
            self._stop(running)
            raise
        finally:
            queries.shutdown(wait=False)
        return failures

    def _cores(self, queries: ThreadPoolExecutor) -> float:
        """Return the number of CPUs in the cluster. Raises `ClusterGone` if its control process does not answer."""
        query = queries.submit(self.ray.cluster_resources)  # Ray would wait for an answer for ever
        while True:
            try:
                return float(query.result(timeout=1.0).get("CPU", 0))
            except TimeoutError:
                address = self.ray.get_runtime_context().gcs_address
            try:
                _connect(address)
            except OSError as error:
                kept = "the runs that have come back are kept, and the same command makes the others"
                reason = error.strerror or error
                raise ClusterGone(f"engine: the Ray cluster at {address} has gone ({reason}); {kept}") from None

    def _arguments(self, run: Run) -> tuple[Any, ...]:
        """Return the arguments of `make_there`."""
        # The data set comes along, so the files that it is from need not.
        files = {
            name: file._replace(content=b"") if name.startswith("data.") else file
            for name, file in run.inputs.files.items()
        }
        which = tuple((name, file.sha256) for name, file in files.items())
        shared = self._shared(id(run.data), run.data), self._shared(which, files)
        return __version__, run.experiment, run.strategy, run.key, self.store.with_models, *shared

    def _shared(self, which: Any, what: Any) -> Any:
        if which not in self._sent:
            self._sent[which] = self.ray.put(what)
        return self._sent[which]

    def _keep(self, run: Run, answer: Any) -> EfhcError | None:
        """Keep a run that has come back. Returns the error of one that failed, and raises one that concerns all."""
        errors = self.ray.exceptions
        try:
            made: Made | EfhcError = self.ray.get(answer)
        except errors.RayTaskError as error:
            raise error.cause from error
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as error:
            raise EfhcError(
                f"engine: {run.name} lost its worker {RETRIES + 1} times, "
                f"for lack of memory perhaps ({_first_line(error)})"
            ) from error
        if isinstance(made, FAILURES):
            return made
        if isinstance(made, EfhcError):
            raise made
        self.store.keep(run, made)
        replay_events(run, self.store, self.followers, self.store.warn)
        self.progress(run, 1.0)
        return None

    def _stop(self, running: dict[Any, Run]) -> None:
        """Keep the runs that are done, and cancel the others: at first so that they can clean up, then by force."""
        with suppress(Exception):  # the user must learn why all stop, and not of this
            done, unfinished = self.ray.wait(list(running), num_returns=len(running), timeout=0)
            for answer in unfinished:
                self.ray.cancel(answer)
            for answer in done:
                with suppress(Exception):
                    self._keep(running[answer], answer)
            _, left = self.ray.wait(unfinished, num_returns=len(unfinished), timeout=2.0)
            for answer in left:
                self.ray.cancel(answer, force=True)


def replay_events(run: Run, store: RunStore, followers: Sequence[FollowerFactory], warn: Callable[[str], None]) -> None:
    """Emit all evaluations of a run that came back to the store, and its end.

    Its tables have all rows; its live file, which is thinned, only adds the seconds.
    """
    if not followers:
        return
    experiment = run.experiment
    first = store.table(run, "network").row(0, named=True)
    links = list(zip(first["link_from"], first["link_to"], strict=True))
    bandwidths = store.table(run, "devices")["bandwidth"].to_list()
    stream = EventStream(run, warn)
    stream.follow(followers)
    counts = experiment.model.parameters(run.data), 0
    if getattr(run.whole.strategies[run.strategy], "personal", None) is not None:
        run.scenarios.expect(run)
        counts = parameter_counts(run.scenarios.of(run))
        run.scenarios.release(run)
    begin = Begin.described(run, 0, counts, bandwidths, links)
    stream.emit(begin)
    stream.emit(*(Evaluated(time.time(), evaluated_after(row, begin), row) for row in _rows(run, store)))
    stream.emit(Reached(time.time(), experiment.iterations))
    stream.end("done", None)


def _rows(run: Run, store: RunStore) -> list[Row]:
    """Return the evaluated rows. Those that the live file lacks have no `seconds`."""
    tables = tables_of(run.experiment)
    table = store.table(run, tables.curve).drop(*RUN)
    if tables is not LOCKSTEP:
        return list(table.iter_rows(named=True))
    live = read_live(store.directory(run) / LIVE)
    seconds = {one.row.get("iteration"): one.row.get("seconds") for one in live.rows} if live else {}
    return [{**row, "seconds": seconds.get(row["iteration"])} for row in evaluated_rows(table.lazy())]


# On the machine that makes a run


def make_there(
    version: str,
    experiment: Experiment,
    strategy: str,
    key: str,
    with_models: bool,
    data: Dataset,
    files: Mapping[str, InputContent],
) -> Made | EfhcError:
    """Make a run in a temporary folder, and return its files, or why it failed. This is the task that nodes execute.

    `version` is the efhc version of the machine that wants the run, and `with_models` says whether the final models
    come back, too. Ray has data and input files once for many runs.
    """
    import ray

    if version != __version__:
        return EfhcError(f"engine: a node has efhc {__version__}, and not {version}; install the same everywhere")
    run = Run(experiment, strategy, key, Inputs(_writable(data), files), experiment)
    with TemporaryDirectory(prefix="efhc-") as folder:
        store = RunStore(Path(folder), with_models=with_models)
        try:
            if failures := LocalEngine(1).make([run], store, lambda run, share: None):
                return failures[run.key]
        except SaveError:  # a full disk on this node: another may have room
            raise
        except EfhcError as error:
            return error
        out = store.directory(run)
        made = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    meta = json.loads(made["meta.json"]) | {"ray_node": ray.get_runtime_context().get_node_id()}
    return made | {"meta.json": json.dumps(meta, indent=2).encode() + b"\n"}


def _writable(data: Dataset) -> Dataset:
    """Return a copy of the data. Ray's memory is read-only, and loops would be compiled once more for such arrays."""
    arrays: dict[str, Any] = {name: value.copy() for name, value in vars(data).items() if isinstance(value, np.ndarray)}
    return replace(data, **arrays)
