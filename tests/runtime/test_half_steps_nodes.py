"""Free-running nodes with half-steps over a network in memory: sums of models and of h, with a real clock and files."""

import asyncio

import numpy as np
import pytest
from free_nodes import Fleet

from efhc.core.half_steps import Acknowledgement, Frame
from efhc.strategies.parts.messages import Message

STRATEGIES = {
    "entrywise": {"kind": "entrywise", "r": 50.0, "momentum": 0.9},
    "whole models": {"kind": "composed", "trigger": "always", "mixing": "half-steps", "local": "corrected"},
    "Adam": {"kind": "composed", "trigger": "always", "codec": "levels", "mixing": "half-steps", "local": "adam"},
    "paced": {"kind": "paced"},
    "paced over all links": {"kind": "paced", "links": "all"},
}


def fleet_of(folder, strategy, **fields):
    return Fleet(folder, strategies={"S": STRATEGIES[strategy]}, **fields)


def ends(fleet, one=0, other=1):
    """The two ends of a link."""
    return [fleet.nodes[here].mode._acting.device.links[there] for here, there in ((one, other), (other, one))]


def corrections(fleet):
    """The sum of h over all nodes that are there, and the largest entry of any."""
    rows = [node.mode._acting._rows.arrays.get("correction") for node in fleet.nodes.values()]
    found = np.array([row[0] for row in rows if row is not None])
    return (np.abs(found.sum(axis=0)).max(), np.abs(found).max()) if len(found) else (0.0, 0.0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nodes_learn_together_and_keep_the_sums(tmp_path, strategy):
    async def run():
        fleet = fleet_of(tmp_path, strategy)
        for device in range(3):
            fleet.add(device, pace=0.01)
        await fleet.all_at(60)
        await fleet.until(fleet.is_idle)
        models = [node.mode._acting.device.model for node in fleet.nodes.values()]
        found = models, [fleet.status(d).neighbours for d in range(3)], corrections(fleet)
        await fleet.stop()
        return fleet, *found

    fleet, models, neighbours, (total, largest) = asyncio.run(run())
    assert np.abs(fleet.defect()).max() < 1e-11
    assert total <= 1e-12 * max(1.0, largest)
    started = [fleet.trainer(d).initial_model() for d in range(3)]
    assert np.linalg.norm(models[0] - models[1]) < 0.5 * np.linalg.norm(started[0] - started[1])
    for device, links in enumerate(neighbours):
        for link in links:
            back = next(one for one in neighbours[link.device] if one.device == device)
            assert link.exchanges["committed"] == back.exchanges["committed"]
            assert link.exchanges["committed"] > 5 or strategy == "paced"  # which leaves out a link of the triangle


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("strategy", ["entrywise", "whole models", "paced"])
def test_the_sums_survive_loss_cuts_and_kills(tmp_path, strategy, seed):
    async def run():
        chance = np.random.default_rng(seed)
        fleet = fleet_of(tmp_path, strategy, delay=0.002, loss=0.02, devices=4, iterations=400)
        settings = {"limits": {"patience": 0.05}, "checkpoint_seconds": 0.2, "pace": 0.002}
        for device in range(4):
            fleet.add(device, **settings)
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
        await fleet.all_at(400, seconds=120)
        await fleet.until(fleet.is_idle)
        found = [fleet.status(d) for d in range(4)], corrections(fleet)
        await fleet.stop()
        return fleet, *found

    fleet, statuses, (total, largest) = asyncio.run(run())
    assert [(status.in_doubt, status.unresolved, status.lost) for status in statuses] == [(0, 0, 0)] * 4
    assert np.abs(fleet.defect()).max() < 1e-11
    assert total <= 1e-11 * max(1.0, largest)


def test_a_newcomer_copies_model_and_iteration(tmp_path):
    async def run():
        fleet = fleet_of(tmp_path, "entrywise", iterations=10**6)
        for device in range(2):
            fleet.add(device, pace=0.002)
        await fleet.all_at(50)
        fleet.add(2, join="copy", pace=0.002)
        await fleet.until(lambda: fleet.status(2).steps > 3)
        k, steps = fleet.status(2).iteration, fleet.status(2).steps
        await fleet.stop()
        return k - steps

    assert asyncio.run(run()) >= 50


def test_a_neighbour_that_does_not_return_is_forgotten_with_what_it_taught(tmp_path):
    async def run():
        fleet = fleet_of(tmp_path, "whole models", iterations=10**6)
        for device in range(3):
            fleet.add(device, pace=0.005, limits={"give_up": 0.5})
        await fleet.all_at(30)
        await fleet.kill(2)
        await fleet.until(lambda: all(fleet.nodes[d].mode._acting.device.degree == 1 for d in range(2)))
        await fleet.until(lambda: any(line["event"] == "unresolved" for d in range(2) for line in fleet.nodes[d].log()))
        fleet.finish()
        await fleet.until(fleet.is_idle)
        found = corrections(fleet), [fleet.status(d) for d in range(2)]
        await fleet.stop()
        return found

    (total, largest), statuses = asyncio.run(run())
    assert total <= 1e-11 * max(1.0, largest)  # what the third had taught the others is taken back
    assert sum(status.unresolved for status in statuses) <= 2  # one frame per direction at most
    assert all(np.isfinite(status.unresolved_norm) for status in statuses)


@pytest.mark.parametrize("value", [np.nan, 1e6])
def test_a_frame_that_makes_a_model_too_large_is_refused(tmp_path, value):
    async def run():
        fleet = fleet_of(tmp_path, "whole models", devices=2, iterations=10**6)
        for device in range(2):
            fleet.add(device, pace=0.005, limits={"norm": 10.0})
        await fleet.until(
            lambda: fleet.status(1).iteration >= 5 and fleet.status(1).neighbours[0].exchanges["committed"]
        )
        model = fleet.nodes[0].mode._acting.device.model
        end = fleet.nodes[1].mode._acting.device.links[0]
        payload = Message(fleet.parameters, None, np.full(fleet.parameters, value)).encode()
        fleet.nodes[1].mode._acting.device.silent = True
        await fleet.until(lambda: not end.pending)
        forged = Frame(end.token, end.partner, end.out + 1, end.inn, 0.1, 0.0, payload, 0, 9, end.inn, 1)
        fleet.nodes[1].transport.send(0, forged)
        await fleet.until(lambda: fleet.status(0).refused > 0)
        k = fleet.status(0).iteration
        await fleet.until(lambda: fleet.status(0).iteration > k + 5)  # training goes on
        after = fleet.nodes[0].mode._acting.device.model
        await fleet.stop()
        return model, after

    model, after = asyncio.run(run())
    assert np.linalg.norm(after) < 10 * max(1.0, np.linalg.norm(model))


@pytest.mark.parametrize("strategy", ["whole models", "paced"])
@pytest.mark.parametrize("how", ["without a journal", "from a backup"])
def test_a_node_that_has_forgotten_frames_begins_its_links_anew(tmp_path, how, strategy):
    async def run():
        fleet = fleet_of(tmp_path, strategy, devices=2, iterations=10**6)
        settings = {"pace": 0.005, "journal": how == "from a backup", "limits": {"patience": 0.05}}
        for device in range(2):
            fleet.add(device, **settings)
        await fleet.all_at(20)
        state = tmp_path / "1"
        backup = {path.name: path.read_bytes() for path in state.iterdir() if path.is_file()}
        await fleet.all_at(60)
        await fleet.kill(1)
        if how == "from a backup":
            for name, content in backup.items():
                (state / name).write_bytes(content)
        fleet.add(1, **settings)
        committed = fleet.status(0).neighbours[0].exchanges["committed"]
        await fleet.until(lambda: fleet.status(0).neighbours[0].exchanges["committed"] > committed + 20)
        fleet.finish()
        await fleet.until(fleet.is_idle)
        here, there = ends(fleet)
        found = corrections(fleet), [fleet.status(d).lost for d in range(2)]
        same = [np.array_equal(one.told, other.heard) for one, other in ((here, there), (there, here))]
        await fleet.stop()
        return *found, same

    (total, largest), lost, same = asyncio.run(run())
    assert same == [True, True]
    assert total <= 1e-11 * max(1.0, largest)
    assert (sum(lost) > 0) == (how == "from a backup")


def test_a_node_that_stops_does_not_wait_for_neighbours_that_go_on(tmp_path):
    async def run():
        fleet = fleet_of(tmp_path, "whole models", devices=2, iterations=10**6)
        for device in range(2):
            fleet.add(device, pace=0.002, stop_seconds=1e6)  # it would wait until the test's limit
        await fleet.all_at(20)
        fleet.nodes[1].mode.stop()
        async with asyncio.timeout(60):
            await fleet.nodes[1].task
        fleet.nodes[1].store.__exit__(None, None, None)
        fleet.add(1, pace=0.002)
        k = fleet.status(0).neighbours[0].exchanges["committed"]
        await fleet.until(lambda: fleet.status(0).neighbours[0].exchanges["committed"] > k + 10)
        fleet.nodes[0].mode._settings = fleet.nodes[0].mode._settings.model_copy(update={"stop_seconds": 3.0})
        await fleet.until(lambda: fleet.status(1).iteration > 30)
        fleet.finish()
        await fleet.until(fleet.is_idle)
        await fleet.stop()
        return fleet

    assert np.abs(asyncio.run(run()).defect()).max() < 1e-11


# Several frames under way


async def with_frames_pending(folder, **settings):
    """Two nodes that have sent one another as many frames as may be under way, all of which are lost."""
    fleet = fleet_of(folder, "paced", delay=0.002, devices=2, iterations=10**6)
    for device in range(2):
        fleet.add(device, **settings)
    await fleet.all_at(20)
    await fleet.until(lambda: all(end.acknowledged > 5 for end in ends(fleet)))
    fleet.network.loss = 1.0
    await fleet.until(lambda: all(len(end.pending) == 4 for end in ends(fleet)))
    for node in fleet.nodes.values():
        await node.mode._outbox.wait()  # the frames are in the journal, and were sent
    return fleet


def test_all_frames_that_are_not_acknowledged_are_sent_again_on_a_new_connection(tmp_path):
    async def run():
        fleet = await with_frames_pending(tmp_path, pace=0.002)
        pending = [one.frame.number for one in ends(fleet)[0].pending]
        fleet.network.cut(0, 1)
        transport, sent = fleet.nodes[0].transport, []
        fleet.nodes[0].transport.send = lambda to, message: (
            sent.append(message),
            type(transport).send(transport, to, message),
        )
        fleet.network.loss = 0.0
        fleet.network.heal(0, 1)
        await fleet.until(lambda: len(sent) > 4)
        await fleet.until(lambda: all(end.acknowledged > pending[-1] for end in ends(fleet)))
        fleet.finish()
        await fleet.until(fleet.is_idle)
        await fleet.stop()
        return fleet, pending, sent

    fleet, pending, sent = asyncio.run(run())
    assert isinstance(sent[0], Acknowledgement)
    assert [message.number for message in sent[1:5]] == pending
    assert [fleet.status(device).unresolved for device in range(2)] == [0, 0]
    assert np.abs(fleet.defect()).max() < 1e-11


def test_frames_under_way_survive_a_kill_of_both_nodes(tmp_path):
    async def run():
        settings = {"pace": 0.002, "checkpoint_seconds": 3600.0}
        fleet = await with_frames_pending(tmp_path, **settings)
        pending = [[one.frame.number for one in end.pending] for end in ends(fleet)]
        for device in range(2):
            await fleet.kill(device)
        fleet.network.loss = 0.0
        fleet.add(0, **settings)
        await fleet.until(lambda: fleet.status(0).state == "training")
        restored = [one.frame.number for one in fleet.nodes[0].mode._acting.device.links[1].pending]
        fleet.add(1, **settings)
        await fleet.until(lambda: fleet.status(1).links_up == 1)
        await fleet.until(
            lambda: all(end.acknowledged > sent[-1] for end, sent in zip(ends(fleet), pending, strict=True))
        )
        fleet.finish()
        await fleet.until(fleet.is_idle)
        found = [fleet.status(device) for device in range(2)], corrections(fleet)
        await fleet.stop()
        return fleet, pending, restored, *found

    fleet, pending, restored, statuses, (total, largest) = asyncio.run(run())
    assert restored == pending[0]
    assert [(status.unresolved, status.lost) for status in statuses] == [(0, 0)] * 2
    assert np.abs(fleet.defect()).max() < 1e-11
    assert total <= 1e-11 * max(1.0, largest)


@pytest.mark.parametrize("seed", range(2))
def test_frames_that_overtake_others_are_kept_before_they_are_acknowledged(tmp_path, seed):
    """As short messages overtake long ones on a connection."""

    async def run():
        chance, early = np.random.default_rng(seed), set()
        fleet = fleet_of(tmp_path, "paced over all links", delay=0.001, devices=3, iterations=10**6)
        settings = {"pace": 0.002, "checkpoint_seconds": 0.3}

        def shuffled(device):
            transport = fleet.add(device, **settings).transport

            def send(to, message):
                connection = transport.connections.get(to)

                def late():
                    if transport.connections.get(to) is connection:
                        type(transport).send(transport, to, message)

                if isinstance(message, Frame) and chance.random() < 0.2:
                    asyncio.get_running_loop().call_later(0.02, late)
                else:
                    late()

            transport.send = send

        for device in range(3):
            shuffled(device)
        await fleet.all_at(20)
        for _ in range(8):
            await asyncio.sleep(float(chance.uniform(0.05, 0.2)))
            links = [end for node in fleet.nodes.values() for end in node.mode._acting.device.links.values()]
            early |= {number for end in links for number in end.early}
            device = int(chance.integers(3))
            await fleet.kill(device)
            shuffled(device)
        await fleet.until(lambda: all(fleet.status(d).links_up == 2 for d in range(3)))
        fleet.finish()
        await fleet.until(fleet.is_idle)
        found = [fleet.status(d) for d in range(3)], corrections(fleet)
        await fleet.stop()
        return fleet, early, *found

    fleet, early, statuses, (total, largest) = asyncio.run(run())
    assert early
    assert [(status.unresolved, status.lost, status.refused) for status in statuses] == [(0, 0, 0)] * 3
    assert np.abs(fleet.defect()).max() < 1e-11
    assert total <= 1e-11 * max(1.0, largest)


# Devices that pace themselves


def test_paced_nodes_end_by_themselves_with_nothing_left_to_acknowledge(tmp_path):
    async def run():
        fleet = fleet_of(tmp_path, "paced", delay=0.01, iterations=40)
        for device, pace in enumerate((0.002, 0.01, 0.03)):  # the others go on when the first has finished
            fleet.add(device, pace=pace, stay=False, stop_seconds=60.0)
        async with asyncio.timeout(60):
            await asyncio.gather(*(node.task for node in fleet.nodes.values()))
        devices = [node.mode._acting.device for node in fleet.nodes.values()]
        owed = [end.owes for device in devices for end in device.links.values()]
        found = [fleet.status(d) for d in range(3)]
        for node in fleet.nodes.values():
            node.store.__exit__(None, None, None)
        return fleet, found, owed

    fleet, statuses, owed = asyncio.run(run())
    assert not any(owed)
    assert [(status.iteration, status.unresolved, status.lost) for status in statuses] == [(40, 0, 0)] * 3
    assert np.abs(fleet.defect()).max() < 1e-11


def test_a_slow_device_leaves_out_its_worst_link_until_the_better_neighbour_is_gone(tmp_path):
    async def run():
        rates = {"kind": "list", "values": [2e9, 1e9, 2e3]}
        fleet = fleet_of(tmp_path, "paced", iterations=10**6, bandwidths=rates)
        for device in range(3):
            fleet.add(device, pace=0.005, limits={"give_up": 0.5})
        await fleet.all_at(20)

        def device(number):
            return fleet.nodes[number].mode._acting.device

        def exchanged():
            return fleet.status(2).neighbours[-1].exchanges["committed"]

        await fleet.until(lambda: [device(d).quiet for d in range(3)] == [set(), {2}, {1}])
        await fleet.until(lambda: not ends(fleet, 1, 2)[0].pending and not ends(fleet, 1, 2)[1].pending)
        before, k = exchanged(), fleet.status(2).iteration
        with_best = fleet.status(2).neighbours[0].exchanges["committed"]
        await fleet.until(lambda: fleet.status(2).iteration > k + 50)
        quiet = exchanged() - before, fleet.status(2).neighbours[0].exchanges["committed"] - with_best
        await fleet.kill(0)
        await fleet.until(lambda: device(2).quiet == device(1).quiet == set())
        k = exchanged()
        await fleet.until(lambda: exchanged() > k + 10)
        logged = [line["neighbours"] for line in fleet.nodes[2].log() if line["event"] == "links left out"]
        await fleet.stop()
        return quiet, logged

    (worst, best), logged = asyncio.run(run())
    assert worst <= 2 < best  # what changes is said over all links
    assert logged[0] == [1]


def test_a_paced_node_sends_no_more_than_its_uplink_carries(tmp_path):
    async def run():
        fleet = fleet_of(
            tmp_path, "paced", iterations=10**6, devices=2, bandwidths={"kind": "constant", "value": 500.0}
        )
        for device in range(2):
            fleet.add(device, pace=0.005, limits={"send": 2000.0} if device else {})
        await fleet.all_at(20)
        payloads = [[one.frame.payload for one in end.pending] for end in ends(fleet)]
        uplinks = [fleet.nodes[d].mode._acting._uplink(None) for d in range(2)]
        await fleet.stop()
        return payloads, uplinks

    payloads, uplinks = asyncio.run(run())
    assert [uplink.bytes_per_second for uplink in uplinks] == [4000.0, 2000.0]
    assert all(
        8 * len(payload) <= uplink.room(0, 0)
        for uplink, sent in zip(uplinks, payloads, strict=True)
        for payload in sent
    )
