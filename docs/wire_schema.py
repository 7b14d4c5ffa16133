"""Write docs/wire.json, the published schema of the wire, and the table of frames in docs/wire.md.

python docs/wire_schema.py

The layouts are those of `efhc.runtime.wire`; what they mean is said here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from efhc.core import half_step_messages as half_steps
from efhc.core import protocol
from efhc.core.uplink import About
from efhc.runtime import node_messages, wire

DOCS = Path(__file__).parent
BEGIN, END = "<!-- kinds: made by docs/wire_schema.py -->", "<!-- end of kinds -->"

_TOKEN, _OTHER = (3, 41, 7), (0, 5, 9)
_ABOUT = About(4000.0, True, (0, 4, 7))
EXAMPLE_MODELS = wire.ModelFormat(3, "float32")
EXAMPLES: tuple[Any, ...] = (
    node_messages.Hello(3, 41, {"model": "svm", "parameters": "3"}, 12, committed=4, undecided=0),
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
    protocol.ModelRequest(),
    protocol.ModelReply(12, wire.ModelHeader(2, 3, "float32")),
    wire.Cancel(2),
    protocol.ModelReply(12, None),
    half_steps.Introduction(_TOKEN, 12, 5, wire.ModelHeader(3, 3, "float32")),
    wire.Cancel(3),
    half_steps.Introduction(_TOKEN, 12, 5, None),
    half_steps.Frame(_TOKEN, _OTHER, 4, 2, 0.125, 0.5, bytes.fromhex("0100010000"), 40, 12, 2, 5),
    half_steps.Frame(_TOKEN, _OTHER, 5, 2, 0.125, 0.5, bytes.fromhex("0100010000"), 40, 12, 2, 5, _ABOUT),
    half_steps.Acknowledgement(_TOKEN, _OTHER, 3, 5, 5),
    node_messages.IterationHeader(12, fired=True, degree=5),
    node_messages.IterationModel(12, wire.ModelHeader(4, 3, "float32")),
    node_messages.Presence(3, 41, (0, 50)),
    node_messages.RunEnded("device 3 has lost its state"),
    node_messages.Goodbye("stopped by its user", final=True),
    half_steps.Frame(_TOKEN, _OTHER, 5, 3, 0.125, 0.5, wire.PayloadHeader(4, 9000), 72000, 13, 3, 5),
    half_steps.Frame(_TOKEN, _OTHER, 6, 3, 0.125, 0.5, wire.PayloadHeader(5, 9000), 72000, 13, 3, 5, _ABOUT),
)
"""One conversation, in which each kind comes at least once; the last two examples are of larger models."""


MEANINGS = {
    "HELLO": "The identity of the sender. The first frame of each end; the end that dialled sends it first.",
    "GOODBYE": "The sender closes the connection. Nothing follows.",
    "PING": "The sender is alive, and asks for GOT.",
    "GOT": "What arrived. Sent after CHUNK frames, and in answer to PING.",
    "CHUNK": "A part of a model, in order and without gaps.",
    "CANCEL": "The rest of this model will not come.",
    "OFFER": "Let us exchange models.",
    "ACCEPT": "Yes.",
    "REFUSE": "Not now. The sender will offer.",
    "BODY": "The sender's model u follows.",
    "READY": "The sender has kept the step and can make it.",
    "COMMIT": "Both make the step.",
    "ACKNOWLEDGE": "The sender has kept that it was committed.",
    "WITHDRAW": "The exchange is off, and the sender has not committed it.",
    "ASK_MODEL": "The sender is new: it asks for a model to start from.",
    "GIVE_MODEL": "The model to start from follows.",
    "NO_MODEL": "The sender is new itself and has no model to give.",
    "INTRODUCTION": "Half-steps: the link begins anew. The sender's model, version 0, follows.",
    "NEWCOMER": "Half-steps: the link begins anew, and the sender waits for a model to start from.",
    "FRAME": "Half-steps: one step of both ends.",
    "LONG_FRAME": "Half-steps: one step of both ends, whose codec's message follows in CHUNK frames.",
    "FRAME_ACK": "Half-steps: the sender has kept the frames up to this one.",
    "ITERATION_HEADER": "Lockstep: what the sender does in iteration k.",
    "ITERATION_MODEL": "Lockstep: the sender's model w(k) follows.",
    "PRESENCE": "Lockstep: a device takes part. Receivers pass it on once.",
    "RUN_ENDED": "Lockstep: the run ends for all devices. Receivers pass it on once.",
    "FRAME_ABOUT": "Half-steps: FRAME, with facts about the sender by which its neighbours choose links.",
    "LONG_FRAME_ABOUT": "Half-steps: LONG_FRAME, with the same facts.",
}
"""What each frame means."""
FIELD_MEANINGS = {
    "version": "of this protocol",
    "hello": "keys device, session, k, committed, undecided (counts), fingerprint (texts by name)",
    "final": "whether to connect again soon makes no sense",
    "reason": "one line for people",
    "model_bytes": "bytes in all CHUNK frames that arrived on this connection",
    "messages": "number of frames that arrived on this connection, but for PING, GOT and CHUNK",
    "clock": "when that was so: microseconds of a clock of the sender's that never jumps",
    "transfer": "that of the model under way",
    "offset": "bytes of this model that came before",
    "data": f"whole values, at least one, at most {wire.LONGEST_CHUNK} bytes",
    "token": "the sender's name of the exchange",
    "of": "the receiver's name of the exchange",
    "k": "the sender's iteration",
    "model": "what is announced",
    "source": "the sender's token of this link",
    "target": "the receiver's token of it",
    "number": "the version of the sender's model that the receiver has after it",
    "used": "the version of the receiver's model that the step was computed with",
    "weight": "c",
    "learning": "l",
    "acknowledged": "the newest version of the receiver's model that the sender has",
    "sent": "number of the last frame that the sender has sent",
    "degree": "number of neighbours that the sender has",
    "about": "the bandwidth of the sender's uplink, and its neighbours",
    "payload": "a codec's message",
    "fired": "whether the sender broadcasts in it; with half-steps, whether FRAME follows",
    "device": "the device",
    "session": "which start of it",
    "checkpoints": "iterations that it can start from, ascending; empty: it has begun",
    "OFFER.share": "q_i",
    "ACCEPT.share": "q_j",
    "WITHDRAW.of": "the receiver's name of the exchange, if the sender knows it",
    "FRAME.payload": f"a codec's message, at most {wire.LONGEST_PAYLOAD} bytes",
    "FRAME_ABOUT.payload": f"a codec's message, at most {wire.LONGEST_PAYLOAD} bytes",
    "ITERATION_HEADER.k": "the iteration",
    "ITERATION_HEADER.degree": "number of neighbours that the sender has in it",
    "ITERATION_MODEL.k": "the iteration",
}
"""What each field means; in some frames, something of its own."""


def schema() -> dict[str, Any]:
    """Return all that a program in another language needs to read and write frames."""
    return {
        "version": node_messages.WIRE_VERSION,
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
                "meaning": MEANINGS[layout.name],
                "fields": [field._asdict() | {"meaning": _meaning(layout, field)} for field in layout.fields],
            }
            for layout in wire.LAYOUTS
        ],
        "example_models": {"values": EXAMPLE_MODELS.values, "dtype": EXAMPLE_MODELS.dtype},
        "examples": [
            {"name": wire.layout_of(message).name, "fields": _plain(message), "hex": wire.encode(message).hex()}
            for message in EXAMPLES
        ],
    }


def _meaning(layout: wire.Layout, field: wire.Field) -> str:
    return FIELD_MEANINGS.get(f"{layout.name}.{field.name}") or FIELD_MEANINGS[field.name]


def _plain(message: Any) -> dict[str, Any]:
    """Return the fields of a message as JSON has them."""
    if isinstance(message, node_messages.Hello):
        return {"version": node_messages.WIRE_VERSION, "hello": message._asdict()}
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
    (frame,) = (layout.fields for layout in wire.LAYOUTS if layout.name == "FRAME")
    *shared, _ = frame
    for layout in wire.LAYOUTS:
        is_longer = layout.fields != frame and [*layout.fields[: len(shared)]] == shared
        own = layout.fields[len(shared) :] if is_longer else layout.fields
        fields = ", ".join(f"`{field.name}` {field.type}" for field in own) or "none"
        if is_longer:
            fields = f"as `FRAME` up to `{shared[-1].name}`, then {fields}"
        lines.append(f"| {layout.kind} | `{layout.name}` | {fields} | {MEANINGS[layout.name]} |")
    return "\n".join([*lines, "", END])


def main() -> None:
    """Write the schema and the table."""
    (DOCS / "wire.json").write_text(as_text())
    page = DOCS / "wire.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + markdown_table() + rest.partition(END)[2])


if __name__ == "__main__":
    main()
