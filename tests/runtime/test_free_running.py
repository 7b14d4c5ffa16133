"""Free-running nodes over a network in memory: the laws of docs/asynchrony.md with a real clock and real files."""

import asyncio
import json
import time
from dataclasses import asdict

import numpy as np
import pytest
from free_nodes import Fleet

from efhc.core.protocol import AskModel, Body
from efhc.runtime.messages import IterationHeader


def test_nodes_learn_together_and_keep_the_sum(tmp_path):
    async def run():
        fleet = Fleet(tmp_path)
        for device in range(3):
            fleet.add(device, pace=0.01)
        await fleet.all_at(60)
        await fleet.until(fleet.is_idle)
        models = [node.mode._acting.device.model for node in fleet.nodes.values()]
        counts = [fleet.status(d).neighbours for d in range(3)]
        await fleet.stop()
        return fleet, models, counts

    fleet, models, counts = asyncio.run(run())
    assert np.abs(fleet.defect()).max() < 1e-12
    started = [fleet.trainer(d).initial_model() for d in range(3)]
    assert np.linalg.norm(models[0] - models[1]) < 0.2 * np.linalg.norm(started[0] - started[1])
    for device, neighbours in enumerate(counts):
        for neighbour in neighbours:
            back = next(n for n in counts[neighbour.device] if n.device == device)
            assert neighbour.exchanges["committed"] == back.exchanges["committed"] > 10
            assert neighbour.model_bytes_sent >= neighbour.exchanges["committed"] * fleet.parameters * 8


@pytest.mark.parametrize("seed", range(3))
def test_the_sum_survives_loss_cuts_and_kills(tmp_path, seed):
    async def run():
        chance = np.random.default_rng(seed)
        fleet = Fleet(tmp_path, delay=0.002, loss=0.02, devices=4, iterations=400)
        limits = {"patience": 0.05}
        for device in range(4):
            fleet.add(device, limits=limits, checkpoint_seconds=0.2, pace=0.002)
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
                fleet.add(one, limits=limits, checkpoint_seconds=0.2, pace=0.002)
        fleet.network.loss = 0.0
        await fleet.until(lambda: all(fleet.status(d).links_up == 3 for d in range(4)))
        await fleet.all_at(400, seconds=120)
        await fleet.until(fleet.is_idle)
        found = [fleet.status(d) for d in range(4)]
        await fleet.stop()
        return fleet, found

    fleet, found = asyncio.run(run())
    assert [status.in_doubt for status in found] == [0] * 4
    assert [status.lost for status in found] == [0] * 4
    assert np.abs(fleet.defect()).max() < 1e-11


def test_without_a_journal_both_ends_count_what_is_lost(tmp_path):
    async def run():
        fleet = Fleet(tmp_path, devices=2, iterations=10**6)
        for device in range(2):
            fleet.add(device, journal=False, pace=0.002)
        await fleet.all_at(30)
        await fleet.kill(1)
        committed = fleet.status(0).neighbours[0].exchanges["committed"]
        fleet.add(1, journal=False, pace=0.002)
        await fleet.until(lambda: fleet.status(1).links_up == 1 and fleet.status(0).lost > 0)
        lost = [fleet.status(d).lost for d in range(2)]
        await fleet.stop()
        return lost, committed

    lost, committed = asyncio.run(run())
    assert lost[0] == lost[1] == committed  # nothing was kept since the first checkpoint


def test_a_newcomer_copies_model_and_iteration(tmp_path):
    async def run():
        fleet = Fleet(tmp_path, iterations=10**6)
        fleet.add(0, pace=0.002)
        fleet.add(1, pace=0.002)
        await fleet.all_at(50)
        fleet.add(2, join="copy", pace=0.002)
        await fleet.until(lambda: fleet.status(2).steps > 3)
        k, steps = fleet.status(2).iteration, fleet.status(2).steps
        await fleet.stop()
        return fleet, k - steps

    fleet, copied = asyncio.run(run())
    assert copied >= 50
    assert np.abs(fleet.defect()).max() < 1e-12


def test_a_newcomer_without_anybody_to_ask_stops_when_asked(tmp_path):
    async def run():
        fleet = Fleet(tmp_path)
        fleet.add(0, join="copy")
        await fleet.until(lambda: fleet.status(0).state == "waiting")
        async with asyncio.timeout(2):
            await fleet.stop()

    asyncio.run(run())


def test_a_newcomer_that_was_stopped_before_it_had_a_model_still_copies_one(tmp_path):
    async def run():
        fleet = Fleet(tmp_path, devices=2, iterations=10**6)
        fleet.add(1, join="copy")
        await fleet.until(lambda: fleet.status(1).state == "waiting")
        await fleet.stop()
        fleet.nodes.clear()
        fleet.add(0, pace=0.002)
        await fleet.all_at(20)
        fleet.add(1, join="copy", pace=0.002)
        await fleet.until(lambda: fleet.status(1).steps > 3)
        copied = fleet.status(1).iteration - fleet.status(1).steps
        await fleet.stop()
        return copied

    assert asyncio.run(run()) >= 20


def test_a_slow_disk_holds_up_no_message_and_holds_no_models(tmp_path):
    async def run():
        fleet = Fleet(tmp_path, devices=2, iterations=10**6, strategies={"never": {"kind": "never"}})
        for device in range(2):
            fleet.add(device, pace=0.002, checkpoint_seconds=0.1)
        await fleet.all_at(5)
        store = fleet.nodes[0].store
        quick = store.checkpoint

        def slow(*given):
            time.sleep(1.5)
            quick(*given)

        store.checkpoint = slow
        acting = fleet.nodes[0].mode._acting
        await fleet.until(lambda: acting.checkpoints_waiting == 1)
        asked = asyncio.get_running_loop().time()
        fleet.nodes[1].transport.send(0, AskModel())
        sent = fleet.nodes[0].transport.traffic(1)
        before = sent.model_bytes_sent
        await fleet.until(lambda: sent.model_bytes_sent > before)
        seconds = asyncio.get_running_loop().time() - asked
        await asyncio.sleep(0.8)
        waiting = acting.checkpoints_waiting
        store.checkpoint = quick
        await fleet.stop()
        return seconds, waiting

    seconds, waiting = asyncio.run(run())
    assert seconds < 1.0
    assert waiting <= 1


def test_models_that_are_not_finite_or_too_large_are_refused(tmp_path):
    async def run():
        fleet = Fleet(tmp_path, devices=2, iterations=10**6, strategies={"never": {"kind": "never"}})
        for device in range(2):
            fleet.add(device, pace=0.005, limits={"norm": 10.0})
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
        log = fleet.nodes[0].log()
        await fleet.stop()
        return [line["reason"] for line in log if line["event"] == "refused"]

    reasons = asyncio.run(run())
    assert "not finite" in reasons[0]
    assert "not finite" in reasons[1]
    assert "above the limit" in reasons[2]


def test_float16_on_the_wire_keeps_the_sum(tmp_path):
    async def run():
        fleet = Fleet(tmp_path, wire="float16", precision="float32", delay=0.003)
        for device in range(3):
            fleet.add(device, pace=0.002)
        await fleet.all_at(60)
        await fleet.until(fleet.is_idle)
        await fleet.stop()
        return fleet

    fleet = asyncio.run(run())
    assert np.abs(fleet.defect()).max() < 1e-4  # float16 itself rounds by 1e-3 of a model


def test_a_full_disk_stops_the_node_before_anybody_relies_on_it(tmp_path):
    from efhc.base.saving import SaveError

    async def run():
        fleet = Fleet(tmp_path, devices=2, iterations=10**6)
        for device in range(2):
            fleet.add(device, pace=0.002)
        await fleet.all_at(10)
        store = fleet.nodes[1].store

        def full(*_):
            raise SaveError("no space left on device")

        store.keep = store.checkpoint = full
        async with asyncio.timeout(10):
            await asyncio.wait({fleet.nodes[1].task})
        error = fleet.nodes.pop(1).task.exception()
        store.__exit__(None, None, None)
        await fleet.all_at(fleet.status(0).iteration + 10)
        await fleet.stop()
        return error, fleet

    error, fleet = asyncio.run(run())
    assert "no space left" in str(error)
    # What the node had kept is all that its neighbour relies on: the two agree once they meet again.

    async def again():
        for device in range(2):
            fleet.add(device, pace=0.002)
        await fleet.until(lambda: all(fleet.status(d).links_up for d in range(2)))
        await asyncio.sleep(0.1)
        await fleet.stop()

    fleet.nodes.clear()
    asyncio.run(again())
    assert np.abs(fleet.defect()).max() < 1e-12


def test_a_node_that_is_not_to_stay_ends_by_itself(tmp_path):
    async def run():
        fleet = Fleet(tmp_path, devices=2)
        for device in range(2):
            fleet.add(device, stay=False)
        async with asyncio.timeout(30):
            await asyncio.gather(*(node.task for node in fleet.nodes.values()))
        for node in fleet.nodes.values():
            node.store.__exit__(None, None, None)
        return fleet

    fleet = asyncio.run(run())
    assert np.abs(fleet.defect()).max() < 1e-12


def test_a_neighbour_that_is_taken_off_the_table_is_gone(tmp_path):
    async def run():
        fleet = Fleet(tmp_path, iterations=10**6, strategies={"never": {"kind": "never"}})
        for device in range(3):
            fleet.add(device, pace=0.002, limits={"give_up": 0.5})  # it may go in the middle of an exchange
        await fleet.until(lambda: fleet.status(0).links_up == 2)
        node = fleet.nodes[0]
        table = [one for one in node.mode._settings.neighbours if one.device != 2]
        node.mode.allow(table)
        node.transport.allow(table)
        await fleet.until(lambda: fleet.status(0).links_up == 1 and fleet.status(2).links_up == 1)
        await fleet.until(lambda: [one.device for one in fleet.status(0).neighbours] == [1])
        await fleet.stop()

    asyncio.run(run())


def test_status_is_plain_data(tmp_path):
    async def run():
        fleet = Fleet(tmp_path, devices=2, iterations=10**6)
        for device in range(2):
            fleet.add(device, pace=0.002, bandwidth="measured")
        await fleet.all_at(10)
        await fleet.until(lambda: fleet.status(0).links_up == 1)
        told = json.dumps(asdict(fleet.status(0)))
        await fleet.stop()
        return told

    told = json.loads(asyncio.run(run()))
    assert told["iteration"] >= 10
    assert told["broadcasts"] >= 9
    assert told["neighbours"][0]["connected"] is True
