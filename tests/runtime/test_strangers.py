"""Who is not a neighbour, or does not behave like one: refused by name, while the other links go on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import ssl
import struct
import tracemalloc

import numpy as np
import pytest
from peers import FINGERPRINT, MODELS, Node, certificates, client_context, neighbours, security, some_model, transport

from efhc.core import protocol
from efhc.runtime import certificates as runtime_certificates
from efhc.runtime import sockets, wire
from efhc.runtime.node_messages import Hello
from efhc.runtime.security import device_files

BODY = protocol.Body((2, 1, 1), (0, 1, 1), None)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A folder with an authority and certificates of ten devices."""
    return certificates(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    return certificates(tmp_path_factory.mktemp("foreign"))


class Place:
    """Node 0 with its neighbour 1, which must not be disturbed; 2 and 3 may come, and whoever else tries."""

    def __init__(self, authority, **options):
        self.authority, self.options = authority, options

    async def __aenter__(self):
        self.node, self.neighbour = Node(0), Node(1)
        self.here = transport(0, security(self.authority, 0), **self.options)
        await self.here.start(self.node, neighbours(1, 2, 3))
        self.address = self.here.address
        self.there = transport(1, security(self.authority, 1), listen=False)
        await self.there.start(self.neighbour, neighbours(d0=self.address))
        await self.node.until(lambda: 1 in self.node.up)
        return self

    async def __aexit__(self, kind, error, trace):
        try:
            if error is None:
                await self.other_links_go_on()
        finally:
            await self.there.stop("the test is over")
            await self.here.stop("the test is over")

    async def other_links_go_on(self):
        model = some_model(seed=len(self.node.got[1]))
        self.there.send(0, protocol.Body((1, 1, 1), (0, 1, 1), model))
        await self.node.until(lambda: self.node.got[1])
        assert np.array_equal(self.node.got[1][-1].model, model)
        assert not self.node.ends
        assert not self.neighbour.ends

    async def says(self, reason):
        """Wait until node 0 has refused somebody for this reason."""
        await self.node.until(lambda: any(reason in given for given in self.node.reasons()))

    async def dialled(self, context, name="device-0.efhc"):
        return await asyncio.open_connection(*self.address, ssl=context, server_hostname=name)

    async def idle_from(self, host, stack):
        """Connect from this address and say nothing."""
        stranger = stack.enter_context(socket.socket())
        stranger.setblocking(False)
        stranger.bind((host, 0))
        await asyncio.get_running_loop().sock_connect(stranger, tuple(self.address))

    async def as_neighbour(self, *frames, device=2, hello=True):
        """Connect as a neighbour that has a certificate, and send these frames after HELLO."""
        reader, writer = await self.dialled(security(self.authority, device).client_context())
        if hello:
            writer.write(wire.encode(Hello(device, 1, FINGERPRINT, 0)))
        for frame in frames:
            writer.write(frame)
        return reader, writer


async def rest_of(reader, writer):
    """All that the node says until it closes."""
    said = b""
    try:
        async with asyncio.timeout(60.0):
            while data := await reader.read(65536):
                said += data
    except (ConnectionError, ssl.SSLError):
        pass
    writer.close()
    return said


@pytest.mark.parametrize(
    ("bytes_", "reason"),
    [
        (b"hello, is there anybody?\r\n" * 4, "it did not speak TLS"),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "it spoke HTTP instead of TLS"),
        (wire.encode(Hello(1, 1, FINGERPRINT, 0)), "TLS"),
        (bytes(range(256)) * 64, "TLS"),
    ],
)
async def test_who_does_not_speak_tls(authority, bytes_, reason, caplog):
    async with Place(authority) as place:
        reader, writer = await asyncio.open_connection(*place.address)
        writer.write(bytes_)
        assert wire.encode(wire.Ping()) not in await rest_of(reader, writer)
        await place.says(reason)
        (who,) = {who for who, _ in place.node.refusals}
        assert who.startswith("127.0.0.1:")
    assert not caplog.records  # no traceback of asyncio


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_older_tls(authority):
    async with Place(authority) as place:
        context = client_context(authority, device_files(authority, 2))
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await place.dialled(context)
        await place.says("its TLS is older than 1.3")


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        ("foreign", "its certificate was issued by another authority"),
        ("none", "it showed no certificate"),
        ("printer", "a certificate of printer.efhc, where one of a single device is needed"),
    ],
)
async def test_who_shows_no_certificate_of_a_device(authority, foreign, monkeypatch, caplog, shown, reason):
    files = {"foreign": device_files(foreign, 2), "none": None, "printer": device_files(authority, 99)}[shown]
    if shown == "printer":
        monkeypatch.setattr(runtime_certificates, "name_of", lambda device: "printer.efhc")
        runtime_certificates.issue(authority, [99])
    async with Place(authority) as place:
        await rest_of(*await place.dialled(client_context(authority, files)))
        await place.says(reason)
    assert not caplog.records


async def test_two_authorities_are_named_as_the_cause_at_the_end_that_dials(authority, foreign):
    async with Place(authority) as place:
        node = Node(2)
        dialling = transport(2, security(foreign, 2), listen=False)
        await dialling.start(node, neighbours(d0=place.address))
        await node.until(lambda: any("issued by another authority" in reason for reason in node.reasons()))
        await dialling.stop("over")


async def test_a_device_that_is_no_neighbour(authority):
    async with Place(authority) as place:
        said = await rest_of(*await place.as_neighbour(device=9))
        assert b"device 9 is no neighbour of device 0" in said
        await place.says("device 9 is no neighbour of device 0")


async def test_a_valid_certificate_with_anothers_number(authority):
    """2 says that it is 3, and that it is 1, whose connection stays."""
    async with Place(authority) as place:
        for claimed in (3, 1):
            frame = wire.encode(Hello(claimed, 1, FINGERPRINT, 0))
            said = await rest_of(*await place.as_neighbour(frame, hello=False))
            reason = f"says that it is device {claimed}; its certificate is device 2's"
            assert reason.encode() in said
            await place.says(reason)


async def test_the_dialled_end_has_anothers_number(authority):
    """Node 4 dials what it takes for device 3, and finds device 0."""
    async with Place(authority) as place:
        node = Node(4)
        dialling = transport(4, security(authority, 4), listen=False)
        await dialling.start(node, neighbours(d3=place.address))
        await node.until(lambda: node.refusals)
        ((who, reason),) = node.refusals
        assert who == "device 3"
        assert reason.startswith(f"cannot connect to {place.address}: its certificate is refused: Hostname mismatch")
        await dialling.stop("over")


def body(transfer=1, values=MODELS.values, dtype="float32"):
    return wire.encode(BODY._replace(model=wire.ModelHeader(transfer, values, dtype)))


def damaged(frame):
    return frame[:-1] + bytes([frame[-1] ^ 1])


def with_version(version):
    return wire.frame(wire.HELLO, struct.pack("<H", version) + json.dumps({}).encode())


@pytest.mark.parametrize(
    ("frames", "hello", "reason"),
    [
        ([with_version(2)], False, "the other end speaks wire version 2; this node speaks 1"),
        ([wire.encode(wire.Ping())], False, "the first frame is not HELLO"),
        ([body(values=999)], True, "a model of 999 values; those of this node have 1000"),
        ([damaged(wire.encode(protocol.Ready((2, 1, 1), (0, 1, 1))))], True, "a frame's checksum is wrong"),
        ([wire.encode(wire.Got(5000, 0, 0))], True, "GOT says what cannot be"),
        ([struct.pack("<II", 0, 0)], True, "a frame of no length"),
        ([wire.encode(protocol.ModelRequest()) * 6000], True, "more than 5000 messages within a second"),
    ],
)  # fmt: skip
async def test_frames_that_end_a_neighbours_connection(authority, frames, hello, reason):
    """The reason is on both ends, and the neighbour may come back."""
    async with Place(authority) as place:
        said = await rest_of(*await place.as_neighbour(*frames, hello=hello))
        assert reason.encode() in said
        told = place.node.ends if hello else place.node.refusals
        await place.node.until(lambda: any(reason in given for _, given in told))
        place.node.ends.clear()
        _, writer = await place.as_neighbour(device=2)
        await place.node.until(lambda: 2 in place.node.up)
        writer.close()
        await place.node.until(lambda: 2 not in place.node.up)
        place.node.ends.clear()


async def test_a_truncated_stream(authority):
    async with Place(authority) as place:
        _, writer = await place.as_neighbour(body(), wire.encode(wire.Chunk(1, 0, b"x" * 4000))[:-100])
        await place.node.until(lambda: 2 in place.node.up)
        writer.close()
        await place.node.until(lambda: (2, "the other end closed the connection") in place.node.ends)
        assert not place.node.got[2]
        place.node.ends.clear()


async def test_who_says_nothing_does_not_stay(authority, monkeypatch):
    """Before TLS, and after it without HELLO."""
    monkeypatch.setattr(sockets, "STRANGER_SECONDS", 0.5)
    async with Place(authority) as place:
        silent = await asyncio.open_connection(*place.address)
        shy = await place.as_neighbour(hello=False)
        await asyncio.gather(rest_of(*silent), rest_of(*shy))
        await place.node.until(lambda: len(place.node.refusals) == 2)


async def test_idle_sockets_keep_nobody_out(authority):
    async with Place(authority, strangers=8) as place, contextlib.AsyncExitStack() as idle:
        for _ in range(40):
            await place.idle_from("127.0.0.1", idle)
            assert len(place.here._strangers) <= 8
        await place.node.until(lambda: sum("too many" in reason for reason in place.node.reasons()) >= 32)
        _, writer = await place.as_neighbour(device=3)
        await place.node.until(lambda: 3 in place.node.up)
        writer.close()
        await place.node.until(lambda: 3 not in place.node.up)
        place.node.ends.clear()


async def test_a_stranger_cannot_fill_all_places(authority):
    """The crowd of one address makes room, not the one that came from another."""
    async with Place(authority, strangers=4) as place, contextlib.AsyncExitStack() as idle:
        for host in ["127.0.0.1"] * 2 + ["127.0.0.2"] + ["127.0.0.1"] * 10:
            await place.idle_from(host, idle)
        await place.node.until(lambda: len(place.node.refusals) == 9)
        assert list(place.here._strangers.values()).count("127.0.0.2") == 1


@pytest.mark.slow
async def test_a_flood_of_junk_leaves_memory_flat(authority):
    """From strangers, and from a neighbour that was let in."""

    async def one_flood(place, size):
        junk = b"\x17\x03\x03\x40\x00" + b"junk" * 4096
        for _ in range(size):
            reader, writer = await asyncio.open_connection(*place.address)
            writer.write(junk)
            await rest_of(reader, writer)
            said = await rest_of(*await place.as_neighbour(b"\x00" * 200_000))
            assert b"length of 0 bytes" in said or b"no frame of kind 0" in said

    def held(place):
        place.node.refusals.clear()
        place.node.ends.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    async with Place(authority) as place:
        await one_flood(place, 5)
        tracemalloc.start()
        await one_flood(place, 40)
        _, most = tracemalloc.get_traced_memory()
        await place.node.until(lambda: held(place) < 1_000_000)  # of more than 8 MB that came
        tracemalloc.stop()
        assert most < 40_000_000  # what 40 that are being told to go hold for a second


async def test_a_mismatch_is_named_on_both_ends(authority):
    async with Place(authority) as place:
        other = Node(2, fingerprint={**FINGERPRINT, "model": "lenet5\x1b[31m"})
        dialling = transport(2, security(authority, 2), listen=False)
        await dialling.start(other, neighbours(d0=place.address))
        await other.until(lambda: other.refusals)
        await place.node.until(lambda: place.node.refusals)
        expected = "model differs: device 0 has svm, device 2 has lenet5\\x1b[31m; all nodes must agree on it"
        assert place.node.reasons() == [expected]
        assert other.reasons() == [expected]
        assert place.node.refusals[0][0].startswith("device 2 at 127.0.0.1:")
        await dialling.stop("over")


async def test_what_cannot_be_listened_on_is_one_line(authority):
    async with Place(authority) as place:
        second = sockets.SocketTransport(5, place.address, None, MODELS)
        with pytest.raises(sockets.EfhcError, match=r"^listen: cannot listen on 127.0.0.1:\d+: the port is in"):
            await second.start(Node(5), [])
        nowhere = sockets.SocketTransport(5, sockets.Address("192.0.2.1", 0), None, MODELS)
        with pytest.raises(sockets.EfhcError, match="Cannot assign requested address"):
            await nowhere.start(Node(5), [])
