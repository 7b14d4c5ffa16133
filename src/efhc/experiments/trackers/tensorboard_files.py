"""What is in TensorBoard's event files: protobuf messages, each between a length and checksums."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BEFORE, AFTER = 12, 4
"""Bytes in front of a message, its length and the checksum of that, and behind it."""


def first_missing(folder: Path) -> int:
    """Return the first step that may be missing in the files of a folder: of earlier ones, all rows are there.

    That is the last step that is there, since a process may have been killed in the middle of its row.
    """
    first = 0
    for file in sorted(folder.glob("events.out.tfevents.*")):
        for event in events_in(file):
            if event.HasField("session_log") and event.session_log.status == event.session_log.START:
                first = min(first, event.step)  # TensorBoard drops what earlier files have of this step and later ones
            elif event.HasField("summary"):
                first = max(first, event.step)
    return first


def events_in(file: Path) -> Iterator[Any]:
    """Yield the messages in a file. The rest of a file that was not written to its end is left out."""
    from tensorboardX.proto.event_pb2 import Event

    content, at = memoryview(file.read_bytes()), 0
    while at + BEFORE <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        begins, at = at + BEFORE, at + BEFORE + length + AFTER
        if at > len(content):
            return
        yield Event.FromString(bytes(content[begins : begins + length]))
