"""Which strategies a node can run: those of which a device knows everything."""

from __future__ import annotations

from efhc.base.errors import InputError
from efhc.core.triggers import NormTrigger, Trigger
from efhc.experiments.config.experiment import Experiment
from efhc.strategies.forms import form_of


def own_trigger(experiment: Experiment, strategy: str) -> Trigger:
    """Return the trigger of a strategy. Raises `InputError` if no node can run the strategy."""
    form = form_of(experiment.strategies[strategy], strategy)
    if not form.is_papers or form.parts is None:
        given = "a strategy that changes more than the paper's trigger"
        raise InputError(f"strategies.{strategy}", given, "ef-hc, gt, zt, rg, never, or a trigger of your own")
    trigger: Trigger = form.parts.trigger
    if isinstance(trigger, NormTrigger) and trigger.rho == "mean":
        given = "'mean', which no device knows: it takes the bandwidths of all"
        raise InputError(f"strategies.{strategy}.rho", given, "'nominal'")
    return trigger
