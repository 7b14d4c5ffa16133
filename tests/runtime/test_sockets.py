"""Two and more transports over real sockets on loopback, with and without TLS."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from peers import Authority, Identity, Node, neighbours, some_model, transport

from efhc.core.protocol import Body, Offer


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["tls", "plain"])
def identity(request, authority):
    return (lambda device: Identity(authority, device)) if request.param == "tls" else lambda device: None


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


def test_messages_and_models_arrive_whole(identity):
    async def scenario():
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
            traffic = pair.transports[0].traffic(1)
            assert traffic.model_bytes_sent == traffic.model_bytes_received == 4000
            assert traffic.rate > 0

    asyncio.run(scenario())
