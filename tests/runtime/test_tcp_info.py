from __future__ import annotations

import select
import socket
import sys
from contextlib import suppress

import numpy as np
import pytest

from efhc.runtime.decoder import Decoder
from efhc.runtime.node_messages import Hello
from efhc.runtime.tcp_info import data_segments, shortest_round_trip, unacknowledged_bytes
from efhc.runtime.wire import Chunk, ModelFormat, encode


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
def test_packets_with_data_are_counted_before_they_are_read():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            assert data_segments(receiver) == 0
            sender.send(b"data")
            select.select([receiver], [], [], 60)
            assert data_segments(receiver) == 1
            assert data_segments(sender) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_what_the_other_end_has_no_room_for_is_counted():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            assert unacknowledged_bytes(sender) == 0
            assert 0 < shortest_round_trip(sender) < 1
            sender.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    sender.send(bytes(65536))
            assert unacknowledged_bytes(sender) > 65536
    assert unacknowledged_bytes(sender) is None  # it is closed


def test_a_socket_that_does_not_tell_is_unknown():
    assert data_segments(None) is unacknowledged_bytes(None) is None
    assert shortest_round_trip(None) == 0
    one, other = socket.socketpair()
    with one, other:
        assert data_segments(one) is None


def test_a_part_of_a_chunk_is_known_as_such():
    model = np.zeros(100, np.float32)
    decoder = Decoder(ModelFormat(100, "float32"))
    assert len(list(decoder.feed(encode(Hello(1, 1, {}, 0))))) == 1
    assert not decoder.is_within_chunk
    list(decoder.feed(encode(Chunk(1, 0, model.data.cast("B")))[:50]))
    assert decoder.is_within_chunk
