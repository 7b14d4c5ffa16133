"""An experiment made by real node processes on this machine, collected into one ordinary run directory.

`NodesEngine` makes a run as other engines do; but each device is a process of its own, with its own certificate, and
models go over TLS between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from efhc.base.errors import EfhcError, InputError
from efhc.base.extras import require
from efhc.base.inputs import using_inputs
from efhc.drivers.event_driven.settings import EventDriven, LockstepDriver
from efhc.drivers.observers import ObserverFactory
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import build_experiment
from efhc.experiments.nodes.collect import collect_free_running, collect_lockstep
from efhc.experiments.nodes.namespaces import Namespaces
from efhc.experiments.nodes.node_folders import NodeFolders
from efhc.experiments.nodes.own_part import own_form
from efhc.experiments.nodes.processes import Command, NodeFailed, NodeProcesses, free_ports
from efhc.experiments.nodes.status_query import Answer
from efhc.experiments.runs.events import FollowerFactory
from efhc.experiments.runs.experiment_folder import ExperimentFolder
from efhc.experiments.runs.progress import RunProgress
from efhc.experiments.runs.result import Result
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.simulate import simulate
from efhc.experiments.runs.store import Progress, RunStore
from efhc.runtime.node_settings import NodeSettings
from efhc.scenarios.scenario import Scenario

Mode = Literal["lockstep", "free-running"]
View = Callable[[Run, list[Answer]], None]
"""Called with the statuses of all nodes of a run, twice a second."""

LOOK_SECONDS = 0.5
STOP_SECONDS: float = NodeSettings.model_fields["stop_seconds"].default
STARTS = 3
"""Number of starts of a run if another program takes one of its ports meanwhile."""
PORT = 7700
"""Where nodes in namespaces listen: each has an address of its own."""
SAMPLES = 50
"""Number of times that accuracy is measured in a free-running run of given length, unless the experiment sets it."""


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
        The experiment. Its strategies must be of the paper's form. Its setting `log` is not used.
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
    experiment = _for_nodes(experiment, mode, seconds)
    mode = "free-running" if isinstance(experiment.driver, EventDriven) else "lockstep"
    engine = NodesEngine(out.absolute(), mode, netns, keep_nodes, view)
    return simulate(experiment, out=out, resume=resume, engine=engine, jobs=1, progress=progress, warn=warn)


def _for_nodes(experiment: Experiment, mode: Mode | None, seconds: float | None) -> Experiment:
    """Return the experiment with the driver for its run directory, which tells the mode of its nodes.

    It has no trackers: they follow runs that are made in this process.
    """
    experiment = experiment.model_copy(update={"log": ()})
    driver = experiment.driver
    mode = mode or ("free-running" if isinstance(driver, EventDriven) else "lockstep")
    if loss := getattr(driver, "loss", None):
        raise InputError("driver.loss", loss, "no value", "this is for simulations only. Remove it to run real nodes.")
    for name in experiment.strategies:
        own_form(experiment, name, mode)
    if mode == "lockstep":
        if seconds is not None:
            raise InputError(
                "--seconds", f"{seconds:g} with --mode lockstep", "--mode free-running, or leave --seconds out"
            )
        driver = driver if isinstance(driver, LockstepDriver) else LockstepDriver()
        return build_experiment(dict(experiment) | {"driver": driver})
    if not isinstance(driver, EventDriven):
        driver = EventDriven()
        experiment = experiment.model_copy(update={"keep_models_every": None})
    if driver.churn is not None:
        raise InputError(
            "driver.churn", "a value", "no value", "this is for simulations only. Remove it to run real nodes."
        )
    if seconds is not None:
        driver = driver.model_copy(update={"seconds": float(seconds)})
    if driver.sample_seconds is None:
        every = 5.0 if driver.seconds is None else driver.seconds / SAMPLES
        driver = driver.model_copy(update={"sample_seconds": every})
    return build_experiment(dict(experiment) | {"driver": driver})


def mode_in(meta: Mapping[str, Any]) -> Mode | None:
    """Return the mode of the nodes that made a run directory, given its meta.json; None if no nodes made it."""
    return next((mode for mode in get_args(Mode) if meta.get("made_by") == _made_by(mode)), None)


def _made_by(mode: Mode) -> str:
    return f"nodes, {mode}"


@dataclass(frozen=True)
class NodesEngine:
    """Makes runs by node processes, one run after the other."""

    out: Path
    """The run directory. While nodes run, their files are in its folder `nodes`."""
    mode: Mode
    netns: bool = False
    """Whether each device has a network namespace of its own."""
    keep: bool = False
    """Whether the files of the nodes stay when a run is collected."""
    view: View = lambda run, answers: None

    def session(self) -> AbstractContextManager[None]:
        folder = ExperimentFolder(self.out)
        folder.write_meta(folder.meta | {"made_by": _made_by(self.mode), "netns": self.netns})
        return nullcontext()

    def make(
        self,
        runs: list[Run],
        store: RunStore,
        progress: Progress,
        observers: ObserverFactory | None = None,
        followers: Sequence[FollowerFactory] = (),
    ) -> dict[str, EfhcError]:
        if observers is not None:
            raise EfhcError("observers do not see real nodes, which are processes of their own; leave them out")
        if followers:
            raise EfhcError("followers do not see real nodes, which are processes of their own; leave them out")
        for run in runs:
            run.scenarios.expect(run)
        for run in runs:
            with using_inputs(run.inputs.files), store.keeper(run) as keeper:
                if keeper is not None:
                    scenario = run.scenarios.of(run, 1, store.warn)
                    files = NodeFolders(self.out / "nodes", run, scenario, keeper.warn)
                    end = _NodesOfRun(files, run, scenario, progress, self.view).make(self.netns)
                    if files.driver is None:
                        collect_lockstep(run, scenario, files.states, keeper)
                    else:
                        collect_free_running(run, scenario, files.states, keeper, files.sample_seconds, end)
                    if not self.keep:
                        files.remove()
            run.scenarios.release(run)
            progress(run, 1.0)
        return {}


@dataclass(frozen=True)
class _NodesOfRun:
    """The nodes of one run, at work."""

    files: NodeFolders
    run: Run
    scenario: Scenario
    progress: Progress
    view: View

    def make(self, netns: bool) -> float:
        """Run the nodes to their end. Returns the second of the end. Raises `NodeFailed`."""
        for attempt in range(1, STARTS + 1):
            try:
                with self._network(netns) as (addresses, command):
                    self.files.write(addresses)
                    with NodeProcesses(self.files.folders, command) as nodes:
                        return self._watch(nodes)
            except NodeFailed as error:
                if "in use" not in str(error) or attempt == STARTS:
                    raise
        raise AssertionError("unreachable")

    @contextmanager
    def _network(self, netns: bool) -> Iterator[tuple[list[str], Command]]:
        """Where the devices listen, and how a command runs on one of them."""
        devices = range(self.run.experiment.devices)
        if not netns:
            yield [f"127.0.0.1:{port}" for port in free_ports(len(devices))], lambda device, words: words
            return
        bits = 8 * np.dtype(self.run.experiment.precision).itemsize
        rates = {device: float(self.scenario.bandwidths.values[device]) * bits for device in devices}
        with Namespaces(devices, rates) as namespaces:
            addresses = [f"{namespaces.address(device)}:{PORT}" for device in devices]
            yield addresses, lambda device, words: namespaces.command(device, *words)

    def _watch(self, nodes: NodeProcesses) -> float:
        """Wait until the nodes have done their work, and stop them. Returns the second of the end."""
        is_late = self.files.driver is not None
        try:
            while nodes.running:
                time.sleep(LOOK_SECONDS)
                nodes.check()
                answers = nodes.statuses()
                self.view(self.run, answers)
                statuses = [answer.status for answer in answers if answer.status is not None]
                if is_late and len(statuses) == len(answers):
                    is_late = False
                    if self._now > self.files.begin + LOOK_SECONDS:
                        self.files.warn(f"{self.run.name}: the last node was up at second {self._now:.1f} of the run")
                self.progress(self.run, min(self._share(statuses), 0.999))
                if self._is_over(statuses):
                    break
            end = self._now
            nodes.stop(STOP_SECONDS)
        except BaseException:  # a node failed, or the user interrupted: the others keep their state
            with suppress(NodeFailed):
                nodes.stop(STOP_SECONDS)
            raise
        return self._seconds or end

    @property
    def _now(self) -> float:
        return time.time() - self.files.started

    @property
    def _seconds(self) -> float | None:
        """How long free-running nodes train; None if they stop by themselves."""
        return self.files.driver.seconds if self.files.driver else None

    def _share(self, statuses: Sequence[Mapping[str, Any]]) -> float:
        """Return the share of the run that is done."""
        if self._seconds is not None:
            return max(0.0, self._now) / self._seconds
        done = sum(int(status["iteration"]) for status in statuses)
        return done / (self.run.experiment.devices * self.run.experiment.iterations)

    def _is_over(self, statuses: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether to stop the nodes. Nodes in lockstep end by themselves."""
        if self._seconds is not None:
            return self._now >= self._seconds
        finished = [status for status in statuses if status["state"] == "finished" and not status["in_doubt"]]
        return self.files.driver is not None and len(finished) == self.run.experiment.devices
