"""Local steps: what a device does with its gradient.

    y = x - alpha (u - h)

u is the direction of the kind, computed from the gradient g and what the device remembers; h is the drift correction,
which links teach (`correction` is theta; 0 for none). `Rows` holds one row per device: all devices in lockstep, the
devices that are due with clocks of their own, one device on a node. A local step treats each row by itself. It returns
new arrays and changes none.

A kind of your own derives from `LocalStep`, names the arrays it remembers in `memory` and has `direction`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from efhc.base.arrays import Floats, Ints
from efhc.base.policy import Policy

Rows = Mapping[str, Floats]
"""What devices hold, by name, (rows, n): "model" is x, "correction" is h if there is one, and the others are what the
local step remembers. All but the models are zero at first."""


class Moment(NamedTuple):
    """The arguments of a local step besides the gradient, one entry per row."""

    alpha: Floats
    """alpha(k), (rows, 1), in the precision of the models."""
    number: Ints
    """The number of gradients of the device so far, this one included, (rows,)."""
    gate: Floats
    """How much momentum counts, from 0 to 1, (rows, 1): less than 1 where links have been silent. See `half_steps`."""


def total_descent(steps: int, x: Floats, alpha: Floats, direction: Callable[[int, Floats], Floats]) -> Floats:
    """Return u - h of the local steps of one iteration, which begin at x: (x - x after all of them) / alpha.

    `direction(s, x)` returns u - h of local step s, whose gradient is taken at x.
    """
    first = x
    for s in range(steps):
        down = direction(s, x)
        if steps > 1:
            x = x - alpha * down
    return down if steps == 1 else (first - x) / alpha


class LocalStep(Policy, ABC):
    """A local step that a config can name: y = x - alpha (u - h)."""

    decays_model: ClassVar[bool] = False
    """Whether weight decay is added to u instead of the gradient."""

    correction: float = Field(default=0.0, ge=0, le=1)
    """theta: how fast the drift correction h learns. 0: no h."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Adds weight_decay x to the gradient."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Largest norm of a gradient, before weight decay. Default: no limit."""
    steps: int = Field(default=1, ge=1)
    """Gradients per iteration, each with its own batch."""

    @property
    def memory(self) -> tuple[str, ...]:
        """The names of the arrays that the kind remembers, each like x, zero at first."""
        return ()

    @property
    def follows_links(self) -> bool:
        """Whether what links add changes anything but the model: `pulled` has more to do than to add it."""
        return self.correction > 0

    @abstractmethod
    def direction(self, rows: Rows, gradient: Floats, moment: Moment) -> tuple[Floats, Rows]:
        """Return u, and what the kind remembers by name. Nothing that is given may be changed."""

    @np.errstate(over="ignore", invalid="ignore")
    def descent(self, rows: Rows, gradient: Floats, moment: Moment) -> tuple[Floats, Rows]:
        """Return u - h, with what the kind remembers by name."""
        x, number = rows["model"], gradient.dtype.type
        if self.clip is not None:
            norms = np.sqrt(np.square(gradient, dtype=np.float64).sum(axis=1, keepdims=True))
            gradient = gradient * (self.clip / np.maximum(norms, self.clip)).astype(gradient.dtype)
        if self.weight_decay and not self.decays_model:
            gradient = gradient + number(self.weight_decay) * x
        u, remembered = self.direction(rows, gradient, moment)
        if self.weight_decay and self.decays_model:
            u = u + number(self.weight_decay) * x
        return u - rows["correction"] if "correction" in rows else u, remembered

    @np.errstate(over="ignore", invalid="ignore")
    def local(self, rows: Rows, gradient: Floats, moment: Moment) -> Rows:
        """Return the rows after one local step; "model" is y = x - alpha (u - h)."""
        down, remembered = self.descent(rows, gradient, moment)
        return {**rows, **remembered, "model": rows["model"] - moment.alpha * down}

    @np.errstate(over="ignore", invalid="ignore")
    def pulled(self, rows: Rows, pull: Floats, learned: Floats | None, alpha: Floats) -> Rows:
        """Return the rows after links have added `pull` to the models and `learned` to h.

        alpha, (rows, 1), is that of the device's last local step; infinite if it has made none yet.
        """
        after = {**rows, "model": rows["model"] + pull}
        return after if learned is None else {**after, "correction": rows["correction"] + learned}


class SGD(LocalStep):
    """u = g"""

    kind: Literal["sgd"] = "sgd"

    def direction(self, rows: Rows, gradient: Floats, moment: Moment) -> tuple[Floats, Rows]:
        return gradient, {}


class QuasiGlobalMomentum(LocalStep):
    """u = g + mu m, where m <- mu m + (1 - mu)(x - x_next) / alpha follows what the model really did, mixing included.

    x_next is the model at the next gradient (Lin, Karimireddy, Stich, Jaggi, ICML 2021). In two steps: m <- mu m + (1 -
    mu)(u - h) by the local step, m <- m - (1 - mu) f / alpha when links add f. With half-steps, momentum counts as far
    as links were used since the last gradient: u = g + mu gate m.
    """

    kind: Literal["momentum"] = "momentum"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """mu"""

    @property
    def memory(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    @property
    def follows_links(self) -> bool:
        return self.correction > 0 or self.momentum > 0

    def direction(self, rows: Rows, gradient: Floats, moment: Moment) -> tuple[Floats, Rows]:
        if not self.momentum:
            return gradient, {}
        m, number = rows["momentum"], gradient.dtype.type
        u = gradient + (self.momentum * moment.gate).astype(gradient.dtype) * m
        moved = u - rows["correction"] if "correction" in rows else u
        return u, {"momentum": number(self.momentum) * m + number(1 - self.momentum) * moved}

    @np.errstate(over="ignore", invalid="ignore")
    def pulled(self, rows: Rows, pull: Floats, learned: Floats | None, alpha: Floats) -> Rows:
        after = super().pulled(rows, pull, learned, alpha)
        if not self.momentum:
            return after
        share = ((1 - self.momentum) / alpha.astype(np.float64)).astype(pull.dtype)
        return {**after, "momentum": rows["momentum"] - share * pull}


class DriftCorrected(QuasiGlobalMomentum):
    """y = x - alpha (g - h), where links teach h; with `momentum`, u is that of the kind "momentum".

    h learns how the device's gradient differs from the mean gradient, until mixing has nothing left to undo. The h of
    all devices add up to 0.
    """

    kind: Literal["corrected"] = "corrected"  # type: ignore[assignment]
    correction: float = Field(default=0.1, gt=0, le=1)
    """theta: how fast h learns."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """mu; 0 for none."""


class HeavyBall(LocalStep):
    """u = m, where m <- mu m + g (Polyak 1964)."""

    kind: Literal["heavy-ball"] = "heavy-ball"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """mu"""

    @property
    def memory(self) -> tuple[str, ...]:
        return ("momentum",)

    def direction(self, rows: Rows, gradient: Floats, moment: Moment) -> tuple[Floats, Rows]:
        m = gradient.dtype.type(self.momentum) * rows["momentum"] + gradient
        return m, {"momentum": m}


class Nesterov(HeavyBall):
    """u = g + mu m, where m <- mu m + g (Nesterov 1983, as in PyTorch's SGD)."""

    kind: Literal["nesterov"] = "nesterov"  # type: ignore[assignment]

    def direction(self, rows: Rows, gradient: Floats, moment: Moment) -> tuple[Floats, Rows]:
        m, remembered = super().direction(rows, gradient, moment)
        return gradient + gradient.dtype.type(self.momentum) * m, remembered


class Adam(LocalStep):
    """u = m' / (sqrt(v') + epsilon), m' = m / (1 - beta1^t), v' = v / (1 - beta2^t) (Kingma & Ba, ICLR 2015).

    m <- beta1 m + (1 - beta1) g, v <- beta2 v + (1 - beta2) g^2; t: the number of gradients so far. alpha is
    `step_size`. h corrects u, not g.
    """

    kind: Literal["adam"] = "adam"
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of m."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay of v."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Added to the root."""

    @property
    def memory(self) -> tuple[str, ...]:
        return ("mean", "square")

    def direction(self, rows: Rows, gradient: Floats, moment: Moment) -> tuple[Floats, Rows]:
        number, t = gradient.dtype.type, moment.number[:, None].astype(np.float64)
        m = number(self.beta1) * rows["mean"] + number(1 - self.beta1) * gradient
        v = number(self.beta2) * rows["square"] + number(1 - self.beta2) * (gradient * gradient)
        of_m, of_v = ((1 / (1 - beta**t)).astype(gradient.dtype) for beta in (self.beta1, self.beta2))
        return of_m * m / (np.sqrt(of_v * v) + number(self.epsilon)), {"mean": m, "square": v}


class AdamW(Adam):
    """Adam with weight decay of the model itself: u = m' / (sqrt(v') + epsilon) + weight_decay x.

    Loshchilov & Hutter, ICLR 2019.
    """

    decays_model: ClassVar[bool] = True

    kind: Literal["adamw"] = "adamw"  # type: ignore[assignment]
    weight_decay: float = Field(default=0.01, ge=0)
    """Adds weight_decay x to u."""


# What devices remember that step one by one


class LocalRows:
    """The arrays that local steps remember, one row per device of a run. Models are not among them."""

    def __init__(self, local: LocalStep, devices: int, parameters: int, precision: str) -> None:
        self.local = local
        names = (("correction",) if local.correction else ()) + local.memory
        self.arrays: dict[str, Floats] = {name: np.zeros((devices, parameters), precision) for name in names}
        self._alphas = np.full(devices, np.inf)
        """alpha of each device's last local step; infinite if it has made none."""

    def descent(
        self, numbers: Sequence[int], models: Floats, gradients: Floats, alphas: Sequence[float], moments: Moment
    ) -> Floats:
        """Return u - h of these devices, and update what they remember."""
        down, remembered = self.local.descent(self._rows(numbers, models), gradients, moments)
        for name, rows in remembered.items():
            self.arrays[name][numbers] = rows
        self._alphas[numbers] = alphas
        return down

    def pulled(self, number: int, model: Floats, pull: Floats, learned: Floats | None = None) -> Floats:
        """Return the model of a device after links have added `pull` to it, and update what it remembers."""
        numbers, alpha = [number], self._alphas[[number], None]
        learned = None if learned is None else learned[None]
        rows = self.local.pulled(self._rows(numbers, model[None]), pull[None], learned, alpha)
        for name in self.arrays:
            self.arrays[name][number] = rows[name][0]
        after: Floats = rows["model"][0]
        return after

    def take_back(self, number: int, link_correction: Floats) -> None:
        """Subtract from h what a link has added to it."""
        self.arrays["correction"][number] -= link_correction

    def forget(self, number: int) -> None:
        """Forget what a device remembers: it starts anew."""
        self._alphas[number] = np.inf
        for rows in self.arrays.values():
            rows[number] = 0

    def _rows(self, numbers: Sequence[int], models: Floats) -> Rows:
        return {"model": models} | {name: rows[numbers] for name, rows in self.arrays.items()}

    # Checkpoints

    def tensors(self) -> dict[str, np.ndarray]:
        """Return all that changes during a run."""
        return {f"rows/{name}": rows for name, rows in self.arrays.items()} | {"rows/alphas": self._alphas}

    def restore(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Go on from what `tensors` returned."""
        for name, rows in self.tensors().items():
            rows[...] = tensors[name]
