"""All devices at once, one after the other, and a plain module with torch's autograd say the same."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from test_modules import images
from torch import nn
from torch.nn import functional

from efhc.base.errors import InputError
from efhc.core.randomness import Randomness
from efhc.learning.backends import backend_for
from efhc.learning.backends.backend import ArraysBackend, Batch, ScoresNotFinite
from efhc.learning.backends.module_backend import LoopBackend, ModuleBackend
from efhc.learning.backends.stacked import StackedBackend, UnstackableError
from efhc.learning.learner import Learner
from efhc.learning.models import MLP, SVM, LeNet5, Module, ModuleModel, ResNet18
from efhc.learning.models.modules import input_shape

BACKENDS = [LoopBackend, StackedBackend]


class Residual(nn.Module):
    """The layers of a ResNet, small: both norms, strides, a shortcut, functions and methods."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(norm(width) for width in (4, 8, 8))
        self.second = nn.Conv2d(4, 8, 3, 2, 1, bias=False)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.shortcut = nn.Conv2d(4, 8, 1, stride=2)
        self.last = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(x)).relu()
        y = self.norms[2](self.grouped(y))
        y = torch.tanh(y + self.shortcut(x) * 2)
        scores: torch.Tensor = self.last(functional.adaptive_avg_pool2d(y, 1).view(y.size(0), -1))
        return scores


class Scaled(nn.Module):
    """Layers that have no form of their own: plain parameters, a constant, a norm over features, joined values."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(36))
        self.frozen = nn.Parameter(torch.linspace(-1, 1, 36), requires_grad=False)
        self.register_buffer("constant", torch.full((36,), 0.5))
        self.norm, self.first, self.last = nn.LayerNorm(36), nn.Linear(36, 6), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x.reshape(x.shape[0], -1)) * self.scale + self.frozen - self.constant
        h = self.first(x)
        scores: torch.Tensor = self.last(torch.cat([h, h.mean(1, keepdim=True) - h], dim=1))
        return scores


class Untraceable(nn.Module):
    """Control flow on its input's shape, which a tracer refuses and vmap does not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(36, 6), nn.BatchNorm1d(6), nn.Linear(6, 5)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(len(x.shape) > 2)):
            x = x.flatten(1)
        for layer in self.layers:
            x = layer(x)
        return x


class Inner(nn.Module):
    """A traceable network around one layer that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Conv2d(1, 2, 3), Untraceable()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(32, 36), nn.Unflatten(1, (6, 6)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.after(self.inner(self.before(x)))
        return scores


class Tied(nn.Module):
    """One matrix used twice, and one never."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(9, 9), nn.Linear(9, 9)
        self.last, self.unused = nn.Linear(9, 5), nn.Linear(2, 2)
        self.again.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.again(torch.relu(self.first(x))))
        return scores


def batch_normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 5))


def dropped_out() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Dropout2d(0.3), nn.Flatten(), nn.Dropout(0.5), nn.Linear(48, 5))


def squared(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (outputs - functional.one_hot(labels, outputs.shape[1])).square().sum(dim=1).mean()


LOSSES = {"cross-entropy": functional.cross_entropy, "multi-margin": functional.multi_margin_loss}
CASES = {
    "lenet5": (LeNet5(), (28, 28)),
    "lenet5 in colour, multi-margin": (LeNet5(loss="multi-margin"), (3, 32, 32)),
    "mlp": (MLP(hidden=(9, 8)), (6, 6)),
    "own loss": (MLP(hidden=(9,), loss=squared), (7,)),
    "group norm": (Module(module=lambda: Residual(lambda width: nn.GroupNorm(2, width))), (3, 8, 8)),
    "batch norm": (Module(module=lambda: Residual(nn.BatchNorm2d)), (3, 8, 8)),
    "batch norm of features": (Module(module=batch_normed), (6, 6)),
    "plain parameters": (Module(module=Scaled), (6, 6)),
    "untraceable": (Module(module=Untraceable), (6, 6)),
    "untraceable within": (Module(module=Inner), (6, 6)),
    "tied": (Module(module=Tied), (9,)),
}


class Problem:
    def __init__(
        self,
        model: ModuleModel,
        shape: tuple[int, ...],
        precision: str = "float64",
        devices: int = 5,
        samples: Any = None,
    ) -> None:
        self.model, self.data = model, images(*shape, classes=5, precision=precision, samples=40 if samples else 20)
        streams = [np.random.default_rng(i) for i in range(devices)]
        self.models = np.stack([model.initial(self.data, stream) for stream in streams]).astype(precision)
        self.samples = np.random.default_rng(9).integers(0, 20, (devices, 6)) if samples is None else samples

    def batch(self, k: int) -> Any:
        return self.samples if isinstance(self.samples, list) else np.roll(self.samples, k)

    def backend(self, kind: type[ModuleBackend], seed: int = 0, threads: int = 2) -> ModuleBackend:
        return kind(self.model, self.data, Randomness(seed), threads=threads)

    def run(self, backend: ModuleBackend, iterations: int = 3, step: float = 0.1) -> list[np.ndarray]:
        """Everything that some iterations of gradient descent give."""
        models, local, results = self.models.copy(), backend.initial_local(len(self.models)), []
        for k in range(iterations):
            out = np.full_like(models, np.nan)
            before = {name: rows.copy() for name, rows in local.items()}
            losses, after = backend.grads(models, Batch(k, self.batch(k)), local, out)
            assert all(np.array_equal(before[name], local[name]) for name in before)
            models, local = models - models.dtype.type(step) * out, after
            results += [losses, out, *local.values()]
        return [*results, backend.accuracies(models, local)]

    def oracle(self, iterations: int = 3, step: float = 0.1) -> list[np.ndarray]:
        """The same by a module per device, as one would write it in PyTorch."""
        columns = []
        for own, samples in zip(self.models, range(len(self.models)), strict=True):
            module = self.model.build(self.data).to(dtype=getattr(torch, self.data.precision))
            parameters = [p for p in module.parameters() if p.requires_grad]
            nn.utils.vector_to_parameters(torch.from_numpy(own.copy()), parameters)
            results = []
            for k in range(iterations):
                rows = self.batch(k)[samples]
                scores, y = module(self.x(self.data.x_train[rows])), torch.from_numpy(self.data.y_train[rows])
                loss = LOSSES.get(self.model.loss, self.model.loss)(scores, y)
                gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
                filled = [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, parameters, strict=True)]
                with torch.no_grad():
                    for parameter, gradient in zip(parameters, filled, strict=True):
                        parameter.sub_(step * gradient)
                running = [b.numpy().copy() for name, b in module.named_buffers() if name != "constant"]
                results += [loss.detach().numpy(), nn.utils.parameters_to_vector(filled).numpy(), *running]
            scores = module.eval()(self.x(self.data.x_test)).detach().numpy()
            columns.append([*results, np.mean(scores.argmax(1) == self.data.y_test)])
        return [np.stack(each) for each in zip(*columns, strict=True)]

    def x(self, rows: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(self.data.inputs(rows)).reshape(-1, *input_shape(self.data))


@cache
def torchs(case: str, precision: str, iterations: int) -> list[np.ndarray]:
    """What the oracle says, once for all backends."""
    return Problem(*CASES[case], precision=precision).oracle(iterations)


def assert_close(got: list[np.ndarray], want: list[np.ndarray], tolerance: float) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * (1e-30 + np.abs(b).max()))


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_all_ways_are_torchs(kind: type[ModuleBackend], case: str):
    problem = Problem(*CASES[case])
    assert_close(problem.run(problem.backend(kind)), torchs(case, "float64", 3), 1e-10)
    problem = Problem(*CASES[case], precision="float32")
    results = problem.run(problem.backend(kind), iterations=1)
    assert results[0].dtype == results[1].dtype == np.float32
    assert_close(results[:-1], torchs(case, "float32", 1)[:-1], 2e-5)


@pytest.mark.slow
def test_resnet18():
    problem = Problem(ResNet18(), (3, 32, 32), precision="float32", devices=2)
    problem.samples = problem.samples[:, :3]
    want = problem.oracle(iterations=1)[:-1]
    for kind in BACKENDS:
        assert_close(problem.run(problem.backend(kind), iterations=1)[:-1], want, 2e-4)


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("case", [*CASES, "dropout"])
def test_the_number_of_threads_does_not_change_a_bit(kind: type[ModuleBackend], case: str):
    problem = Problem(*CASES.get(case, (Module(module=dropped_out), (6, 6))), precision="float32")
    first, other = (problem.run(problem.backend(kind, threads=threads), iterations=2) for threads in (1, 3))
    assert all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_where_the_models_lie_in_memory_does_not_change_a_bit(kind: type[ModuleBackend], precision: str):
    problem = Problem(MLP(hidden=(17,)), (28, 28), precision)
    backend, results = problem.backend(kind), []
    for shift in range(0, 8, 3):
        memory = np.zeros(problem.models.size + 8, precision)
        moved = memory[shift : shift + problem.models.size].reshape(problem.models.shape)
        moved[:] = problem.models
        out = np.empty_like(moved)
        results.append((backend.grads(moved, Batch(0, problem.samples), {}, out)[0], out))
    assert all(np.array_equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("kind", BACKENDS)
def test_dropout_is_a_function_of_seed_and_iteration_also_among_threads(kind: type[ModuleBackend]):
    problem = Problem(Module(module=dropped_out), (6, 6), "float32")

    def gradients(seed: int, k: int) -> np.ndarray:
        out = np.empty_like(problem.models)
        problem.backend(kind, seed).grads(problem.models, Batch(k, problem.samples), {}, out)
        return out

    draws = list(itertools.product((0, 1), (0, 1)))
    want = {each: gradients(*each) for each in draws}
    assert all(not np.array_equal(want[a], want[b]) for a, b in itertools.combinations(draws, 2))
    state, got = torch.get_rng_state(), {}
    threads = [threading.Thread(target=lambda each=each: got.update({each: gradients(*each)})) for each in draws]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(want[each], got[each]) for each in draws)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", BACKENDS)
def test_batches_may_differ_in_length(kind: type[ModuleBackend]):
    problem = Problem(*CASES["batch norm"])
    backend = problem.backend(kind)
    samples = [of_device[: 3 + i % 3] for i, of_device in enumerate(problem.samples)]
    out, local = np.empty_like(problem.models), backend.initial_local(5)
    losses, after = backend.grads(problem.models, Batch(0, samples), local, out)
    for i in range(5):
        own, first = np.empty_like(problem.models[:1]), {name: rows[:1] for name, rows in local.items()}
        loss, own_after = backend.grads(problem.models[i : i + 1], Batch(0, samples[i][None]), first, own)
        np.testing.assert_allclose(out[i], own[0], rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(losses[i], loss[0], rtol=1e-12)
        assert all(np.allclose(after[name][i], own_after[name][0]) for name in after)


def test_torchs_settings_stay_as_they_are():
    def in_a_new_thread() -> int:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        return found[0]

    before = torch.get_num_threads(), in_a_new_thread(), torch.is_grad_enabled()
    problem = Problem(*CASES["mlp"])
    problem.run(problem.backend(StackedBackend, threads=3))
    assert (torch.get_num_threads(), in_a_new_thread(), torch.is_grad_enabled()) == before


class Erring(nn.Module):
    """Decides by the numbers it sees: neither traced nor vmapped."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(x.flatten(1))
        return scores if scores.sum().item() > 0 else -scores


def test_what_only_the_loop_can_do_is_said_to_be_so():
    problem = Problem(Module(module=Erring), (6, 6))
    assert_close(problem.run(problem.backend(LoopBackend)), problem.oracle(), 1e-10)
    with pytest.raises(UnstackableError, match=r"a Erring that cannot be computed for all devices at once .* 'loop'"):
        problem.backend(StackedBackend)


def made(module: Callable[[], nn.Module], **fields: object) -> Module:
    return Module(module=module, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(
    ("model", "says"),
    [
        (made(lambda: nn.Linear(7, 5)), r"fails on samples of shape \(1, 6, 6\) \(RuntimeError: mat1 and mat2"),
        (made(lambda: nn.Linear(6, 5)), r"outputs \(2, 1, 6, 5\) for 2 samples. Use scores"),
        (made(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4))), "4 outputs. Use 5, one per class"),
        (made(batch_normed, loss=lambda outputs, labels: outputs), "loss: cannot use a function that returns a Tensor"),
        (made(batch_normed, loss=lambda outputs: outputs), "TypeError"),
        (made(nn.ReLU), "without trainable parameters"),
    ],
)  # fmt: skip
def test_a_network_that_does_not_fit_the_data_is_one_line(kind: type[ModuleBackend], model: Module, says: str):
    with pytest.raises(InputError, match=says) as caught:
        kind(model, images(6, 6, classes=5), Randomness(0))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without CUDA")
def test_cuda_that_is_not_there_is_one_line():
    with pytest.raises(InputError, match=r"device: cannot use cuda. Use cpu"):
        backend_for(MLP(), images(6, 6), Randomness(0), device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a machine with CUDA")
@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu_it_is_the_same(kind: type[ModuleBackend], case: str):
    problem = Problem(*CASES[case])
    backend = kind(problem.model, problem.data, Randomness(0), device="cuda")
    assert_close(problem.run(backend), problem.oracle(), 1e-8)


def test_constants_that_a_module_draws_are_the_same_in_every_session():
    class Drawn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Linear(36, 8).requires_grad_(False)
            self.last = nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.last(torch.relu(self.features(x.flatten(1))))
            return scores

    problem = Problem(Module(module=Drawn), (6, 6))
    assert problem.models.shape == (5, 45)
    loop, stacked = (problem.backend(kind) for kind in BACKENDS)
    assert_close(problem.run(stacked), problem.run(loop), 1e-10)
    torch.rand(1)
    assert all(
        np.array_equal(a, b) for a, b in zip(problem.run(problem.backend(LoopBackend)), problem.run(loop), strict=True)
    )


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("case", ["batch norm of features", "batch norm", "tied", "plain parameters"])
def test_a_module_with_a_devices_parameters_and_statistics_scores_what_the_evaluation_says(
    case: str, kind: type[ModuleBackend]
):
    problem = Problem(*CASES[case])
    backend, data = problem.backend(kind), problem.data
    local = backend.initial_local(5)
    for k in range(4):
        out = np.empty_like(problem.models)
        _, local = backend.grads(problem.models, Batch(k, problem.samples), local, out)
        problem.models -= 0.1 * out
    learner = Learner(backend, data, list(problem.samples), 2, Randomness(0))
    found = learner.evaluate(problem.models, local).scores
    x = torch.tensor(data.inputs(data.x_test)).reshape(-1, *input_shape(data))
    for device, place in [*enumerate(range(5)), ("mean", None)]:
        module = learner.module(problem.models, local, device)
        assert not module.training
        right, losses = (found[metric] for metric in ("accuracy", "loss"))
        expected = [one.mean_model if place is None else one.every[place] for one in (right, losses)]
        assert np.mean(module(x).argmax(-1).numpy() == data.y_test) == expected[0]
        loss = torch.nn.functional.cross_entropy(module(x), torch.tensor(data.y_test))
        assert loss.item() == pytest.approx(expected[1], rel=1e-5)
    first = learner.module(problem.models, local, 0)
    assert {name for name, _ in first.named_buffers()} >= local.keys()
    for name, rows in local.items():
        assert np.array_equal(first.get_buffer(name).numpy(), rows[0])


def test_only_torch_modules_come_back_as_modules():
    data = images(6, 6, classes=5)
    learner = Learner(ArraysBackend(SVM(), data), data, [np.arange(4)], 2, Randomness(0))
    with pytest.raises(InputError, match=r"^model: cannot use a model that is not a torch module"):
        learner.module(np.zeros((1, 185)), {}, 0)


class NanWhenTested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(x.flatten(1))
        return scores if self.training else scores * torch.nan


@pytest.mark.parametrize("kind", BACKENDS)
def test_scores_that_are_not_finite_are_no_accuracy(kind: type[ModuleBackend]):
    problem = Problem(MLP(hidden=(4,)), (6, 6))
    backend = problem.backend(kind)
    problem.models[3] = np.nan
    with pytest.raises(ScoresNotFinite, match="the largest score of device 3 is NaN or infinite"):
        backend.accuracies(problem.models, {})
    problem = Problem(Module(module=NanWhenTested), (6, 6))
    with pytest.raises(ScoresNotFinite, match="device 0"):
        problem.backend(LoopBackend).accuracies(problem.models, {})
