"""Two and more transports over real sockets on loopback, with and without TLS."""

from __future__ import annotations

import asyncio
import socket
import sys

import numpy as np
import pytest
from peers import MODELS, Node, certificates, neighbours, security, some_model, transport

from efhc.core.half_step_messages import Frame
from efhc.core.protocol import Body, Offer
from efhc.runtime import connection, sockets
from efhc.runtime.node_settings import Address
from efhc.runtime.sockets import SocketTransport
from efhc.runtime.wire import LONGEST_PAYLOAD, ModelFormat

BIG = ModelFormat(200_000, "float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["tls", "plain"])
def identity(request, folder):
    return (lambda device: security(folder, device)) if request.param == "tls" else lambda device: None


with_tls = pytest.mark.parametrize("identity", ["tls"], indirect=True)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Pair:
    """Nodes 0 and 1; 1 dials 0."""

    def __init__(self, identity, **options):
        self.nodes = Node(0), Node(1)
        self.transports = transport(0, identity(0), **options), transport(1, identity(1), listen=False, **options)

    async def __aenter__(self):
        await self.transports[0].start(self.nodes[0], neighbours(1))
        await self.transports[1].start(self.nodes[1], neighbours(d0=self.transports[0].address))
        await self.nodes[0].until(lambda: self.nodes[0].up)
        await self.nodes[1].until(lambda: self.nodes[1].up)
        return self

    async def __aexit__(self, *error):
        for each in self.transports:
            await each.stop("the test is over")


async def test_messages_and_models_arrive_whole(identity):
    async with Pair(identity) as pair:
        model = some_model()
        for i in (0, 1):
            pair.transports[i].send(1 - i, Offer((i, 1, 1), 0.5, 3))
            pair.transports[i].send(1 - i, Body((i, 1, 1), (1 - i, 1, 1), model))
        for i in (0, 1):
            await pair.nodes[i].until(lambda i=i: len(pair.nodes[i].got[1 - i]) == 2)
            offer, body = pair.nodes[i].got[1 - i]
            assert offer == Offer((1 - i, 1, 1), 0.5, 3)
            assert body.token == (1 - i, 1, 1)
            assert np.array_equal(body.model, model)
            assert body.model.dtype == np.float32
            assert pair.nodes[i].moves
        assert await pair.transports[0].drain(2.0)
        traffic = pair.nodes[0].statuses[1]
        assert traffic.model_bytes_sent == traffic.model_bytes_received == 4000
        assert traffic.rate > 0


async def test_small_messages_overtake_a_model_and_models_keep_their_order(identity):
    async with Pair(identity, models=BIG) as pair:
        models = [some_model(BIG.values, seed=seed) for seed in range(3)]
        for number, model in enumerate(models):
            pair.transports[0].send(1, Body((0, 1, number), (1, 1, number), model))
        pair.transports[0].send(1, Offer((0, 1, 9), 0.5, 3))
        got = pair.nodes[1].got[0]
        await pair.nodes[1].until(lambda: len(got) == 4)
        assert isinstance(got[0], Offer)
        assert [body.token[2] for body in got[1:]] == [0, 1, 2]
        assert all(np.array_equal(body.model, model) for body, model in zip(got[1:], models, strict=True))
        assert got[1].model is not got[2].model


@with_tls
async def test_a_withdrawn_model_does_not_arrive_and_the_next_one_does(identity):
    """One that waits, and one that is under way: the limit of the node is such that it takes seconds."""
    async with Pair(identity, models=BIG, send_limit=8e5) as pair:
        here, there = pair.transports[0], pair.nodes[1]
        under_way, waits, last = (some_model(BIG.values, seed=seed) for seed in range(3))
        here.send(1, Body((0, 1, 1), (1, 1, 1), under_way))
        here.send(1, Body((0, 1, 2), (1, 1, 2), waits))
        await there.until(lambda: there.moves >= 2)
        assert not await here.drain(0.1)
        here.withdraw(1, waits)
        here.withdraw(1, under_way)
        here.send(1, Body((0, 1, 3), (1, 1, 3), last))
        await there.until(lambda: there.got[0])
        assert [body.token[2] for body in there.got[0]] == [3]
        assert np.array_equal(there.got[0][0].model, last)
        assert pair.nodes[0].statuses[1].model_bytes_sent < 2 * BIG.model_bytes
        assert await here.drain(2.0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what its sockets hold")
async def test_what_the_other_end_does_not_take_is_a_backlog(identity):
    async with Pair(identity) as pair:
        (here, there), wide = pair.transports, 1e6
        await pair.nodes[0].until(lambda: here.backlog(wide) == 0)
        connection = there._links[0].connection.transport
        connection.pause_reading()
        for _ in range(512):  # more than sockets on loopback hold
            here.send(1, Frame((0, 1, 1), (1, 1, 1), 1, 0, 0.1, 0.0, bytes(LONGEST_PAYLOAD), 0, 0, 0, 1))
        assert 0.5 < here.backlog(wide) < here.backlog(wide / 2)  # at the given rate, not by a clock
        connection.resume_reading()
        await pair.nodes[0].until(lambda: here.backlog(wide) == 0 and len(pair.nodes[1].got[0]) == 512)


@with_tls
async def test_models_that_wait_for_credit_and_the_limit_of_a_node_are_a_backlog(identity):
    async with Pair(identity, models=BIG, send_limit=1e6) as pair:
        here, there = pair.transports
        here.send(1, Body((0, 1, 1), (1, 1, 1), some_model(BIG.values)))
        assert 7.5 < here.backlog(1e5) < 8.5  # 800 kB
        await pair.nodes[1].until(lambda: pair.nodes[1].got[0])
        for _ in range(64):
            there.send(0, Frame((1, 1, 1), (0, 1, 1), 1, 0, 0.1, 0.0, bytes(LONGEST_PAYLOAD), 0, 0, 0, 1))
        await pair.nodes[0].until(lambda: len(pair.nodes[0].got[1]) == 64)
        assert 0 < there.backlog(1e9) < 0.5


async def test_both_dial_and_one_connection_stays(identity, monkeypatch):
    """Whoever is first: afterwards both have one connection, over which models go."""
    monkeypatch.setattr(sockets, "HIGHER_WAITS", 0.0)

    async def once(first):
        nodes, ports = (Node(0), Node(1)), [free_port(), free_port()]
        both = [SocketTransport(i, Address("127.0.0.1", ports[i]), identity(i), MODELS) for i in (0, 1)]
        tables = [neighbours(**{f"d{1 - i}": f"127.0.0.1:{ports[1 - i]}"}) for i in (0, 1)]
        await asyncio.gather(*(both[i].start(nodes[i], tables[i]) for i in (first, 1 - first)))
        for i in (0, 1):
            await nodes[i].until(lambda i=i: nodes[i].up and not both[i]._links[1 - i].dialling and not both[i]._ending)
            both[i].send(1 - i, Body((i, 1, 1), (1 - i, 1, 1), some_model()))
            await nodes[1 - i].until(lambda i=i: nodes[1 - i].got[i])
            assert len(nodes[i].ends) <= 1
            assert all(reason.endswith("connection refused") for reason in nodes[i].reasons())
        assert sorted(each._connection(1 - i).dialled for i, each in enumerate(both)) == [False, True]
        for each in both:
            await each.stop("over")

    for first in (0, 1, 0):
        await once(first)


async def test_a_new_connection_replaces_one_whose_end_was_not_noticed(identity):
    """A process that was killed and restarted, seen by one that has heard nothing of it."""
    async with Pair(identity) as pair:
        old = pair.transports[1]
        silent = old._connection(0)
        silent._timer.cancel()  # it says and hears nothing more
        silent.transport.pause_reading()
        again, node = transport(1, identity(1), listen=False), Node(1, session=2)
        await again.start(node, neighbours(d0=pair.transports[0].address))
        await node.until(lambda: node.up)
        here = pair.nodes[0]
        await here.until(lambda: here.up and here.up[1].session == 2)
        assert here.ends == [(1, "replaced by a new connection")]
        silent.transport.abort()  # now its end comes, and must not touch the new one
        await here.until(lambda: not pair.transports[0]._ending)
        again.send(0, Offer((1, 2, 1), 0.5, 0))
        await here.until(lambda: here.got[1])
        assert here.up[1].session == 2
        assert len(here.ends) == 1
        await again.stop("over")


@with_tls
async def test_an_unreachable_neighbour_is_said_once_and_found_when_it_comes(identity, monkeypatch):
    monkeypatch.setattr(sockets, "SHORTEST_WAIT", 0.01)
    monkeypatch.setattr(sockets, "LONGEST_WAIT", 0.01)
    port, node, other, attempts = free_port(), Node(1), Node(0), []
    dialling = transport(1, identity(1), listen=False)
    dial = dialling._dial
    dialling._dial = lambda *given: (attempts.append(given), dial(*given))[1]
    await dialling.start(node, neighbours(d0=f"127.0.0.1:{port}"))
    await node.until(lambda: len(attempts) > 3)
    assert node.refusals == [("device 0", f"cannot connect to 127.0.0.1:{port}: connection refused")]
    listening = SocketTransport(0, Address("127.0.0.1", port), identity(0), MODELS)
    await listening.start(other, neighbours(1))
    await node.until(lambda: node.up)
    assert len(node.refusals) == 1
    await listening.stop("stopped by its user")
    await node.until(lambda: node.ends == [(0, "stopped by its user")])
    await dialling.stop("over")


@with_tls
async def test_a_neighbour_that_is_no_longer_in_the_table(identity):
    async with Pair(identity) as pair:
        pair.transports[0].allow([])
        reason = "device 1 is no longer a neighbour of device 0"
        await pair.nodes[1].until(lambda: pair.nodes[1].ends == [(0, reason)])
        assert pair.nodes[0].ends == [(1, reason)]
        pair.transports[0].send(1, Offer((0, 1, 1), 0.5, 0))  # nobody is there: forgotten
        pair.transports[0].allow(neighbours(1))
        pair.transports[1].allow([])
        pair.transports[1].allow(neighbours(d0=pair.transports[0].address))
        await pair.nodes[0].until(lambda: pair.nodes[0].up)


@with_tls
async def test_silence_is_noticed_and_an_idle_connection_stays(identity, monkeypatch):
    monkeypatch.setattr(connection, "PING_SECONDS", 0.2)
    monkeypatch.setattr(connection, "DEAD_SECONDS", 2.0)
    async with Pair(identity) as pair:
        traffic = pair.nodes[0].statuses[1]
        before = traffic.bytes_received
        await pair.nodes[0].until(lambda: traffic.bytes_received > before + 100)  # PING, again and again
        assert not pair.nodes[0].ends
        pair.transports[1]._connection(0)._timer.cancel()
        pair.transports[1]._connection(0).transport.pause_reading()
        await pair.nodes[0].until(lambda: pair.nodes[0].ends)
        assert pair.nodes[0].ends == [(1, "not a byte for 2 s")]
