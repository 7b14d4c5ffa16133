"""Free-running nodes with half-steps over a network in memory: frames that are lost, late, forged or forgotten."""

import asyncio

import numpy as np
import pytest
from free_nodes import fleet_of

from efhc.core.cost import FRAME_HEADER_BYTES
from efhc.core.half_step_messages import Acknowledgement, Frame
from efhc.runtime import free_running_half_steps
from efhc.strategies.parts.messages import Message


async def test_a_neighbour_that_does_not_return_is_forgotten_with_what_it_taught(tmp_path):
    fleet = fleet_of(tmp_path, "whole models", iterations=10**6)
    fleet.add_all(pace=0.005, limits={"give_up": 0.5})
    await fleet.all_at(30)
    await fleet.kill(2)
    await fleet.until(lambda: all(fleet.nodes[d].mode.device.degree == 1 for d in range(2)))
    await fleet.until(lambda: any(line["event"] == "unresolved" for d in range(2) for line in fleet.nodes[d].log()))
    fleet.finish()
    await fleet.until(fleet.is_idle)
    statuses = [fleet.status(d) for d in range(2)]
    fleet.assert_corrections_cancel()  # what the third had taught the others is taken back
    await fleet.stop()
    assert sum(status.unresolved for status in statuses) <= 2  # one frame per direction at most
    assert all(np.isfinite(status.unresolved_norm) for status in statuses)


@pytest.mark.parametrize("value", [np.nan, 1e6])
async def test_a_frame_that_makes_a_model_too_large_is_refused(tmp_path, value):
    fleet = fleet_of(tmp_path, "whole models", devices=2, iterations=10**6)
    fleet.add_all(pace=0.005, limits={"norm": 10.0})
    await fleet.until(lambda: fleet.status(1).iteration >= 5 and fleet.status(1).neighbours[0].exchanges["committed"])
    model = fleet.nodes[0].mode.device.model
    end = fleet.nodes[1].mode.device.links[0]
    payload = Message(fleet.parameters, None, np.full(fleet.parameters, value)).encode()
    fleet.nodes[1].mode.device.silent = True
    await fleet.until(lambda: not end.pending)
    forged = Frame(
        end.token, end.partner, end.last_sent + 1, end.last_received, 0.1, 0.0, payload, 0, 9, end.last_received, 1
    )
    fleet.nodes[1].transport.send(0, forged)
    await fleet.until(lambda: fleet.status(0).refused > 0)
    k = fleet.status(0).iteration
    await fleet.until(lambda: fleet.status(0).iteration > k + 5)  # training goes on
    after = fleet.nodes[0].mode.device.model
    await fleet.stop()
    assert np.linalg.norm(after) < 10 * max(1.0, np.linalg.norm(model))


@pytest.mark.parametrize("strategy", ["whole models", "paced"])
@pytest.mark.parametrize("how", ["without a journal", "from a backup", "from a backup of an earlier link"])
async def test_a_node_that_has_forgotten_frames_begins_its_links_anew(tmp_path, how, strategy):
    fleet = fleet_of(tmp_path, strategy, devices=2, iterations=10**6)
    settings = {"pace": 0.005, "journal": how != "without a journal", "limits": {"patience": 0.05}}
    fleet.add_all(**settings)
    await fleet.all_at(20)
    state = tmp_path / "1"
    backup = {path.name: path.read_bytes() for path in state.iterdir() if path.is_file()}
    if how == "from a backup of an earlier link":
        mode = fleet.nodes[1].mode
        effects = mode.device.link_down(0)
        mode.device.link_up(0, is_new=True)
        mode._links_changed([*effects, *mode.device.announce()])
    await fleet.all_at(60)
    await fleet.kill(1)
    if how != "without a journal":
        for name, content in backup.items():
            (state / name).write_bytes(content)
    fleet.add(1, **settings)
    committed = fleet.status(0).neighbours[0].exchanges["committed"]
    await fleet.until(lambda: fleet.status(0).neighbours[0].exchanges["committed"] > committed + 20)
    fleet.finish()
    await fleet.until(fleet.is_idle)
    here, there = fleet.ends()
    assert np.array_equal(here.known_there, there.known_here)
    assert np.array_equal(there.known_there, here.known_here)
    fleet.assert_corrections_cancel()
    assert (sum(fleet.status(d).lost for d in range(2)) > 0) == (how != "without a journal")
    await fleet.stop()


async def test_a_node_that_stops_does_not_wait_for_neighbours_that_go_on(tmp_path):
    fleet = fleet_of(tmp_path, "whole models", devices=2, iterations=10**6)
    fleet.add_all(pace=0.002, stop_seconds=1e6)  # it would wait until the test's limit
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
    await fleet.end()


# Several frames under way


async def with_frames_pending(folder, **settings):
    """Two nodes that have sent one another as many frames as may be under way, all of which are lost."""
    fleet = fleet_of(folder, "paced", delay=0.002, devices=2, iterations=10**6)
    fleet.add_all(**settings)
    await fleet.all_at(20)
    await fleet.until(lambda: all(end.acknowledged > 5 for end in fleet.ends()))
    fleet.network.loss = 1.0
    await fleet.until(lambda: all(len(end.pending) == 4 for end in fleet.ends()))
    for node in fleet.nodes.values():
        await node.mode._outbox.wait()  # the frames are in the journal, and were sent
    return fleet


async def test_all_frames_that_are_not_acknowledged_are_sent_again_on_a_new_connection(tmp_path):
    fleet = await with_frames_pending(tmp_path, pace=0.002)
    pending = [one.frame.number for one in fleet.ends()[0].pending]
    fleet.network.cut(0, 1)
    transport, sent = fleet.nodes[0].transport, []
    fleet.nodes[0].transport.send = lambda to, message: (
        sent.append(message),
        type(transport).send(transport, to, message),
    )
    fleet.network.loss = 0.0
    fleet.network.heal(0, 1)
    await fleet.until(lambda: all(end.acknowledged > pending[-1] for end in fleet.ends()))
    statuses = await fleet.end()
    frames = [message.number for message in sent if isinstance(message, Frame)]
    assert isinstance(sent[0], Acknowledgement)
    assert frames[: len(pending)] == pending
    assert [status.unresolved for status in statuses] == [0, 0]


async def test_frames_under_way_survive_a_kill_of_both_nodes(tmp_path):
    settings = {"pace": 0.002, "checkpoint_seconds": 3600.0}
    fleet = await with_frames_pending(tmp_path, **settings)
    pending = [[one.frame.number for one in end.pending] for end in fleet.ends()]
    for device in range(2):
        await fleet.kill(device)
    fleet.network.loss = 0.0
    fleet.add(0, **settings)
    await fleet.until(lambda: fleet.status(0).state == "training")
    restored = [one.frame.number for one in fleet.nodes[0].mode.device.links[1].pending]
    fleet.add(1, **settings)
    await fleet.until(lambda: fleet.status(1).links_up == 1)
    await fleet.until(lambda: all(end.acknowledged > sent[-1] for end, sent in zip(fleet.ends(), pending, strict=True)))
    assert restored == pending[0]
    assert [(status.unresolved, status.lost) for status in await fleet.end()] == [(0, 0)] * 2


@pytest.mark.parametrize("seed", range(2))
async def test_frames_that_overtake_others_are_kept_before_they_are_acknowledged(tmp_path, seed):
    """As short messages overtake long ones on a connection."""
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
        await fleet.until(lambda: all(fleet.status(d).state == "training" for d in range(3)))
        links = [end for node in fleet.nodes.values() for end in node.mode.device.links.values()]
        early |= {number for end in links for number in end.out_of_order}
        device = int(chance.integers(3))
        await fleet.kill(device)
        shuffled(device)
    await fleet.until(lambda: all(fleet.status(d).links_up == 2 for d in range(3)))
    assert early
    assert [(one.unresolved, one.lost, one.refused) for one in await fleet.end()] == [(0, 0, 0)] * 3


# Devices that pace themselves


async def test_paced_nodes_end_by_themselves_with_nothing_left_to_acknowledge(tmp_path):
    fleet = fleet_of(tmp_path, "paced", delay=0.01, iterations=40)
    for device, pace in enumerate((0.002, 0.01, 0.03)):  # the others go on when the first has finished
        fleet.add(device, pace=pace, stay=False, stop_seconds=60.0)
    await fleet.ended()
    devices = [node.mode.device for node in fleet.nodes.values()]
    assert not any(end.must_acknowledge for device in devices for end in device.links.values())
    statuses = [fleet.status(d) for d in range(3)]
    assert [(status.iteration, status.unresolved, status.lost) for status in statuses] == [(40, 0, 0)] * 3
    assert np.abs(fleet.defect()).max() < 1e-11


async def test_a_slow_device_leaves_out_its_worst_link_until_the_better_neighbour_is_gone(tmp_path, monkeypatch):
    # Which device is slow depends on the time of a local step, which a busy machine makes longer.
    monkeypatch.setattr(free_running_half_steps, "smoothed", lambda before, seconds: 0.005)
    rates = {"kind": "list", "values": [2e9, 1e9, 2e3]}
    fleet = fleet_of(tmp_path, "paced", iterations=10**6, bandwidths=rates)
    fleet.add_all(pace=0.005, limits={"give_up": 0.5})
    await fleet.all_at(20)

    def device(number):
        return fleet.nodes[number].mode.device

    def exchanged():
        return fleet.status(2).neighbours[-1].exchanges["committed"]

    await fleet.until(lambda: [device(d).redundant for d in range(3)] == [set(), {2}, {1}])
    await fleet.until(lambda: not fleet.ends(1, 2)[0].pending and not fleet.ends(1, 2)[1].pending)
    before, k = exchanged(), fleet.status(2).iteration
    with_best = fleet.status(2).neighbours[0].exchanges["committed"]
    await fleet.until(lambda: fleet.status(2).iteration > k + 50)
    worst, best = exchanged() - before, fleet.status(2).neighbours[0].exchanges["committed"] - with_best
    await fleet.kill(0)
    await fleet.until(lambda: device(2).redundant == device(1).redundant == set())
    k = exchanged()
    await fleet.until(lambda: exchanged() > k + 10)
    logged = [line["neighbours"] for line in fleet.nodes[2].log() if line["event"] == "links left out"]
    await fleet.stop()
    assert worst <= 2 < best  # what changes is said over all links
    assert logged[0] == [1]


async def test_a_paced_node_sends_no_more_than_its_uplink_carries(tmp_path):
    fleet = fleet_of(tmp_path, "paced", iterations=10**6, devices=2, bandwidths={"kind": "constant", "value": 500.0})
    fleet.add(0, pace=0.005)
    fleet.add(1, pace=0.005, limits={"send": 2000.0})
    await fleet.all_at(20)
    await fleet.until(lambda: all(fleet.status(d).broadcasts > 3 for d in range(2)))
    payloads = [[one.frame.payload for one in end.pending] for end in fleet.ends()]
    uplinks = [fleet.nodes[d].mode._uplink(None) for d in range(2)]
    await fleet.stop()
    assert [uplink.bytes_per_second for uplink in uplinks] == [4000.0, 2000.0]
    for uplink, sent in zip(uplinks, payloads, strict=True):
        most = max(FRAME_HEADER_BYTES, uplink.bytes_per_second * uplink.pacing.seconds - FRAME_HEADER_BYTES)
        assert all(len(payload) <= most for payload in sent)
