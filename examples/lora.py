"""LoRA: low-rank adapters and a head are trained and sent; the transformer below them is frozen.

Run `efhc run examples/lora.toml`. Here the weights of the transformer are drawn by a fixed seed. Those of a trained one
come from a file: `efhc run examples/lora.toml model.weights=base.safetensors` with tensors by the names that the base
layers have below, such as "blocks.0.query.base.weight".
"""

from __future__ import annotations

import torch
from torch import nn


class LoRA(nn.Module):
    """W x + B A x, with W frozen, A (rank, inputs) and B (outputs, rank); B = 0 at first (Hu et al., ICLR 2022)."""

    def __init__(self, inputs: int, outputs: int, rank: int):
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.lora_a, self.lora_b = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return self.base(x) + self.lora_b(self.lora_a(x))


class Block(nn.Module):
    """Attention with one head, then two layers, each around a shortcut."""

    def __init__(self, width: int, rank: int):
        super().__init__()
        self.query, self.key, self.value = (LoRA(width, width, rank) for _ in range(3))
        self.wide, self.narrow = LoRA(width, 2 * width, rank), LoRA(2 * width, width, rank)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x):
        y = self.norms[0](x)
        scores = self.query(y) @ self.key(y).transpose(-1, -2) / y.shape[-1] ** 0.5
        x = x + scores.softmax(-1) @ self.value(y)
        return x + self.narrow(torch.relu(self.wide(self.norms[1](x))))


class Transformer(nn.Module):
    """The rows of an image are its tokens."""

    def __init__(self, side: int, classes: int, width: int, blocks: int, rank: int):
        super().__init__()
        self.embedding, self.places = nn.Linear(side, width), nn.Parameter(torch.zeros(side, width))
        self.blocks = nn.Sequential(*(Block(width, rank) for _ in range(blocks)))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.blocks(self.embedding(x.flatten(1, 2)) + self.places).mean(1))


def network(side=8, classes=10, width=32, blocks=2, rank=4):
    """The transformer with its base drawn by a seed and frozen."""
    module, generator = Transformer(side, classes, width, blocks, rank), torch.Generator().manual_seed(0)
    for name, parameter in module.named_parameters():
        if not any(part in name for part in ("lora_", "head")):
            parameter.requires_grad_(False)
            if parameter.ndim > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5, generator=generator)
    return module
