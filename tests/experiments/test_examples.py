"""The examples of objectives run as they stand, and learn."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import efhc
from efhc.experiments.config.files import load_experiment

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_lora_trains_and_sends_adapters_and_the_head_only():
    experiment = load_experiment(str(EXAMPLES / "lora.toml"), ["iterations=40", "evaluate_every=40", "devices=4"])
    network = runpy.run_path(str(EXAMPLES / "lora.py"))["network"]
    trained = [one for one in network(rank=4, blocks=1).parameters() if one.requires_grad]
    result = efhc.simulate(experiment)
    models = result.models["ZT", 0]
    assert models.shape == (4, sum(one.numel() for one in trained))
    of_zt = result.metrics.filter(strategy="ZT")
    assert of_zt["bits"].sum() == 32 * models.shape[1] * of_zt["fired"].sum()
    ends = of_zt.drop_nulls("loss")
    assert ends["loss"][-1] < 0.8 * ends["loss"][0]
    first, last = (result.module("ZT", 0, device).state_dict() for device in (0, 3))
    differs = {name for name in first if not torch.equal(first[name], last[name])}
    assert {name for name in first if any(part in name for part in ("lora_", "head"))} == differs


@pytest.mark.parametrize(("name", "least"), [("regression", 0.5), ("next_character", 0.8)])
def test_an_example_learns(name: str, least: float):
    result = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()
    for strategy in result.experiment.strategies:
        losses = result.metrics.filter(strategy=strategy).drop_nulls("loss")["loss"]
        assert losses[-1] < least * losses[0]


def test_the_texts_of_the_example_are_read_as_they_were(tmp_path: Path):
    example = runpy.run_path(str(EXAMPLES / "next_character.py"))
    texts = {"ann": "To be, or not to be: that is the question. " * 5, "bob": "Whether 'tis nobler in the mind " * 8}
    data = efhc.Shakespeare(path=example["write_speakers"](texts, tmp_path / "speakers"), characters=4).load()
    alphabet = example["ALPHABET"]
    seen = data.x_train[0].reshape(4, len(alphabet)).argmax(1)
    text = " ".join(texts["ann"].split())
    assert "".join(alphabet[one] for one in seen) == text[76:80]
    assert "".join(alphabet[one] for one in data.y_train[:20]) == text[80:100]
    assert np.unique(data.groups).size == np.unique(data.test_groups).size == 2
