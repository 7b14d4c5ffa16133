"""The setting `driver`: whether all devices step together, or each on its own clock, and what time is then."""

from __future__ import annotations

from abc import ABC
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from efhc.base.errors import Unusable
from efhc.base.installed import kind_of
from efhc.base.policy import Policy
from efhc.base.registry import Family
from efhc.drivers.event_driven.churn import AnyChurn
from efhc.drivers.event_driven.compute import AnyComputeTimes, ConstantCompute
from efhc.drivers.event_driven.links import AnyLinks, PerLink
from efhc.drivers.event_driven.traces import Seconds


class DriverPolicy(Policy, ABC):
    """A driver that a config can name."""

    @model_validator(mode="before")
    @classmethod
    def _no_key_of_another_driver(cls, given: Any) -> Any:
        for key in given if isinstance(given, dict) else ():
            for kind, other in DRIVERS.built_in().items():
                if key not in cls.model_fields and key in other.model_fields:
                    what = f"a key of another driver, while the driver is '{kind_of(cls)}'"
                    raise Unusable(str(key), what, f"{', '.join(cls.model_fields)}; or driver.kind = '{kind}'")
        return given


class LockstepDriver(DriverPolicy):
    """All devices step together: iteration k of every device takes place at the same time."""

    kind: Literal["lockstep"] = "lockstep"
    loss: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Probability with which a message gets lost. An exchange of which a message is lost does not take place; what is
    lost is paid for. Default: no message gets lost."""

    @field_validator("loss")
    @classmethod
    def _none_is_none(cls, loss: float | None) -> float | None:
        return loss or None


class EventDriven(DriverPolicy):
    """Every device steps on its own clock, and a model takes time from one device to another.

    The clock is virtual: what happens does not depend on how fast this machine computes.
    """

    model_config = ConfigDict(defer_build=True)  # kinds of installed packages may need what is here

    kind: Literal["event-driven"] = "event-driven"
    compute: AnyComputeTimes = ConstantCompute()
    """How long a gradient takes."""
    links: AnyLinks = Field(default_factory=PerLink)  # made when it is needed: it has settings with kinds of their own
    """How long a message takes, and what becomes of it. A model of n parameters at b_i takes n / b_i seconds."""
    bandwidth: Literal["true", "measured"] = "true"
    """Which b_i a device knows for its rho_i = 1 / b_i: the true one, or the one that it measures on the models that it
    sends. What is measured starts at b_M, and includes latency and what is shared with other transfers."""
    network_seconds: Seconds = 1.0
    """How long one graph G(k) of the network lasts."""
    churn: AnyChurn | None = None
    """Devices that come and go. Default: every device is there all the time."""
    seconds: Seconds | None = None
    """The virtual time at which the run ends, however many steps the devices have made: `iterations` is not used then.
    Default: the run ends when every device has made `iterations` steps and nothing is in flight any more."""
    sample_seconds: Seconds | None = None
    """How often accuracy is measured, in virtual time. Default: `evaluate_every` times the median over the devices of
    the compute time of step 0."""
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    """The accuracy for which the seconds and the bytes until it is reached are reported. Default: none."""
    patience_seconds: Seconds = 30.0
    """How long an exchange may make no progress before a device withdraws it, or asks the other end about it."""
    give_up_seconds: Seconds = 3600.0
    """How long a device waits for one that does not return before it counts their exchange as unresolved."""

    @model_validator(mode="after")
    def _comes_to_an_end(self) -> Self:
        if self.seconds is None and getattr(self.churn, "starts_over", False):
            given = "none, while devices come back again and again with k = 0"
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
