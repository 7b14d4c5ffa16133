"""Small networks in compiled loops, one device after the other, with samples side by side in vectors."""

from __future__ import annotations

import threading
from functools import cache

import numpy as np

from efhc.base.arrays import Floats, Ints, read_only
from efhc.base.errors import InputError
from efhc.base.threads import in_ranges
from efhc.core.randomness import Randomness
from efhc.core.state import Local
from efhc.kernels.linear_loops import Inputs
from efhc.kernels.network import Convolution, Network
from efhc.kernels.network_loops import TESTED_AT_ONCE, Kernels, kernels
from efhc.learning.backends.backend import Batch, ScoresNotFinite
from efhc.learning.backends.built_module import BuiltModule, built
from efhc.learning.backends.described import LAYERS, NotAChain, network_of
from efhc.learning.backends.rows import OfRows, checked_rows, end_to_end
from efhc.learning.data.dataset import Dataset
from efhc.learning.models.modules import ModuleModel, input_shape

ALIGNED = 64
"""The bytes of a cache line: vectors that begin with one do not lie across two."""

MOST_WEIGHTS, MOST_WITH_FEW_SAMPLES = 20_000, 4_000
"""Weights of a convolution up to which compiled loops are faster than torch."""

_kernels = cache(kernels)


def is_faster(network: Network, batch_size: int | None) -> bool:
    """Whether compiled loops were measured to be faster than `stacked`. Only shapes count: a run keeps its backend.

    They are, but for convolutions of many channels, for which torch has larger tiles; and the fewer the samples, the
    emptier the vectors.
    """
    weights = [
        layer.parameters(shape) - layer.outputs * layer.bias
        for layer, shape in network.in_order()
        if isinstance(layer, Convolution)
    ]
    few_samples = batch_size is not None and batch_size < network.lanes
    return max(weights, default=0) <= (MOST_WITH_FEW_SAMPLES if few_samples else MOST_WEIGHTS)


class NotCompiledError(InputError):
    """A module that compiled loops do not know."""


def network_for(model: ModuleModel, data: Dataset, randomness: Randomness) -> Network:
    """Return what is to be compiled for a model. Raises `NotCompiledError`."""
    module = built(model, data, randomness)
    try:
        return network_of(module, input_shape(data), model.loss, data.precision)
    except NotAChain as reason:
        names = ", ".join(layer.__name__ for layer in LAYERS)
        allowed = f"for backend = 'compiled', a Sequential of {names}, with a built-in loss; else 'auto'"
        raise NotCompiledError("module", f"a {type(module).__name__} with {reason}", allowed) from None


class CompiledBackend(OfRows, BuiltModule):
    """A device's answers depend on nothing but its own model and samples, to the last bit."""

    def __init__(
        self,
        model: ModuleModel,
        data: Dataset,
        randomness: Randomness,
        *,
        batch_size: int | None = None,
        threads: int = 1,
    ) -> None:
        """`batch_size` is that of all devices. Default: it is not known, or they differ.

        Raises `NotCompiledError` before anything is computed.
        """
        network = network_for(model, data, randomness)
        super().__init__(model, data, randomness)
        self._threads, self._of_thread = threads, threading.local()
        in_one_vector = batch_size is not None and batch_size <= network.lanes
        self._training, self._testing = _kernels(network, 1 if in_one_vector else 2), _kernels(network, 2)
        # numba compiles anew for what may be written to: here nothing may.
        kind = np.dtype(data.precision).type
        scale, shift = kind(data.scale), kind(data.shift)
        self._train = Inputs(read_only(data.x_train), scale, shift, read_only(data.y_train))
        self._test = Inputs(read_only(data.x_test), scale, shift, read_only(data.y_test))

    def grads_of_rows(self, pool: Floats, rows: Ints, batch: Batch, out: Floats, places: Ints) -> Floats:
        samples, ends = end_to_end(batch.samples)
        models, gradients = checked_rows(rows, pool, ends), checked_rows(places, out, ends)
        losses = np.empty(len(models))
        given = read_only(pool), models, self._train, samples.astype(np.int32, copy=False), ends, losses, out, gradients

        def compute(low: int, high: int) -> None:
            self._training.picked(*given, self._room(self._training), low, high)

        in_ranges(compute, (), len(models), self._threads)
        return losses

    def accuracies(self, models: Floats, local: Local) -> Floats:
        samples = len(self.data.y_test)
        pieces = -(-samples // TESTED_AT_ONCE)
        right, bad = np.zeros((len(models), pieces), np.int64), np.zeros((len(models), pieces), bool)

        def count(low: int, high: int) -> None:
            self._testing.answers(read_only(models), self._test, right, bad, self._room(self._testing), low, high)

        in_ranges(count, (), right.size, self._threads)
        if bad.any():
            raise ScoresNotFinite(f"device {int(np.argmax(bad.any(axis=1)))}")
        shares: Floats = right.sum(axis=1) / samples
        return shares

    def _room(self, kernels: Kernels) -> Floats:
        """What a thread computes in."""
        rooms = self._of_thread.__dict__
        name, size = f"room {id(kernels)}", kernels.layout.size
        if name not in rooms:
            numbers = np.zeros(size + ALIGNED, self.data.precision)
            first = -numbers.ctypes.data % ALIGNED // numbers.itemsize
            rooms[name] = numbers[first : first + size]
        room: Floats = rooms[name]
        return room
