"""The part of one device in an experiment: its strategy, its own samples, and its own random draws."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from efhc.base.arrays import Ints
from efhc.base.errors import InputError, within
from efhc.base.inputs import is_folder, parse_numpy, read_bytes
from efhc.core.triggers import NormTrigger
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_parts, draw_scenario, load_data
from efhc.learning.data import Dataset
from efhc.learning.data.images import images_by_class
from efhc.runtime.node_settings import Mode
from efhc.scenarios.scenario import Scenario
from efhc.strategies.forms import Form, form_of

ALLOWED = "an .npz file with x (one sample per row), y (labels from 0) and classes (how many there are)"


def own_form(experiment: Experiment, strategy: str, mode: Mode) -> Form:
    """Return the form of a strategy. Raises `InputError` if no node of this mode can run the strategy."""
    field, form = f"strategies.{strategy}", form_of(experiment.strategies[strategy], strategy)
    if (reason := form.off_lockstep()) is not None:
        raise InputError(field, f"a strategy that no node can run: {reason}", "mixing 'exchange' or 'half-steps'")
    assert form.parts is not None
    trigger = form.parts.trigger
    if isinstance(trigger, NormTrigger) and trigger.rho == "mean":
        given = "'mean', which no device knows: it takes the bandwidths of all"
        raise InputError(f"{field}.rho", given, "'nominal'")
    if mode == "lockstep" and not (form.is_papers or form.half_steps):
        given = "mixing 'exchange' with a local step other than SGD, while nodes are in lockstep"
        raise InputError(field, given, "mixing 'half-steps'; or mode = 'free-running'")
    pacing = form.parts.pacing
    if pacing is not None and pacing.bandwidth != "own":
        given = f"'{pacing.bandwidth}', which is a control for simulations"
        raise InputError(f"{field}.pacing.bandwidth", given, "'own'")
    if mode == "lockstep" and (pacing or form.chooses_links):
        given = "a strategy that paces itself by its bandwidth, while nodes in lockstep wait for one another"
        raise InputError(field, given, "mode = 'free-running'; or a strategy without pacing")
    return form


def own_scenario(experiment: Experiment, seed: int, device: int, data: Path | None, *, apart: bool) -> Scenario:
    """Return a scenario that knows the samples of one device only; everything else is that of the whole experiment.

    `data` is the device's own file or folder. Default: its part of the experiment's data. `apart` says that the device
    steps on its own clock. Raises `InputError` if the samples cannot be used.
    """
    if data is None:
        whole = load_data(experiment)
        own = only_samples(whole, draw_parts(experiment, whole, seed)[device])
    else:
        with within("data"):
            own = read_own(data, experiment)
    # Nothing reads the parts of other devices here, and theirs are not to be held.
    own_samples: Ints = np.arange(len(own.y_train))
    return draw_scenario(experiment, own, seed, parts=[own_samples] * experiment.devices, devices_apart=apart)


def only_samples(data: Dataset, samples: np.ndarray) -> Dataset:
    """Return the data set with these training samples and a single test sample: a node tests nothing.

    Classes, shape and scale stay those of the whole, so the model has the same parameters.
    """
    return replace(
        data,
        x_train=data.x_train[samples],
        y_train=data.y_train[samples],
        x_test=data.x_test[:1].copy(),
        y_test=data.y_test[:1].copy(),
        groups=None,
        class_names=data.label_names,
    )


def read_own(path: Path, experiment: Experiment) -> Dataset:
    """Return the samples of a device's own .npz file or folder of images, scaled as the experiment's data would be.

    With `standardize = true` each device scales by its own mean and standard deviation; to have the same scale on all
    devices, give both in the experiment's `data.standardize`.
    """
    standardize, precision = getattr(experiment.data, "standardize", False), experiment.precision
    if is_folder(path):
        x, y, names = images_by_class(path)
        unit = 255.0
    else:
        file = parse_numpy(read_bytes(path, "data"), path, ALLOWED)
        if missing := [name for name in ("x", "y", "classes") if name not in file]:
            raise InputError("data", f"{path} without {missing[0]}", ALLOWED)
        x, y, unit = file["x"], file["y"], 255.0 if file["x"].dtype == np.uint8 else 1.0
        if file["classes"].shape != () or file["classes"].dtype.kind not in "iu" or file["classes"] < 1:
            raise InputError("data", f"{path} with classes that are not one whole number", ALLOWED)
        names = tuple(map(str, range(int(file["classes"]))))
    data = Dataset(x, y, x[:1], y[:1], name=path.name, class_names=names).prepared(standardize, precision, unit=unit)
    if data.classes > len(names):
        raise InputError("data", f"label {data.classes - 1} in {path}", f"labels 0 to {len(names) - 1}")
    return data
