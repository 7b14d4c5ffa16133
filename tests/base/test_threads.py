"""Ctrl-C ends no query of a thread that saves something."""

from __future__ import annotations

import subprocess
import sys

PRESSED = """
import os, signal, threading, time
import polars as pl
from efhc.base.threads import leave_interrupts_to_python

leave_interrupts_to_python()
found = []

def save():
    ends = time.monotonic() + 1.5
    try:
        while time.monotonic() < ends:
            pl.LazyFrame({"a": range(20_000)}).group_by(pl.col("a") % 7).agg(pl.len()).collect()
        found.append("saved")
    except BaseException as error:
        found.append(repr(error))

thread, heard = threading.Thread(target=save), 0
thread.start()
for _ in range(12):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
    except KeyboardInterrupt:
        heard += 1
        time.sleep(0.05)
thread.join()
print(heard, found)
"""


def test_only_the_main_thread_is_interrupted() -> None:
    done = subprocess.run([sys.executable, "-c", PRESSED], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "12 ['saved']\n"
