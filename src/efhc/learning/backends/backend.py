"""How gradients are computed: `grads(W, batch) -> G, loss`, for all devices at once.

A backend holds a model and a data set and remembers nothing between calls. Its answers for a device are a function of
that device's model, samples and iteration; their last bits may depend on how many devices there are, but never on what
those do, nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from efhc.base.arrays import Flags, Floats, Ints
from efhc.base.errors import EfhcError
from efhc.core.graph import Graph
from efhc.core.iteration import Local
from efhc.kernels.loops import Buffers, Outcome


class Batch(NamedTuple):
    """What every device looks at in iteration k."""

    k: int
    samples: Ints | Sequence[Ints]
    """Numbers of training samples: (devices, batch size), or one array per device where their lengths differ."""


class ScoresNotFinite(EfhcError):
    """Raised when a model gives test samples scores from which no answer can be read."""

    def __init__(self, who: str) -> None:
        """`who` is the device, or the mean model."""
        super().__init__(
            f"evaluation: the largest score of {who} is NaN or infinite for some test sample; "
            "look at the model's outputs in evaluation mode, and at the step_size"
        )


class Backend(Protocol):
    """Gradients and accuracies of all devices."""

    parameters: int
    """n"""

    def initial_local(self, devices: int) -> Local:
        """What devices keep to themselves at k = 0; for most models nothing."""
        ...

    def grads(self, models: Floats, batch: Batch, local: Local, out: Floats) -> tuple[Floats, Local]:
        """Write G(k) at `models` to `out`, both (m, n). Returns each device's loss on its batch and its new local."""
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
class FusedBackend(Backend, Protocol):
    """A backend that can also make whole iterations, many in one call. Drivers use it while W fits into the cache."""

    def stretch(
        self,
        buffers: Buffers,
        samples: Ints | Sequence[Ints],
        graph: Graph,
        new_links: Flags,
        thresholds: Floats,
        step_sizes: Floats,
    ) -> tuple[int, Outcome]:
        """Make the iterations of `core.iteration.iterate` on one graph; returns how many were made, and what they did.

        One is made for each row of `thresholds` (iterations, m), with its entry of `step_sizes` and its row of
        `samples` (iterations, m, batch size), or with one array of samples per device in every iteration. `new_links`
        are those of the first. An iteration that diverges is not made and ends the stretch. W is in `buffers.models`
        after an even number of iterations, and in `buffers.spare` after an odd one.
        """
        ...
