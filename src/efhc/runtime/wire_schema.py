"""The published schema of the wire, docs/wire.json, and the table in docs/wire.md: both come from `runtime.wire`.

python -m efhc.runtime.wire_schema docs          writes them anew
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from efhc.core import half_steps, protocol
from efhc.core.uplink import About
from efhc.runtime import messages, wire

BEGIN, END = "<!-- kinds: made by efhc.runtime.wire_schema -->", "<!-- end of kinds -->"

_TOKEN, _OTHER = (3, 41, 7), (0, 5, 9)
_ABOUT = About(4000.0, True, (0, 4, 7))
EXAMPLE_MODELS = wire.ModelFormat(3, "float32")
EXAMPLES: tuple[Any, ...] = (
    messages.Hello(3, 41, {"model": "svm", "parameters": "3"}, 12, committed=4, undecided=0),
    wire.Ping(),
    wire.Got(0, 1, 12_345_678),
    protocol.Offer(_TOKEN, 0.25, 12),
    protocol.Accept(_TOKEN, _OTHER, 0.2, 12),
    protocol.Refuse(_OTHER),
    protocol.Body(_TOKEN, _OTHER, wire.ModelHeader(1, 3, "float32")),
    wire.Chunk(1, 0, bytes.fromhex("0000c03f000000c0")),
    wire.Chunk(1, 8, bytes.fromhex("0000803e")),
    protocol.Ready(_TOKEN, _OTHER),
    protocol.Commit(_TOKEN, _OTHER),
    protocol.Acknowledge(_OTHER),
    protocol.Withdraw(_TOKEN, None),
    protocol.Withdraw(_TOKEN, _OTHER),
    protocol.AskModel(),
    protocol.GiveModel(12, wire.ModelHeader(2, 3, "float32")),
    wire.Cancel(2),
    protocol.GiveModel(12, None),
    half_steps.Introduction(_TOKEN, 12, 5, wire.ModelHeader(3, 3, "float32")),
    wire.Cancel(3),
    half_steps.Introduction(_TOKEN, 12, 5, None),
    half_steps.Frame(_TOKEN, _OTHER, 4, 2, 0.125, 0.5, bytes.fromhex("0100010000"), 40, 12, 2, 5),
    half_steps.Frame(_TOKEN, _OTHER, 5, 2, 0.125, 0.5, bytes.fromhex("0100010000"), 40, 12, 2, 5, _ABOUT),
    half_steps.Acknowledgement(_TOKEN, _OTHER, 3, 5, 5),
    messages.IterationHeader(12, fired=True, degree=5),
    messages.IterationModel(12, wire.ModelHeader(4, 3, "float32")),
    messages.Presence(3, 41, (0, 50)),
    messages.RunEnded("device 3 has lost its state"),
    messages.Goodbye("stopped by its user", final=True),
    half_steps.Frame(_TOKEN, _OTHER, 5, 3, 0.125, 0.5, wire.PayloadHeader(4, 9000), 72000, 13, 3, 5),
    half_steps.Frame(_TOKEN, _OTHER, 6, 3, 0.125, 0.5, wire.PayloadHeader(5, 9000), 72000, 13, 3, 5, _ABOUT),
)
"""One conversation, in which each kind comes at least once; the last two examples are of larger models."""


def schema() -> dict[str, Any]:
    """Return all that a program in another language needs to read and write frames."""
    return {
        "version": messages.WIRE_VERSION,
        "byte_order": "little-endian",
        "frame": [
            {"name": "length", "type": "u32", "meaning": "bytes of kind and payload together"},
            {"name": "checksum", "type": "u32", "meaning": "CRC-32 (polynomial 0xEDB88320, as in zlib) of these bytes"},
            {"name": "kind", "type": "u8", "meaning": "one of `kinds`"},
            {"name": "payload", "type": "fields of the kind", "meaning": "in order, nothing between or after them"},
        ],
        "limits": {
            "length": wire.LONGEST_SMALL_FRAME,
            "length_of_CHUNK": wire.LONGEST_FRAME,
            "data_of_CHUNK": wire.LONGEST_CHUNK,
            "text": wire.LONGEST_TEXT,
        },
        "types": {name: each.meaning for name, each in wire.TYPES.items()},
        "kinds": [
            {
                "kind": layout.kind,
                "name": layout.name,
                "meaning": layout.meaning,
                "fields": [field._asdict() for field in layout.fields],
            }
            for layout in wire.LAYOUTS
        ],
        "example_models": {"values": EXAMPLE_MODELS.values, "dtype": EXAMPLE_MODELS.dtype},
        "examples": [
            {"name": wire.layout_of(message).name, "fields": _plain(message), "hex": wire.encode(message).hex()}
            for message in EXAMPLES
        ],
    }


def _plain(message: Any) -> dict[str, Any]:
    """Return the fields of a message as JSON has them."""
    if isinstance(message, messages.Hello):
        return {"version": messages.WIRE_VERSION, "hello": message._asdict()}
    values = {field.name: getattr(message, field.name) for field in wire.layout_of(message).fields}
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, wire.ModelHeader | wire.PayloadHeader | About):
        return {name: _plain_value(each) for name, each in value._asdict().items()}
    if isinstance(value, bytes):
        return value.hex()
    return int(value) if isinstance(value, bool) else list(value) if isinstance(value, tuple) else value


def as_text() -> str:
    """Return the schema as docs/wire.json has it."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def markdown_table() -> str:
    """Return the table of kinds as docs/wire.md has it."""
    lines = [BEGIN, "", "| kind | name | fields | |", "|---|---|---|---|"]
    for layout in wire.LAYOUTS:
        fields = ", ".join(f"`{field.name}` {field.type}" for field in layout.fields) or "none"
        lines.append(f"| {layout.kind} | `{layout.name}` | {fields} | {layout.meaning} |")
    return "\n".join([*lines, "", END])


def main(folder: str) -> None:
    """Write the schema and the table into a folder that has wire.md."""
    Path(folder, "wire.json").write_text(as_text())
    page = Path(folder, "wire.md")
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + markdown_table() + rest.partition(END)[2])


if __name__ == "__main__":
    main(*sys.argv[1:])
