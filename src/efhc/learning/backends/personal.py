"""Personal models: a backend around a backend, which gives drivers nothing but what is shared.

    models (m, n)     what is shared: drivers mix, compare and send it
    local             what is personal, in arrays named personal/..., beside what the inner backend keeps

A device's personal rows are a function of its own rows, samples and iteration, like its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.errors import InputError
from efhc.core.local_steps import LocalStep, Moment
from efhc.core.schedules import Schedule
from efhc.core.state import Local
from efhc.learning.backends.backend import Backend, Batch, ParameterPart

if TYPE_CHECKING:
    from efhc.learning.learner import Learner

PERSONAL = "personal/"
"""In front of the names of what is personal."""
MODEL, OWN = "model", "local/"
PERSONAL_MODEL = PERSONAL + MODEL
NORM = "norm"
"""The word for all parameters of normalisation layers."""


class WholeModels(NamedTuple):
    """What a run without personal models has, and personal models are made of."""

    learner: Learner
    local: LocalStep
    """The local step of the strategy."""
    step_size: Schedule
    """alpha(k)"""
    initial_models: Callable[[], Floats]
    """Draws w_i(0) of all devices, whole models."""
    initial_model: Callable[[int], Floats]
    """Draws w_i(0) of one device."""


class PersonalBackend(Backend):
    """A backend of what is shared, around one of whole models."""

    def __init__(self, base: WholeModels) -> None:
        self._base, self._inner = base, base.learner.backend
        self.name = self._inner.name
        self.data, self.metrics, self.parameters = self._inner.data, self._inner.metrics, self._inner.parameters

    @property
    def personal_parameters(self) -> int:
        """The number of parameters that a device trains and does not share."""
        return 0

    def shared(self, models: Floats) -> Floats:
        """Return what is shared of whole models, (..., n)."""
        return models

    def initial_local(self, devices: int, first: int = 0) -> Local:
        return self._inner.initial_local(devices, first)

    def layout(self) -> list[ParameterPart]:
        return self._inner.layout()

    def _scored(self, models: Floats, local: Local) -> tuple[dict[str, Floats], Flags]:
        return self._inner._scored(models, local)

    def module_for(self, model: Floats, local: Local) -> Any:
        return self._inner.module_for(model, local)

    def _initial_models(self, devices: int, first: int) -> Floats:
        """Draw w_i(0) of the devices from `first` on, whole models."""
        if first == 0 and devices == len(self._base.learner.parts):
            return self._base.initial_models()
        return np.stack([self._base.initial_model(first + i) for i in range(devices)])

    def _trained(self, models: Floats) -> Local:
        """Return personal models, with what the local step remembers of them."""
        names = self._base.local.memory
        return {PERSONAL_MODEL: models} | {PERSONAL + name: np.zeros_like(models) for name in names}

    def _stepped(self, personal: Local, gradient: Floats, batch: Batch) -> Local:
        """Return personal models after the local step of a batch."""
        local, batches = self._base.local, np.broadcast_to(np.asarray(batch.k), (len(gradient),))
        alphas = [float(self._base.step_size(number // local.steps)) for number in batches.tolist()]
        ones = np.ones((len(gradient), 1))
        moment = Moment(np.array(alphas, gradient.dtype)[:, None], batches + 1, ones)
        rows = {name: personal[PERSONAL + name] for name in (MODEL, *local.memory)}
        return {PERSONAL + name: array for name, array in local.local(rows, gradient, moment).items()}


def inner_of(local: Local) -> Local:
    """Return what the inner backend keeps."""
    return {name: rows for name, rows in local.items() if not name.startswith(PERSONAL)}


# Some parameters are shared


def shared_columns(
    layout: Sequence[ParameterPart], share: str | Sequence[str] | None, keep: str | Sequence[str] | None
) -> list[bool]:
    """Return for each part of the parameters whether it is shared: `share` names it, and `keep` does not.

    Raises `InputError` if a pattern matches no parameter, or if all or none are shared.
    """
    names = [part.name for part in layout]
    known = ", ".join(names[:8]) + (f", ... ({len(names)} in all)" if len(names) > 8 else "")

    def matched(field: str, patterns: str | Sequence[str]) -> list[bool]:
        found = [False] * len(layout)
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            here = [part.is_norm if pattern == NORM else fnmatchcase(part.name, pattern) for part in layout]
            if not any(here):
                raise InputError(field, f"'{pattern}', which matches no parameter", f"a pattern for some of {known}")
            found = [before or now for before, now in zip(found, here, strict=True)]
        return found

    is_shared = [True] * len(layout) if share is None else matched("share", share)
    if keep is not None:
        is_shared = [mine and not kept for mine, kept in zip(is_shared, matched("keep", keep), strict=True)]
    if all(is_shared):
        raise InputError("share", f"{_shown(share)}, which matches every parameter", f"patterns for some of {known}")
    if not any(is_shared):
        given = f"{_shown(keep)}, which leaves no parameter to share"
        raise InputError("keep", given, f"patterns for some of {known}; or strategy 'never', which shares nothing")
    return is_shared


def _shown(patterns: str | Sequence[str] | None) -> str:
    return f"'{patterns}'" if isinstance(patterns, str) else str(list(patterns or ()))


class SharedBackend(PersonalBackend):
    """Of each model, some columns are shared."""

    def __init__(self, base: WholeModels, is_shared: Sequence[bool]) -> None:
        """`is_shared` has an entry for each part of the inner backend's layout."""
        super().__init__(base)
        self._layout = self._inner.layout()
        self._shared, self._own = (
            _pieces(self._layout, [one == which for one in is_shared]) for which in (True, False)
        )
        self._whole = self._inner.parameters
        self.parameters = sum(piece.stop - piece.start for piece in self._shared)
        self._parts = [part for part, mine in zip(self._layout, is_shared, strict=True) if mine]

    @property
    def personal_parameters(self) -> int:
        return self._whole - self.parameters

    def layout(self) -> list[ParameterPart]:
        return self._parts

    def shared(self, models: Floats) -> Floats:
        return _cut(models, self._shared)

    def initial_local(self, devices: int, first: int = 0) -> Local:
        own = _cut(self._initial_models(devices, first), self._own)
        return {**self._inner.initial_local(devices, first), **self._trained(own)}

    def grads(self, models: Floats, batch: Batch, local: Local, out: Floats) -> tuple[Floats, Local]:
        whole = self._joined(models, local)
        gradient = np.empty_like(whole)
        losses, after = self._inner.grads(whole, batch, inner_of(local), gradient)
        out[:] = _cut(gradient, self._shared)
        return losses, {**after, **self._stepped(local, _cut(gradient, self._own), batch)}

    def models_in_use(self, models: Floats, local: Local, devices: Ints) -> tuple[Floats, Local]:
        return self.models_to_average(models, local)

    def models_to_average(self, models: Floats, local: Local) -> tuple[Floats, Local]:
        return self._joined(models, local), inner_of(local)

    def _joined(self, shared: Floats, local: Local) -> Floats:
        whole: Floats = np.empty((len(shared), self._whole), shared.dtype)
        for pieces, rows in ((self._shared, shared), (self._own, local[PERSONAL_MODEL])):
            first = 0
            for piece in pieces:
                width = piece.stop - piece.start
                whole[:, piece] = rows[:, first : first + width]
                first += width
        return whole


def _pieces(layout: Sequence[ParameterPart], chosen: Sequence[bool]) -> list[slice]:
    """Return the columns of the chosen parts, those side by side in one slice."""
    pieces: list[slice] = []
    first = 0
    for part, is_chosen in zip(layout, chosen, strict=True):
        end = first + part.size
        if is_chosen:
            begin = pieces.pop().start if pieces and pieces[-1].stop == first else first
            pieces.append(slice(begin, end))
        first = end
    return pieces


def _cut(models: Floats, pieces: Sequence[slice]) -> Floats:
    """Return these columns, in memory of their own."""
    return np.concatenate([models[..., piece] for piece in pieces], axis=-1)


# A second model


class DittoBackend(PersonalBackend):
    """v_i beside w_i. What the inner backend keeps for v_i is in personal/local/..."""

    def __init__(self, base: WholeModels, proximal: float) -> None:
        super().__init__(base)
        self._proximal = proximal

    @property
    def personal_parameters(self) -> int:
        return self.parameters

    def initial_local(self, devices: int, first: int = 0) -> Local:
        inner = self._inner.initial_local(devices, first)
        return {**inner, **self._trained(self._initial_models(devices, first)), **_as_own(inner)}

    def grads(self, models: Floats, batch: Batch, local: Local, out: Floats) -> tuple[Floats, Local]:
        losses, after = self._inner.grads(models, batch, inner_of(local), out)
        v, gradient = local[PERSONAL_MODEL], np.empty_like(out)
        of_v, own_after = self._inner.grads(v, batch, _own_of(local), gradient)
        with np.errstate(over="ignore", invalid="ignore"):
            gradient += gradient.dtype.type(self._proximal) * (v - models)
        losses = np.where(np.isfinite(of_v), losses, of_v)  # so that a v_i that diverges is noticed as w_i would be
        return losses, {**after, **self._stepped(local, gradient, batch), **_as_own(own_after)}

    def models_in_use(self, models: Floats, local: Local, devices: Ints) -> tuple[Floats, Local]:
        return local[PERSONAL_MODEL], _own_of(local)

    def models_to_average(self, models: Floats, local: Local) -> tuple[Floats, Local]:
        return models, inner_of(local)


def _as_own(inner: Local) -> Local:
    return {PERSONAL + OWN + name: rows for name, rows in inner.items()}


def _own_of(local: Local) -> Local:
    start = PERSONAL + OWN
    return {name.removeprefix(start): rows for name, rows in local.items() if name.startswith(start)}


# Fine-tuned at evaluations


class FineTunedBackend(PersonalBackend):
    """The inner backend, whose models take some steps before they are used."""

    def __init__(self, base: WholeModels, steps: int, step_size: float | None) -> None:
        super().__init__(base)
        self._steps = steps
        self._step_size = float(base.step_size(0)) if step_size is None else step_size

    def grads(self, models: Floats, batch: Batch, local: Local, out: Floats) -> tuple[Floats, Local]:
        return self._inner.grads(models, batch, local, out)

    @np.errstate(over="ignore", invalid="ignore")
    def models_in_use(self, models: Floats, local: Local, devices: Ints) -> tuple[Floats, Local]:
        learner, rows = self._base.learner, models.copy()
        everyone = np.array_equal(devices, np.arange(len(learner.parts)))
        readers = None if learner.batches is None else [learner.batches.of_device(one) for one in devices.tolist()]
        gradient, alpha = np.empty_like(rows), rows.dtype.type(self._step_size)
        for step in range(self._steps):
            samples: Any
            if readers is None:
                samples = [learner.parts[device] for device in devices.tolist()]
            else:
                samples = np.stack([of_device(step) for of_device in readers])
            one_by_one = Batch(np.full(len(rows), step), samples, devices)
            _, local = self._inner.grads(rows, Batch(step, samples) if everyone else one_by_one, local, gradient)
            rows -= alpha * gradient
        return rows, local
