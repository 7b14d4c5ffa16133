"""The kernel's counts of a TCP connection: bytes and packets that have arrived, and bytes that wait."""

from __future__ import annotations

import socket
import struct
import sys
from asyncio.trsock import TransportSocket

if sys.platform == "linux":
    import fcntl
    import termios

CAN_COUNT = sys.platform == "linux"
"""Whether the kernel counts the bytes that have arrived at the other end."""
_ACKNOWLEDGED, _SHORTEST_ROUND_TRIP, _DATA_SEGMENTS = (120, "=Q"), (148, "=I"), (152, "=I")
"""Where and what `tcpi_bytes_acked`, `tcpi_min_rtt` and `tcpi_data_segs_in` are in Linux' `struct tcp_info`, which is
only extended at its end."""
_NO_ROUND_TRIP = 2**32 - 1


def data_segments(connection: TransportSocket | None) -> int | None:
    """Return the number of packets with data that have arrived on a TCP connection, or None if it is unknown.

    After a loss, packets arrive that nobody can read until the lost one has come again, and a TLS record can be read
    only once it is whole. On a slow link each may take seconds, in which the other end is well and alive. The kernel of
    a process that hangs acknowledges what it is sent, but sends no data: so this number stands still then.
    """
    return _tcp_info(connection, *_DATA_SEGMENTS)


def unacknowledged_bytes(connection: TransportSocket | None) -> int | None:
    """Return the bytes that were written and that the kernel of the other end has not acknowledged, or None.

    They wait in this kernel and in front of the link, or are on their way.
    """
    if connection is None or sys.platform != "linux":
        return None
    try:
        return int.from_bytes(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):  # it is closed
        return None


def acknowledged_bytes(connection: TransportSocket | None) -> int | None:
    """Return the bytes that the kernel of the other end has acknowledged since the connection began, or None."""
    return _tcp_info(connection, *_ACKNOWLEDGED)


def shortest_round_trip(connection: TransportSocket | None) -> float:
    """Return the seconds of the shortest way there and back that was seen lately; 0 if it is unknown."""
    found = _tcp_info(connection, *_SHORTEST_ROUND_TRIP)
    return 0.0 if found is None or found == _NO_ROUND_TRIP else found / 1e6


def _tcp_info(connection: TransportSocket | None, offset: int, code: str) -> int | None:
    if connection is None or not CAN_COUNT:
        return None
    end = offset + struct.calcsize(code)
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, end)
    except OSError:
        return None
    return int(struct.unpack_from(code, info, offset)[0]) if len(info) >= end else None
