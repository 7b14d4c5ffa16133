"""What is in W&B's files of offline runs: protobuf messages in LevelDB's log format, after a header of 7 bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER, BLOCK = 7, 32768
"""Bytes in front of the file and of each part of a record; bytes of a block, at whose end there may be padding."""
WHOLE, LAST = 1, 4
"""The kinds of parts with which a record ends."""


def offline_rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows that were logged, by column. The rest of a file that was not written to its end is left out."""
    for record in offline_records(file):
        if record.HasField("history"):
            yield {(item.nested_key or [item.key])[0]: json.loads(item.value_json) for item in record.history.item}


def offline_records(file: Path) -> Iterator[Any]:
    """Yield the messages in a file."""
    from wandb.proto import wandb_internal_pb2

    message = vars(wandb_internal_pb2)["Record"]
    content, at, parts = file.read_bytes(), HEADER, b""
    while at + HEADER <= len(content):
        if (left := BLOCK - at % BLOCK) < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        at += HEADER + length
        if at > len(content):
            return
        parts += content[at - length : at]
        if kind in (WHOLE, LAST):
            yield message.FromString(parts)
            parts = b""
