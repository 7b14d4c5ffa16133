"""A call for some devices, each in an iteration of its own, gives them the bits of calls for all devices."""

from __future__ import annotations

import numpy as np
import pytest
from test_modules import images
from torch import nn

from efhc.base.errors import InputError
from efhc.core.randomness import Randomness
from efhc.learning.backends import backend_for
from efhc.learning.backends.backend import Backend, Batch
from efhc.learning.backends.compiled_backend import CompiledBackend
from efhc.learning.backends.linear_backend import LinearBackend
from efhc.learning.backends.module_backend import LoopBackend
from efhc.learning.backends.stacked import StackedBackend
from efhc.learning.data.dataset import Dataset
from efhc.learning.models import MLP, SVM, LeastSquares, Module, Softmax

DEVICES, ITERATIONS = 7, 5
SOME, THEIR_K = np.array([5, 0, 6, 2]), np.array([3, 0, 4, 3])
SEED = Randomness(3)


def noisy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 5))


def convolutions() -> nn.Module:
    layers = nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(16, 5))


NOISY, CONVOLUTIONS = Module(module=noisy), Module(module=convolutions)
CASES = {
    "linear": (SVM(), "linear"),
    "linear, regularized": (Softmax(l2=0.1), "linear"),
    "arrays": (LeastSquares(l2=0.1), "arrays"),
    "compiled": (MLP(hidden=(9,)), "compiled"),
    "compiled convolutions": (CONVOLUTIONS, "compiled"),
    "loop": (CONVOLUTIONS, "loop"),
    "loop with noise": (NOISY, "loop"),
}


class Calls:
    """Models and batches of all devices for several iterations."""

    def __init__(self, model, backend: str, precision: str, threads: int = 1) -> None:
        data: Dataset = images(6, 6, classes=5, precision=precision)
        self.backend: Backend = backend_for(model, data, SEED, backend, threads=threads)
        stream = np.random.default_rng(1)
        shape = (DEVICES, self.backend.parameters)
        self.models = stream.normal(size=(ITERATIONS, *shape)).astype(precision) / 8
        self.samples = stream.integers(0, 20, (ITERATIONS, DEVICES, 6)).astype(np.int32)

    def of_all(self, k: int, samples=None):
        out = np.full_like(self.models[k], np.nan)
        batch = Batch(k, self.samples[k] if samples is None else samples)
        losses, local = self.backend.grads(self.models[k], batch, self.backend.initial_local(DEVICES), out)
        return out, losses, local

    def expected(self, samples=None):
        """The rows of `SOME` at `THEIR_K`, each from a call for all devices."""
        whole = [self.of_all(k, samples) for k in range(ITERATIONS)]
        rows = list(zip(SOME, THEIR_K, strict=True))
        return (
            np.stack([whole[k][0][i] for i, k in rows]),
            np.stack([whole[k][1][i] for i, k in rows]),
            {name: np.stack([whole[k][2][name][i] for i, k in rows]) for name in whole[0][2]},
        )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("precision", "threads"), [("float32", 1), ("float32", 2), ("float64", 2)])
@pytest.mark.parametrize("lengths", ["alike", "unlike"])
def test_some_devices_get_the_bits_of_a_call_for_all(case: str, precision: str, threads: int, lengths: str):
    calls = Calls(*CASES[case], precision)
    parts = None if lengths == "alike" else [np.arange(i, 2 * i + 3) for i in range(DEVICES)]
    gradients, losses, local = calls.expected(parts)
    calls.backend = Calls(*CASES[case], precision, threads).backend
    out = np.full_like(gradients, np.nan)
    batch = Batch(THEIR_K, calls.samples[THEIR_K, SOME] if parts is None else [parts[i] for i in SOME], SOME)
    got, after = calls.backend.grads(calls.models[THEIR_K, SOME], batch, calls.backend.initial_local(len(SOME)), out)
    assert np.array_equal(out, gradients)
    assert np.array_equal(got, losses)
    assert after.keys() == local.keys()
    assert all(np.array_equal(after[name], local[name]) for name in local)


@pytest.mark.parametrize("case", ["linear", "compiled"])
def test_models_without_a_batch_or_a_row_for_their_gradient_are_refused(case: str):
    calls = Calls(*CASES[case], "float32", 1)
    batch, models = Batch(THEIR_K, calls.samples[THEIR_K, SOME], SOME), calls.models[THEIR_K, SOME]
    for some, rows in ((models[:3], models), (models, models[:3]), (models[:3], models[:3])):
        with pytest.raises(ValueError, match=f"{len(some)} models, 4 batches and {len(rows)} rows"):
            calls.backend.grads(some, batch, {}, rows.copy())
    nobody = Batch(THEIR_K[:0], calls.samples[0, :0], SOME[:0])
    assert len(calls.backend.grads(models[:0], nobody, {}, models[:0].copy())[0]) == 0


def test_noise_is_that_of_the_device_and_its_iteration_not_of_its_row():
    calls = Calls(NOISY, "loop", "float32")
    models, samples = np.stack([calls.models[0, 0]] * 2), np.stack([calls.samples[0, 0]] * 2)

    def gradients(devices, k):
        out = np.empty_like(models)
        calls.backend.grads(models, Batch(np.array(k), samples, np.array(devices)), calls.backend.initial_local(2), out)
        return out

    swapped = gradients([2, 4], [8, 6])[::-1]
    assert np.array_equal(gradients([4, 2], [6, 8]), swapped)
    assert not np.array_equal(swapped[0], swapped[1])
    assert not np.array_equal(gradients([4, 4], [6, 8])[0], gradients([4, 4], [6, 8])[1])


def test_stacked_devices_with_noise_stay_together():
    data = images(6, 6, classes=5, precision="float32")
    stacked = StackedBackend(NOISY, data, SEED)
    assert stacked.draws_noise
    models = np.zeros((2, stacked.parameters), np.float32)
    samples, local = np.zeros((2, 3), np.int32), stacked.initial_local(2)
    allowed = r"^backend: cannot use stacked, .* Sequential that draws random numbers. Use loop, or auto"
    for apart in (Batch(np.array([1, 2]), samples), Batch(3, samples, np.array([0, 1]))):
        with pytest.raises(InputError, match=allowed):
            stacked.grads(models, apart, local, models.copy())
    stacked.grads(models, Batch(3, samples), local, models.copy())
    with pytest.raises(InputError, match=allowed):
        backend_for(NOISY, data, SEED, "stacked", devices_apart=True)


def test_stacked_devices_without_noise_may_be_apart():
    calls = Calls(MLP(hidden=(9,)), "stacked", "float64")
    gradients, losses, _ = calls.expected()
    out = np.full_like(gradients, np.nan)
    batch = Batch(THEIR_K, calls.samples[THEIR_K, SOME], SOME)
    got, _ = calls.backend.grads(calls.models[THEIR_K, SOME], batch, {}, out)
    np.testing.assert_allclose(out, gradients, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(got, losses, rtol=1e-12)
    all_at_once, _, _ = calls.of_all(2)
    again = np.full_like(all_at_once, np.nan)
    everyone = Batch(np.full(DEVICES, 2), calls.samples[2], np.arange(DEVICES))
    calls.backend.grads(calls.models[2], everyone, {}, again)
    assert np.array_equal(again, all_at_once)  # the same number of devices, so the same bits


@pytest.mark.parametrize("apart", [False, True])
def test_auto_takes_the_loop_for_devices_apart_with_noise(apart: bool):
    data = images(6, 6, classes=5, precision="float32")
    noisy, quiet = (backend_for(model, data, SEED, devices_apart=apart) for model in (NOISY, MLP(hidden=(9,))))
    assert type(noisy) is (LoopBackend if apart else StackedBackend)
    assert noisy.draws_noise
    assert type(quiet) is CompiledBackend
    assert not quiet.draws_noise
    assert type(backend_for(SVM(), data, SEED, devices_apart=apart)) is LinearBackend
