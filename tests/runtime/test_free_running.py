"""Free-running nodes over a network in memory: the laws of docs/asynchrony.md with a real clock and real files."""

import asyncio
import threading

import numpy as np
import pytest
from free_nodes import STRATEGIES, Fleet, fleet_of
from stored_devices import state_of

from efhc.base.saving import SaveError
from efhc.core.protocol import Body, ModelRequest
from efhc.runtime import free_running
from efhc.runtime.node_messages import IterationHeader


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_nodes_learn_together_and_keep_the_sums(tmp_path, strategy):
    fleet = fleet_of(tmp_path, strategy)
    fleet.add_all(pace=0.01)
    await fleet.all_at(60)
    await fleet.until(fleet.is_idle)
    models = [node.mode.device.model for node in fleet.nodes.values()]
    neighbours = [status.neighbours for status in await fleet.end(finish=False, tolerance=1e-12)]
    started = [fleet.trainer(d).initial_model() for d in range(3)]
    assert np.linalg.norm(models[0] - models[1]) < 0.5 * np.linalg.norm(started[0] - started[1])
    for device, links in enumerate(neighbours):
        for link in links:
            back = next(one for one in neighbours[link.device] if one.device == device)
            committed = link.exchanges["committed"]
            assert committed == back.exchanges["committed"]
            assert committed > 5 or strategy == "paced"  # which leaves out a link of the triangle
            if strategy in ("exchange", "own biases"):
                assert link.model_bytes_sent % (fleet.parameters * 8) == 0
                assert link.model_bytes_sent >= committed * fleet.parameters * 8


async def test_what_is_personal_is_trained_kept_on_disk_and_restored(tmp_path):
    fleet = fleet_of(tmp_path, "own biases", devices=2, iterations=10**6)
    assert fleet.parameters == 640
    fleet.add_all(pace=0.002)
    await fleet.all_at(20)
    await fleet.stop()
    left = {device: node.mode._trainer.local["personal/model"] for device, node in fleet.nodes.items()}
    for device, biases in left.items():
        assert biases.shape == (1, 10)
        assert (biases != fleet.trainer(device).local["personal/model"]).any()
        assert np.array_equal(state_of(tmp_path / str(device)).tensors["local/personal/model"], biases)
    assert not np.array_equal(left[0], left[1])
    fleet.nodes.clear()
    fleet.add(0, pace=10.0)
    await fleet.until(fleet.nodes[0].mode.begun.is_set)
    assert np.array_equal(fleet.nodes[0].mode._trainer.local["personal/model"], left[0])
    await fleet.stop()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("strategy", ["exchange", "entrywise", "whole models", "own biases", "paced"])
async def test_the_sums_survive_loss_cuts_and_kills(tmp_path, strategy, seed):
    chance = np.random.default_rng(seed)
    fleet = fleet_of(tmp_path, strategy, delay=0.002, loss=0.02, devices=4, iterations=400)
    settings = {"limits": {"patience": 0.05}, "checkpoint_seconds": 0.2, "pace": 0.002}
    fleet.add_all(**settings)
    await fleet.all_at(20)
    for _ in range(8):
        await asyncio.sleep(float(chance.uniform(0.02, 0.15)))
        one, other = (int(d) for d in chance.choice(4, 2, replace=False))
        if chance.random() < 0.5:
            fleet.network.cut(one, other)
            await asyncio.sleep(float(chance.choice([0.02, 0.5])))  # shorter and longer than down_after
            fleet.network.heal(one, other)
        else:
            await fleet.kill(one)
            await asyncio.sleep(0.05)
            fleet.add(one, **settings)
    fleet.network.loss = 0.0
    await fleet.until(lambda: all(fleet.status(d).links_up == 3 for d in range(4)))
    await fleet.all_at(400)
    statuses = await fleet.end(finish=False)
    assert [(status.in_doubt, status.unresolved, status.lost) for status in statuses] == [(0, 0, 0)] * 4


async def test_without_a_journal_both_ends_count_what_is_lost(tmp_path):
    fleet = Fleet(tmp_path, devices=2, iterations=10**6)
    fleet.add_all(journal=False, pace=0.002)
    await fleet.all_at(30)
    await fleet.kill(1)
    committed = fleet.status(0).neighbours[0].exchanges["committed"]
    fleet.add(1, journal=False, pace=0.002)
    await fleet.until(lambda: fleet.status(1).links_up == 1 and fleet.status(0).lost > 0)
    lost = [fleet.status(d).lost for d in range(2)]
    await fleet.stop()
    assert lost[0] == lost[1] == committed  # nothing was kept since the first checkpoint


@pytest.mark.parametrize("strategy", ["exchange", "entrywise"])
async def test_a_newcomer_copies_model_and_iteration(tmp_path, strategy):
    fleet = fleet_of(tmp_path, strategy, iterations=10**6)
    fleet.add(0, pace=0.002)
    fleet.add(1, pace=0.002)
    await fleet.all_at(50)
    fleet.add(2, join="copy", pace=0.002)
    await fleet.until(lambda: fleet.status(2).steps > 3)
    k, steps = fleet.status(2).iteration, fleet.status(2).steps
    await fleet.stop()
    assert k - steps >= 50
    if strategy == "exchange":  # frames of nodes that stop may be under way
        assert np.abs(fleet.defect()).max() < 1e-12


async def test_a_newcomer_that_was_stopped_before_it_had_a_model_still_copies_one(tmp_path):
    fleet = Fleet(tmp_path, devices=2, iterations=10**6)
    fleet.add(1, join="copy")
    await fleet.until(lambda: fleet.status(1).state == "waiting")
    await fleet.stop()
    fleet.nodes.clear()
    fleet.add(0, pace=0.002)
    await fleet.all_at(20)
    fleet.add(1, join="copy", pace=0.002)
    await fleet.until(lambda: fleet.status(1).steps > 3)
    assert fleet.status(1).iteration - fleet.status(1).steps >= 20
    await fleet.stop()


async def test_a_slow_disk_holds_up_no_message_and_holds_no_models(tmp_path, monkeypatch):
    monkeypatch.setattr(free_running, "TICK", 0.01)
    fleet = Fleet(tmp_path, devices=2, iterations=10**6, strategies={"never": {"kind": "never"}})
    fleet.add_all(pace=0.002, checkpoint_seconds=0.05)
    await fleet.all_at(5)
    store, mode, disk = fleet.nodes[0].store, fleet.nodes[0].mode, threading.Event()
    quick = store.checkpoint
    store.checkpoint = lambda *given: (disk.wait(60), quick(*given))
    await fleet.until(lambda: mode._checkpoints_waiting == 1)
    fleet.nodes[1].transport.send(0, ModelRequest())
    sent = fleet.nodes[0].mode.status_of(1)
    before = sent.model_bytes_sent
    await fleet.until(lambda: sent.model_bytes_sent > before)
    await fleet.all_at(fleet.status(0).iteration + 100)  # several checkpoints would be due
    assert mode._checkpoints_waiting == 1
    disk.set()
    await fleet.stop()


async def test_models_that_are_not_finite_or_too_large_are_refused(tmp_path):
    fleet = Fleet(tmp_path, devices=2, iterations=10**6, strategies={"never": {"kind": "never"}})
    fleet.add_all(pace=0.005, limits={"norm": 10.0})
    await fleet.all_at(5)
    for value in (np.nan, np.inf, 1e6):
        await fleet.until(lambda: fleet.status(0).neighbours[0].connected)
        before = fleet.status(0).refused
        sender = fleet.nodes[1].transport
        sender.send(0, Body((1, 1, 1), (0, 1, 1), np.full(fleet.parameters, value)))
        await fleet.until(lambda before=before: fleet.status(0).refused > before)
    await fleet.until(lambda: fleet.status(0).neighbours[0].connected)
    fleet.nodes[1].transport.send(0, IterationHeader(0, True, 1))
    await fleet.until(lambda: any("IterationHeader" in str(line) for line in fleet.nodes[0].log()))
    k = fleet.status(0).iteration
    await fleet.all_at(k + 5)  # training goes on
    assert [line["event"] for line in fleet.nodes[0].log()].count("refused") == 4
    await fleet.stop()


async def test_float16_on_the_wire_keeps_the_sum(tmp_path):
    fleet = Fleet(tmp_path, wire="float16", precision="float32", delay=0.003)
    fleet.add_all(pace=0.002)
    await fleet.all_at(60)
    await fleet.until(fleet.is_idle)
    await fleet.stop()
    assert np.abs(fleet.defect()).max() < 1e-4  # float16 itself rounds by 1e-3 of a model


async def test_a_full_disk_stops_the_node_before_anybody_relies_on_it(tmp_path):
    fleet = Fleet(tmp_path, devices=2, iterations=10**6)
    fleet.add_all(pace=0.002)
    await fleet.all_at(10)
    store = fleet.nodes[1].store

    def full(*_):
        raise SaveError("no space left on device")

    store.keep = store.checkpoint = full
    async with asyncio.timeout(60):
        await asyncio.wait({fleet.nodes[1].task})
    error = fleet.nodes.pop(1).task.exception()
    store.__exit__(None, None, None)
    await fleet.all_at(fleet.status(0).iteration + 10)
    await fleet.stop()
    assert "no space left" in str(error)
    # What the node had kept is all that its neighbour relies on: the two agree once they meet again.
    fleet.add_all(pace=0.002)
    await fleet.until(lambda: all(fleet.status(d).links_up for d in range(2)))
    await fleet.stop()
    assert np.abs(fleet.defect()).max() < 1e-12


async def test_a_node_that_is_not_to_stay_ends_by_itself(tmp_path):
    fleet = Fleet(tmp_path, devices=2)
    fleet.add_all(stay=False)
    await fleet.ended()
    assert np.abs(fleet.defect()).max() < 1e-12


async def test_a_neighbour_that_is_taken_off_the_table_is_gone(tmp_path):
    fleet = Fleet(tmp_path, iterations=10**6, strategies={"never": {"kind": "never"}})
    fleet.add_all(pace=0.002, limits={"give_up": 0.5})  # it may go in the middle of an exchange
    await fleet.until(lambda: fleet.status(0).links_up == 2)
    node = fleet.nodes[0]
    table = [one for one in node.mode._settings.neighbours if one.device != 2]
    node.mode.allow(table)
    node.transport.allow(table)
    await fleet.until(lambda: fleet.status(0).links_up == 1 and fleet.status(2).links_up == 1)
    await fleet.until(lambda: [one.device for one in fleet.status(0).neighbours] == [1])
    await fleet.stop()
