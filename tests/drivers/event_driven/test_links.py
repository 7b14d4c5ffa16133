"""Link policies: what a config may say, and that each kind carries messages as it says."""

import math
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from efhc.base.errors import InputError
from efhc.core.randomness import Randomness
from efhc.drivers.event_driven.links import AnyLinks, PerLink, SharedLinks
from efhc.drivers.event_driven.rates import RateFile

ANY = TypeAdapter(AnyLinks)
SEED = Randomness(2)


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "instant", "latency": 1.0},
        {"latency": -1.0},
        {"latency": math.nan},
        {"latency": math.inf},
        {"jitter": -0.1},
        {"loss": 1.0},
        {"loss": -0.1},
        {"when_lost": "forget"},
        {"kind": "wormhole"},
        {"rates": "sometimes"},
        {"rates": {"kind": "csv"}},
        {"rates": {"kind": "markov", "bad_share": 1.0}},
        {"rates": {"kind": "markov", "good_seconds": 0.0}},
        {"bandwidth": 3.0},
    ],
    ids=str,
)
def test_refused_tables(table):
    with pytest.raises(ValidationError):
        ANY.validate_python(table)


def test_a_bad_rate_file_is_named_as_a_setting_of_the_links(tmp_path: Path):
    (tmp_path / "rates.csv").write_text("seconds,device,rate\n1,7,5\n")
    with pytest.raises(InputError, match=r"^rates\.path: cannot use device '7' in line 2 of "):
        PerLink(rates=RateFile(path=tmp_path / "rates.csv")).transfers(np.ones(3), SEED)


@pytest.mark.parametrize("kind", [PerLink, SharedLinks])
def test_bandwidths_of_any_float_type_give_the_same_plain_numbers(kind):
    results = []
    for dtype in (np.float32, np.float64):
        transfers = kind(latency=0.5, jitter=1.0).transfers(np.array([5.0, 8.0], dtype=dtype), SEED)
        transfers.send(0.0, 0, 1, 20, 0)
        results.append(transfers.next_time())
    assert results[0] == results[1]
    assert type(results[0]) is float
