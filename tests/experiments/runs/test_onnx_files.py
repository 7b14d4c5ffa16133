"""An ONNX file scores what the trained torch module scores, read by onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import efhc
from efhc.base import extras
from efhc.base.errors import EfhcError, InputError

SMALL = {"iterations": 20, "devices": 3, "seeds": 0, "strategies": {"ZT": efhc.ZeroThreshold()}}
DIGITS = efhc.Digits().load()


def network() -> nn.Module:
    """With running statistics, which are each device's own."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


class Fickle(nn.Module):
    """Does with a batch what depends on its numbers, which no file of operations can say."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(x.flatten(1))
        return scores if scores.sum() > 0 else -scores


@pytest.mark.slow
def test_the_file_scores_what_the_module_scores(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    result = efhc.simulate(**SMALL, model=network)
    scored = []
    for device in (2, "mean"):
        result.to_onnx(tmp_path / "device.onnx", "ZT", 0, device)
        session = onnxruntime.InferenceSession(tmp_path / "device.onnx", providers=["CPUExecutionProvider"])
        module = result.module("ZT", 0, device)
        for count in (1, 3, len(DIGITS.y_test)):
            samples = DIGITS.inputs(DIGITS.x_test[:count]).reshape(count, 1, 8, 8)
            (scores,) = session.run(["scores"], {"samples": samples})
            np.testing.assert_allclose(scores, module(torch.tensor(samples)).detach(), rtol=1e-4, atol=1e-5)
        scored.append(float((scores.argmax(axis=1) == DIGITS.y_test).mean()))
    assert scored[-1] == pytest.approx(result.metrics["mean_model_accuracy"][-1], abs=1.5 / len(DIGITS.y_test))
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_network_that_onnx_cannot_say_is_refused_in_one_line(tmp_path: Path):
    result = efhc.simulate(**SMALL, model=Fickle, backend="loop")
    with pytest.raises(InputError, match=r"^onnx: cannot use a Fickle that torch cannot write .*. Use ") as refused:
        result.to_onnx(tmp_path / "fickle.onnx", "ZT", 0, 0)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_what_is_missing_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    result = efhc.simulate(**SMALL)
    with pytest.raises(InputError, match=r"model: to_onnx needs a neural network"):
        result.to_onnx(tmp_path / "svm.onnx", "ZT", 0, 0)
    monkeypatch.setitem(extras.EXTRAS, "onnx", extras.Extra("not_there", "onnxscript", "writing ONNX files"))
    with pytest.raises(
        EfhcError, match=r"^writing ONNX files needs onnxscript: install the extra \[onnx\] \(docs/install.md\)$"
    ):
        result.to_onnx(tmp_path / "svm.onnx", "ZT", 0, 0)
