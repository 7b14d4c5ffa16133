"""How models learn and are tested, for all devices at once or for some of them.

    grads(W, batch) -> G, loss        gradients and losses on training samples
    scored(W) -> {metric: values}     each model's result on each test sample

A backend holds a model and a data set and remembers nothing between calls. Its results for a device are a function of
that device's number, model, samples and iteration. Their last bits may depend on how many devices a call is for, but
never on what the other devices do, nor on the number of threads. With `linear`, `compiled`, `arrays` and `loop` they do
not depend on the number of devices either: a device gets the same bits alone as among all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints, read_only
from efhc.base.errors import EfhcError, InputError
from efhc.base.threads import in_ranges
from efhc.core.state import NOTHING, Local
from efhc.kernels.linear_loops import Batches, TrainingInputs
from efhc.learning.data.dataset import Dataset, Numbers
from efhc.learning.measures import CLASSIFICATION, Metrics


class Batch(NamedTuple):
    """The samples of the devices of a call: all devices in one iteration k, or some of them, each in its own."""

    k: int | Ints
    """The iteration of all devices, or one iteration per device of the call."""
    samples: Ints | Sequence[Ints]
    """Numbers of training samples: (devices, batch size), or one array per device where their lengths differ."""
    devices: Ints | None = None
    """The numbers of the devices of the call, one per row of its models. Default: all devices, in their order."""

    def place(self, row: int) -> tuple[int, int]:
        """Return the device of a row of the call, and the iteration that it is in."""
        device = row if self.devices is None else int(self.devices[row])
        return device, int(self.k[row]) if isinstance(self.k, np.ndarray) else self.k

    @property
    def is_lockstep(self) -> bool:
        """Whether the call is for all devices in one iteration."""
        return self.devices is None and not isinstance(self.k, np.ndarray)


class ParameterPart(NamedTuple):
    """Consecutive columns of the models that have a name."""

    name: str
    size: int
    is_norm: bool = False
    """Whether they are parameters of a normalisation layer."""


class ScoresNotFinite(EfhcError):
    """Raised when a model gives test samples scores from which no prediction can be read."""

    def __init__(self, device: int | None) -> None:
        """`device` is its number. None: the mean model."""
        who = "the mean model" if device is None else f"device {device}"
        super().__init__(
            f"evaluation: the largest score of {who} is NaN or infinite for some test sample; "
            "look at the model's outputs in evaluation mode, and at the step_size"
        )
        self.device = device


NAMING = "parameter_sizes(data), which returns the number of parameters by name"


class Backend(ABC):
    """Gradients of all devices, and the metrics of their models."""

    name: str
    """What `Experiment.backend` calls it."""
    data: Dataset
    parameters: int
    """n"""
    metrics: Metrics = CLASSIFICATION
    """What models are tested by. `loss` is that of the scores: without an l2 term."""

    def initial_local(self, devices: int, first: int = 0) -> Local:
        """Return what the devices from number `first` on keep to themselves at k = 0; for most models, nothing."""
        return NOTHING

    def layout(self) -> list[ParameterPart]:
        """Return the named parameters that the columns of the models are, in their order.

        Raises `InputError` if the model does not name its parameters.
        """
        raise InputError(
            "share", "parameters of a model that does not name them", f"a torch module, or a model with {NAMING}"
        )

    def models_in_use(self, models: Floats, local: Local, devices: Ints) -> tuple[Floats, Local]:
        """Return the models that these devices use, and what they keep beside them, as `scored` takes them.

        They are those that devices train and mix, unless there are personal models.
        """
        return models, local

    def models_to_average(self, models: Floats, local: Local) -> tuple[Floats, Local]:
        """Return the models that the mean model is the mean of, and what is kept beside them."""
        return models, local

    @abstractmethod
    def grads(self, models: Floats, batch: Batch, local: Local, out: Floats) -> tuple[Floats, Local]:
        """Write the gradients at `models` to `out`, both with one row of n numbers per device of the batch.

        Returns each device's loss on its batch and its new local.
        """

    def scored(self, models: Floats, local: Local) -> dict[str, Floats]:
        """Return the metrics of each of the models (m, n) on each test sample, (m, samples), by name.

        Raises `ScoresNotFinite` for the first model with a largest score that is not finite.
        """
        values, is_bad = self._scored(models, local)
        if is_bad.any():
            raise ScoresNotFinite(int(np.argmax(is_bad)))
        return values

    def accuracies(self, models: Floats, local: Local) -> Floats:
        """Return the share of test samples that each of the models (m, n) gets right; see `scored`."""
        shares: Floats = self.scored(models, local)["accuracy"].mean(axis=1, dtype=np.float64)
        return shares

    @abstractmethod
    def _scored(self, models: Floats, local: Local) -> tuple[dict[str, Floats], Flags]:
        """Return what `scored` does, and whether a largest score of each model is not finite."""

    def module_for(self, model: Floats, local: Local) -> Any:
        """Return a `torch.nn.Module` in evaluation mode with one device's parameters (n,) and its row of `local`.

        Raises `InputError` if the model is not a torch module.
        """
        raise InputError("model", "a model that is not a torch module", "a torch module, to get one back")


def layout_of(model: Any, data: Dataset, backend: Backend) -> list[ParameterPart]:
    """Return the layout of a model written in NumPy, which its `parameter_sizes` says, or that of `Backend.layout`."""
    if not callable(getattr(model, "parameter_sizes", None)):
        return Backend.layout(backend)
    return [ParameterPart(name, size) for name, size in model.parameter_sizes(data).items()]


def numbers_of(models: Floats, out: Floats, ends: Ints) -> Ints:
    """Return the numbers of the models.

    Raises `ValueError` unless each has a batch, and a row for its gradient: the compiled loops check no index. Numbers
    of samples are not checked here: `experiments.runs.draw.draw_parts` checks those of every partition, and batches
    are drawn from the partition.
    """
    if not len(models) == len(ends) - 1 == len(out):
        raise ValueError(f"{len(models)} models, {len(ends) - 1} batches and {len(out)} rows for gradients")
    return np.arange(len(models))


class RangeBackend(Backend):
    """A backend whose compiled loops compute ranges of the devices of a call; devices keep nothing to themselves."""

    threads: int

    def grads(self, models: Floats, batch: Batch, local: Local, out: Floats) -> tuple[Floats, Local]:
        batches = end_to_end(batch.samples)
        every, losses = numbers_of(models, out, batches.ends), np.empty(len(models))
        in_ranges(self._compute, (models, every, batches, losses, out), len(models), self.threads)
        return losses, local

    @abstractmethod
    def _compute(
        self, models: Floats, every: Ints, batches: Batches, losses: Floats, out: Floats, low: int, high: int
    ) -> None:
        """Compute the losses and gradients of devices low .. high-1; `every` is 0, 1, ..."""


def end_to_end(samples: Ints | Sequence[Ints]) -> Batches:
    """Return the samples of all devices in one array."""
    if isinstance(samples, np.ndarray):
        devices, size = samples.shape
        return Batches(samples.ravel().astype(np.int32, copy=False), np.arange(devices + 1) * size)
    sizes = [len(mine) for mine in samples]
    return Batches(np.concatenate(samples, dtype=np.int32), np.cumsum([0, *sizes]))


def inputs_of(data: Dataset, x: Numbers, y: Ints) -> TrainingInputs:
    """Return samples of a data set in the form that compiled loops take."""
    kind = np.dtype(data.precision).type
    return TrainingInputs(x, kind(data.scale), kind(data.shift), y)


# Models written in NumPy


class ArraysBackend(Backend):
    """Any object with `loss_and_gradient(w, x, y)` and `scores(w, x)`, for all devices at once.

    Models of `efhc.learning.models.linear` are such objects. One without their `score_loss(scores, y)`, which returns
    the loss of each sample first, has no test loss.
    """

    name = "arrays"

    def __init__(self, model: Any, data: Dataset) -> None:
        if not callable(getattr(model, "score_loss", None)):
            self.metrics = {"accuracy": "higher"}
        self.parameters = model.parameters(data)
        self._model, self.data = model, data

    def layout(self) -> list[ParameterPart]:
        return layout_of(self._model, self.data, self)

    def grads(self, models: Floats, batch: Batch, local: Local, out: Floats) -> tuple[Floats, Local]:
        data, models = self.data, read_only(models)
        if isinstance(batch.samples, np.ndarray):
            x, y = data.inputs(data.x_train[batch.samples]), data.y_train[batch.samples]
            losses, out[:] = self._model.loss_and_gradient(models, x, y)
            return losses, local
        losses = np.empty(len(models))
        for i, samples in enumerate(batch.samples):
            x, y = data.inputs(data.x_train[samples]), data.y_train[samples]
            losses[i], out[i] = self._model.loss_and_gradient(models[i], x, y)
        return losses, local

    def _scored(self, models: Floats, local: Local) -> tuple[dict[str, Floats], Flags]:
        x, y = read_only(self.data.inputs(self.data.x_test)), read_only(self.data.y_test)
        values = {name: np.empty((len(models), len(y)), models.dtype) for name in self.metrics}
        is_bad = np.zeros(len(models), bool)
        for i, w in enumerate(read_only(models)):
            with np.errstate(over="ignore", invalid="ignore"):
                scores = self._model.scores(w, x)
                is_bad[i] = not np.isfinite(scores.max(axis=-1)).all()  # the largest is NaN if any is
                values["accuracy"][i] = scores.argmax(axis=-1) == y
                if "loss" in values and not is_bad[i]:
                    values["loss"][i] = self._model.score_loss(scores, y)[0]
        return values, is_bad
