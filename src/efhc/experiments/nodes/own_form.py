"""Which strategies a node can run: those of which a device knows everything."""

from __future__ import annotations

from efhc.base.errors import InputError
from efhc.core.triggers import NormTrigger
from efhc.experiments.config.experiment import Experiment
from efhc.runtime.settings import Mode
from efhc.strategies.forms import Form, form_of


def own_form(experiment: Experiment, strategy: str, mode: Mode) -> Form:
    """Return the form of a strategy. Raises `InputError` if no node of this mode can run the strategy."""
    field, form = f"strategies.{strategy}", form_of(experiment.strategies[strategy], strategy)
    if (reason := form.off_lockstep()) is not None:
        raise InputError(field, f"a strategy that no node can run: {reason}", "mixing 'exchange' or 'half-steps'")
    assert form.parts is not None
    trigger = form.parts.trigger
    if isinstance(trigger, NormTrigger) and trigger.rho == "mean":
        given = "'mean', which no device knows: it takes the bandwidths of all"
        raise InputError(f"{field}.rho", given, "'nominal'")
    if mode == "lockstep" and not (form.is_papers or form.half_steps):
        given = "mixing 'exchange' with a local step other than SGD, while nodes are in lockstep"
        raise InputError(field, given, "mixing 'half-steps'; or mode = 'free-running'")
    pacing = form.parts.pacing
    if pacing is not None and pacing.bandwidth != "own":
        given = f"'{pacing.bandwidth}', which is a control for simulations"
        raise InputError(f"{field}.pacing.bandwidth", given, "'own'")
    if mode == "lockstep" and (pacing or form.chooses_links):
        given = "a strategy that paces itself by its bandwidth, while nodes in lockstep wait for one another"
        raise InputError(field, given, "mode = 'free-running'; or a strategy without pacing")
    return form
