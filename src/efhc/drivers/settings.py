"""The setting `driver`: whether all devices step together, or each on its own clock, and what time is then."""

from __future__ import annotations

from abc import ABC
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from efhc.base.errors import Unusable
from efhc.base.policy import Policy, kind_of
from efhc.base.registry import Family
from efhc.base.traces import Seconds
from efhc.drivers.event_driven.churn import AnyChurn
from efhc.drivers.event_driven.compute import AnyComputeTimes, ConstantCompute
from efhc.drivers.event_driven.links import AnyLinks, PerLink


class DriverPolicy(Policy, ABC):
    """A driver that a config can name."""

    @model_validator(mode="before")
    @classmethod
    def _no_key_of_another_driver(cls, given: Any) -> Any:
        for key in given if isinstance(given, dict) else ():
            for kind, other in DRIVERS.built_in().items():
                if key not in cls.model_fields and key in other.model_fields:
                    what = f"a setting that the driver '{kind_of(cls)}' lacks"
                    raise Unusable(str(key), what, f"{', '.join(cls.model_fields)}, or set driver.kind = '{kind}'")
        return given


class LockstepDriver(DriverPolicy):
    """All devices step together: iteration k of every device takes place at the same time."""

    kind: Literal["lockstep"] = "lockstep"
    loss: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Probability that a message is lost. The exchange then does not take place, but is paid for. Default: none."""

    @field_validator("loss")
    @classmethod
    def _none_is_none(cls, loss: float | None) -> float | None:
        return loss or None


class EventDriven(DriverPolicy):
    """Every device steps on its own clock, and a model takes time from one device to another.

    The clock is virtual: results do not depend on the speed of this machine.
    """

    model_config = ConfigDict(defer_build=True)  # kinds of installed packages may need what is here

    kind: Literal["event-driven"] = "event-driven"
    compute: AnyComputeTimes = ConstantCompute()
    """How long a gradient takes."""
    links: AnyLinks = Field(default_factory=PerLink)  # made when it is needed: it has settings with kinds of their own
    """How long a message takes, and whether it arrives. A model of n parameters takes n / b_i seconds."""
    bandwidth: Literal["true", "measured"] = "true"
    """The b_i that device i knows: "true", or "measured" on what it sends. The measured one starts at b_M, and includes
    sharing with other transfers and, except with half-steps, latency."""
    network_seconds: Seconds = 1.0
    """Duration of each graph G(k)."""
    churn: AnyChurn | None = None
    """Devices that come and go. Default: none do."""
    seconds: Seconds | None = None
    """Virtual time at which the run ends, instead of after `iterations` steps of every device. Default: none."""
    sample_seconds: Seconds | None = None
    """Length of the windows of virtual time in each of which models are evaluated once. Default: `evaluate_every` times
    the median compute time of step 0."""
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Value of the experiment's measure for which the seconds and bytes until then are reported. Default: none."""
    patience_seconds: Seconds = 30.0
    """How long an exchange may make no progress before a device withdraws it, or asks the other end."""
    give_up_seconds: Seconds = 3600.0
    """How long a device waits for a missing one before it counts their exchange as unresolved."""

    @model_validator(mode="after")
    def _comes_to_an_end(self) -> Self:
        if self.seconds is None and getattr(self.churn, "starts_over", False):
            given = "a run without end, in which devices come back again and again with k = 0"
            raise Unusable("seconds", given, "the seconds after which the run ends; or churn.start = 'copy'")
        return self

    @model_validator(mode="after")
    def _gives_up_after_patience(self) -> Self:
        if self.give_up_seconds < self.patience_seconds:
            allowed = f"at least patience_seconds, {self.patience_seconds:g}"
            raise Unusable("give_up_seconds", f"{self.give_up_seconds:g}", allowed)
        return self


def _no_code(given: Any) -> Any:
    """Refuse code of the user's own: compute times, links and churn may be that, but not a driver."""
    kind = given.get("kind") if isinstance(given, dict) else given
    if isinstance(kind, str) and ":" in kind:
        raise Unusable("kind", repr(kind), ", ".join(DRIVERS.kinds()))
    return given


DRIVERS = Family(DriverPolicy, (__name__,), (), default="lockstep", from_python=_no_code)
AnyDriver = Annotated[DriverPolicy, DRIVERS]
