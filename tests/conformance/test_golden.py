"""The strategies of the paper compute what they computed when golden.json was written, to the last bit."""

from __future__ import annotations

import json
from pathlib import Path

import golden
import pytest

RECORDED = json.loads(Path(__file__).with_name("golden.json").read_text())


@pytest.fixture(scope="module")
def few_samples(fashion_files: Path, tmp_path_factory: pytest.TempPathFactory) -> golden.Table:
    return golden.few_samples(tmp_path_factory.mktemp("golden"))


@pytest.mark.slow
@pytest.mark.parametrize("data_set", golden.DATA)
@pytest.mark.parametrize("kind", golden.PAPER)
def test_results_are_those_recorded(kind: str, data_set: str, request: pytest.FixtureRequest) -> None:
    if golden.machine() != RECORDED["machine"]:
        pytest.skip(f"golden.json is of another machine, which may round differently: {RECORDED['machine']}")
    data = {"kind": "digits"} if data_set == "digits" else request.getfixturevalue("few_samples")
    runs = [run for run in RECORDED["runs"] if golden.kind_of(run) == kind and run.endswith(f"| {data_set}")]
    assert runs
    differ = {run: golden.differing(RECORDED["runs"][run], golden.hashes(run, data)) for run in runs}
    assert not {run: names for run, names in differ.items() if names}
