"""An experiment made by real node processes on this machine, collected into one ordinary run directory.

`NodesEngine` makes a run as other engines do; but each device is a process of its own, with its own certificate, and
models go over TLS between them.
"""

from __future__ import annotations

import math
import shutil
import socket
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tomli_w

from efhc.base.errors import EfhcError, InputError
from efhc.base.extras import require
from efhc.base.inputs import using_inputs
from efhc.core.graph import Graph
from efhc.core.randomness import Randomness
from efhc.core.triggers import NormTrigger
from efhc.drivers.event_driven.compute import draw_compute_times
from efhc.drivers.event_driven.settings import EventDriven, LockstepDriver
from efhc.drivers.observers import ObserverFactory
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import build_experiment, to_tables
from efhc.experiments.nodes.collect import collect_free_running, collect_lockstep
from efhc.experiments.nodes.namespaces import Namespaces
from efhc.experiments.nodes.processes import Command, NodeFailed, NodeProcesses
from efhc.experiments.nodes.status_query import Answer
from efhc.experiments.runs.draw import Scenarios
from efhc.experiments.runs.resources import usable_cores
from efhc.experiments.runs.result import Result
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.simulate import RunProgress, simulate
from efhc.experiments.runs.store import Progress, Store
from efhc.experiments.runs.tables import require_papers_form
from efhc.runtime.security import authority_files, device_files
from efhc.runtime.settings import NodeSettings
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import form_of

Mode = Literal["lockstep", "free-running"]
View = Callable[[Run, list[Answer]], None]
"""Shown how all nodes of a run are, twice a second."""

LOOK_SECONDS = 0.5
MODELS_BYTES = 2_000_000_000
"""Bytes of models up to which nodes in lockstep record each iteration, so that each has a consensus error."""
STARTS = 3
"""How often a run is begun anew if another program has taken one of its ports meanwhile."""
PORT = 7700
"""Where nodes in namespaces listen: each has an address of its own."""
FOR_EVER = 100_000_000
"""Iterations of a node that is stopped by the clock."""
SAMPLES = 50
"""Number of times that accuracy is measured in a free-running run of given length, unless the experiment says more."""


def launch(
    experiment: Experiment,
    out: Path,
    *,
    mode: Mode | None = None,
    seconds: float | None = None,
    netns: bool = False,
    resume: bool = False,
    keep_nodes: bool = False,
    progress: RunProgress = lambda strategy, seed, done: None,
    view: View = lambda run, answers: None,
    warn: Callable[[str], None] = lambda text: None,
) -> Result:
    """Make all runs of an experiment by node processes, one after the other, and collect them in `out`.

    Parameters
    ----------
    experiment
        The experiment. Its strategies must be of the paper's form.
    out
        The run directory. While nodes run, their files are in its folder `nodes`.
    mode
        "lockstep" or "free-running". Default: as the experiment's driver says.
    seconds
        How long free-running nodes train. Default: `driver.seconds`, or until each has made all iterations.
    netns
        Whether each device gets a network namespace, with b_i as the rate of its uplink. Needs root.
    resume
        Go on with what was stopped in `out`.
    keep_nodes
        Keep the folder `nodes`. Default: it is removed when a run is collected, and kept if a node fails.
    progress, warn
        As for `simulate`.
    view
        Called with the run and the answers of its nodes, twice a second.

    Raises `EfhcError` if a setting cannot be used, or if a node fails: the text is the line of that node.

    """
    require("node")
    experiment, mode = _for_nodes(experiment, mode, seconds)
    engine = NodesEngine(out / "nodes", mode, netns, keep_nodes, view, warn)
    return simulate(experiment, out=out, resume=resume, engine=engine, jobs=1, progress=progress, warn=warn)


def _for_nodes(experiment: Experiment, mode: Mode | None, seconds: float | None) -> tuple[Experiment, Mode]:
    """Return the experiment with the driver that its run directory is to name, and the mode of its nodes."""
    driver = experiment.driver
    mode = mode or ("free-running" if isinstance(driver, EventDriven) else "lockstep")
    require_papers_form(experiment, "a node")
    for name, strategy in experiment.strategies.items():
        parts = form_of(strategy, name).parts
        if parts is not None and isinstance(parts.trigger, NormTrigger) and parts.trigger.rho == "mean":
            given = "'mean', which no device knows: it takes the bandwidths of all"
            raise InputError(f"strategies.{name}.rho", given, "'nominal'")
    if mode == "lockstep":
        if seconds is not None:
            raise InputError("--seconds", f"{seconds:g} with --mode lockstep", "no value; or --mode free-running")
        driver = driver if isinstance(driver, LockstepDriver) else LockstepDriver()
        return build_experiment(dict(experiment) | {"driver": driver}), mode
    if not isinstance(driver, EventDriven):
        driver = EventDriven()
        experiment = experiment.model_copy(update={"keep_models_every": None})
    if driver.churn is not None:
        raise InputError("driver.churn", driver.churn.kind, "no value: real devices come and go by themselves")
    if seconds is not None:
        driver = driver.model_copy(update={"seconds": float(seconds)})
    if driver.sample_seconds is None:
        every = 5.0 if driver.seconds is None else driver.seconds / SAMPLES
        driver = driver.model_copy(update={"sample_seconds": every})
    return build_experiment(dict(experiment) | {"driver": driver}), mode


@dataclass(frozen=True)
class NodesEngine:
    """Makes runs by node processes, one run after the other."""

    folder: Path
    """Where the files of the nodes are while they run."""
    mode: Mode
    netns: bool = False
    keep: bool = False
    view: View = lambda run, answers: None
    warn: Callable[[str], None] = lambda text: None

    def session(self) -> AbstractContextManager[None]:
        return nullcontext()

    def make(
        self, runs: list[Run], store: Store, progress: Progress, observers: ObserverFactory | None = None
    ) -> dict[str, EfhcError]:
        if observers is not None:
            raise InputError("observers", "an observer", "none: nodes are processes of their own")
        scenarios = Scenarios(1, runs)
        for run in runs:
            with using_inputs(run.inputs.files), store.keeper(run) as keeper:
                if keeper is not None:
                    scenario = scenarios.of(run)
                    made = _NodesOfRun(self, run, scenario, progress)
                    end = made.make()
                    states = made.states
                    if self.mode == "lockstep":
                        collect_lockstep(run, scenario, states, keeper)
                    else:
                        collect_free_running(run, scenario, states, keeper, made.sample_seconds, end)
                    made.remove()
            scenarios.release(run)
            progress(run, 1.0)
        return {}


@dataclass
class _NodesOfRun:
    """The nodes of one run."""

    engine: NodesEngine
    run: Run
    scenario: Scenario
    progress: Progress
    _started: float = field(default=0.0, init=False)
    """The wall-clock time of second 0."""

    @property
    def folder(self) -> Path:
        return self.engine.folder / f"{self.run.strategy}.seed{self.run.seed}".replace(" ", "-")

    @property
    def folders(self) -> list[Path]:
        return [self.folder / f"device-{device}" for device in range(self.run.experiment.devices)]

    @property
    def states(self) -> list[Path]:
        """The state folders, by device."""
        return [folder / "state" for folder in self.folders]

    @property
    def _driver(self) -> EventDriven | None:
        driver = self.run.experiment.driver
        return driver if isinstance(driver, EventDriven) else None

    @property
    def sample_seconds(self) -> float:
        """How often free-running nodes record their models."""
        return (self._driver.sample_seconds if self._driver else None) or 5.0

    def make(self) -> float:
        """Run the nodes to their end. Returns the second at which it came. Raises `NodeFailed`."""
        for attempt in range(1, STARTS + 1):
            try:
                with self._network() as (addresses, command):
                    self._write_files(addresses)
                    with NodeProcesses(self.folders, command) as nodes:
                        return self._watch(nodes)
            except NodeFailed as error:
                if "in use" not in str(error) or attempt == STARTS:
                    raise
        raise AssertionError("unreachable")

    def remove(self) -> None:
        """Remove the nodes' files, which have been collected."""
        if not self.engine.keep:
            shutil.rmtree(self.folder, ignore_errors=True)
            others = [path for path in self.engine.folder.iterdir() if path.name != "certs"]
            if not others:
                shutil.rmtree(self.engine.folder, ignore_errors=True)

    # Before the start

    @contextmanager
    def _network(self) -> Iterator[tuple[list[str], Command]]:
        """Where the devices listen, and how a command runs on one of them."""
        devices = range(self.run.experiment.devices)
        if not self.engine.netns:
            yield [f"127.0.0.1:{port}" for port in _free_ports(len(devices))], lambda device, words: words
            return
        bits = 8 * np.dtype(self.run.experiment.precision).itemsize
        rates = {device: float(self.scenario.bandwidths.values[device]) * bits for device in devices}
        with Namespaces(devices, rates) as namespaces:
            addresses = [f"{namespaces.address(device)}:{PORT}" for device in devices]
            yield addresses, lambda device, words: namespaces.command(device, *words)

    def _write_files(self, addresses: list[str]) -> None:
        """Write certificates, the experiment and a node file for each device. What nodes have kept stays."""
        from efhc.runtime.certificates import issue, make_authority

        experiment, certs = self.run.experiment, self.engine.folder.absolute() / "certs"
        self.folder.mkdir(parents=True, exist_ok=True)
        if not authority_files(certs).certificate.exists():
            make_authority(certs)
        if missing := [i for i in range(experiment.devices) if not device_files(certs, i).certificate.exists()]:
            issue(certs, missing)
        alone = experiment
        if self._driver is not None and self._driver.seconds is not None:
            alone = experiment.model_copy(update={"iterations": FOR_EVER})
        (self.folder / "experiment.toml").write_text(tomli_w.dumps(to_tables(alone)))
        linked, common = self._linked(), self._settings_of_all()
        paces = self._paces()
        for device, folder in enumerate(self.folders):
            folder.mkdir(exist_ok=True)
            files = device_files(certs, device)
            tables: dict[str, Any] = {
                **common,
                "device": device,
                "listen": addresses[device],
                "neighbours": [{"device": other, "address": addresses[other]} for other in sorted(linked[device])],
                "state": "state",
                "pace": paces[device],
                "tls": {
                    "authority": str(authority_files(certs).certificate),
                    "certificate": str(files.certificate),
                    "key": str(files.key),
                },
            }
            NodeSettings.model_validate(tables)
            (folder / "node.toml").write_text(tomli_w.dumps(tables))

    def _settings_of_all(self) -> dict[str, Any]:
        experiment, driver = self.run.experiment, self._driver
        self._started = self._begun_before() or time.time()
        record: dict[str, Any] = {"start": self._started}
        found: dict[str, Any] = {"experiment": "../experiment.toml", "mode": self.engine.mode, "record": record}
        if driver is None:
            record["models_every"] = self._models_every()
        else:
            if self._started > time.time() - 1:  # nodes begin together, when all of them have had time to start
                record["start"] = self._started = time.time() + 3.0 + 3.0 * experiment.devices / usable_cores()
            record["models_seconds"] = self.sample_seconds
            found["limits"] = {"patience": driver.patience_seconds, "give_up": driver.give_up_seconds}
            if driver.bandwidth == "measured":
                found["bandwidth"] = "measured"
        return found

    def _begun_before(self) -> float | None:
        """Return when the run began, if its nodes have kept a state."""
        if not any(self.folder.glob("device-*/state/checkpoint*.safetensors")):
            return None
        start = tomllib.loads((self.folders[0] / "node.toml").read_text())["record"]["start"]
        return float(start)

    def _models_every(self) -> int:
        """Return how often nodes in lockstep record their models."""
        experiment = self.run.experiment
        numbers = experiment.devices * self.scenario.learner.backend.parameters * experiment.iterations
        if numbers * np.dtype(experiment.precision).itemsize <= MODELS_BYTES:
            return 1
        return math.gcd(experiment.evaluate_every, experiment.keep_models_every or 0)

    def _paces(self) -> list[float]:
        """Return the least seconds per step of each device: those of an event-driven experiment."""
        devices = self.run.experiment.devices
        if self._driver is None:
            return [0.0] * devices
        clock = draw_compute_times(self._driver.compute, devices, Randomness(self.run.seed))
        return [float(clock.seconds(device, 0)) for device in range(devices)]

    def _linked(self) -> list[set[int]]:
        """Return the neighbours of each device: in lockstep those of all iterations, else those of G(0)."""
        network, devices = self.scenario.network, self.run.experiment.devices
        linked: list[set[int]] = [set() for _ in range(devices)]
        previous: Graph | None = None
        for k in range(self.run.experiment.iterations if self._driver is None else 1):
            graph = network.graph(k)
            if graph is not previous:
                for i, j in graph.links.tolist():
                    linked[i].add(j)
                    linked[j].add(i)
            previous = graph
        if self._driver is not None and not network.graph(1).has_links_of(network.graph(0)):
            self.engine.warn(f"{self.run.name}: the network changes, and free-running nodes have the links of G(0)")
        return linked

    # While they run

    def _watch(self, nodes: NodeProcesses) -> float:
        """Wait until the nodes have done their work, and let them end. Returns the second at which that was."""
        stop_seconds = NodeSettings.model_fields["stop_seconds"].default
        try:
            while nodes.running:
                time.sleep(LOOK_SECONDS)
                nodes.check()
                answers = nodes.statuses()
                self.engine.view(self.run, answers)
                statuses = [answer.status for answer in answers if answer.status is not None]
                self.progress(self.run, min(self._share(statuses), 0.999))
                if self._driver is not None and self._is_over(statuses):
                    break
            end = time.time() - self._started
            nodes.stop(stop_seconds)
        except KeyboardInterrupt:
            nodes.stop(stop_seconds)
            raise
        return end if self._driver is None or self._driver.seconds is None else self._driver.seconds

    def _share(self, statuses: list[Mapping[str, Any]]) -> float:
        """Return how much of the run is done."""
        if self._driver is not None and self._driver.seconds is not None:
            return max(0.0, time.time() - self._started) / self._driver.seconds
        done = sum(status["iteration"] for status in statuses)
        return done / (self.run.experiment.devices * self.run.experiment.iterations)

    def _is_over(self, statuses: list[Mapping[str, Any]]) -> bool:
        """Return whether free-running nodes are to stop."""
        assert self._driver is not None
        if self._driver.seconds is not None:
            return time.time() - self._started >= self._driver.seconds
        finished = [status for status in statuses if status["state"] == "finished"]
        return len(finished) == self.run.experiment.devices and not any(status["in_doubt"] for status in finished)


def _free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens on now."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
