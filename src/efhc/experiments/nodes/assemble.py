"""From a node file to a running node: the run that it is part of, its samples, its state, its network, its mode."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from efhc.base.arrays import Ints
from efhc.base.errors import EfhcError, InputError, within
from efhc.base.inputs import is_folder, parse_numpy, read_bytes, sha256
from efhc.base.own_code import file_of
from efhc.base.saving import SaveError
from efhc.core.triggers import NormTrigger
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import load_experiment, to_tables
from efhc.experiments.runs.draw import check_weights, draw_parts, draw_scenario, load_data
from efhc.learning.data import Dataset
from efhc.learning.data.dataset import LabelKind
from efhc.learning.data.images import images_by_class
from efhc.runtime.free_running_exchange import FreeRunningExchange
from efhc.runtime.free_running_half_steps import FreeRunningHalfSteps
from efhc.runtime.lockstep import LockstepMode
from efhc.runtime.logs import Log
from efhc.runtime.node import Mode, NodeParts, run_until_stopped
from efhc.runtime.node_messages import WIRE_VERSION
from efhc.runtime.node_settings import Address, Neighbour, NodeSettings
from efhc.runtime.security import security_of
from efhc.runtime.sockets import CannotListen, SocketTransport
from efhc.runtime.state.iterations import IterationStore
from efhc.runtime.state.node_store import NodeStore
from efhc.runtime.training import Trainer
from efhc.runtime.wire import ModelFormat
from efhc.scenarios.personal import personalized
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import Form, form_of

T = TypeVar("T")

LONGEST = 120
"""Characters up to which a fingerprint has a setting whole. Of a longer one, it has the beginning and the checksum."""
ALLOWED = "an .npz file with x (one sample per row), y (labels from 0) and classes (how many there are)"


class CannotRun(EfhcError):
    """Raised when a node that was given what it needs cannot run, or not any longer. A later start may succeed."""

    exit_code = 4


def run_node(
    settings: NodeSettings, read_neighbours: Callable[[], Sequence[Neighbour]], *, insecure: bool = False
) -> None:
    """Run one node until it is done or stopped. Raises `EfhcError` for problems that the user can solve.

    `read_neighbours` reads the table of neighbours anew, on SIGHUP.
    """
    log = Log(settings.device, level=settings.log)
    chosen = choose(load_experiment(settings.experiment), settings)
    security = security_of(settings, insecure=insecure, log=log)
    experiment, is_free = chosen.experiment, settings.mode == "free-running"
    scenario = own_scenario(experiment, chosen.seed, settings.device, settings.data, apart=is_free)
    scenario = personalized(scenario, experiment.strategies[chosen.strategy], chosen.strategy)
    trainer = Trainer(scenario, settings.device, chosen.form)
    parameters, precision = trainer.parameters, experiment.precision
    agreed = fingerprint(settings, chosen, parameters)
    log("fingerprint", level="debug", fingerprint=agreed)
    transport = SocketTransport(
        settings.device,
        Address.of(settings.listen) if settings.listen is not None else None,
        security,
        ModelFormat(parameters, precision, settings.wire),
        send_limit=settings.limits.send,
        strangers=settings.limits.strangers,
    )
    belongs = identity(agreed, settings)
    store: NodeStore | IterationStore
    if is_free:
        store = NodeStore(settings.state, belongs, parameters, precision, journal=settings.journal)
    else:
        store = IterationStore(settings.state, belongs, parameters, precision)
    with store:
        session = secrets.randbits(47)
        parts = NodeParts(settings, trainer, experiment.iterations, session, agreed, log)
        mode = mode_of(parts, store)
        running = run_until_stopped(mode, transport, settings.state, settings.metrics, read_neighbours, log, security)
        try:
            asyncio.run(running)
        except EfhcError as error:
            if isinstance(error, SaveError | CannotListen) or mode.begun.is_set():
                raise CannotRun(str(error)) from error
            raise  # what the state folder holds cannot be used: that does not mend itself


def mode_of(parts: NodeParts, store: NodeStore | IterationStore) -> Mode:
    """Return the mode of a node, by its state folder and link law."""
    if isinstance(store, IterationStore):
        return LockstepMode(parts, store)
    kind = FreeRunningExchange if parts.trainer.form.half_steps is None else FreeRunningHalfSteps
    return kind(parts, store)


# The run that a node is part of


class Chosen(NamedTuple):
    """The one run of an experiment that a node is part of."""

    experiment: Experiment
    strategy: str
    seed: int
    form: Form


def choose(experiment: Experiment, settings: NodeSettings) -> Chosen:
    """Return the run of an experiment that a node is part of. Raises `InputError` if the experiment has none such."""
    strategy = _only("strategy", settings.strategy, list(experiment.strategies))
    seed = _only("seed", settings.seed, list(experiment.seeds))
    numbers = [("device", settings.device), *(("neighbours", neighbour.device) for neighbour in settings.neighbours)]
    for field, number in numbers:
        if number >= experiment.devices:
            raise InputError(field, f"device {number}", f"0 to {experiment.devices - 1}, the experiment's devices")
    form = own_form(experiment, strategy, settings.mode)
    if settings.wire != "exact" and form.half_steps is not None:
        raise InputError("wire", f"'{settings.wire}' with mixing 'half-steps'", "'exact'; the codec says what is sent")
    return Chosen(experiment, strategy, seed, form)


def _only(field: str, given: T | None, known: list[T]) -> T:
    if given is None and len(known) == 1:
        return known[0]
    if given is None or given not in known:
        allowed = f"one of the experiment's: {', '.join(map(str, known))}"
        raise InputError(field, "nothing" if given is None else given, allowed)
    return given


def own_form(experiment: Experiment, strategy: str, mode: str) -> Form:
    """Return the form of a strategy. Raises `InputError` if no node of this mode can run the strategy."""
    field, form = f"strategies.{strategy}", form_of(experiment.strategies[strategy], strategy)
    if (reason := form.off_lockstep()) is not None:
        raise InputError(field, f"a strategy that no node can run: {reason}", "mixing 'exchange' or 'half-steps'")
    assert form.parts is not None
    trigger, pacing = form.parts.trigger, form.parts.pacing
    if isinstance(trigger, NormTrigger) and trigger.rho == "mean":
        given = "'mean', which no device knows: it takes the bandwidths of all"
        raise InputError(f"{field}.rho", given, "'nominal'")
    if mode == "lockstep" and not (form.is_papers or form.half_steps):
        given = "mixing 'exchange' with a local step other than SGD, while nodes are in lockstep"
        raise InputError(field, given, "mixing 'half-steps'; or mode = 'free-running'")
    if pacing is not None and pacing.bandwidth != "own":
        given = f"'{pacing.bandwidth}', which is a control for simulations"
        raise InputError(f"{field}.pacing.bandwidth", given, "'own'")
    if mode == "lockstep" and (pacing or form.chooses_links):
        given = "a strategy that paces itself by its bandwidth, while nodes in lockstep wait for one another"
        raise InputError(field, given, "mode = 'free-running'; or a strategy without pacing")
    return form


# What nodes agree on


def fingerprint(settings: NodeSettings, chosen: Chosen, parameters: int) -> dict[str, str]:
    """Return what both ends of a link must agree on, as short texts by name.

    Nodes in lockstep must agree on more, since they share each iteration.
    """
    experiment = chosen.experiment
    try:
        tables = to_tables(experiment)
    except EfhcError as error:
        raise EfhcError(f"{settings.experiment}: {error}") from None
    agreed = {
        "wire version": str(WIRE_VERSION),
        "mode": settings.mode,
        "devices": str(experiment.devices),
        "seed": str(chosen.seed),
        "model": _shown(tables["model"]),
        "parameters": str(parameters),
        "precision": experiment.precision,
        "wire": settings.wire,
        "strategy": _shown(tables["strategies"][chosen.strategy]),
        "step_size": _shown(tables["step_size"]),
        "threshold_decay": _shown(tables.get("threshold_decay", tables["step_size"])),
    }
    if settings.mode == "lockstep":
        agreed |= {
            "iterations": str(experiment.iterations),
            "network": _shown(tables["network"]),
            "bandwidths": _shown(tables["bandwidths"]),
            "exchange_at_start": str(experiment.exchange_at_start),
            "checkpoint_every": str(settings.checkpoint_every),
        }
    return agreed


def identity(agreed: dict[str, str], settings: NodeSettings) -> dict[str, str]:
    """Return what a state folder belongs to: what nodes agree on, and the number of the device."""
    changeable = {"wire version", "wire", "checkpoint_every"}
    return {name: value for name, value in agreed.items() if name not in changeable} | {"device": str(settings.device)}


def _shown(setting: Any) -> str:
    text = json.dumps(_without_places(setting), sort_keys=True)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 15]}... {sha256(text.encode())[:10]}"


def _without_places(setting: Any) -> Any:
    """Return a setting with the checksum of each file in place of its folder, which differs between machines."""
    if isinstance(setting, dict):
        return {key: _without_places(value) for key, value in setting.items()}
    if isinstance(setting, list):
        return [_without_places(value) for value in setting]
    if isinstance(setting, str):
        if file := file_of(setting):
            return f"{file.name}:{setting.rpartition(':')[2]} {sha256(read_bytes(file))[:10]}"
        if (file := Path(setting)).is_absolute() and file.is_file():
            return f"{file.name} {sha256(read_bytes(file))[:10]}"
    return setting


# The samples of one device


def own_scenario(experiment: Experiment, seed: int, device: int, data: Path | None, *, apart: bool) -> Scenario:
    """Return a scenario that knows the samples of one device only; everything else is that of the whole experiment.

    `data` is the device's own file or folder. Default: its part of the experiment's data. `apart` says that the device
    steps on its own clock. Raises `InputError` if the samples cannot be used.
    """
    if data is None:
        whole = load_data(experiment)
        samples = draw_parts(experiment, whole, seed)[device]
        # Classes, shape and scale stay those of the whole, so the model has the same parameters. A node tests nothing.
        own = replace(
            whole,
            x_train=whole.x_train[samples],
            y_train=whole.y_train[samples],
            x_test=whole.x_test[:1].copy(),
            y_test=whole.y_test[:1].copy(),
            groups=None,
            test_groups=None,
            class_names=whole.label_names,
            label_counts=whole.counts_of_labels() if whole.classes else None,
        )
    else:
        if getattr(experiment.model, "class_weights", None) == "balanced":
            given = f"'balanced' with {data}, which has the labels of one device only"
            raise InputError("model.class_weights", given, "a list of weights, one per class, the same on all devices")
        with within("data"):
            own = _read_own(data, experiment)
    # Nothing reads the parts of other devices here, and theirs are not to be held.
    own_samples: Ints = np.arange(len(own.y_train))
    scenario = draw_scenario(
        experiment, own, seed, parts=[own_samples] * experiment.devices, devices_apart=apart, is_of_one_device=True
    )
    check_weights(scenario.network, "nodes")
    return scenario


def _read_own(path: Path, experiment: Experiment) -> Dataset:
    """Return the samples of a device's own .npz file or folder of images, scaled as the experiment's data would be.

    With `standardize = true` each device scales by its own mean and standard deviation; to have the same scale on all
    devices, give both in the experiment's `data.standardize`.
    """
    standardize, precision = getattr(experiment.data, "standardize", False), experiment.precision
    label_kind: LabelKind = getattr(experiment.data, "label_kind", "class")
    if is_folder(path):
        x, y, names = images_by_class(path)
        unit = 255.0
    else:
        file = parse_numpy(read_bytes(path, "data"), path, ALLOWED)
        is_number = label_kind == "number"
        if missing := [name for name in ("x", "y", *(() if is_number else ("classes",))) if name not in file]:
            raise InputError("data", f"{path} without {missing[0]}", ALLOWED)
        x, y, unit = file["x"], file["y"], 255.0 if file["x"].dtype == np.uint8 else 1.0
        classes = np.array(0) if is_number else file["classes"]
        if classes.shape != () or classes.dtype.kind not in "iu" or classes < (not is_number):
            raise InputError("data", f"{path} with classes that are not one whole number", ALLOWED)
        names = tuple(map(str, range(int(classes))))
    data = Dataset(x, y, x[:1], y[:1], name=path.name, class_names=names, label_kind=label_kind)
    data = data.prepared(standardize, precision, unit=unit)
    if data.classes > len(names):
        raise InputError("data", f"label {data.classes - 1} in {path}", f"labels 0 to {len(names) - 1}")
    return data
