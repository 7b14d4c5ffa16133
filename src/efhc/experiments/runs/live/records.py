"""The records of a live file, live.jsonl: one JSON object per line.

JSON lines, because `tail -f`, jq and every language read them, a line is appended by one write, and a line that is not
whole yet can be told by its missing newline. The first line says that this is a live file, and changes whenever the
file is rewritten: a reader then starts again. docs/files.md describes the file for users.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from efhc.experiments.runs.live.followers import EndState

FORMAT = 1
"""The version of the format. A file of another version is left alone."""

# A file that somebody else has written may hold any number. These are what a run can have.
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Time = Annotated[float, Field(ge=0, le=1e11)]
"""Unix time."""
Links = Sequence[tuple[Count, Count]]
Numbers = Sequence[Finite | None]
"""None stands for a number that is not finite: JSON has none."""


@dataclass(frozen=True)
class Begin:
    """The run begins or, with k > 0, goes on after k iterations: what came after them was lost."""

    at: Time
    k: Count
    experiment: str
    strategy: str
    seed: Annotated[int, Field(ge=-(2**64), le=2**64)]
    key: str
    driver: str
    devices: Annotated[Count, Field(ge=1)]
    parameters: Count
    iterations: Count
    bandwidths: Sequence[Finite]
    links: Links
    pid: Annotated[int, Field(ge=1, lt=2**31)]
    host: str
    process: str | None
    """Tells the process from a later one with the same pid. None: unknown on that system."""
    kind: Literal["begin"] = "begin"


@dataclass(frozen=True)
class Reached:
    """The run has made k iterations. There is one every few seconds, so that a reader sees that the run goes on."""

    at: Time
    k: Count
    kind: Literal["reached"] = "reached"


@dataclass(frozen=True)
class Evaluated:
    """The models after k iterations were evaluated."""

    at: Time
    k: Count
    row: dict[str, Annotated[int, Field(ge=-(2**63), lt=2**63)] | Finite | None]
    """The row that followers hear: see `Follower.evaluated`."""
    kind: Literal["evaluated"] = "evaluated"


@dataclass(frozen=True)
class Devices:
    """What each device was like after k iterations, to four digits."""

    at: Time
    k: Count
    accuracy: Numbers
    drift: Numbers | None
    threshold: Numbers | None
    """None in the list: infinite, so that the device does not fire."""
    kind: Literal["devices"] = "devices"


@dataclass(frozen=True)
class Events:
    """Who fired and which links were used in iteration k."""

    k: Count
    fired: Sequence[Count]
    used: Links
    kind: Literal["events"] = "events"


@dataclass(frozen=True)
class Network:
    """The physical links from iteration k on."""

    k: Count
    links: Links
    kind: Literal["network"] = "network"


@dataclass(frozen=True)
class End:
    """The run has ended."""

    at: Time
    state: EndState
    problem: str | None
    """Why it stopped or failed. None: it is complete, or was interrupted without a word."""
    kind: Literal["end"] = "end"


Record = Begin | Reached | Evaluated | Devices | Events | Network | End
_RECORDS: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


def heading() -> bytes:
    """Return the first line of a file that is written now."""
    return _line({"kind": "efhc-live", "format": FORMAT, "written": secrets.token_hex(8)})


def is_heading(line: bytes) -> bool:
    """Return whether a line is the first one of a live file of this version."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("kind") == "efhc-live" and content.get("format") == FORMAT


def encoded(record: Record) -> bytes:
    """Return a record as a line."""
    content = dict(vars(record))
    return _line({"kind": content.pop("kind"), **content})


def decoded(line: bytes) -> Record | None:
    """Return the record in a line, or None if it holds none: a damaged line, or one of a kind that came later."""
    try:
        return _RECORDS.validate_json(line, strict=False)
    except ValidationError:
        return None


def rounded(numbers: Iterable[float]) -> Numbers:
    """Return numbers to four digits, and None for those that are not finite."""
    return [float(f"{number:.4g}") if math.isfinite(number) else None for number in numbers]


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _line(content: dict[str, Any]) -> bytes:
    return _ENCODER.encode(content).encode() + b"\n"
