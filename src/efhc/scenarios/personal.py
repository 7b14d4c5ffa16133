"""A scenario as a strategy with personal models sees it: the models of all devices are what they share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from efhc.base.arrays import Floats
from efhc.base.errors import InputError, within
from efhc.base.own_code import quoting
from efhc.core.local_steps import SGD
from efhc.core.personal import Ditto, FineTuned, SharedParameters
from efhc.learning.backends.personal import (
    DittoBackend,
    FineTunedBackend,
    PersonalBackend,
    SharedBackend,
    WholeModels,
    shared_columns,
)
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import form_of


def parameter_counts(scenario: Scenario) -> tuple[int, int]:
    """Return the numbers of parameters that each device shares, and of those that it trains and keeps to itself."""
    backend = scenario.learner.backend
    return backend.parameters, backend.personal_parameters if isinstance(backend, PersonalBackend) else 0


def personalized(scenario: Scenario, strategy: Any, name: str) -> Scenario:
    """Return the scenario of a strategy, whose name in its experiment is `name`.

    The draws are those of the given scenario, which is returned itself if there are no personal models. Raises
    `InputError` if the settings of personal models do not fit the model.
    """
    personal = getattr(strategy, "personal", None)
    if personal is None:
        return scenario
    parts = form_of(strategy, name).parts
    local = SGD() if parts is None else parts.local
    base = WholeModels(scenario.learner, local, scenario.step_size, scenario.initial_models, scenario.initial_model)
    with within(f"strategies.{name}.personal"), quoting(personal, "kind"):
        backend = _backend_for(personal, base)

    def initial_models() -> Floats:
        return backend.shared(scenario.initial_models())

    def initial_model(device: int) -> Floats:
        return backend.shared(scenario.initial_model(device))

    return replace(
        scenario,
        learner=scenario.learner.with_backend(backend),
        initial_models=initial_models,
        initial_model=initial_model,
    )


def _backend_for(personal: Any, base: WholeModels) -> PersonalBackend:
    match personal:
        case SharedParameters(share=share, keep=keep):
            return SharedBackend(base, shared_columns(base.learner.backend.layout(), share, keep))
        case Ditto(proximal=proximal):
            return DittoBackend(base, proximal)
        case FineTuned(steps=steps, step_size=step_size):
            return FineTunedBackend(base, steps, step_size)
    backend = personal.backend_for(base)
    if not isinstance(backend, PersonalBackend):
        raise InputError("kind", f"a {type(backend).__name__} from backend_for", "a PersonalBackend")
    return backend
