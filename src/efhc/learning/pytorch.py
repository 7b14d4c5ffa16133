"""PyTorch, or one line that says how to get it; and its random numbers, without a trace in the rest of the process.

torch draws from one generator per process, which runs in several threads share: a thread holds a lock while it draws.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from efhc.base.extras import importing

with importing("deep"):
    import torch
    from torch import nn

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


class ResNet(nn.Module):
    """ResNet-18 (He et al. 2016) for 32x32 images: a 3x3 stem without pooling."""

    def __init__(self, channels: int, classes: int, norm: Literal["group", "batch"], groups: int) -> None:
        super().__init__()

        def normed(width: int) -> nn.Module:
            return nn.GroupNorm(groups, width) if norm == "group" else nn.BatchNorm2d(width)

        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        self.stem = nn.Sequential(nn.Conv2d(channels, 64, 3, padding=1, bias=False), normed(64), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(*[_Block(inputs, outputs, normed) for inputs, outputs in pairwise(widths)])
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.blocks(self.stem(x)))
        return scores


class _Block(nn.Module):
    """Two convolutions beside a shortcut; a block that widens also halves the side."""

    def __init__(self, inputs: int, outputs: int, normed: Any) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), normed(outputs), nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), normed(outputs),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), normed(outputs))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.relu(self.body(x) + self.shortcut(x))
        return outputs
