"""One device's row: the numbers are those of the whole run, to the last bit."""

import numpy as np
import pytest

import efhc
from efhc.base.errors import InputError
from efhc.core.device import Step
from efhc.drivers.general import driver_for
from efhc.experiments.config.files import build_experiment
from efhc.experiments.nodes.assemble import own_scenario
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.runtime import training
from efhc.runtime.training import Trainer, combined
from efhc.scenarios.personal import personalized
from efhc.strategies.forms import form_of


def experiment_with(**fields):
    common = {"devices": 5, "iterations": 4, "seeds": 3, "strategies": {"ZT": {"kind": "zt"}}}
    return build_experiment(common | fields)


def trainers(experiment):
    (strategy,) = experiment.strategies.values()
    (seed,) = experiment.seeds
    return [
        Trainer(own_scenario(experiment, seed, device, None, apart=False), device, form_of(strategy))
        for device in range(experiment.devices)
    ]


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("columns", [1024, training.COLUMNS])
def test_a_row_is_the_row_of_the_whole_run(precision, columns, monkeypatch):
    monkeypatch.setattr(training, "COLUMNS", columns)
    experiment = experiment_with(precision=precision, network={"kind": "complete"})
    scenario = draw_scenario(experiment, load_data(experiment), 3)
    driver = driver_for(scenario, experiment.strategies["ZT"], 1, 0.0)
    state = driver.initial_state()
    rows, graph = trainers(experiment), scenario.network.graph(0)
    models = [trainer.initial_model() for trainer in rows]
    for k in range(4):
        assert np.array_equal(np.stack(models), state.models)
        state, _ = driver.advance(state, 1)
        following = []
        for i, trainer in enumerate(rows):
            gradient, _, _ = trainer.gradient(k, models[i])
            beta = 1 / (1 + graph.degrees[i])
            steps = [Step(j, beta, models[i], models[j]) for j in range(5) if j != i]
            following.append(trainer.mixed(models[i], gradient, trainer.scenario.step_size(k), steps))
        models = following
    assert np.array_equal(np.stack(models), state.models)


def test_a_node_holds_its_own_samples_only():
    experiment = experiment_with()
    whole = draw_scenario(experiment, load_data(experiment), 3).learner
    for device in range(5):
        own = own_scenario(experiment, 3, device, None, apart=True).learner
        assert len(own.data.x_train) == len(whole.parts[device])
        assert len(own.data.x_test) == 1
        assert own.data.classes == whole.data.classes
        assert np.array_equal(own.data.x_train, whole.data.x_train[whole.parts[device]])


def test_a_step_with_an_older_sent_model_adds_the_difference():
    trainer = trainers(experiment_with(precision="float64"))[0]
    model, sent, received, gradient = np.random.default_rng(0).standard_normal((4, trainer.parameters))
    expected = model + 0.25 * (received - sent) - 0.5 * gradient
    assert np.allclose(
        trainer.mixed(model, gradient.copy(), 0.5, [Step(1, 0.25, sent, received)]), expected, rtol=1e-14
    )


def test_combined_rounds_to_what_can_be_sent():
    model = np.array([1 / 3, 1e6, -1e6, 0.0], dtype=np.float32)
    rounded = combined([(1.0, model)], "float16")
    assert rounded.dtype == np.float32
    assert np.array_equal(rounded, np.array([np.float16(1 / 3), 65504, -65504, 0], dtype=np.float32))
    assert np.array_equal(combined([(2.0, model), (-1.0, model)]), model)


def test_own_samples_from_a_file_and_from_a_folder(tmp_path):
    from PIL import Image

    data = load_data(experiment_with())
    experiment = experiment_with(data={"kind": "digits", "standardize": {"mean": 0.3, "std": 0.4}})
    pixels = np.random.default_rng(1).integers(0, 256, (6, 8, 8), dtype=np.uint8)
    labels = np.array([0, 0, 1, 1, 3, 3])
    np.savez(tmp_path / "own.npz", x=pixels, y=labels, classes=data.classes)
    for label in range(data.classes):
        (tmp_path / "images" / str(label)).mkdir(parents=True)
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        Image.fromarray(image).save(tmp_path / "images" / str(label) / f"{number}.png")
    experiment = experiment.model_copy(update={"batch_size": "full"})
    from_file, from_folder = (
        own_scenario(experiment, 3, 2, tmp_path / name, apart=True).learner.data for name in ("own.npz", "images")
    )
    assert np.array_equal(from_file.inputs(from_file.x_train), from_folder.inputs(from_folder.x_train))
    assert np.array_equal(from_file.y_train, labels)
    assert from_file.classes == from_folder.classes == data.classes
    assert np.allclose(from_file.inputs(from_file.x_train), (pixels.reshape(6, -1) / 255 - 0.3) / 0.4, atol=1e-5)


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"x": np.zeros((3, 4)), "y": np.zeros(3, int)}, "without classes"),
        ({"x": np.zeros((3, 4)), "y": np.array([0, 1, 2]), "classes": np.array(2)}, "label 2"),
        ({"x": np.zeros((3, 4)), "y": np.zeros(3, int), "classes": np.array([2])}, "not one whole number"),
    ],
)
def test_own_samples_that_cannot_be_used(tmp_path, arrays, problem):
    np.savez(tmp_path / "own.npz", **arrays)
    experiment = experiment_with(data={"kind": "digits", "standardize": False})
    with pytest.raises(Exception, match=problem):
        own_scenario(experiment, 3, 0, tmp_path / "own.npz", apart=True)


def test_a_device_with_a_file_of_its_own_cannot_balance_the_classes_of_all(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.zeros((4, 64)), y=np.arange(4) % 2, classes=np.array(10))
    experiment = experiment_with(model={"kind": "mlp", "class_weights": "balanced"})
    with pytest.raises(InputError, match=r"model\.class_weights: .*balanced"):
        own_scenario(experiment, 3, 0, tmp_path / "own.npz", apart=True)


def test_a_device_begins_with_its_own_row_of_what_is_personal():
    strategy = efhc.ZeroThreshold(personal={"keep": "bias"})
    experiment = efhc.Experiment(devices=3, seeds=(3,), initial_models="per-device", strategies={"S": strategy})
    for device in range(3):
        whole = own_scenario(experiment, 3, device, None, apart=True)
        trainer = Trainer(personalized(whole, strategy, "S"), device, form_of(strategy))
        start = whole.initial_models()[device]
        assert np.array_equal(trainer.local["personal/model"][0], start[trainer.parameters :])
        assert np.array_equal(trainer.initial_model(), start[: trainer.parameters])
