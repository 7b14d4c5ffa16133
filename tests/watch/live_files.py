"""Live files that tests write record by record, and the data in offline pages."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

from efhc.experiments.runs.events import Begin, Evaluated
from efhc.experiments.runs.live_file import LiveFile
from efhc.experiments.runs.provenance import own_mark

KEY = "0123456789abcdef01234567"
CONFIG = 'name = "mine"\ndevices = 3\niterations = 100\nseeds = [0]\n[strategies.EF-HC]\nkind = "ef-hc"\nr = 250.0\n'


def begin(k: int = 0) -> Begin:
    """Return the first record of the run of `CONFIG`, which this process makes."""
    facts = ("mine", "EF-HC", 0, KEY, "lockstep", 3, 650, 100, [1.0, 2.0, 3.0], [(0, 1), (1, 2)])
    return Begin(time.time(), k, *facts, os.getpid(), platform.node(), own_mark(os.getpid()))


def evaluated(k: int, accuracy: float, **row: Any) -> Evaluated:
    """Return the record of an evaluation after k iterations."""
    return Evaluated(time.time(), k, {"iteration": k - 1, "accuracy": accuracy, **row})


def begun(folder: Path) -> LiveFile:
    """Write a run directory whose run has begun, and return its live file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(CONFIG)
    live = LiveFile(folder / "live.jsonl")
    live(begin())
    return live


def embedded(page: Path) -> str:
    """Return the JSON in an offline page."""
    return page.read_text().split('id="embedded">')[1].split("</script>")[0]
