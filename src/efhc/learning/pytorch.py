"""PyTorch, or one line that says how to get it; and its random numbers, without a trace in the rest of the process.

torch draws from one generator per process, which runs in several threads share: a thread holds a lock while it draws.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from efhc.base.errors import EfhcError

try:
    import torch
    from torch import nn
except ModuleNotFoundError:
    raise EfhcError("a neural network needs PyTorch: pip install 'efhc[deep]'") from None

__all__ = ["drawing", "nn", "torch"]

_GENERATOR = threading.RLock()


@contextmanager
def drawing(stream: np.random.Generator) -> Iterator[None]:
    """Make what torch draws in the body a function of `stream` alone, and leave all other draws unchanged."""
    with _GENERATOR:
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(int(stream.integers(2**63)))
        try:
            yield
        finally:
            torch.set_rng_state(before)
