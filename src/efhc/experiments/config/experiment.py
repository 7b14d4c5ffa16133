"""The experiment: everything that determines a run, as a TOML file or as Python objects."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from efhc.base.policy import Policy, by_name, default_kind, or_your_own
from efhc.core.schedules import Constant, Diminishing
from efhc.core.triggers import EventTriggered, GlobalThreshold, Never, RandomizedGossip, ZeroThreshold
from efhc.learning.data import AnyData, Digits
from efhc.learning.initial import AnyInitialModels, PerDevice
from efhc.learning.models import SVM, AnyModel
from efhc.learning.partition import AnyPartition, LabelsPerDevice
from efhc.network import AnyBandwidths, AnyNetwork
from efhc.network.bandwidths import UniformBandwidth
from efhc.network.topologies import Geometric

Strategies = EventTriggered | GlobalThreshold | ZeroThreshold | RandomizedGossip | Never

AnySchedule = Annotated[
    Constant | Diminishing, Field(discriminator="kind"), default_kind("diminishing"), or_your_own("__call__")
]
AnyStrategy = Annotated[Strategies, Field(discriminator="kind"), by_name, or_your_own("thresholds")]
StrategyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 .,_=+-]*$", max_length=60)]

PAPER_STRATEGIES: dict[str, Strategies] = {
    "EF-HC": EventTriggered(),
    "GT": GlobalThreshold(),
    "ZT": ZeroThreshold(),
    "RG": RandomizedGossip(),
}


class Experiment(Policy):
    """Strategies compared over seeds; within a seed all meet the same graph, bandwidths, data and initial models."""

    name: str = Field(default="experiment", min_length=1)
    devices: int = Field(default=10, ge=1, le=1_000_000)
    """m"""
    iterations: int = Field(default=500, ge=1)
    """K: the run makes iterations 0 to K-1."""
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] = Field(default=(0, 1, 2), min_length=1, strict=False)
    """One independent draw of everything per seed."""
    batch_size: Annotated[int, Field(ge=1)] | Literal["full"] = 16
    """Samples per device and iteration, or "full" for all of a device's."""
    evaluate_every: int = Field(default=50, ge=1)
    """Accuracy is measured after the first iteration, after each that completes so many, and after the last."""
    test_samples: Annotated[int, Field(ge=1)] | None = None
    """Accuracy is measured on so many test samples, spread evenly over the test set; left out, on all."""
    precision: Literal["float32", "float64"] = "float32"
    backend: Literal["auto", "linear", "arrays", "stacked", "loop"] = "auto"
    """How gradients are computed: compiled loops ("linear"), NumPy, all devices stacked in torch, or one by one."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    """Where torch modules compute: "cpu", "cuda" or "cuda:1"."""
    keep_models_every: int | None = None
    validation: float | None = None
    exchange_at_start: bool = False
    """Whether the links of iteration 0 count as new, so that all neighbours exchange models then (Event 1)."""

    data: AnyData = Digits()
    partition: AnyPartition = LabelsPerDevice()
    model: AnyModel = SVM()
    initial_models: AnyInitialModels = PerDevice()
    network: AnyNetwork = Geometric()
    bandwidths: AnyBandwidths = UniformBandwidth()
    step_size: AnySchedule = Diminishing()
    """alpha(k)"""
    threshold_decay: AnySchedule | None = None
    """gamma(k); left out, it is alpha(k)."""
    strategies: dict[StrategyName, AnyStrategy] = Field(default=PAPER_STRATEGIES, min_length=1)
    """The strategies to compare, by the name that figures and tables show."""

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("each seed once")
        return seeds

    def next_evaluation(self, k: int) -> int:
        """The least number of iterations above k after which accuracy is measured."""
        return 1 if k == 0 else min((k // self.evaluate_every + 1) * self.evaluate_every, self.iterations)

    def is_evaluated_after(self, k: int) -> bool:
        """Whether accuracy is measured after k iterations."""
        return k > 0 and self.next_evaluation(k - 1) == k
