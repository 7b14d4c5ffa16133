"""The mode `lockstep`: its models are those of `efhc run`, whatever happens to links and nodes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lockstep_nodes import Node, Wires

import efhc
from efhc import Experiment
from efhc.base.errors import EfhcError
from efhc.core.cost import whole_message_bits
from efhc.core.graph import Graph
from efhc.core.half_step_messages import Frame, Introduction
from efhc.network.topologies import GraphList
from efhc.runtime.lockstep_neighbours import LinksAhead
from efhc.runtime.node_messages import IterationModel
from efhc.runtime.node_settings import Limits
from efhc.runtime.recording import read_steps
from efhc.runtime.status import READY_STATES

DEVICES, ITERATIONS = 6, 12


def experiment(**more: Any) -> Experiment:
    fields: dict[str, Any] = {
        "devices": DEVICES,
        "iterations": ITERATIONS,
        "seeds": [3],
        "network": efhc.RandomLinks(),
        "strategies": {"EF-HC": efhc.EventTriggered(r=200.0)},
    }
    return Experiment(**(fields | more))


SETTLING: dict[str, Any] = {
    "local": {"kind": "momentum", "correction": 0.1},
    "trigger": {"kind": "entrywise", "r": 50.0},
    "codec": {"kind": "levels"},
    "mixing": {"kind": "half-steps", "rate": 1.0, "settle": True, "window": 4, "most_steps": 8},
}
LAWS = [efhc.EventTriggered(r=200.0), efhc.Entrywise(momentum=0.9, r=50.0), efhc.Composed(**SETTLING)]
"""A strategy of each link law, and half-steps that settle."""
HALF_STEPS: dict[str, dict[str, Any]] = {
    "entrywise with momentum": {
        "strategies": {"E": efhc.Entrywise(momentum=0.9, r=50.0)},
        "network": efhc.Geometric(),
        "initial_models": {"kind": "shared"},
    },
    "one-way": {"strategies": {"O": efhc.OneWay(r=20.0)}, "precision": "float64"},
    "Adam, several steps, whole models": {
        "strategies": {
            "C": efhc.Composed(
                local={"kind": "adam", "correction": 0.1, "steps": 2},
                trigger={"kind": "coin", "probability": 0.5},
                mixing={"kind": "half-steps", "rate": 0.4, "limit": {"kind": "clip", "radius": 0.5}},
            )
        },
        "network": efhc.RandomWaypoint(radius=0.5, slowest=0.05, fastest=0.2),
    },
    "links that come when there is nothing to send": {
        "strategies": {"L": efhc.OneWay(r=100.0, bits=3)},
        "network": efhc.RandomLinks(up_probability=0.4),
        "initial_models": {"kind": "shared"},
        "devices": 7,
        "batch_size": 4,
        "iterations": 40,
    },
    "steps that settle": {
        "strategies": {"P": efhc.Composed(**SETTLING)},
        "network": efhc.Geometric(),
        "initial_models": {"kind": "shared"},
        "iterations": 30,
    },
    "steps that settle, on links that come and go": {
        "strategies": {"P": efhc.Composed(**SETTLING)},
        "precision": "float64",
        "iterations": 30,
    },
    "a budget": {
        "strategies": {"B": efhc.Entrywise(r=10.0, budget={"share": 0.02})},
        "network": efhc.Ring(),
        "initial_models": {"kind": "zeros"},
    },
}


def nodes_of(given: Experiment, folder: Path, wires: Wires, session: int = 1, **more: Any) -> list[Node]:
    return [Node(given, device, folder / f"{device}", wires, session, **more) for device in range(given.devices)]


async def have_made(nodes: list[Node], iterations: int) -> None:
    """Wait until all of them have made so many iterations."""
    while min(node.mode.status().iteration for node in nodes) < iterations:
        await asyncio.sleep(0.005)


async def run_all(nodes: list[Node]) -> list[BaseException | None]:
    return await asyncio.gather(*(node.run() for node in nodes), return_exceptions=True)


def final_models(nodes: list[Node], iterations: int = ITERATIONS) -> np.ndarray:
    return np.stack([node.store.load(iterations).model for node in nodes])


def assert_same_as_run(given: Experiment, nodes: list[Node]) -> None:
    together = efhc.simulate(given)
    ((pair, models),) = together.models.items()
    assert np.array_equal(final_models(nodes, given.iterations), models)
    fired = np.zeros((given.iterations, given.devices), dtype=bool)
    for node in nodes:
        steps = read_steps(node.settings.state)
        fired[steps["k"], node.settings.device] = steps["fired"]
    assert [np.flatnonzero(row).tolist() for row in fired] == together.events["fired"].to_list()
    assert pair == (next(iter(given.strategies)), given.seeds[0])


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"strategies": {"GT": efhc.GlobalThreshold()}, "precision": "float64"},
        {"strategies": {"ZT": efhc.ZeroThreshold()}, "network": efhc.RandomWaypoint()},
        {"strategies": {"RG": efhc.RandomizedGossip()}, "exchange_at_start": True, "network": efhc.Geometric()},
    ],
)
async def test_models_and_fired_sets_are_those_of_efhc_run(tmp_path: Path, more: dict[str, Any]) -> None:
    given = experiment(**more)
    nodes = nodes_of(given, tmp_path, Wires())
    assert await run_all(nodes) == [None] * DEVICES
    assert_same_as_run(given, nodes)
    used = efhc.simulate(given).events["link_from"].list.len().sum()
    itemsize = np.dtype(given.precision).itemsize
    sent = sum(link.model_bytes_sent for node in nodes for link in node.mode.status().neighbours)
    assert sent == 2 * nodes[0].trainer.parameters * itemsize * used


@pytest.mark.parametrize("case", HALF_STEPS)
async def test_models_fired_sets_and_bits_of_half_steps_are_those_of_efhc_run(tmp_path: Path, case: str) -> None:
    given = experiment(**HALF_STEPS[case])
    nodes = nodes_of(given, tmp_path, Wires())
    assert await run_all(nodes) == [None] * given.devices
    assert_same_as_run(given, nodes)
    events = efhc.simulate(given).events
    counted = sum(int(events[name].list.sum().sum()) for name in ("bits_forth", "bits_back"))
    sent = [message for node in nodes for _, message in node.wire.sent]
    frames = [message for message in sent if isinstance(message, Frame)]
    introductions = [message for message in sent if isinstance(message, Introduction)]
    assert frames
    assert (len(introductions) == 0) == (
        case in ("entrywise with momentum", "steps that settle", "a budget")
    )  # static, one start
    whole = sum(whole_message_bits(message.model[None]) for message in introductions)
    assert counted == whole + sum(frame.bits for frame in frames)
    assert all(8 * len(frame.payload) <= frame.bits for frame in frames)


@pytest.mark.parametrize("strategy", LAWS)
async def test_a_stopped_node_goes_on_while_the_others_wait(tmp_path: Path, strategy: Any) -> None:
    given, wires = experiment(iterations=20, strategies={"S": strategy}), Wires()
    nodes = nodes_of(given, tmp_path, wires, pace=0.02)
    running = [asyncio.create_task(node.run()) for node in nodes]
    await have_made(nodes, 4)
    nodes[2].mode.stop()
    await running[2]
    assert 0 < nodes[2].mode.status().iteration < 20
    nodes[2] = Node(given, 2, tmp_path / "2", wires, session=2)
    running[2] = asyncio.create_task(nodes[2].run())
    await asyncio.gather(*running)
    assert next(line for line in nodes[2].lines if line["event"] == "begun")["alone"]
    assert_same_as_run(given, nodes)


@pytest.mark.parametrize("strategy", LAWS)
async def test_all_go_on_from_their_last_common_checkpoint(tmp_path: Path, strategy: Any) -> None:
    given = experiment(iterations=20, strategies={"S": strategy})
    first = nodes_of(given, tmp_path, Wires(), pace=0.02)
    running = asyncio.create_task(run_all(first))
    await have_made(first, 7)
    for node in first:
        node.mode.stop()
    assert await running == [None] * DEVICES
    made = {node.mode.status().iteration for node in first}
    assert min(made) > 5
    assert max(made) < 20
    second = nodes_of(given, tmp_path, Wires(), session=2)
    assert await run_all(second) == [None] * DEVICES
    begun = {line["k"] for node in second for line in node.lines if line["event"] == "begun"}
    assert len(begun) == 1
    assert begun <= {5, 10, 15} | made
    assert_same_as_run(given, second)
    for node in second:  # what nobody needs any more is gone
        assert node.store.available()[-1] == 20
        assert len(node.store.available()) <= 3


async def test_a_node_that_lost_its_state_ends_the_run_on_all_in_one_line(tmp_path: Path) -> None:
    given, wires = experiment(iterations=40, strategies={"ZT": efhc.ZeroThreshold()}), Wires()
    nodes = nodes_of(given, tmp_path, wires, pace=0.02)
    running = [asyncio.create_task(node.run()) for node in nodes]
    await have_made(nodes, 12)
    running[4].cancel()  # nothing is kept, as after kill -9
    with pytest.raises(asyncio.CancelledError):
        await running[4]
    for file in (tmp_path / "4").glob("checkpoint-*"):
        file.unlink()
    nodes[4] = Node(given, 4, tmp_path / "4", wires, session=2)
    running[4] = asyncio.create_task(nodes[4].run())
    errors = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(error, EfhcError) for error in errors)
    assert all(str(error).startswith("device 4 has lost its state") for error in errors)
    again = nodes_of(given, tmp_path, Wires(), session=3)
    assert await run_all(again) == [None] * DEVICES
    assert_same_as_run(given, again)


async def test_training_that_diverges_ends_the_run_on_all(tmp_path: Path) -> None:
    given = experiment(step_size=efhc.Constant(value=3e38), iterations=30)
    errors = await run_all(nodes_of(given, tmp_path, Wires()))
    assert all("training diverged" in str(error) for error in errors)
    assert sum(str(error).startswith("training diverged") for error in errors) >= 1


async def test_a_neighbour_that_is_missing_in_the_table_is_named_at_the_start(tmp_path: Path) -> None:
    given = experiment(network=efhc.Ring())
    (node, *_) = nodes_of(given, tmp_path, Wires(), neighbours=())
    with pytest.raises(EfhcError, match="without device 1"):
        await node.run()


async def test_a_table_without_a_neighbour_that_is_still_needed_is_refused(
    tmp_path: Path,
) -> None:
    given = experiment(network=efhc.Ring(), iterations=20)
    nodes = nodes_of(given, tmp_path, Wires(), pace=0.02)
    table = {neighbour.device: neighbour for neighbour in nodes[0].settings.neighbours}
    running = asyncio.create_task(run_all(nodes))
    await have_made(nodes, 3)
    with pytest.raises(EfhcError, match="without device 5"):
        nodes[0].mode.allow([table[1]])
    nodes[0].mode.allow([table[1], table[5]])  # 2, 3 and 4 are never linked to device 0
    with pytest.raises(EfhcError, match="without device 1"):
        nodes[0].mode.allow([])
    errors = await running
    nodes[0].mode.allow([])  # all is made
    assert errors == [None] * DEVICES
    assert_same_as_run(given, nodes)


@pytest.mark.parametrize("after", [2, 9])
def test_who_is_linked_in_later_iterations_is_known_in_advance(after: int) -> None:
    ring, none = Graph.of(4, [(0, 1), (1, 2), (2, 3), (0, 3)]), Graph.of(4, [])
    graphs = GraphList([ring] * after + [none] * (10 - after))
    links = LinksAhead.of(graphs, 4, 0, 10)
    assert links.linked == {1: range(after), 3: range(after)}
    assert links.reachable == {0, 1, 2, 3}
    links.check_table({}, after)
    for k in range(after):
        with pytest.raises(EfhcError, match="without device 3"):
            links.check_table({1}, k)


async def test_a_node_that_waits_for_a_neighbour_stays_ready_and_tells_for_whom_it_waits(tmp_path: Path) -> None:
    given, wires = experiment(network=efhc.Ring(), iterations=20), Wires()
    nodes = nodes_of(given, tmp_path, wires, pace=0.02)
    states: list[str] = []
    assert nodes[0].mode.status().state not in READY_STATES
    running = asyncio.create_task(run_all(nodes))
    await have_made(nodes, 2)
    wires.cut(0, 1)
    while [node.mode.status().waits_for for node in nodes[:2]] != [[1], [0]]:
        await asyncio.sleep(0.001)
    states.extend(node.mode.status().state for node in nodes)
    wires.heal_all()
    assert await running == [None] * DEVICES
    assert states == ["training"] * DEVICES


async def test_a_node_that_has_made_all_says_at_once_for_whom_it_waits(tmp_path: Path) -> None:
    given = experiment(devices=3, network=efhc.Ring(), iterations=5)
    (node, *_) = nodes = nodes_of(given, tmp_path, Wires())
    assert await run_all(nodes) == [None] * 3
    with node.store as store:  # as if it had been stopped before it knew that the others have made all, too
        store.save(replace(store.load(5), sent={1: []}))
    again = Node(given, 0, tmp_path / "0", Wires(), session=2, limits=Limits(give_up=0.3))
    await again.run()
    assert again.lines[0] == {"event": "waiting", "level": "info", "devices": [1, 2], "at_most_seconds": 0.3}
    assert again.lines[-1]["reason"] == "all iterations are made, and no neighbour has come back"


async def test_a_bad_model_disconnects_with_a_reason(tmp_path: Path) -> None:
    given = experiment(iterations=5)
    wires = Wires()
    nodes = nodes_of(given, tmp_path, wires)
    running = asyncio.create_task(run_all(nodes))
    await asyncio.sleep(0)
    mode = nodes[0].mode
    while not nodes[0].lines:
        await asyncio.sleep(0.001)
    bad = np.full(nodes[0].trainer.parameters, np.nan, dtype=np.float32)
    mode.received(1, IterationModel(0, bad))
    await running
    assert {"event": "refused", "level": "warning", "neighbour": 1, "reason": "its model is not finite"} in nodes[
        0
    ].lines
    assert_same_as_run(given, nodes)


@pytest.mark.parametrize("change", [{"payload": b"\xff"}, {"number": 2}, {"used": 7}, {"source": (1, 0, 9)}])
async def test_a_frame_that_breaks_the_law_ends_the_run_on_all(tmp_path: Path, change: dict[str, Any]) -> None:
    given = experiment(iterations=5, **HALF_STEPS["entrywise with momentum"])
    nodes = nodes_of(given, tmp_path, Wires())
    send = nodes[1].wire.send

    def sends_other_frames(neighbour: int, message: Any) -> None:
        send(neighbour, message._replace(**change) if isinstance(message, Frame) else message)

    nodes[1].wire.send = sends_other_frames  # type: ignore[method-assign]
    errors = await run_all(nodes)
    assert all("device 1 cannot be understood in iteration 0" in str(error) for error in errors)


@pytest.mark.parametrize("strategy", [efhc.RandomizedGossip(), LAWS[1]])
@pytest.mark.parametrize("schedule", range(2))
async def test_cuts_and_stops_at_random_moments_change_nothing(tmp_path: Path, schedule: int, strategy: Any) -> None:
    devices = 4
    network = efhc.RandomLinks() if schedule % 2 else efhc.Ring()
    given = experiment(devices=devices, iterations=25, network=network, strategies={"S": strategy})
    wires, random = Wires(), np.random.default_rng(schedule)
    nodes = nodes_of(given, tmp_path, wires, pace=0.01)
    sessions = 1
    running = [asyncio.create_task(node.run()) for node in nodes]
    for _ in range(10):
        await asyncio.sleep(random.uniform(0, 0.06))
        wires.lose_models = bool(random.integers(2))
        await asyncio.sleep(random.uniform(0, 0.02))
        for one, other in combinations(range(devices), 2):
            wires.cut(one, other)
        wires.lose_models = False
        chosen = int(random.integers(devices))
        if random.integers(2) and not running[chosen].done():
            nodes[chosen].mode.stop()
            if random.integers(2):
                wires.heal_all()
            await running[chosen]
            sessions += 1
            nodes[chosen] = Node(given, chosen, tmp_path / f"{chosen}", wires, sessions, pace=0.01)
            running[chosen] = asyncio.create_task(nodes[chosen].run())
        wires.heal_all()
    await asyncio.gather(*running)
    assert sessions > 1
    assert_same_as_run(given, nodes)
