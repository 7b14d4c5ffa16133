"""The map of a partition shows every count, for few devices and for many, whatever the labels are called."""

from __future__ import annotations

import numpy as np
import pytest

from efhc.core.randomness import Randomness
from efhc.learning.data import Digits
from efhc.learning.partition import LabelsPerDevice
from efhc.report.figures import save_figure
from efhc.report.figures.studies import label_counts, partition_figure


def test_counts_are_those_of_the_parts():
    data = Digits().load()
    parts = LabelsPerDevice(labels_per_device=2).split(data, 7, Randomness(0))
    counts = label_counts(data, parts)
    assert counts.shape == (7, 10)
    assert counts.sum(axis=1).tolist() == list(map(len, parts))
    for device, part in enumerate(parts):
        assert set(np.flatnonzero(counts[device])) == set(data.y_train[part])


@pytest.mark.parametrize(("devices", "labels"), [(1, 1), (10, 10), (30, 62), (74, 62), (300, 10), (5, 150)])
def test_every_count_is_drawn(devices: int, labels: int, tmp_path):
    counts = np.random.default_rng(0).integers(0, 20, (devices, labels)) + np.eye(devices, labels, dtype=int)
    figure = partition_figure(counts, [f"$_{label}^{label}" for label in range(labels)], "who has $what")
    save_figure(figure, tmp_path / "parts.png")
    assert (tmp_path / "parts.png").read_bytes().startswith(b"\x89PNG")
    totals, chart, _ = figure.axes
    assert chart.collections[0].get_array().filled(0).tolist() == counts.T.tolist()
    assert totals.patches[0].get_data().values.tolist() == counts.sum(axis=1).tolist()
    written = [text.get_text() for text in chart.texts if text.get_text()]
    assert written == ([str(n) for n in counts.ravel() if n] if max(devices, labels) <= 15 else [])


def test_one_sample_of_a_label_can_be_told_from_none():
    counts = np.array([[0, 1], [0, 500]])
    figure = partition_figure(counts, ["a", "b"])
    figure.canvas.draw()
    colours = figure.axes[1].collections[0].get_facecolor().reshape(2, 2, 4)
    assert colours[0, 0, 3] == 0  # nothing is drawn
    assert colours[1, 0, :3].min() < 0.9
