"""Personal models: what of its model a device keeps to itself, as a part of any strategy.

Drivers mix, compare and send the models (m, n) that devices share. What is personal is in `State.local`, which no
driver ever sends. So bits, drift, triggers and codecs see what is shared, whatever the strategy and the driver are.
`scenarios.personal` makes the backend of each kind.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from efhc.base.errors import Unusable
from efhc.base.policy import Policy

Patterns = str | Annotated[tuple[str, ...], Field(min_length=1, strict=False)]


class Personal(Policy):
    """A kind of personal models that a config can name.

    A kind of your own has a method `backend_for`: given the `learning.backends.personal.WholeModels` of a run, it
    returns a `learning.backends.personal.PersonalBackend`, or raises `InputError` if a setting does not fit the model.
    """

    copies: ClassVar[int] = 4
    """Arrays of the size of all models that a run holds because of it, at most."""


class SharedParameters(Personal):
    """Some parameters are shared, the others stay with their device: they are trained, and never sent or mixed.

        w_i = (s_i, p_i)        s_i is what the strategy sees as the model of device i
        p_i <- p_i - alpha u    the strategy's local step with its own part of the gradient at w_i

    Patterns are those of file names (`*`, `?`, `[ab]`) over the names of parameters, as `named_parameters` of a torch
    module has them. Linear models have "weight" and "bias". The word "norm" means all parameters of normalisation
    layers. A drift correction, and clipping, act on the two parts separately.
    """

    kind: Literal["shared"] = "shared"
    share: Patterns | None = None
    """Names of the parameters that are shared, one pattern or several. Default: all that `keep` does not name."""
    keep: Patterns | None = None
    """Names of the parameters that stay with their device, one pattern or several. Default: all that `share` does not
    name."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.share is None and self.keep is None:
            raise Unusable("share", "nothing, and nothing for keep", "share = 'body.*', or keep = 'head.*'")
        return self


class Ditto(Personal):
    """A personal model v_i beside the shared model w_i, to which it is drawn (Ditto: Li et al., ICML 2021).

        v_i <- v_i - alpha u_i,    u_i from the gradient g_i(v_i) + proximal (v_i - w_i)

    v_i(0) = w_i(0); g_i: the gradient on the batch of the shared model's step; u: the direction of the strategy's local
    step; w_i: the shared model before its step, which is trained as without `personal`. Devices use v_i: all measures
    are those of v_i, and the mean model is the mean of the w_i. It takes twice the gradients, and no bits.
    """

    kind: Literal["ditto"] = "ditto"
    proximal: float = Field(default=1.0, ge=0)
    """lambda: how strongly v_i is drawn to w_i. 0: v_i is trained on the device's data alone."""


class FineTuned(Personal):
    """At every evaluation, each device is scored after some steps of SGD from its shared model, on its own batches.

    The run itself is that of the strategy without `personal`: nothing of the fine-tuned models is kept. The mean model
    is not fine-tuned.
    """

    copies: ClassVar[int] = 2  # the models that are tuned, and their gradients

    kind: Literal["fine-tuned"] = "fine-tuned"
    steps: int = Field(default=10, ge=1)
    """Number of gradient steps, on the device's first batches."""
    step_size: Annotated[float, Field(gt=0)] | None = None
    """Step size of these steps. Default: alpha(0), the first step size of the run."""
