"""An experiment made by real node processes on this machine, collected into one ordinary run directory.

`NodesEngine` makes a run as other engines do; but each device is a process of its own, with its own certificate, and
models go over TLS between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from efhc.base.errors import EfhcError, InputError
from efhc.base.extras import require
from efhc.base.inputs import using_inputs
from efhc.drivers.observers import ObserverFactory
from efhc.drivers.settings import EventDriven, LockstepDriver
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import build_experiment
from efhc.experiments.nodes.assemble import own_form
from efhc.experiments.nodes.collect import collect
from efhc.experiments.nodes.nodes_of_run import NodesOfRun
from efhc.experiments.nodes.status_query import Answer
from efhc.experiments.runs.events import FollowerFactory
from efhc.experiments.runs.experiment_folder import ExperimentFolder
from efhc.experiments.runs.progress import RunProgress
from efhc.experiments.runs.result import Result
from efhc.experiments.runs.run import Run
from efhc.experiments.runs.simulate import simulate
from efhc.experiments.runs.store import Progress, RunStore
from efhc.runtime.node_settings import Mode

View = Callable[[Run, list[Answer]], None]
"""Called with the statuses of all nodes of a run, twice a second."""

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
    """Return the experiment with the driver for its run directory, whose kind is the mode of its nodes.

    It has no trackers: they follow runs that are made in this process.
    """
    driver, changes = experiment.driver, dict[str, Any](log=())
    mode = mode or ("free-running" if isinstance(driver, EventDriven) else "lockstep")
    for name in ("loss",) if mode == "lockstep" else ("loss", "churn"):
        if given := getattr(driver, name, None):
            problem = "this is for simulations only. Remove it to run real nodes."
            raise InputError(f"driver.{name}", given, "no value", problem)
    if experiment.early_stopping is not None:
        problem = "no node knows how good all models are. Remove it to run real nodes."
        raise InputError("early_stopping", experiment.early_stopping, "no value", problem)
    for name in experiment.strategies:
        own_form(experiment, name, mode)
    if mode == "lockstep":
        if seconds is not None:
            given = f"{seconds:g} with --mode lockstep"
            raise InputError("--seconds", given, "--mode free-running, or leave --seconds out")
        driver = driver if isinstance(driver, LockstepDriver) else LockstepDriver()
    else:
        if not isinstance(driver, EventDriven):
            driver, changes["keep_models_every"] = EventDriven(), None
        if seconds is not None:
            driver = driver.model_copy(update={"seconds": float(seconds)})
        if driver.sample_seconds is None:
            every = 5.0 if driver.seconds is None else driver.seconds / SAMPLES
            driver = driver.model_copy(update={"sample_seconds": every})
    return build_experiment(dict(experiment) | changes | {"driver": driver})


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
    netns: bool
    """Whether each device has a network namespace of its own."""
    keep: bool
    """Whether the files of the nodes stay when a run is collected."""
    view: View

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
        if observers is not None or followers:
            raise EfhcError("observers and followers do not see real nodes, which are other processes; leave them out")
        for run in runs:
            run.scenarios.expect(run)
        for run in runs:
            with using_inputs(run.inputs.files), store.keeper(run) as keeper:
                if keeper is not None:
                    scenario = run.scenarios.of(run, 1, store.warn)
                    nodes = NodesOfRun(self.out / "nodes", run, scenario, keeper.warn)
                    end = nodes.make(self.netns, partial(progress, run), partial(self.view, run))
                    collect(run, scenario, nodes.states, keeper, end)
                    if not self.keep:
                        nodes.remove()
            run.scenarios.release(run)
            progress(run, 1.0)
        return {}
