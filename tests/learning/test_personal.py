"""Which parameters are shared, what the wrapper holds, and what is refused."""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import efhc
from efhc.base.errors import InputError
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.learning.backends.backend import ParameterPart
from efhc.learning.backends.personal import FineTunedBackend, shared_columns
from efhc.scenarios.personal import parameter_counts, personalized

LAYOUT = [
    ParameterPart("body.0.weight", 12), ParameterPart("body.0.bias", 4), ParameterPart("body.1.weight", 4, True),
    ParameterPart("body.1.bias", 4, True), ParameterPart("head.weight", 8), ParameterPart("head.bias", 2),
]  # fmt: skip
NAMES = [part.name for part in LAYOUT]


@pytest.mark.parametrize(
    ("share", "keep", "shared"),
    [
        ("body.*", None, [0, 1, 2, 3]),
        (None, "head.*", [0, 1, 2, 3]),
        (None, ("head.*", "norm"), [0, 1]),
        ("norm", None, [2, 3]),
        ("*", ["*.bias"], [0, 2, 4]),
        (("body.[0]*", "head.weight"), "*.bias", [0, 4]),
    ],
)
def test_patterns_choose_parameters(share, keep, shared):
    assert [place for place, mine in enumerate(shared_columns(LAYOUT, share, keep)) if mine] == shared


@pytest.mark.parametrize(
    ("share", "keep", "field", "word"),
    [
        ("boddy.*", None, "share", "boddy.*"),
        (["body.*", "tail.*"], None, "share", "tail.*"),
        (None, "tail.*", "keep", "tail.*"),
        ("*", None, "share", "every"),
        (["body.*", "head.*"], None, "share", "every"),
        (None, "*", "keep", "no parameter"),
        ("head.*", "*.*", "keep", "no parameter"),
    ],
)
def test_patterns_that_match_nothing_or_everything_are_refused(share, keep, field, word):
    with pytest.raises(InputError) as refused:
        shared_columns(LAYOUT, share, keep)
    assert refused.value.field == field
    assert word in str(refused.value.given)
    assert "body.0.weight" in refused.value.allowed
    assert "\n" not in str(refused.value)


@given(st.sets(st.sampled_from(NAMES), min_size=1, max_size=len(NAMES) - 1), st.randoms())
def test_what_is_shared_and_what_is_kept_are_the_whole(chosen, random):
    patterns = random.sample(sorted(chosen), len(chosen))
    shared, kept = shared_columns(LAYOUT, patterns, None), shared_columns(LAYOUT, None, patterns)
    assert shared == [not mine for mine in kept] == [name in chosen for name in NAMES]


FIELDS: dict[str, Any] = {"data": "digits", "devices": 4, "iterations": 4, "batch_size": 4, "seeds": (0,)}


def drawn(personal: Any, **fields: Any) -> tuple[Any, Any]:
    """A scenario without and with personal models."""
    strategy = efhc.ZeroThreshold(personal=personal)
    experiment = efhc.Experiment(**{**FIELDS, **fields, "strategies": {"mine": strategy}})
    scenario = draw_scenario(experiment, load_data(experiment), 1)
    return scenario, personalized(scenario, strategy, "mine")


def test_the_draws_are_those_without_personal_models():
    whole, shared = drawn({"share": "weight"}, model=efhc.SVM(), initial_models="per-device")
    start, backend = whole.initial_models(), shared.learner.backend
    local = backend.initial_local(4)
    assert parameter_counts(shared) == (640, 10)
    assert np.array_equal(np.hstack([shared.initial_models(), local["personal/model"]]), start)
    assert np.array_equal(shared.initial_model(2), start[2, :640])
    assert np.array_equal(backend.initial_local(2, 1)["personal/model"], start[1:3, 640:])
    assert personalized(whole, efhc.ZeroThreshold(), "mine") is whole


def test_batch_norm_stays_with_the_devices():
    pytest.importorskip("torch")
    from torch import nn

    def network() -> Any:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.LayerNorm(5), nn.Linear(5, 10))

    fields = {"model": efhc.Module(module=network), "backend": "loop"}
    _, kept = drawn({"keep": "norm"}, **fields)
    assert parameter_counts(kept) == (64 * 5 + 5 + 60, 20)
    assert "2.running_mean" in kept.learner.backend.initial_local(4)
    _, twice = drawn({"kind": "ditto"}, **fields)
    local = twice.learner.backend.initial_local(4)
    batch = twice.reader().batch(0)
    models = twice.initial_models()
    _, after = twice.learner.backend.grads(models, batch, local, np.empty_like(models))
    assert {"2.running_mean", "personal/local/2.running_mean", "personal/model"} <= after.keys()
    assert np.array_equal(after["2.running_mean"], after["personal/local/2.running_mean"])  # v(0) = w(0)
    with pytest.raises(InputError) as refused:
        drawn({"keep": "norm"}, model=efhc.MLP(hidden=()), backend="loop")
    assert refused.value.field == "strategies.mine.personal.keep"


def test_frozen_parameters_are_neither_shared_nor_personal():
    pytest.importorskip("torch")
    from torch import nn

    def network() -> Any:
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))
        module[1].weight.requires_grad = False
        return module

    whole, shared = drawn({"keep": "3.*"}, model=efhc.Module(module=network), backend="loop")
    assert parameter_counts(whole) == (65, 0)
    assert parameter_counts(shared) == (5, 60)


class Nameless:
    """A model in NumPy that does not name its parameters."""

    def __init__(self) -> None:
        self._inner = efhc.Softmax()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "parameter_sizes":
            raise AttributeError(name)
        return getattr(self._inner, name)


def test_a_model_without_names_is_refused_unless_all_of_it_is_shared():
    with pytest.raises(InputError) as refused:
        drawn({"share": "weight"}, model=Nameless(), backend="arrays")
    assert refused.value.field == "strategies.mine.personal.share"
    assert "parameter_sizes" in refused.value.allowed
    assert parameter_counts(drawn({"kind": "ditto"}, model=Nameless(), backend="arrays")[1]) == (650, 650)


@pytest.mark.parametrize("personal", [{}, {"share": []}, {"kind": "ditto", "proximal": -1.0}, {"kind": "ditoo"}])
def test_settings_that_say_nothing_are_refused(personal):
    with pytest.raises(ValidationError):
        efhc.ZeroThreshold(personal=personal)


def test_theory_is_about_whole_models():
    from efhc.experiments.runs.tables import require_papers_form

    for personal in ({"share": "weight"}, {"kind": "ditto"}):
        with pytest.raises(InputError) as refused:
            require_papers_form(efhc.Experiment(**FIELDS, strategies={"a": efhc.ZeroThreshold(personal=personal)}))
        assert refused.value.field == "strategies.a"


def test_personal_models_are_part_of_the_key_and_of_the_memory_a_run_needs():
    from efhc.experiments.runs.resources import memory_of
    from efhc.experiments.runs.run import Runs

    keys, needs = [], []
    for personal in (None, {"share": "weight"}, {"keep": "weight"}, {"kind": "ditto"}):
        experiment = efhc.Experiment(**FIELDS, strategies={"a": efhc.ZeroThreshold(personal=personal)})
        (run,) = Runs().of(experiment)
        keys.append(run.key)
        needs.append(memory_of(experiment, run.data).running)
    assert len(set(keys)) == 4
    assert needs[0] < min(needs[1:])


def test_a_kind_of_ones_own_makes_its_backend_and_counts_as_the_largest_built_in_one_in_memory():
    from efhc.experiments.runs.resources import memory_of
    from efhc.experiments.runs.run import Runs

    class Tuned(efhc.Personal):
        kind: Literal["tuned"] = "tuned"

        def backend_for(self, base: Any) -> Any:
            return FineTunedBackend(base, steps=3, step_size=None)

    def of(personal: Any) -> tuple[list[float], int]:
        experiment = efhc.Experiment(**FIELDS, strategies={"a": efhc.ZeroThreshold(personal=personal)})
        (run,) = Runs().of(experiment)
        return efhc.simulate(experiment).metrics["own_loss"].to_list(), memory_of(experiment, run.data).running

    values, memory = of(Tuned())
    assert values == of(efhc.FineTuned(steps=3))[0]
    assert memory == of(efhc.Ditto())[1]


@pytest.mark.parametrize("personal", [{"keep": "3.*"}, {"kind": "ditto"}, {"kind": "fine-tuned", "steps": 2}])
def test_the_module_of_a_device_is_the_one_that_it_uses(personal):
    torch: Any = pytest.importorskip("torch")
    fields = FIELDS | {"model": efhc.MLP(hidden=(5,)), "evaluate_every": 4}
    strategy = efhc.ZeroThreshold(personal=personal)
    result = efhc.simulate(**fields, strategies={"mine": strategy})
    experiment = result.experiment
    data = load_data(experiment)
    x = torch.tensor(data.inputs(data.x_test).reshape(-1, 1, 8, 8))

    def accuracy(device: Any) -> float:
        scores = result.module("mine", 0, device)(x).argmax(1).numpy()
        return float((scores == data.y_test).mean())

    last = result.metrics.drop_nulls("accuracy").tail(1)
    assert np.mean([accuracy(device) for device in range(4)]) == pytest.approx(last["accuracy"].item())
    assert accuracy("mean") == pytest.approx(last["mean_model_accuracy"].item())
    counts = {"shared": (325, 60), "ditto": (385, 385), "fine-tuned": None}[strategy.personal.kind]
    assert [[int(word) for word in re.findall(r"\d+", note)] for note in result.words().notes] == (
        [list(counts)] if counts else []
    )
