"""Networks and the paper's other data sets in whole experiments: they learn, resume, and can be the user's own."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from polars.testing import assert_frame_equal
from torch import nn

import efhc
from efhc.experiments.config.files import build_experiment, load_experiment, read_inputs, to_tables

EXAMPLES = Path(__file__).parents[2] / "examples"


def final(result: efhc.Result, strategy: str) -> float:
    return float(result.summary().filter(strategy=strategy)["accuracy"].item())


def test_femnist_learns_from_three_labels_per_device(femnist_files):
    changes = ["iterations=400", "seeds=[0]", "evaluate_every=400", f"data.path={femnist_files}"]
    result = efhc.simulate(load_experiment(EXAMPLES / "femnist.toml", changes))
    assert result.experiment.devices == 30
    assert {len(labels) for labels in result.devices["labels"].to_list()} == {3}
    assert final(result, "ZT") > 0.35  # of 62 classes; the most frequent is 8 % of the test samples
    assert final(result, "EF-HC") > 0.05
    assert result.models["ZT", 0].shape == (30, 62 * 785)


def test_femnist_learns_from_devices_with_a_few_writers_each(femnist):
    result = efhc.simulate(
        data=femnist,
        partition=efhc.Writers(),
        devices=37,
        iterations=300,
        evaluate_every=300,
        seeds=[0],
        network=efhc.Geometric(radius=0.3),
        strategies={"ZT": efhc.ZeroThreshold(), "alone": efhc.Never()},
    )
    assert final(result, "ZT") > 0.4
    assert final(result, "ZT") > final(result, "alone") + 0.05


@pytest.mark.slow
def test_cifar10_learns_with_a_network(cifar_files):
    changes = ["devices=4", "iterations=250", "evaluate_every=250", f"data.path={cifar_files}"]
    result = efhc.simulate(load_experiment(EXAMPLES / "cifar10.toml", changes))
    assert final(result, "ZT") > 0.25  # of 10 classes, equally frequent
    assert final(result, "EF-HC") > 0.25


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_resnet18_trains_on_cifar10(cifar_files, norm):
    result = efhc.simulate(
        data=efhc.Dataset(**{name: rows[:48] for name, rows in arrays_of(cifar_files).items()}),
        model=efhc.ResNet18(norm=norm),
        devices=2,
        batch_size="full",
        iterations=5,
        evaluate_every=5,
        seeds=[0],
        partition=efhc.IID(),
        network=efhc.Complete(),
        initial_models=efhc.Shared(),
        step_size=lambda k: 0.002,
        strategies={"ZT": efhc.ZeroThreshold()},
    )
    losses = result.metrics["train_loss"].to_numpy()
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    data = efhc.CIFAR10(path=folder).load()
    images = {name: data.inputs(getattr(data, name)[:200]).reshape(-1, 3, 32, 32) for name in ("x_train", "x_test")}
    return images | {"y_train": data.y_train, "y_test": data.y_test}


def normed_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 10)
    )


NETWORK = {
    "iterations": 6,
    "evaluate_every": 3,
    "seeds": (0, 1),
    "devices": 4,
    "batch_size": 5,
    "model": {"module": f"{__file__}:normed_network"},
    "strategies": {"EF-HC": efhc.EventTriggered(r=100.0), "ZT": efhc.ZeroThreshold()},
}


@pytest.mark.parametrize("backend", ["stacked", "loop"])
def test_a_network_with_statistics_and_dropout_resumes_bit_for_bit_on_any_number_of_cores(tmp_path, backend):
    whole = efhc.simulate(**NETWORK, backend=backend, jobs=1)
    told = []

    def stop(strategy: str, seed: int, done: int) -> None:
        told.append(done)
        if len(told) == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        efhc.simulate(**NETWORK, backend=backend, jobs=3, out=tmp_path / "run", progress=stop)
    resumed = efhc.simulate(**NETWORK, backend=backend, jobs=2, out=tmp_path / "run", resume=True)
    assert_frame_equal(resumed.metrics, whole.metrics, check_exact=True)
    for run, models in whole.models.items():
        assert np.array_equal(models, resumed.models[run])


def test_both_ways_of_computing_a_network_tell_the_same_story():
    quiet = {**NETWORK, "model": efhc.MLP(hidden=(16,)), "precision": "float64"}
    stacked, loop = (efhc.simulate(**quiet, backend=backend) for backend in ("stacked", "loop"))
    for run, models in stacked.models.items():
        assert np.abs(models - loop.models[run]).max() < 1e-12
    assert stacked.events["fired"].to_list() == loop.events["fired"].to_list()


@pytest.mark.slow
def test_your_own_module_is_a_short_script():
    script = EXAMPLES / "own_module.py"
    code = [line for line in script.read_text().split('"""')[2].splitlines() if line.strip()]
    assert len(code) <= 15
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=300)
    assert "EF-HC" in done.stdout


def test_a_module_in_a_config_is_found_beside_it_and_its_file_is_an_input(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text((EXAMPLES / "own_module.py").read_text())
    (tmp_path / "run.toml").write_text('iterations = 2\nseeds = [0]\nmodel = { module = "net.py:network" }\n')
    experiment = load_experiment(tmp_path / "run.toml")
    assert read_inputs(experiment)["model.module"].path == tmp_path / "net.py"
    result = efhc.simulate(experiment, out=tmp_path / "out")
    assert result.models["ZT", 0].shape == (10, 64 * 32 + 32 + 320 + 10)
    assert_frame_equal(efhc.simulate(efhc.load_experiment(tmp_path / "out" / "config.toml")).metrics, result.metrics)
    monkeypatch.chdir(tmp_path)
    named = load_experiment(EXAMPLES / "fashion-mnist.toml", ["model.module=net.py:network"])
    assert to_tables(named)["model"]["module"] == f"{tmp_path / 'net.py'}:network"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": {"module": "no.such:thing"}}, "model.module: no.such:thing cannot be loaded: ModuleNotFoundError"),
        ({"model": {"module": "gone.py:thing"}}, "gone.py does not exist"),
        ({"model": {"module": f"{__file__}:normed_netwrk"}}, "which does not exist (did you mean 'normed_network'?)"),
        ({"model": nn.Identity}, "model.module: cannot use a Identity without trainable parameters"),
        ({"model": lambda: nn.Linear(64, 10)}, "fails on samples of shape (1, 8, 8)"),
        ({"model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 7))}, "7 outputs. Use 10, one per class"),
        ({"model": {"kind": "lenet5"}}, "lenet5 for samples of shape (8, 8). Use images of 28x28 or 32x32"),
        ({"model": {"kind": "mlp"}, "device": "cuda"}, "device: cannot use cuda. Use cpu: PyTorch finds no CUDA"),
        ({"device": "cuda"}, "device: cannot use cuda. Use 'cpu' for a model that is not a torch module"),
        (
            {"model": {"kind": "mlp"}, "backend": "linear"},
            "backend: cannot use linear. Use auto, compiled, stacked or loop",
        ),
        ({"backend": "loop"}, "backend: cannot use loop. Use auto or linear or arrays"),
    ],
    ids=itertools.count(),
)
def test_what_cannot_be_trained_is_one_line_before_anything_is_written(tmp_path, fields, message):
    with pytest.raises(efhc.InputError) as caught:
        efhc.simulate(build_experiment({"iterations": 2, **fields}, tmp_path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def exploding(scores, labels):
    return (scores**2).mean() * 1e30


def test_a_loss_that_is_not_finite_stops_names_device_and_iteration_and_keeps_the_run(tmp_path):
    fields = {**NETWORK, "iterations": 50, "model": {"kind": "mlp", "loss": f"{__file__}:exploding"}}
    with pytest.raises(efhc.EfhcError, match=r"iteration \d+: .* of device \d is "):
        efhc.simulate(**fields, out=tmp_path / "run")
    assert (tmp_path / "run" / "config.toml").exists()
