"""A strategy as a table of parts."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, model_validator

from efhc.base.errors import InputError, Unusable
from efhc.base.registry import Family, Placeholder
from efhc.core.local_steps import SGD, LocalStep
from efhc.core.parts import Budget, ExchangeMixing, MixingPolicy, Parts, Strategy
from efhc.core.triggers import NormTrigger, TriggerPolicy
from efhc.core.uplink import Pacing
from efhc.strategies.forms import form_of
from efhc.strategies.parts.codecs import AnyCodec, FullCodec
from efhc.strategies.parts.link_choices import AllLinks, AnyLinkChoice

TRIGGERS = Family(TriggerPolicy, ("efhc.core.triggers",), ("thresholds", "fires"), default="norm")
AnyTrigger = Annotated[TriggerPolicy, TRIGGERS]
LOCAL_STEPS = Family(LocalStep, ("efhc.core.local_steps",), ("direction",), default="sgd")
AnyLocalStep = Annotated[LocalStep, LOCAL_STEPS]
MIXINGS = Family(MixingPolicy, ("efhc.core.parts",), ("kind",), default="exchange")
AnyMixing = Annotated[MixingPolicy, MIXINGS]


class Composed(Strategy):
    """A strategy of parts that you choose. Every other kind is such a table, or makes its iterations itself.

        y_i = x_i - alpha (u_i - h_i)                 local
        x_hat_i <- x_hat_i + C(y_i - x_hat_i)         trigger (when), codec (what), links (to whom), budget
        x_i <- y_i + f_i                              mixing

    u: the direction of the local step; h: the drift correction; C: the codec; f: what the links add.
    """

    model_config = ConfigDict(defer_build=True)  # kinds of installed packages may need what is here

    kind: Literal["composed"] = "composed"
    local: AnyLocalStep = SGD()
    """What a device does with its gradient."""
    trigger: AnyTrigger = NormTrigger()
    """When a device sends."""
    codec: AnyCodec = FullCodec()
    """What it sends."""
    links: AnyLinkChoice = AllLinks()
    """Over which links."""
    mixing: AnyMixing = ExchangeMixing()
    """What devices make of what they have received."""
    budget: Budget | None = None
    """What a device may spend. Default: no limit."""
    pacing: Pacing | None = None
    """How a device uses its uplink, with mixing "half-steps". Default: it sends to all neighbours at once."""

    def parts(self) -> Parts:
        links = None if isinstance(self.links, AllLinks) else self.links
        return Parts(self.trigger, self.local, self.codec, links, self.mixing, self.budget, self.pacing)

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if any(isinstance(part, Placeholder) for part in dict(self).values()):
            return self  # code of the user's own that is not run now
        try:
            form_of(self)
        except InputError as error:
            raise Unusable.of(error.renamed(error.field.rpartition(".")[2])) from None
        return self
