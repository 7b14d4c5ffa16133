"""What has arrived at a socket, also if its owner cannot read it yet."""

from __future__ import annotations

import socket
import struct
import sys
from typing import Protocol

_DATA_SEGMENTS = struct.Struct("I")
_OFFSET = 152
"""Where `tcpi_data_segs_in` is in Linux' `struct tcp_info`, which is only ever extended at its end."""


class HasOptions(Protocol):
    """A socket, or what asyncio shows of one."""

    def getsockopt(self, level: int, option: int, length: int, /) -> bytes:
        """Return a socket option."""
        ...


def data_segments(connection: HasOptions | None) -> int | None:
    """Return the number of packets with data that have arrived on a TCP connection, or None if it is unknown.

    After a loss, packets arrive that nobody can read until the lost one has come again, and a TLS record can be read
    only once it is whole. On a slow link each may take seconds, in which the other end is well and alive. The kernel of
    a process that hangs acknowledges what it is sent, but sends no data: so this number stands still then.
    """
    if connection is None or not sys.platform.startswith("linux"):
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _OFFSET + _DATA_SEGMENTS.size)
    except OSError:
        return None
    return int(_DATA_SEGMENTS.unpack_from(info, _OFFSET)[0]) if len(info) >= _OFFSET + _DATA_SEGMENTS.size else None
