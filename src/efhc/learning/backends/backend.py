"""How gradients are computed: `grads(W, batch) -> G, loss`, for all devices at once or for some of them.

A backend holds a model and a data set and remembers nothing between calls. Its answers for a device are a function of
that device's number, model, samples and iteration; their last bits may depend on how many devices a call is for, but
never on what those do, nor on the number of threads. Those of `linear`, `compiled`, `arrays` and `loop` do not depend
on that either: a device gets the same bits alone as among all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.errors import EfhcError
from efhc.core.graph import Graph
from efhc.core.state import Local
from efhc.kernels.iteration_loops import Buffers, Outcome


class Batch(NamedTuple):
    """What the devices of a call look at: all devices in one iteration k, or some of them, each in its own."""

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


class ScoresNotFinite(EfhcError):
    """Raised when a model gives test samples scores from which no answer can be read."""

    def __init__(self, who: str) -> None:
        """`who` is the device, or the mean model."""
        super().__init__(
            f"evaluation: the largest score of {who} is NaN or infinite for some test sample; "
            "look at the model's outputs in evaluation mode, and at the step_size"
        )
        self.who = who


class Backend(Protocol):
    """Gradients and accuracies of all devices."""

    parameters: int
    """n"""

    def initial_local(self, devices: int) -> Local:
        """What devices keep to themselves at k = 0; for most models nothing."""
        ...

    def grads(self, models: Floats, batch: Batch, local: Local, out: Floats) -> tuple[Floats, Local]:
        """Write the gradients at `models` to `out`, both with one row of n numbers per device of the batch.

        Returns each device's loss on its batch and its new local.
        """
        ...

    def accuracies(self, models: Floats, local: Local) -> Floats:
        """The share of test samples that each of the models (m, n) gets right.

        Raises `ScoresNotFinite` if a largest score is not finite.
        """
        ...


@runtime_checkable
class ModuleMaker(Protocol):
    """A backend whose models are torch modules."""

    def module_for(self, model: Floats, local: Local) -> Any:
        """A `torch.nn.Module` in evaluation mode with one device's parameters (n,) and its row of `local`."""
        ...


@runtime_checkable
class RowBackend(Backend, Protocol):
    """A backend that can also take models from the rows of one array, and put gradients there, without a copy."""

    def grads_of_rows(self, pool: Floats, rows: Ints, batch: Batch, out: Floats, places: Ints) -> Floats:
        """Write the gradient of the model pool[rows[a]] on the a-th samples of the batch to out[places[a]], for each a.

        The bits are those of `grads`. `out` may be `pool` if no place is among `rows`; the places must differ from one
        another. Returns the losses. Raises `IndexError` if there is no such row or place.
        """
        ...


@runtime_checkable
class FusedBackend(Backend, Protocol):
    """A backend that can also make whole iterations, many in one call."""

    def stretch(
        self,
        buffers: Buffers,
        samples: Ints | Sequence[Ints],
        graph: Graph,
        new_links: Flags,
        thresholds: Floats,
        step_sizes: Floats,
        in_cache: bool,
    ) -> tuple[int, Buffers, Outcome]:
        """Make the iterations of `core.iteration.iterate` on one graph.

        Returns how many were made, which array is which afterwards, and what the iterations did.

        One is made for each row of `thresholds` (iterations, m), with its entry of `step_sizes` and its row of
        `samples` (iterations, m, batch size), or with one array of samples per device in every iteration. `new_links`
        are those of the first. An iteration that diverges is not made and ends the stretch. `in_cache` says whether W
        is so small that one thread makes all iterations while everything is in the cache; else each pass over the
        models uses all threads. The bits are the same.
        """
        ...
