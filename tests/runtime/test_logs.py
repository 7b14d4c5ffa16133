"""Lines of the log: JSON with two times, safe whatever is in them, and few however many strangers come."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from efhc.runtime.logs import LONGEST, PER_EVENT, PER_REASON, WINDOW, Log


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_both_times():
    stream, clock = io.StringIO(), Clock()
    log = Log(3, stream, clock=clock)
    clock.now += 1.5
    log("link up", neighbour=3, address="192.0.2.1:7700")
    (line,) = lines(stream)
    assert line.pop("time").endswith("Z")
    given = {"neighbour": 3, "address": "192.0.2.1:7700"}
    assert line == {"seconds": 1.5, "level": "info", "device": 3, "event": "link up"} | given


def test_whatever_it_is_told_a_line_stays_one_line():
    stream = io.StringIO()
    Log(3, stream)(
        "odd",
        "warning",
        text="a\nb\x1b[31m",
        long="x" * 10_000,
        bad=float("nan"),
        number=np.float32(0.5),
        path=Path("a"),
        inner={"k": [float("inf"), None, True]},
    )
    (line,) = lines(stream)
    assert line["text"] == "a\\x0ab\\x1b[31m"
    assert len(line["long"]) == LONGEST
    assert (line["bad"], line["number"], line["path"]) == ("nan", 0.5, "a")
    assert line["inner"] == {"k": ["inf", None, True]}


def test_a_level_is_the_least_that_is_written():
    stream = io.StringIO()
    log = Log(3, stream, level="warning")
    for level in ("debug", "info", "warning", "error"):
        log(level, level)
    assert [line["event"] for line in lines(stream)] == ["warning", "error"]


def test_a_flood_is_counted_and_other_lines_are_not_lost():
    stream, clock = io.StringIO(), Clock()
    log = Log(3, stream, clock=clock)
    for number in range(10_000):
        log("refused", "warning", reason="not TLS", who=f"192.0.2.1:{number}")
    log("refused", "warning", reason="a foreign certificate", who="192.0.2.2:1")
    log("checkpoint")
    written = lines(stream)
    assert [line.get("reason") for line in written] == ["not TLS"] * PER_REASON + ["a foreign certificate", None]
    clock.now += WINDOW
    log("refused", "warning", reason="not TLS", who="192.0.2.1:1")
    told, again = lines(stream)[len(written) :]
    assert (told["event"], told["left_out"], told["within_seconds"]) == ("refused", 10_000 - PER_REASON, WINDOW)
    assert again["who"] == "192.0.2.1:1"


def test_reasons_that_strangers_invent_are_limited_together():
    stream, clock = io.StringIO(), Clock()
    log = Log(3, stream, clock=clock)
    for number in range(1000):
        log("refused", reason=f"reason {number}")
    assert len(lines(stream)) == PER_EVENT
    log.close()
    assert lines(stream)[-1]["left_out"] == 1000 - PER_EVENT
    log.close()
    assert len(lines(stream)) == PER_EVENT + 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("I/O operation on closed file")])
def test_a_full_disk_does_not_stop_the_node(error: Exception):
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    Log(3, Full())("something", "error")
