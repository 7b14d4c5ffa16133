"""From a node file to a running node: the experiment, the device's part of it, its state, its network, its mode."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from efhc import __version__
from efhc.base.errors import EfhcError, InputError
from efhc.base.saving import SaveError
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.config.files import load_experiment
from efhc.experiments.nodes.fingerprint import fingerprint, identity
from efhc.experiments.nodes.own_part import own_form, own_scenario
from efhc.runtime.free_running_exchange import FreeRunningExchange
from efhc.runtime.free_running_half_steps import FreeRunningHalfSteps
from efhc.runtime.lockstep import Lockstep
from efhc.runtime.logs import Log
from efhc.runtime.node import Mode, NodeParts, run_until_stopped
from efhc.runtime.node_settings import Address, Neighbour, NodeSettings
from efhc.runtime.recording import Recorder
from efhc.runtime.security import security_of
from efhc.runtime.sockets import CannotListen, SocketTransport
from efhc.runtime.state.iterations import IterationStore
from efhc.runtime.state.node_store import NodeStore
from efhc.runtime.status import NodeStatus
from efhc.runtime.training import Trainer
from efhc.runtime.wire import ModelFormat
from efhc.strategies.forms import Form

T = TypeVar("T")


class CannotRun(EfhcError):
    """Raised when a node that was given what it needs cannot run, or not any longer. A later start may succeed."""

    exit_code = 4


class Chosen(NamedTuple):
    """The one run of an experiment that a node is part of."""

    experiment: Experiment
    strategy: str
    seed: int
    form: Form


def choose(settings: NodeSettings) -> Chosen:
    """Return the run that a node file asks for. Raises `InputError` if its experiment does not have it."""
    return choose_from(load_experiment(settings.experiment), settings)


def choose_from(experiment: Experiment, settings: NodeSettings) -> Chosen:
    """Return the run of an experiment that a node is part of. Raises `InputError` if there is none such."""
    strategy = _only("strategy", settings.strategy, list(experiment.strategies))
    seed = _only("seed", settings.seed, list(experiment.seeds))
    numbers = [settings.device, *(neighbour.device for neighbour in settings.neighbours)]
    for field, number in zip(["device", *["neighbours"] * len(settings.neighbours)], numbers, strict=True):
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


def run_node(
    settings: NodeSettings, read_neighbours: Callable[[], Sequence[Neighbour]], *, insecure: bool = False
) -> None:
    """Run one node until it is done or stopped. Raises `EfhcError` for problems that the user can solve.

    `read_neighbours` reads the table of neighbours anew, on SIGHUP.
    """
    log = Log(settings.device, level=settings.log)
    chosen = choose(settings)
    security = security_of(settings, insecure=insecure, log=log)
    experiment, is_free = chosen.experiment, settings.mode == "free-running"
    scenario = own_scenario(experiment, chosen.seed, settings.device, settings.data, apart=is_free)
    trainer = Trainer(scenario, settings.device, chosen.form)
    agreed = fingerprint(settings, experiment, chosen.strategy, chosen.seed, trainer.parameters)
    log("fingerprint", level="debug", fingerprint=agreed)
    status = NodeStatus(settings.device, 0, settings.mode, __version__, os.getpid(), iterations=experiment.iterations)
    transport = SocketTransport(
        settings.device,
        Address.of(settings.listen) if settings.listen is not None else None,
        security,
        ModelFormat(trainer.parameters, experiment.precision, settings.wire),
        send_limit=settings.limits.send,
        strangers=settings.limits.strangers,
    )
    precision, belongs = experiment.precision, identity(agreed, settings)
    store: NodeStore | IterationStore
    if is_free:
        store = NodeStore(settings.state, belongs, trainer.parameters, precision, journal=settings.journal)
    else:
        store = IterationStore(settings.state, belongs, trainer.parameters, precision)
    with store:
        recorder = Recorder(settings.state, settings.record, trainer.parameters, trainer.dtype)
        session = secrets.randbits(47)
        parts = NodeParts(settings, trainer, experiment.iterations, session, agreed, status, recorder, log)
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
        return Lockstep(parts, store)
    kind = FreeRunningExchange if parts.trainer.form.half_steps is None else FreeRunningHalfSteps
    return kind(parts, store)
