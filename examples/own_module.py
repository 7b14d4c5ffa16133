"""Your own network: any function that makes a `torch.nn.Module` will do.

Run me, or name me: `efhc run examples/changing-network.toml model.module=examples/own_module.py:network`.
"""

from torch import nn

import efhc


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 10))


if __name__ == "__main__":
    result = efhc.simulate(model=network, iterations=300, partition=efhc.LabelsPerDevice(labels_per_device=5))
    print(result.summary())
