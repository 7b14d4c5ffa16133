"""The experiment: everything that determines a run, as a TOML file or as Python objects."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

import numpy as np
from pydantic import ConfigDict, Field, field_validator, model_validator

from efhc.base.errors import InputError, Unusable
from efhc.base.policy import Policy, family_of, is_registered
from efhc.base.registry import Family, NotKept, NotRun
from efhc.core.parts import Strategy
from efhc.core.schedules import Diminishing, SchedulePolicy
from efhc.drivers.settings import AnyDriver, EventDriven, LockstepDriver
from efhc.experiments.config.early_stopping import EarlyStopping
from efhc.experiments.trackers.tracker import AnyTracker
from efhc.learning.data import AnyData, Digits
from efhc.learning.initial import AnyInitialModels, PerDevice
from efhc.learning.models import SVM, AnyModel
from efhc.learning.models.modules import ModuleModel
from efhc.learning.partition import AnyPartition, LabelsPerDevice
from efhc.network import AnyBandwidths, AnyNetwork
from efhc.network.bandwidths import UniformBandwidth
from efhc.network.topologies import Geometric
from efhc.strategies.forms import form_of
from efhc.strategies.paper import EventTriggered, GlobalThreshold, RandomizedGossip, ZeroThreshold

STRATEGIES = Family(Strategy, ("efhc.strategies.paper", "efhc.strategies"), ("thresholds", "fires", "parts", "step"))
AnyStrategy = Annotated[Strategy, STRATEGIES]
StrategyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 .,_=+-]*$", max_length=60)]

# Not validated: that would load the kinds of installed packages, which may need what is here.
PAPER_STRATEGIES: dict[str, Strategy] = {
    "EF-HC": EventTriggered.model_construct(),
    "GT": GlobalThreshold.model_construct(),
    "ZT": ZeroThreshold.model_construct(),
    "RG": RandomizedGossip.model_construct(),
}
SCHEDULES = Family(SchedulePolicy, ("efhc.core.schedules",), ("__call__",), default="diminishing")
COLUMNS_OF_REPORTS = (
    "strategy", "seed", "seeds", "run", "runs", "failed", "setting", "share", "spends", "spent", "budget", "radius",
    "mean", "worst", "low", "high", "value", "at", "without", "counted", "firing_share", "reached", "devices_present",
    "seconds_to_target", "bytes_to_target", "seconds_without_target", "bytes_without_target",
    "per_seed", "column", "mean_absolute_error",
)  # fmt: skip
"""Columns that tables of results have beside those of `METRICS` and `TIMELINE`."""
NOT_IN_METRICS = re.compile(r"^(own|mean_model|worst_seed)_|_(min|max|std|p10|p90)$")
"""What names of measures have beside those of metrics."""
AnySchedule = Annotated[SchedulePolicy, SCHEDULES]


class Experiment(Policy):
    """Strategies compared over seeds; within a seed all meet the same graph, bandwidths, data and initial models."""

    model_config = ConfigDict(defer_build=True)  # kinds of installed packages may need what is here

    name: str = Field(default="experiment", min_length=1)
    """What the experiment is called in figures and tables. Default in a file: the file's name without its ending."""
    devices: int = Field(default=10, ge=1, le=1_000_000)
    """Number of devices m."""
    iterations: int = Field(default=500, ge=1, lt=2**31)
    """Number of iterations K; the run makes iterations 0 to K-1."""
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] = Field(default=(0, 1, 2), min_length=1, strict=False)
    """One independent draw of everything per seed. A single number is one seed."""
    batch_size: Annotated[int, Field(ge=1)] | Literal["full"] = 16
    """Number of samples per device and iteration, or "full" for all samples of the device."""
    evaluate_every: int = Field(default=50, ge=1)
    """Length, in iterations, of each window in which models are evaluated once. They are also evaluated after the first
    iteration and after the last."""
    evaluate_at: Literal["drawn", "multiples", "budgets"] = "drawn"
    """When models are evaluated: after an iteration in each window of `evaluate_every` that is drawn by the seed
    ("drawn"), also whenever one of the `budgets` is spent ("budgets"), or after each multiple of `evaluate_every`
    ("multiples"), which meets a strategy that communicates at multiples of a number always in the same state."""
    budgets: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        default=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5), min_length=1, strict=False
    )
    """Shares of ZT's total transmission time at which models are evaluated with evaluate_at = "budgets"."""
    test_samples: Annotated[int, Field(ge=1)] | None = None
    """Number of test samples for accuracy, spread evenly over the test set. Default: all."""
    validation: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of each device's training samples that is set aside, by which `efhc tune` chooses. Default: none."""
    keep_models_every: Annotated[int, Field(ge=1)] | None = None
    """Keep all models after each multiple of this number of iterations, at the start and at the end. Default: the final
    models only."""
    precision: Literal["float32", "float64"] = "float32"
    """Floating-point type of models and gradients."""
    backend: Literal["auto", "linear", "arrays", "compiled", "stacked", "loop"] = "auto"
    """How gradients are computed: compiled loops ("linear", "compiled"), NumPy ("arrays"), or torch for all devices at
    once ("stacked") or one after the other ("loop"). "auto" takes the fastest, which meta.json of a run names."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    """Where torch computes: "cpu", "cuda" or "cuda:1"."""
    early_stopping: EarlyStopping | None = None
    """Ends a run after `patience` evaluations in a row in which `measure` does not exceed the best so far by more than
    `least_gain`: `{ measure = "own_accuracy", patience = 10, least_gain = 0.001 }`. Default: no run ends early."""
    exchange_at_start: bool = False
    """Whether the links of iteration 0 count as new, so that all neighbours exchange models (Event 1)."""

    data: AnyData = Digits()
    """The training and test samples."""
    partition: AnyPartition = LabelsPerDevice()
    """Which training samples each device holds."""
    model: AnyModel = SVM()
    """What every device trains."""
    initial_models: AnyInitialModels = PerDevice()
    """The models w_i(0) that the devices start from."""
    network: AnyNetwork = Geometric()
    """Which devices are linked at each iteration."""
    bandwidths: AnyBandwidths = UniformBandwidth()
    """The bandwidths b_i of the devices' links."""
    step_size: AnySchedule = Diminishing()
    """The step size alpha(k)."""
    threshold_decay: AnySchedule | None = None
    """The threshold decay gamma(k). Default: the step size alpha(k)."""
    strategies: dict[StrategyName, AnyStrategy] = Field(default=PAPER_STRATEGIES, min_length=1)
    """The strategies to compare, by the name that figures and tables show."""
    driver: AnyDriver = LockstepDriver()
    """Whether devices step together, or on their own clocks."""
    measure: str | None = Field(default=None, min_length=1)
    """The measure that tables, figures, tunings and claims go by: "accuracy" on the global test set, "own_accuracy" on
    each device's own distribution, "loss", "accuracy_min", ... It does not determine results. Default: "accuracy", or
    the first metric of an objective without it."""
    log: tuple[AnyTracker, ...] = Field(default=(), strict=False)
    """Trackers that get the runs while they are made. It does not determine results."""

    @field_validator("seeds", "log", mode="before")
    @classmethod
    def _as_list(cls, given: Any) -> Any:
        if isinstance(given, str) and "," in given:
            raise ValueError(f"a list, such as [{given}]")
        return list(given) if isinstance(given, list | tuple | range) else [given]

    @field_validator("seeds", "log")
    @classmethod
    def _distinct(cls, entries: tuple[Any, ...]) -> tuple[Any, ...]:
        if any(entry in entries[:place] for place, entry in enumerate(entries)):
            raise ValueError("each entry once")
        return entries

    @model_validator(mode="after")
    def _step_size_is_above_zero(self) -> Self:
        """In float32, 1e-46 is 0: a run with it would learn nothing."""
        if isinstance(self.step_size, SchedulePolicy) and is_registered(self.step_size):
            smallest = float(np.finfo(self.precision).smallest_subnormal)
            for k in (0, self.iterations - 1):
                if (alpha := self.step_size(k)) <= smallest / 2:
                    given = f"{alpha} at k = {k}, which is 0 in {self.precision}"
                    raise Unusable("step_size", given, "a larger step size, or precision = 'float64'")
        return self

    @model_validator(mode="after")
    def _metrics_are_no_other_columns(self) -> Self:
        if not isinstance(self.model, ModuleModel) or not self.model.metrics:
            return self
        # Reading a file without metrics of one's own imports no tables.
        from efhc.drivers.event_driven.record import TIMELINE
        from efhc.drivers.record import METRICS, SUMS

        taken = {*METRICS, *SUMS, *TIMELINE, *COLUMNS_OF_REPORTS}
        for name in self.model.metrics:
            if name in taken or NOT_IN_METRICS.search(name):
                raise Unusable("model.metrics", name, "a name that no column has, as accuracy or own_x is")
        return self

    @model_validator(mode="after")
    def _settings_go_with_the_driver(self) -> Self:
        if isinstance(self.driver, EventDriven) and self.keep_models_every is not None:
            given = f"{self.keep_models_every} with driver.kind = '{self.driver.kind}'"
            raise Unusable("keep_models_every", given, "driver.kind = 'lockstep', or remove this setting")
        if isinstance(self.driver, EventDriven) and self.evaluate_at == "budgets":
            given = f"'budgets' with driver.kind = '{self.driver.kind}', which has no transmission time"
            raise Unusable("evaluate_at", given, "'drawn' or 'multiples'; or driver.kind = 'lockstep'")
        if self.early_stopping is not None and self.evaluate_at == "budgets":
            given = "'budgets' with early_stopping, which may end ZT before it has spent its total"
            raise Unusable("evaluate_at", given, "'drawn' or 'multiples'; or remove early_stopping")
        for name, strategy in self.strategies.items():
            parts = dict(strategy).values() if isinstance(strategy, Policy) else ()
            if any(isinstance(one, NotRun | NotKept) for one in (strategy, *parts)):
                continue
            try:
                form = form_of(strategy, name)
            except InputError as error:
                raise Unusable.of(error) from None
            if isinstance(self.driver, EventDriven) and (reason := form.off_lockstep()):
                raise Unusable(
                    f"strategies.{name}", f"{reason}; the driver is 'event-driven'", "driver.kind = 'lockstep'"
                )
            if isinstance(self.driver, EventDriven) and self.driver.churn is not None and form.keeps_no_history:
                given = "false, while devices come and go (driver.churn): h could not lose what their links added to it"
                raise Unusable(f"strategies.{name}.mixing.take_back", given, "true; or no drift correction")
            if isinstance(self.driver, LockstepDriver) and self.driver.loss and form.needs_every_message:
                given = f"{self.driver.loss}, while {name} needs every message: one lost message stays wrong for ever"
                allowed = "0; or driver.kind = 'event-driven' with driver.links.loss, where half-steps survive it"
                raise Unusable("driver.loss", given, allowed)
        return self


def built_in_kinds() -> dict[str, type[Policy]]:
    """Return every kind that comes with efhc, by the name of its class, also those of settings within settings."""
    found: dict[str, type[Policy]] = {}
    waiting: list[type[Policy]] = [Experiment]
    while waiting:
        families = filter(None, map(family_of, waiting.pop().model_fields.values()))
        for policy in (policy for family in families for policy in family.built_in().values()):
            if policy.__name__ not in found:
                waiting.append(policy)
            found[policy.__name__] = policy
    return found


# As parameters of a function

F = TypeVar("F", bound=Callable[..., Any])


def shows_settings(function: F) -> F:
    """Give a function that takes `**fields` of `Experiment` a signature that names each, with its type and default."""
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    settings = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=type_words(field.annotation, field.metadata, policy_words),
            default=field.get_default(call_default_factory=True),
        )
        for name, field in Experiment.model_fields.items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *settings])  # type: ignore[attr-defined]
    return function


def policy_words(family: Family) -> str:
    """Return the base classes of a family, and that a kind may be given by its name or as a table."""
    return f"{' | '.join(base.__name__ for base in family.bases)} | str | Mapping[str, Any]"


def type_words(annotation: Any, metadata: Iterable[Any], of_family: Callable[[Family], str]) -> str:
    """Return a type as Python users may pass it.

    `metadata` is what is attached to the type. If a `Family` is among it, `of_family` returns the words for it.
    """
    if family := next((one for one in metadata if isinstance(one, Family)), None):
        return of_family(family)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_words(inner[0], annotation.__metadata__, of_family)
    if origin is Literal:
        return f"Literal[{', '.join(map(json.dumps, inner))}]"
    words = [type_words(one, (), of_family) for one in inner if one is not ...]
    if origin is tuple:  # from Python, one value may stand for a list of one
        return f"{words[0]} | Sequence[{words[0]}]"
    if origin is dict:
        return f"Mapping[{words[0]}, {words[1]}]"
    if not words:
        table = " | Mapping[str, Any]" if issubclass(annotation, Policy) else ""
        words = ["None" if annotation is type(None) else annotation.__name__ + table]
    return " | ".join(words)
