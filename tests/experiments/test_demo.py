from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from efhc.experiments.runs.resources import usable_cores
from efhc.experiments.studies.demo import sentence

FOUND = {"EF-HC": [0.5, 0.6, 0.7], "GT": [0.4, 0.65, 0.7], "ZT": [0.1, 0.2, 0.3]}


def accuracies() -> pl.DataFrame:
    rows = [(name, seed, value) for name, values in FOUND.items() for seed, value in enumerate(values)]
    return pl.DataFrame(rows, schema=["strategy", "seed", "accuracy"], orient="row").sort("seed", maintain_order=True)


def test_the_sentence_says_what_was_measured_and_gives_no_verdict():
    early = accuracies().with_columns(pl.col("accuracy") / 2)
    said = sentence(accuracies(), early)
    assert "from 0.500 to 0.700 (EF-HC), from 0.400 to 0.700 (GT), from 0.100 to 0.300 (ZT)" in said
    assert "After spending 10 % of what ZT spends on the same seed" in said
    assert "After spending 2 %, it ranges from 0.250 to 0.350 (EF-HC), from 0.200 to 0.350 (GT)" in said
    assert "beats GT on 1 of 3 seeds, ZT on 3" in said  # equal is not above
    assert "3 seeds are too few for a verdict (it takes 5)" in said


AFTER = """
from efhc.base.compiling import is_to_be_kept
from efhc.experiments.studies import demo
from efhc.kernels.codecs import SEND_ROWS

before = is_to_be_kept(SEND_ROWS["levels"])
{first}
print(before, is_to_be_kept(SEND_ROWS["levels"]))
"""


@pytest.mark.slow
@pytest.mark.skipif(usable_cores() < 2, reason="there is one core, so there is no second process")
def test_another_process_compiles_the_loops_of_entrywise(tmp_path: Path):
    def told(first: str) -> str:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", AFTER.format(first=first)]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    waiting = """
import time
with demo._compiling_entrywise():
    ends = time.monotonic() + 120
    while is_to_be_kept(SEND_ROWS["levels"]) and time.monotonic() < ends:
        time.sleep(0.1)
"""
    assert told(waiting) == "True False\n"
    assert told("") == "False False\n"
