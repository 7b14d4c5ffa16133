"""Runs as tasks of Ray: on the cores of this machine, one process each, or on all machines of a cluster.

A node needs efhc and nothing else. Data and input files are sent with the task, and the files of the run directory are
sent back; followers hear of a run when it has come back. With the same processor and the same packages, a node makes
the tables that this machine would have made, bit for bit; only the version of efhc is checked. What a lost worker or
node was working on is made again elsewhere, from its start; what has come back is kept, whatever happens later.
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
from efhc.experiments.runs.live_file import LIVE, read_live
from efhc.experiments.runs.lockstep_run import evaluated_rows
from efhc.experiments.runs.resources import plan, usable_cores
from efhc.experiments.runs.run import Inputs, Run
from efhc.experiments.runs.store import Progress, RunStore
from efhc.experiments.runs.tables import LOCKSTEP, RUN, driver_of, tables_of
from efhc.learning.data import Dataset

AHEAD = 4
"""Tasks per CPU that Ray knows of at a time: enough to keep all busy, and few enough for results to come in early."""
RETRIES = 20
"""Times that a run is made again because its worker or node was lost. One that ends its worker each time fails."""
PATIENCE = 60.0
"""Seconds without any CPU in the cluster after which the rest is given up."""
REACHED, JOINED = 3.0, 15.0
"""Seconds in which an address must answer, and in which the cluster there must let us in."""
ALLOWED = "auto, for the cluster that `ray start` made this machine a node of, or the host:port of its head"

Made = dict[str, bytes]
"""The files of a run directory, by name."""


@dataclass
class ClusterEngine:
    """Makes runs in the Ray cluster at `address`: "auto" for the one this machine is in, or the head's host:port.

    Default: Ray is started on this machine for the time of the work. `jobs` is the number of cores to use. Default:
    all. After `patience` seconds without any CPU in the cluster the rest is given up; a run that loses its worker
    is made again `retries` times; a cluster must let us in within `joined_within` seconds.
    """

    address: str | None = None
    jobs: int | None = None
    patience: float = PATIENCE
    retries: int = RETRIES
    joined_within: float = JOINED
    _session: Literal["none", "joined", "started"] = field(default="none", init=False, repr=False)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Connect to the cluster once for all calls of `make` in the body."""
        if self.jobs is not None and self.jobs < 1:
            raise InputError("jobs", self.jobs, "at least 1, or nothing for all cores")
        ray = _imported_ray()
        starts = self.address is None and not ray.is_initialized()
        with _started(ray, self.jobs or usable_cores()) if starts else _joined(ray, self.address, self.joined_within):
            self._session = "started" if starts else "joined"
            try:
                yield
            finally:
                self._session = "none"

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
        with self.session() if self._session == "none" else nullcontext():
            ray = _imported_ray()
            at_most = self._cores(runs) if self._session == "started" else self.jobs
            try:
                return _Batch(ray, store, progress, followers, at_most, self.patience, self.retries).make(runs)
            except ray.exceptions.RayError as error:
                raise EfhcError(f"engine: Ray stopped working ({_first_line(error)})") from error

    def _cores(self, runs: list[Run]) -> int:
        """Return the number of cores of this machine for whose runs there is memory."""
        alike: dict[str, Run] = {}
        for run in runs:
            asked = run.experiment
            alike[
                str((id(run.data), driver_of(asked), asked.devices, asked.model, asked.precision, asked.batch_size))
            ] = run
        return min(plan(run.experiment, run.data, self.jobs, len(runs)).runs_at_once for run in alike.values())


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


def _started(ray: Any, cores: int) -> AbstractContextManager[None]:
    return _connected(ray, "local", num_cpus=cores, include_dashboard=False)


@contextmanager
def _joined(ray: Any, address: str | None, within: float) -> Iterator[None]:
    """Join the cluster at an address for the time of the body. Without one, stay in the cluster already joined."""
    if address is None:
        yield
        return
    if ray.is_initialized():
        raise InputError("--address", address, "nothing, in a process that has called ray.init itself")
    _check(address, within)
    with _connected(ray, address):
        yield


@contextmanager
def _connected(ray: Any, address: str, **options: Any) -> Iterator[None]:
    asked_to_end = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(address, **QUIET, **options)
        except Exception as error:  # of many kinds: a folder it cannot write to, no free port, ...
            raise EfhcError(f"engine: Ray cannot be used ({_first_line(error)})") from error
        with suppress(ValueError, TypeError):  # Ray takes this signal for itself, except in a thread
            signal.signal(signal.SIGTERM, asked_to_end)
        yield
    except ClusterGone:
        atexit.unregister(ray.shutdown)  # it would wait for what is gone until Ray ends the process
        raise
    except BaseException:
        ray.shutdown()
        raise
    else:
        ray.shutdown()


def _check(address: str, within: float) -> None:
    """Raise `InputError` unless a cluster at `address` can be joined within `within` seconds.

    Where there is no cluster, Ray waits for minutes and then ends the process, so another process tries first.
    """
    place = _found() if address == "auto" else address
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError("--address", place, ALLOWED)
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHED).close()
    except (OSError, UnicodeError) as error:  # the latter for names that no host can have
        raise InputError("--address", f"{place}, where nothing answers ({error})", ALLOWED) from None

    joining = f"import sys, ray; ray.init(sys.argv[1], log_to_driver=False, logging_level={logging.ERROR})"
    try:
        tried = subprocess.run(
            [sys.executable, "-c", joining, address],
            env=os.environ | {"RAY_NUM_REDIS_GET_RETRIES": "2"},  # of 20, for a cluster that does answer
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError("--address", f"{place}, which does not answer as a cluster does", ALLOWED) from None
    if "InvalidAuthToken" in tried.stderr:
        reason = "which wants its token: set RAY_AUTH_MODE=token, and put the token where Ray looks for it"
        raise InputError("--address", f"{place}, {reason}", ALLOWED)
    if tried.returncode:
        said = tried.stderr.strip().splitlines()
        raise InputError("--address", f"{place}, which cannot be joined ({said[-1] if said else '?'})", ALLOWED)


class ClusterGone(EfhcError):
    """The control process of the Ray cluster has ended: nothing can be asked of it any more."""

    cannot_clean_up = True


def _check_answers(address: str) -> None:
    """Raise `ClusterGone` if nothing listens at the cluster's control address: Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHED).close()
    except OSError as error:
        kept = "the runs that have come back are kept, and the same command makes the others"
        raise ClusterGone(
            f"engine: the Ray cluster at {address} has gone ({error.strerror or error}); {kept}"
        ) from None


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


# On the machine that asks for runs


@dataclass(frozen=True)
class _Batch:
    """Asks the cluster for runs, and keeps those that come back."""

    ray: Any
    store: RunStore
    progress: Progress
    followers: Sequence[FollowerFactory]
    """They hear of a run when it has come back."""
    at_most: int | None
    patience: float
    retries: int
    _sent: dict[Any, Any] = field(default_factory=dict)
    """What tasks share, in Ray's memory, once each."""

    def make(self, runs: list[Run]) -> dict[str, EfhcError]:
        """Make all runs. Returns the errors of those that failed, by key.

        All stop if the user interrupts, or if an error concerns them all.
        """
        waiting, asked = deque(runs), dict[Any, Run]()
        failures: dict[str, EfhcError] = {}
        task = self.ray.remote(num_cpus=1, max_retries=self.retries, retry_exceptions=[SaveError])(make_there)
        idle_since = None
        control, asking = self.ray.get_runtime_context().gcs_address, ThreadPoolExecutor(1, "efhc-ray")
        try:
            while waiting or asked:
                cores = self._cores(asking, control)
                while waiting and len(asked) < min(self.at_most or sys.maxsize, AHEAD * max(1, int(cores))):
                    run = waiting.popleft()
                    asked[task.remote(*self._order(run))] = run
                # Not for long: a signal is heard after the wait, and the cluster changes.
                done, _ = self.ray.wait(list(asked), timeout=0.2)
                for answer in done:
                    if failure := self._keep(asked[answer], answer):
                        failures[asked[answer].key] = failure
                    del asked[answer]
                idle_since = None if cores >= 1 else idle_since or time.monotonic()
                if idle_since and time.monotonic() - idle_since > self.patience:
                    left = len(waiting) + len(asked)
                    raise EfhcError(f"engine: no node is left in the cluster; {left} runs are still to be made")
        except ClusterGone:
            raise
        except BaseException:
            self._stop(asked)
            raise
        finally:
            asking.shutdown(wait=False)
        return failures

    def _cores(self, asking: ThreadPoolExecutor, control: str) -> float:
        """Return the number of CPUs in the cluster. Raises `ClusterGone` if nobody is there to answer."""
        asked = asking.submit(self.ray.cluster_resources)  # Ray would wait for an answer for ever
        while True:
            try:
                return float(asked.result(timeout=1.0).get("CPU", 0))
            except TimeoutError:
                _check_answers(control)

    def _order(self, run: Run) -> tuple[Order, Any, Any]:
        order = Order(run.experiment, run.strategy, run.key, self.store.with_models, __version__)
        # The data set comes along, so the files that it is from need not.
        files = {
            name: file._replace(content=b"") if name.startswith("data.") else file
            for name, file in run.inputs.files.items()
        }
        which = tuple((name, file.sha256) for name, file in files.items())
        return order, self._shared(id(run.data), run.data), self._shared(which, files)

    def _shared(self, which: Any, what: Any) -> Any:
        if which not in self._sent:
            self._sent[which] = self.ray.put(what)
        return self._sent[which]

    def _keep(self, run: Run, answer: Any) -> EfhcError | None:
        """Keep a run that has come back. Returns the error of one that failed."""
        errors = self.ray.exceptions
        try:
            made: Made | Failure = self.ray.get(answer)
        except errors.RayTaskError as error:
            raise error.cause from error
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as error:
            raise EfhcError(
                f"engine: {run.name} lost its worker {self.retries + 1} times, "
                f"for lack of memory perhaps ({_first_line(error)})"
            ) from error
        if isinstance(made, Failure):
            if made.concerns_all:
                raise made.error()
            return made.error()
        self.store.keep(run, made)
        replay_events(run, self.store, self.followers, self.store.warn)
        self.progress(run, 1.0)
        return None

    def _stop(self, asked: dict[Any, Run]) -> None:
        """Keep the runs that are done, and cancel the others: at first so that they can clean up, then by force."""
        with suppress(Exception):  # why we stop is what the user must hear of
            done, unfinished = self.ray.wait(list(asked), num_returns=len(asked), timeout=0)
            for answer in unfinished:
                self.ray.cancel(answer)
            for answer in done:
                with suppress(Exception):
                    self._keep(asked[answer], answer)
            _, left = self.ray.wait(unfinished, num_returns=len(unfinished), timeout=2.0)
            for answer in left:
                self.ray.cancel(answer, force=True)


def replay_events(run: Run, store: RunStore, followers: Sequence[FollowerFactory], warn: Callable[[str], None]) -> None:
    """Emit all evaluations of a run that came back to the store, and its end.

    Its tables have all rows; its live file, which is thinned, only adds the seconds.
    """
    if not followers:
        return
    asked = run.experiment
    first = store.table(run, "network").row(0, named=True)
    links = list(zip(first["link_from"], first["link_to"], strict=True))
    bandwidths = store.table(run, "devices")["bandwidth"].to_list()
    stream = EventStream(run, followers, warn)
    begin = Begin.described(run, 0, asked.model.parameters(run.data), bandwidths, links)
    stream.emit(begin)
    stream.emit(*(Evaluated(time.time(), evaluated_after(row, begin), row) for row in _rows(run, store)))
    stream.emit(Reached(time.time(), asked.iterations))
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


@dataclass(frozen=True)
class Order:
    """What a node needs to make a run. Data and input files are sent beside it, once for many runs."""

    experiment: Experiment
    strategy: str
    key: str
    with_models: bool
    """Whether the final models shall come back, too."""
    version: str
    """The efhc version of the machine that asks."""


@dataclass(frozen=True)
class Failure:
    """An `EfhcError` on its way back: exceptions with arguments of their own cannot be pickled."""

    kind: type[EfhcError]
    text: str
    facts: dict[str, str]
    concerns_all: bool = False
    """Whether no other run can be made either."""

    @classmethod
    def of(cls, error: EfhcError, *, concerns_all: bool = False) -> Failure:
        return cls(type(error), str(error), {name: str(fact) for name, fact in vars(error).items()}, concerns_all)

    def error(self) -> EfhcError:
        """Return the error as it was raised, except that its attributes are texts."""
        error = self.kind.__new__(self.kind, self.text)
        vars(error).update(self.facts)
        return error


def make_there(order: Order, data: Dataset, files: Mapping[str, InputContent]) -> Made | Failure:
    """Make a run in a temporary folder, and return its files, or why it failed. This is the task that nodes execute."""
    import ray

    if order.version != __version__:
        text = f"engine: a node has efhc {__version__}, and not {order.version}; install the same everywhere"
        return Failure.of(EfhcError(text), concerns_all=True)
    run = Run(order.experiment, order.strategy, order.key, Inputs(_writable(data), files), order.experiment)
    with TemporaryDirectory(prefix="efhc-") as folder:
        store = RunStore(Path(folder), with_models=order.with_models)
        try:
            failures = LocalEngine(1).make([run], store, lambda run, share: None)
        except SaveError:  # a full disk on this node: another may have room
            raise
        except EfhcError as error:
            return Failure.of(error, concerns_all=True)
        if failures:
            return Failure.of(failures[run.key])
        out = store.directory(run)
        made = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    meta = json.loads(made["meta.json"]) | {"ray_node": ray.get_runtime_context().get_node_id()}
    return made | {"meta.json": json.dumps(meta, indent=2).encode() + b"\n"}


def _writable(data: Dataset) -> Dataset:
    """Return a copy of the data. Ray's memory is read-only, and loops would be compiled once more for such arrays."""
    arrays: dict[str, Any] = {name: value.copy() for name, value in vars(data).items() if isinstance(value, np.ndarray)}
    return replace(data, **arrays)
