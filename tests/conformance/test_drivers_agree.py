"""Without delay and with equal compute times, devices on their own clocks do what lockstep does, to the last bit.

The two drivers share no step: lockstep mixes all devices at once, the other lets each device's core react to messages.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections import deque
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import efhc
from efhc.core.half_step_messages import Frame, Introduction
from efhc.core.randomness import Randomness
from efhc.drivers.event_driven import in_flight
from efhc.drivers.event_driven.half_step_links import HalfStepLinks
from efhc.drivers.event_driven.simulator import Simulator
from efhc.drivers.general import GeneralLockstep
from efhc.drivers.lockstep import PaperLockstep
from efhc.drivers.observers import Observer, drive
from efhc.experiments.config.experiment import Experiment
from efhc.experiments.runs.draw import draw_scenario, load_data
from efhc.learning.data import Dataset

DEVICES, ITERATIONS, SEED = 7, 25, 5
COMPUTE_SECONDS = 0.75
DRIVER = efhc.EventDriven(
    links="instant",
    compute={"seconds": COMPUTE_SECONDS},
    network_seconds=COMPUTE_SECONDS,
    sample_seconds=1e9,
)

STRATEGIES = {
    "ef-hc": efhc.EventTriggered(r=100.0),
    "gt": efhc.GlobalThreshold(r=100.0),
    "zt": efhc.ZeroThreshold(),
    "rg": efhc.RandomizedGossip(probability=0.3),
    "never": efhc.Never(),
    "periodic": efhc.PeriodicBroadcast(every=4),
}


def composed(r: float = 500.0, **parts: Any) -> Any:
    """Half-steps with these parts, and a trigger of the threshold scale r."""
    usual = {"trigger": {"kind": "norm", "r": r}, "mixing": {"kind": "half-steps"}}
    return efhc.Composed(**{**usual, **parts})


LEVELS, ENTRYWISE = {"kind": "levels", "bits": 3}, {"kind": "entrywise", "r": 16000.0}
HALF_STEPS = {
    "entrywise": efhc.Entrywise(r=16000.0),
    "entrywise with momentum": efhc.Entrywise(r=16000.0, momentum=0.9),
    "one-way": efhc.OneWay(r=500.0),
    "one-way in levels": efhc.OneWay(r=3000.0, bits=2, momentum=0.5),
    "full": composed(),
    "levels": composed(trigger=ENTRYWISE, codec=LEVELS),
    "momentum": composed(local={"kind": "momentum"}, codec=LEVELS),
    "correction": composed(local={"kind": "sgd", "correction": 0.3}),
    "correction and momentum": composed(local={"kind": "momentum", "correction": 0.1}, trigger=ENTRYWISE, codec=LEVELS),
    "limit": composed(mixing={"kind": "half-steps", "limit": {"kind": "clip", "radius": 0.2}}),
    "guard": composed(mixing={"kind": "half-steps", "rate": 1.0, "guard": "degree"}, trigger={"kind": "always"}),
    "budget": composed(trigger={"kind": "always"}, codec=LEVELS, budget={"share": 0.05}),
    "settling": composed(mixing={"kind": "half-steps", "rate": 1.0, "settle": True}),
    "settling with all parts": composed(
        trigger=ENTRYWISE,
        codec=LEVELS,
        local={"kind": "momentum", "correction": 0.1},
        mixing={"kind": "half-steps", "rate": 1.0, "settle": True, "most_steps": 8},
    ),
    "settling, a coin": composed(
        trigger={"kind": "coin", "probability": 0.4},
        local={"kind": "sgd", "correction": 0.3},
        mixing={"kind": "half-steps", "rate": 0.7, "settle": True, "limit": {"kind": "clip", "radius": 0.2}},
    ),
    "adam": composed(4000.0, local={"kind": "adam", "correction": 0.1}, codec=LEVELS),
    "three steps": composed(local={"kind": "sgd", "steps": 3}),
    "three steps of adam, clipped": composed(4000.0, local={"kind": "adam", "steps": 3, "clip": 0.5}, codec=LEVELS),
    "coin": composed(trigger={"kind": "coin", "probability": 0.4}, local={"kind": "sgd", "correction": 0.3}),
}
NETWORKS: dict[str, Any] = {
    "static": efhc.Geometric(radius=0.5),
    "random links": efhc.RandomLinks(up_probability=0.4),
    "waypoint": efhc.RandomWaypoint(radius=0.5, slowest=0.05, fastest=0.2),
    "rotating": efhc.Rotating(period=3),
    "edge sequence": {"kind": "edge-sequence"},
    "edge sequence that ends": {"kind": "edge-sequence", "at_end": "hold"},
}
LEARNERS: dict[str, dict[str, Any]] = {
    "compiled svm": {"model": efhc.SVM(), "backend": "linear"},
    "svm on arrays": {"model": efhc.SVM(), "backend": "arrays"},
    "compiled mlp": {"model": efhc.MLP(hidden=(6,)), "backend": "compiled"},
    "stacked mlp": {"model": efhc.MLP(hidden=(6,)), "backend": "stacked"},
    "mlp one by one": {"model": efhc.MLP(hidden=(6,)), "backend": "loop"},
}
AT_START = {"as if linked before": False, "exchange at start": True}
PRECISIONS = {"float32": "float32", "float64": "float64"}
SHUFFLES = {"in order": None, "shuffled": 3}
CHOICES: list[list[str]] = [list(one) for one in (NETWORKS, LEARNERS, AT_START, PRECISIONS, STRATEGIES, SHUFFLES)]


def pairwise_selection(choices: list[list[str]]) -> list[tuple[str, ...]]:
    """Combinations in which every pair of values of two settings occurs: always the one with most new pairs next."""

    def pairs(one: tuple[str, ...]) -> set[Any]:
        return set(itertools.combinations(enumerate(one), 2))

    everything = {one: pairs(one) for one in itertools.product(*choices)}
    missing = set().union(*everything.values())
    selection = []
    while missing:
        best = max(everything, key=lambda one: len(everything[one] & missing))
        selection.append(best)
        missing -= everything[best]
    return sorted(selection)


@lru_cache(maxsize=4)
def scenario_of(
    folder: Path, network: str, learner: str, at_start: str, precision: str, initial: str = "shared"
) -> Any:
    """The scenario that all strategies and both drivers meet."""
    given = NETWORKS[network]
    if isinstance(given, dict):
        path = folder / "graphs.json"
        path.write_text(json.dumps(graphs()))
        given = given | {"path": str(path)}
    experiment = Experiment(
        devices=DEVICES,
        batch_size=4,
        network=given,
        exchange_at_start=AT_START[at_start],
        precision=PRECISIONS[precision],
        initial_models={"kind": initial},
        **LEARNERS[learner],
    )
    return draw_scenario(experiment, load_data(experiment), SEED)


def graphs() -> list[list[list[int]]]:
    """Five graphs, one of them empty and one that comes twice in a row."""
    some, other = [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6]], [[0, 6], [0, 3], [1, 2], [2, 5]]
    return [some, other, other, [], [*other[:2], [1, 4]]]


class Happened(Observer):
    """Who fired, and which links were used, by iteration."""

    def __init__(self) -> None:
        self.fired: set[tuple[int, int]] = set()
        self.used: set[tuple[int, int, int]] = set()

    def after(self, steps: Any, state: Any) -> None:
        for k, fired, used in zip(itertools.count(steps.k), steps.fired, steps.used, strict=False):
            self.fired |= {(k, device) for device in np.flatnonzero(fired).tolist()}
            self.used |= {(k, i, j) for i, j in steps.graph.links[used].tolist()}


class Shuffled(deque[Any]):
    """The messages of one instant, shuffled before each of them is delivered."""

    def __init__(self, seed: int) -> None:
        self._drawn = random.Random(seed)

    def popleft(self) -> Any:
        messages = list(self)
        self._drawn.shuffle(messages)
        self.clear()
        self.extend(messages)
        return super().popleft()


def assert_drivers_agree(scenario: Any, trigger: Any, shuffle: int | None, iterations: int = ITERATIONS) -> None:
    happened = Happened()
    state = drive(PaperLockstep(scenario, trigger), scenario.initial_state(), iterations, [happened])
    with pytest.MonkeyPatch.context() as patch:
        if shuffle is not None:
            patch.setattr(in_flight, "deque", lambda: Shuffled(shuffle))
        simulator = Simulator(scenario, trigger, DRIVER, iterations, Randomness(SEED))
    while not simulator.is_over:
        simulator.advance()
    tables = simulator.record.take().tables

    fired = tables["steps"].filter("fired").select("k", "device")
    assert set(fired.rows()) == happened.fired
    exchanges = tables["exchanges"]
    assert set(exchanges["outcome"]) <= {"committed"}
    assert exchanges["device_k"].to_list() == exchanges["neighbour_k"].to_list()
    used = [(k, *sorted(ends)) for k, *ends in exchanges.select("device_k", "device", "neighbour").rows()]
    assert len(set(used)) == len(used)
    assert set(used) == happened.used
    assert simulator.models.dtype == state.models.dtype
    assert simulator.models.tobytes() == state.models.tobytes()
    for name, values in state.local.items():
        assert simulator.local[name].tobytes() == values.tobytes()

    steps = tables["steps"]
    assert len(steps) == iterations * scenario.bandwidths.values.size
    assert (steps["seconds"] == (steps["k"] + 1) * COMPUTE_SECONDS).all()
    assert simulator.now == iterations * COMPUTE_SECONDS
    assert tables["timeline"]["imbalance"].to_list()[-1] == 0.0
    assert simulator.warnings == []


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


@pytest.mark.parametrize(
    ("network", "learner", "at_start", "precision", "strategy", "shuffle"), pairwise_selection(CHOICES)
)
def test_drivers_agree_to_the_last_bit(folder, network, learner, at_start, precision, strategy, shuffle):
    scenario = scenario_of(folder, network, learner, at_start, precision)
    assert_drivers_agree(scenario, STRATEGIES[strategy], SHUFFLES[shuffle])


@pytest.mark.slow
@pytest.mark.parametrize(("network", "learner"), [*itertools.product(NETWORKS, LEARNERS)])
def test_drivers_agree_in_every_combination(folder, network, learner):
    """Of networks, learners, strategies and orders of messages; starts and precisions take turns."""
    turns = list(itertools.product(AT_START, PRECISIONS))
    for place, (strategy, shuffle) in enumerate(itertools.product(STRATEGIES.values(), SHUFFLES.values())):
        at_start, precision = turns[(place + place // 4) % 4]
        assert_drivers_agree(scenario_of(folder, network, learner, at_start, precision), strategy, shuffle)


def test_the_selection_is_small_and_has_every_strategy_on_every_network():
    selection = pairwise_selection(CHOICES)
    assert len(selection) <= 42
    assert {(one[0], one[4]) for one in selection} == set(itertools.product(NETWORKS, STRATEGIES))


@pytest.mark.parametrize("shuffle", [1, 2, 3, 4])
def test_any_order_of_messages_will_do(folder, shuffle):
    scenario = scenario_of(folder, "random links", "compiled svm", "exchange at start", "float64")
    assert_drivers_agree(scenario, STRATEGIES["ef-hc"], shuffle)


def test_drivers_agree_over_many_iterations(folder):
    """Long enough for several blocks of batches, coins and compute times."""
    scenario = scenario_of(folder, "waypoint", "compiled svm", "as if linked before", "float32")
    assert_drivers_agree(scenario, STRATEGIES["rg"], None, iterations=300)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("batch_size", [1, "full"])
def test_drivers_agree_with_few_devices_and_batches_of_any_size(devices, batch_size):
    experiment = Experiment(devices=devices, batch_size=batch_size, partition=efhc.IID(), network=efhc.Complete())
    scenario = draw_scenario(experiment, load_data(experiment), SEED)
    assert_drivers_agree(scenario, STRATEGIES["zt"], None, iterations=5)


@pytest.mark.parametrize("partition", ["groups", "shards", "quantities"])
def test_drivers_agree_with_samples_dealt_in_other_ways(partition):
    digits = efhc.Digits().load()
    data = dataclasses.replace(digits, groups=np.arange(len(digits.y_train)) % 17)
    experiment = Experiment(data=data, devices=5, partition=partition, network=efhc.Complete())
    scenario = draw_scenario(experiment, load_data(experiment), SEED)
    assert_drivers_agree(scenario, STRATEGIES["zt"], None, iterations=5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ef-hc", "zt"])
def test_drivers_agree_on_real_writers(femnist: Dataset, strategy):
    experiment = Experiment(data=femnist, devices=20, partition=efhc.IID(), network=efhc.RandomLinks())
    scenario = draw_scenario(experiment, load_data(experiment), SEED)
    assert_drivers_agree(scenario, STRATEGIES[strategy], 1)


# Half-steps


class Sent(Observer):
    """Who fired, and the bits of each message, by iteration, sender and receiver."""

    def __init__(self) -> None:
        self.fired: set[tuple[int, int]] = set()
        self.bits: dict[tuple[int, int, int], int] = {}

    def after(self, steps: Any, state: Any) -> None:
        sender, receiver, _, _ = steps.graph.directed
        for k, fired, bits in zip(itertools.count(steps.k), steps.fired, steps.bits, strict=False):
            self.fired |= {(k, device) for device in np.flatnonzero(fired).tolist()}
            for e in np.flatnonzero(bits).tolist():
                self.bits[k, int(sender[e]), int(receiver[e])] = int(bits[e])


def counting(bits: dict[tuple[int, int, int], int], seconds: float) -> Any:
    """A method of `HalfStepLinks` that counts what is sent, where an iteration takes so many `seconds`.

    An introduction belongs to the iteration that begins.
    """
    send = HalfStepLinks._send

    def counted(self: Any, run: Any, sender: int, receiver: int, message: Any) -> None:
        iteration = round(run.now / seconds)
        if isinstance(message, Frame):
            assert message.k == iteration - 1
            bits[message.k, sender, receiver] = bits.get((message.k, sender, receiver), 0) + message.bits
        elif isinstance(message, Introduction):
            whole = efhc.core.cost.whole_message_bits(message.model[None])
            bits[iteration, sender, receiver] = bits.get((iteration, sender, receiver), 0) + whole
        send(self, run, sender, receiver, message)

    return counted


def assert_half_steps_agree(scenario: Any, strategy: Any, iterations: int = ITERATIONS) -> int:
    """Returns how often devices fired."""
    lockstep, expected, bits = GeneralLockstep(scenario, strategy), Sent(), dict[tuple[int, int, int], int]()
    state = drive(lockstep, lockstep.initial_state(), iterations, [expected])
    seconds = COMPUTE_SECONDS * strategy.parts().local.steps
    driver = DRIVER.model_copy(update={"network_seconds": seconds})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HalfStepLinks, "_send", counting(bits, seconds))
        simulator = Simulator(scenario, strategy, driver, iterations, Randomness(SEED))
        while not simulator.is_over:
            simulator.advance()
    tables = simulator.record.take().tables

    fired = set(tables["steps"].filter("fired").select("k", "device").rows())
    assert fired == expected.fired
    assert {key: value for key, value in bits.items() if key[0] < iterations} == expected.bits
    assert simulator.models.dtype == state.models.dtype
    assert simulator.models.tobytes() == state.models.tobytes()
    for name, values in state.local.items():
        assert simulator.local[name].tobytes() == values.tobytes()
    assert tables["timeline"]["imbalance"].to_list()[-1] == 0.0
    assert simulator.warnings == []
    return len(fired)


INITIAL = ["shared", "per-device"]
HALF_STEPS_CHOICES: list[list[str]] = [
    list(one) for one in (NETWORKS, LEARNERS, AT_START, PRECISIONS, INITIAL, HALF_STEPS)
]


@pytest.mark.parametrize(
    ("network", "learner", "at_start", "precision", "initial", "strategy"), pairwise_selection(HALF_STEPS_CHOICES)
)
def test_drivers_agree_on_half_steps(folder, network, learner, at_start, precision, initial, strategy):
    scenario = scenario_of(folder, network, learner, at_start, precision, initial)
    assert_half_steps_agree(scenario, HALF_STEPS[strategy])


@pytest.mark.parametrize("strategy", HALF_STEPS)
def test_devices_with_half_steps_fire_now_and_then(folder, strategy):
    scenario = scenario_of(folder, "static", "compiled svm", "as if linked before", "float64")
    fired = assert_half_steps_agree(scenario, HALF_STEPS[strategy])
    assert ITERATIONS < fired < ITERATIONS * DEVICES or strategy == "guard"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", HALF_STEPS)
@pytest.mark.parametrize("network", NETWORKS)
def test_drivers_agree_on_half_steps_in_every_combination(folder, network, strategy):
    """Of networks, learners and strategies; precisions and starts take turns."""
    turns = itertools.cycle(itertools.product(PRECISIONS, AT_START, INITIAL))
    for learner, (precision, at_start, initial) in zip(LEARNERS, turns, strict=False):
        scenario = scenario_of(folder, network, learner, at_start, precision, initial)
        assert_half_steps_agree(scenario, HALF_STEPS[strategy])


@pytest.mark.parametrize("strategy", ["entrywise with momentum", "one-way"])
def test_drivers_agree_on_half_steps_over_many_iterations(folder, strategy):
    scenario = scenario_of(folder, "waypoint", "compiled svm", "as if linked before", "float32")
    assert_half_steps_agree(scenario, HALF_STEPS[strategy], iterations=300)
