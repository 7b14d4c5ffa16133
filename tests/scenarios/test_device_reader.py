"""Read device by device, in whatever order, a scenario has the numbers that it has for all devices at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import efhc
from efhc.base.errors import InputError
from efhc.core.randomness import Coins
from efhc.core.triggers import Bandwidths
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.learning.backends.backend import Batch
from efhc.learning.backends.module_backend import LoopBackend
from efhc.learning.batches import MiniBatches
from efhc.learning.initial import PerDevice
from efhc.scenarios import scenario as scenarios
from efhc.strategies.forms import trigger_of
from efhc.strategies.paper import EventTriggered

DEVICES = 6
STRATEGIES = {
    "EF-HC": efhc.EventTriggered(r=70.0),
    "GT": efhc.GlobalThreshold(),
    "GT, mean": efhc.GlobalThreshold(rho="mean"),
    "ZT": efhc.ZeroThreshold(),
    "RG": efhc.RandomizedGossip(),
    "RG, half": efhc.RandomizedGossip(probability=0.5),
    "never": efhc.Never(),
    "periodic": efhc.PeriodicBroadcast(every=3),
}
TRIGGERS = {name: trigger_of(strategy) for name, strategy in STRATEGIES.items()}


class Own:
    """A strategy that is no class of efhc: each device looks at the coins of all."""

    def __init__(self) -> None:
        self.asked = 0

    def thresholds(self, k, gamma, bandwidths, coins):
        self.asked += 1
        return gamma / bandwidths.values + coins(k).mean()


class Changed(EventTriggered):
    """A built-in strategy of which only the thresholds of all devices are changed."""

    def thresholds(self, k, gamma, bandwidths, coins):
        return 2 * super().thresholds(k, gamma, bandwidths, coins)


def scenario_of(**fields):
    experiment = Experiment(**{"devices": DEVICES, "batch_size": 4} | fields)
    return draw_scenario(experiment, load_data(experiment), 3)


@pytest.fixture(scope="module")
def scenario():
    return scenario_of()


PLACES = st.lists(st.tuples(st.integers(0, DEVICES - 1), st.integers(0, 900)), min_size=1, max_size=30)


@given(places=PLACES)
@settings(max_examples=20, deadline=None)
def test_samples_are_those_of_all_devices(scenario, places):
    reader, lockstep = scenario.device_reader(), scenario.reader()
    for device, k in places:
        samples = reader.samples(device, k)
        assert samples.dtype == np.int32
        assert np.array_equal(samples, lockstep.batch(k).samples[device])


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(places=PLACES)
@settings(max_examples=10, deadline=None)
def test_thresholds_are_those_of_all_devices(scenario, strategy, places):
    reader, lockstep = scenario.device_reader(), scenario.reader()
    trigger, values = TRIGGERS[strategy], scenario.bandwidths.values
    for device, k in places:
        want = lockstep.thresholds(trigger, k)
        assert reader.threshold(trigger, device, k) == want[device]
        assert np.array_equal(reader.thresholds(trigger, k), want)
        assert reader.threshold(trigger, device, k, values[device]) == want[device]


@pytest.mark.parametrize("strategy", [*STRATEGIES, "own", "changed"])
def test_a_measured_bandwidth_takes_the_place_of_the_true_one(scenario, strategy):
    reader, trigger = scenario.device_reader(), STRATEGIES.get(strategy) or (Own() if strategy == "own" else Changed())
    true, coins = scenario.bandwidths, scenario.coins.reader()
    for device, k, bandwidth in [(2, 5, 123.0), (0, 5, 7.5), (2, 700, 1e6)]:
        values = true.values.copy()
        values[device] = bandwidth
        want = trigger.thresholds(k, scenario.threshold_decay(k), Bandwidths(values, true.nominal), coins)
        assert reader.threshold(trigger, device, k, bandwidth) == want[device]
        plain = trigger.thresholds(k, scenario.threshold_decay(k), true, coins)
        assert reader.threshold(trigger, device, k) == plain[device]


def test_schedules_in_single_precision_do_not_change_a_bit():
    scenario = scenario_of(threshold_decay=lambda k: np.float32(1 / (3 + k)))
    reader, lockstep, trigger = scenario.device_reader(), scenario.reader(), TRIGGERS["EF-HC"]
    for k in range(20):
        own = [reader.threshold(trigger, device, k) for device in range(DEVICES)]
        assert own == lockstep.thresholds(trigger, k).tolist()


def test_devices_at_nearby_iterations_ask_a_strategy_once_for_each(scenario):
    reader, trigger = scenario.device_reader(), Own()
    places = [(device, k + 3 * device) for k in range(100) for device in range(DEVICES)]
    own = [reader.threshold(trigger, *place) for place in places]
    assert trigger.asked == 1 + len({k for _, k in places})  # twice at first: whether it answers the same
    assert reader.scenario is scenario
    lockstep = scenario.reader()
    assert own == [lockstep.thresholds(trigger, k)[device] for device, k in places]


def test_no_more_thresholds_are_kept_than_memory_is_for(monkeypatch):
    monkeypatch.setattr(scenarios, "KEPT_BYTES", 0)
    reader, trigger = scenario_of().device_reader(), Own()
    for k in [*range(scenarios.ITERATIONS + 1), 1, 0]:
        reader.thresholds(trigger, k)
    assert trigger.asked == 1 + scenarios.ITERATIONS + 1 + 1  # only k = 0 was forgotten


def test_strategies_of_one_reader_do_not_share_thresholds(scenario):
    reader = scenario.device_reader()
    assert reader.thresholds(TRIGGERS["ZT"], 4).tolist() == [0.0] * DEVICES
    assert reader.thresholds(TRIGGERS["never"], 4).tolist() == [np.inf] * DEVICES
    with pytest.raises(ValueError, match="read-only"):
        reader.thresholds(TRIGGERS["never"], 4)[0] = 1


def test_a_slow_device_does_not_make_the_others_draw_again(monkeypatch):
    scenario, drawn = scenario_of(), []

    def counted(owner):
        original = owner.block_of
        monkeypatch.setattr(owner, "block_of", lambda self, *at: (drawn.append((owner, *at)), original(self, *at))[1])

    counted(Coins)
    counted(MiniBatches)
    reader, trigger = scenario.device_reader(), TRIGGERS["RG"]
    for step in range(600):
        for device in range(DEVICES):
            k = step if device else step // 100
            reader.samples(device, k)
            reader.threshold(trigger, device, k)
    assert len(drawn) == len(set(drawn)) == 2 * (1 + 3 * (DEVICES - 1))


@pytest.mark.parametrize("batch_size", [4, "full"])
@pytest.mark.parametrize("backend", ["linear", "arrays"])
def test_a_batch_for_some_devices_has_the_bits_of_lockstep(batch_size, backend):
    scenario = scenario_of(batch_size=batch_size, backend=backend)
    reader, lockstep, oracle = scenario.device_reader(), scenario.reader(), scenario.learner.backend
    models, some, k = scenario.initial_models(), np.array([4, 1, 5]), np.array([260, 3, 9])
    out = np.empty_like(models[some])
    batch = reader.batch(some, k)
    assert batch.devices is some
    losses, _ = oracle.grads(models[some], batch, {}, out)
    for row, (device, own_k) in enumerate(zip(some, k, strict=True)):
        every = np.empty_like(models)
        all_losses, _ = oracle.grads(models, lockstep.batch(int(own_k)), {}, every)
        assert np.array_equal(every[device], out[row])
        assert all_losses[device] == losses[row]
        assert np.array_equal(batch.samples[row], reader.samples(int(device), int(own_k)))


def test_a_batch_of_full_batches_is_each_devices_part():
    scenario = scenario_of(batch_size="full")
    reader = scenario.device_reader()
    assert reader.samples(2, 77) is scenario.learner.parts[2]
    batch: Batch = reader.batch(np.array([3, 0]), np.array([1, 9]))
    assert [part is scenario.learner.parts[i] for part, i in zip(batch.samples, (3, 0), strict=True)] == [True, True]


class Bad:
    def __init__(self, given) -> None:
        self.given = given

    def thresholds(self, k, gamma, bandwidths, coins):
        return self.given() if callable(self.given) else self.given


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (np.full(DEVICES, np.nan), "NaN as thresholds at k = 3"),
        (np.zeros(DEVICES + 1), "float64 of shape"),
        ("no", "as thresholds"),
        (lambda: 1 / 0, "raised ZeroDivisionError"),
        (np.random.default_rng(0).random, "thresholds that differ when they are computed twice at k = 3"),
    ],
)
def test_a_strategy_of_ones_own_is_checked(scenario, given, what):
    asks = [
        lambda reader: reader.thresholds(Bad(given), 3),
        lambda reader: reader.threshold(Bad(given), 0, 3),
        lambda reader: reader.threshold(Bad(given), 0, 3, 9.0),
    ]
    for ask in asks:
        with pytest.raises(InputError, match=r"^(strategy Bad: |your strategy Bad )") as caught:
            ask(scenario.device_reader())
        assert what in str(caught.value)


def test_a_schedule_that_gives_nan_is_refused_for_one_device_as_for_all():
    scenario = scenario_of(threshold_decay=lambda k: 1.0 if k < 5 else float("nan"))
    reader = scenario.device_reader()
    assert reader.threshold(TRIGGERS["EF-HC"], 0, 4) > 0
    for ask in (reader.threshold, lambda *at: reader.threshold(*at, 5.0), lambda *at: reader.thresholds(at[0], 5)):
        with pytest.raises(InputError, match=r"^strategy norm: cannot use NaN as thresholds at k = 5"):
            ask(TRIGGERS["EF-HC"], 0, 5)


class Ramp:
    def models(self, model, data, devices, randomness):
        return np.arange(devices * model.parameters(data)).reshape(devices, -1)


class ChangedModels(PerDevice):
    def models(self, model, data, devices, randomness):
        return 3 * super().models(model, data, devices, randomness)


@pytest.mark.parametrize(
    "kind",
    ["per-device", "shared", "zeros", Ramp(), ChangedModels()],
    ids=["per-device", "shared", "zeros", "own", "changed"],
)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_initial_model_of_a_device_is_its_row(kind, precision):
    scenario = scenario_of(initial_models=kind, precision=precision)
    models = scenario.initial_models()
    for device in (0, DEVICES - 1):
        own = scenario.initial_model(device)
        assert own.dtype == models.dtype
        assert own.base is None or own.base.size == own.size  # nothing of the size of all models is held
        assert np.array_equal(own, models[device])
        own[:] = 7
        assert np.array_equal(scenario.initial_model(device), models[device])


def test_an_initial_model_that_is_not_finite_is_refused():
    class Infinite:
        def models(self, model, data, devices, randomness):
            return np.full((devices, model.parameters(data)), np.inf)

    with pytest.raises(InputError, match=r"^initial_models\.models: cannot use numbers that are not finite"):
        scenario_of(initial_models=Infinite()).initial_model(0)


def test_devices_on_their_own_clocks_choose_the_backend():
    from torch import nn

    def noisy():
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))

    model = efhc.Module(module=noisy)
    assert type(scenario_of(model=model, driver={"kind": "event-driven"}).learner.backend) is LoopBackend
    assert type(scenario_of(model=model).learner.backend) is not LoopBackend
    with pytest.raises(InputError, match=r"^backend: cannot use stacked, .*. Use loop"):
        scenario_of(model=model, driver={"kind": "event-driven"}, backend="stacked")
