"""What computing with a `torch.nn.Module` takes, whether one device after the other or several at once.

Devices are cut into parts, which `threads` threads work on with one core each. The cut depends on the number of
devices alone, so no answer depends on the number of threads; and since the last bits of a product of matrices depend on
where in memory they begin, a part's parameters are copied to where torch would put them. On the CPU the same call
therefore gives the same bits. A parameter's gradient goes to its columns of `out` as soon as it is there.
"""

from __future__ import annotations

import copy
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, TypeVar

import numpy as np

from efhc.base.arrays import Floats, Ints
from efhc.core.randomness import Purpose, Randomness
from efhc.core.state import Local
from efhc.learning.backends.backend import Batch, ScoresNotFinite
from efhc.learning.backends.built_module import BuiltModule, Tensors
from efhc.learning.data.dataset import Dataset
from efhc.learning.models.modules import ModuleModel
from efhc.learning.pytorch import drawing, nn, torch

TESTED_AT_ONCE = 128
"""Test samples per pass: few enough for a part's activations to stay in fast memory."""

Modes = dict[bool, nn.Module]
"""The network in training mode (True) and in evaluation mode (False)."""


class ModuleBackend(BuiltModule):
    """Gradients and accuracies of all devices for a model that is a module."""

    def __init__(
        self, model: ModuleModel, data: Dataset, randomness: Randomness, *, device: str = "cpu", threads: int = 1
    ) -> None:
        self._threads, self._of_thread, self._of_caller = threads, threading.local(), threading.local()
        super().__init__(model, data, randomness, device=device)

    def _prepare(self, start: Tensors) -> None:
        modes = {training: shared_copy(self._module).train(training) for training in (True, False)}
        with drawing(np.random.default_rng(0)):
            self._networks = self._chosen(modes, start)

    def _chosen(self, modes: Modes, start: Tensors) -> Modes:
        """Return what `_scores` computes with, given the module in both modes and parameters to try it with."""
        return modes

    @abstractmethod
    def _parts(self, samples: Ints | Sequence[Ints]) -> list[slice]:
        """Return the groups of devices that are computed together."""

    @abstractmethod
    def _leaf(self, columns: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """A parameter of the devices of a part, given as (devices, numbers), as `_scores` wants it: a view."""

    @abstractmethod
    def _scores(self, network: nn.Module, parameters: Tensors, buffers: Tensors, x: torch.Tensor) -> torch.Tensor:
        """Scores (devices, samples, classes) for x, (devices, samples, *shape), or (samples, *shape) for all alike.

        `buffers`, (devices, *shape) each, are replaced by what they are after it.
        """

    def initial_local(self, devices: int) -> Local:
        return {name: np.repeat(buffer.cpu().numpy()[None], devices, axis=0) for name, buffer in self._buffers.items()}

    def grads(self, models: Floats, batch: Batch, local: Local, out: Floats) -> tuple[Floats, Local]:
        losses = np.empty(len(models), models.dtype)
        after = {name: np.empty_like(rows) for name, rows in local.items()}

        def compute(part: slice) -> None:
            x, y = self._inputs([batch.samples[i] for i in range(part.start, part.stop)])
            leaves = {name: leaf.requires_grad_() for name, leaf in self._leaves(models[part]).items()}
            buffers = {name: self._copied(rows[part]) for name, rows in local.items()}
            noise = self._randomness.stream(Purpose.NOISE, *batch.place(part.start)) if self.draws_noise else None
            with self._quoting():
                with drawing(noise) if noise else nullcontext():
                    scores = self._scores(self._network(training=True), leaves, buffers, x)
                of_part = self._losses(scores, y)
                gradients = torch.autograd.grad(
                    of_part.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
                )
            for place, gradient in zip(self._views(out[part]), gradients, strict=True):
                place.copy_(gradient)
            losses[part] = of_part.detach().cpu().numpy()
            for name, rows in after.items():
                rows[part] = buffers[name].detach().cpu().numpy()

        self._workers().each(compute, self._parts(batch.samples))
        return losses, after

    def accuracies(self, models: Floats, local: Local) -> Floats:
        right = np.zeros(len(models), np.int64)

        @torch.no_grad()
        def count(part: slice) -> None:
            leaves = self._leaves(models[part])
            for first in range(0, len(self.data.y_test), TESTED_AT_ONCE):
                several = slice(first, first + TESTED_AT_ONCE)
                x = self._copied(self.data.inputs(self.data.x_test[several])).reshape(-1, *self._shape)
                buffers = {name: self._copied(rows[part]) for name, rows in local.items()}
                with self._quoting():
                    scores = self._scores(self._network(training=False), leaves, buffers, x)
                finite = torch.isfinite(scores.amax(-1)).all(dim=-1).cpu().numpy()  # the largest is NaN if any is
                if not finite.all():
                    raise ScoresNotFinite(f"device {part.start + int(np.argmin(finite))}")
                right[part] += (scores.argmax(-1).cpu().numpy() == self.data.y_test[several]).sum(axis=-1)

        self._workers().each(count, self._parts(np.empty((len(models), 1), np.int64)))
        return right / len(self.data.y_test)

    def _workers(self) -> Workers:
        """The worker threads of the calling thread: runs that share a backend do not wait for one another."""
        if not hasattr(self._of_caller, "workers"):
            self._of_caller.workers = Workers(self._threads)
        workers: Workers = self._of_caller.workers
        return workers

    def _network(self, *, training: bool) -> nn.Module:
        """Return a network of the calling thread: while a module computes, it holds the parameters of a part."""
        if not hasattr(self._of_thread, "networks"):
            self._of_thread.networks = {key: shared_copy(network) for key, network in self._networks.items()}
        network: nn.Module = self._of_thread.networks[training]
        return network

    def _views(self, models: Floats) -> Iterator[torch.Tensor]:
        """Each parameter of the devices of a part, where it is in their flat models."""
        parts: Any = torch.from_numpy(models)
        for columns, shape in zip(parts.split(self._sizes, dim=1), self._shapes.values(), strict=True):
            yield self._leaf(columns, shape)

    def _leaves(self, models: Floats) -> Tensors:
        """Return copies of the parameters of a part."""
        views = zip(self._shapes, self._views(models), strict=True)
        return {name: view.to(self.device, copy=True, memory_format=torch.contiguous_format) for name, view in views}

    def _losses(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Each device's mean loss."""
        if self._loss_is_built_in:
            loss: Any = self._loss
            each: torch.Tensor = loss(scores.flatten(0, 1), y.flatten(), reduction="none")
            return each.view(y.shape).mean(dim=1)
        return torch.stack([self._loss(of_device, labels) for of_device, labels in zip(scores, y, strict=True)])


def shared_copy(module: nn.Module) -> nn.Module:
    """Return a copy with the same tensors, for another thread or another mode."""
    return copy.deepcopy(module, {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())})


_STARTING = threading.Lock()

Item = TypeVar("Item")


class Workers:
    """`threads` threads with one core each; they end with this object."""

    def __init__(self, threads: int) -> None:
        set_before: list[int] = []

        def take_one_core() -> None:
            set_before.append(torch.get_num_threads())  # asking is also what makes a later setting stay
            torch.set_num_threads(1)

        all_started = threading.Barrier(threads)
        with _STARTING:
            self._pool = ThreadPoolExecutor(threads, "efhc-torch", initializer=take_one_core)
            list(self._pool.map(lambda _: all_started.wait(), range(threads)))
            put_back = threading.Thread(target=torch.set_num_threads, args=(set_before[0],))
            put_back.start()
            put_back.join()

    def each(self, task: Callable[[Item], Any], items: Iterable[Item]) -> None:
        """Run `task` for every item. Raises the first error."""
        for done in [self._pool.submit(task, item) for item in items]:
            done.result()
