"""LoRA adapters on a frozen network: devices share the adapters, and each keeps a head of its own.

Name me: `model.module=examples/own_lora.py:network`, with `personal = { share = "*lora_*" }` in a strategy.
"""

import torch
from torch import nn


class LoRA(nn.Module):
    """x W^T + c + x A^T B^T, where W and c are frozen: constants that are neither trained nor sent."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)  # yours would come from a file
        self.lora_a = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.lora_b = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x):
        return self.base(x) + x @ self.lora_a.T @ self.lora_b.T


def network():
    return nn.Sequential(nn.Flatten(), LoRA(64, 32), nn.ReLU(), LoRA(32, 32), nn.ReLU(), nn.Linear(32, 10))
