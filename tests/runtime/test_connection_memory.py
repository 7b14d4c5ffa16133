"""The transport in memory: the same messages, with delay, loss and cuts."""

from __future__ import annotations

import asyncio

import numpy as np
from peers import MODELS, Node, neighbours, some_model

from efhc.core.protocol import Body, Offer
from efhc.runtime.memory_transport import MemoryNetwork


async def three(network):
    nodes = [Node(i) for i in range(3)]
    transports = [network.transport(i) for i in range(3)]
    for i in range(3):
        await transports[i].start(nodes[i], neighbours(*({0, 1, 2} - {i})))
    await nodes[0].until(lambda: all(len(node.up) == 2 for node in nodes))
    return nodes, transports


def test_messages_and_models_arrive():
    async def scenario():
        nodes, transports = await three(MemoryNetwork(MODELS, delay=0.01))
        model = some_model()
        transports[0].send(1, Offer((0, 1, 1), 0.5, 0))
        transports[0].send(1, Body((0, 1, 1), (1, 1, 1), model))
        withdrawn = some_model(seed=1)
        transports[0].send(1, Body((0, 1, 2), (1, 1, 2), withdrawn))
        transports[0].withdraw(1, withdrawn)
        assert await transports[0].drain(2.0)
        offer, body = nodes[1].got[0]
        assert offer == Offer((0, 1, 1), 0.5, 0)
        assert np.array_equal(body.model, model)
        assert body.model is not model
        assert transports[0].traffic(1).model_bytes_sent == transports[1].traffic(0).model_bytes_received == 4000
        assert nodes[0].moves == nodes[1].moves == 1

    asyncio.run(scenario())


def test_cuts_loss_tables_and_the_end():
    async def scenario():
        network = MemoryNetwork(MODELS, seed=3)
        nodes, transports = await three(network)
        transports[0].send(1, Offer((0, 1, 1), 0.5, 0))
        network.cut(0, 1)
        await asyncio.sleep(0.05)
        assert not nodes[1].got[0]
        assert nodes[0].ends == [(1, "cut")]
        network.heal(0, 1)
        assert 1 in nodes[0].up
        network.loss = 0.5
        for count in range(100):
            transports[0].send(1, Offer((0, 1, count), 0.5, 0))
        await asyncio.sleep(0.05)
        assert 20 < len(nodes[1].got[0]) < 80
        transports[2].allow(neighbours(0))
        assert nodes[1].ends[-1] == (2, "device 1 is no longer a neighbour of device 2")
        transports[0].disconnect(1, "a model that is not finite")
        await nodes[0].until(lambda: 1 in nodes[0].up)
        await transports[0].stop("over")
        assert nodes[1].ends[-1] == (0, "over")
        assert not nodes[0].up

    asyncio.run(scenario())


def test_a_mismatch_is_told_to_both():
    async def scenario():
        network = MemoryNetwork(MODELS)
        nodes = Node(0), Node(1, fingerprint={"model": "lenet5"})
        for i in (0, 1):
            await network.transport(i).start(nodes[i], neighbours(1 - i))
        await nodes[0].until(lambda: nodes[0].refusals and nodes[1].refusals)
        reasons = nodes[0].reasons() + nodes[1].reasons()
        assert all(reason.startswith("model differs: device ") for reason in reasons)
        assert all("device 0 has svm" in reason and "device 1 has lenet5" in reason for reason in reasons)
        assert not nodes[0].up

    asyncio.run(scenario())
