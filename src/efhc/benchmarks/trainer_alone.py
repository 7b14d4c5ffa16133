"""A node without everything that makes it one: it loads the same code and data, and trains. Memory is compared to it.

python -m efhc.benchmarks.trainer_alone NODE.toml
"""

from __future__ import annotations

import sys
from pathlib import Path

from efhc.experiments.nodes.assemble import choose
from efhc.experiments.nodes.node_files import read_node
from efhc.experiments.nodes.own_part import own_scenario
from efhc.runtime.training import Trainer

READY = "ready"
"""What it prints once its memory is that of training."""
STEPS = 3
"""Number of iterations after which it is."""


def train_alone(file: Path) -> None:
    """Train as the device of a node file would, on and on."""
    settings = read_node(file)
    chosen = choose(settings)
    scenario = own_scenario(chosen.experiment, chosen.seed, settings.device, settings.data, apart=True)
    trainer = Trainer(scenario, settings.device, chosen.form)
    trainer.warm_up()
    model = trainer.initial_model()
    for k in range(chosen.experiment.iterations):
        gradient, _, trainer.local = trainer.gradient(k, model)
        model = trainer.mixed(model, gradient, trainer.step_size(k), [])
        del gradient  # it is the model now
        if k == STEPS:
            sys.stdout.write(READY)
            sys.stdout.flush()


if __name__ == "__main__":
    train_alone(Path(sys.argv[1]))
