"""What a node records comes back whole, whatever a kill leaves of the files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from efhc.core.device import Exchange
from efhc.runtime.node_settings import RecordingSettings
from efhc.runtime.recording import FOLDER, STEP, Recorder, last_second, read_exchanges, read_models, read_steps
from efhc.runtime.status import OUTCOMES

PARAMETERS = 5


def recorder(state: Path, **settings: object) -> Recorder:
    return Recorder(state, RecordingSettings.model_validate({"start": 1.0} | settings), PARAMETERS, "float32")


def model(value: float) -> np.ndarray:
    return np.full(PARAMETERS, value, dtype=np.float32)


def test_nothing_is_written_unless_it_is_asked_for(tmp_path: Path) -> None:
    silent = Recorder(tmp_path, RecordingSettings(models_after="every", models_seconds=1.0), PARAMETERS, "float32")
    silent.step(0, True, 1.0, 2.0, 3.0, 4.0)
    silent.after_iteration(1, model(1.0))
    silent.at_time(1, model(1.0))
    silent.exchange(1, exchange(decides=True), "committed")
    silent.flush()
    assert list(tmp_path.iterdir()) == []
    assert silent.seconds_to_next_model() == math.inf
    assert silent.seconds_to_start() == 0.0


def test_steps_come_back_also_after_a_restart_and_without_the_row_that_a_kill_cut_off(tmp_path: Path) -> None:
    first = recorder(tmp_path)
    for k in range(3):
        first.step(k, k == 1, 0.5 * k, 1.0, math.inf, 9.0)
    first.flush()
    file = tmp_path / FOLDER / "steps.bin"
    file.write_bytes(file.read_bytes()[:-7])
    assert read_steps(tmp_path)["k"].tolist() == [0, 1]
    again = recorder(tmp_path)
    again.step(2, False, 7.0, 1.0, 2.0, 9.0)
    again.step(3, False, 8.0, 1.0, 2.0, 9.0)
    again.flush()
    steps = read_steps(tmp_path)
    assert steps["k"].tolist() == [0, 1, 2, 3]
    assert steps["loss"].tolist() == [0.0, 0.5, 7.0, 8.0]
    assert steps["fired"].tolist() == [False, True, False, False]
    assert (np.diff(steps["seconds"]) >= 0).all()
    assert file.stat().st_size == 4 * STEP.itemsize


def test_models_are_kept_after_the_first_iteration_and_every_few(tmp_path: Path) -> None:
    kept = recorder(tmp_path, models_after=(0, 1, 3, 6, 9))
    local = {"mean": np.arange(4.0).reshape(1, 4), "count": np.array([7])}
    for k in range(8):
        kept.after_iteration(k, model(k), local)
    kept.flush()
    rows = read_models(tmp_path)
    assert rows["k"].tolist() == [0, 1, 3, 6]
    assert rows["model"][2].tolist() == [3.0] * PARAMETERS
    assert rows["local/mean"][3].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert rows["local/count"].tolist() == [7, 7, 7, 7]


def test_models_are_kept_every_few_seconds_on_a_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("efhc.runtime.recording.time.time", lambda: 1000.0)
    monkeypatch.setattr("efhc.runtime.recording.time.monotonic", lambda: now[0])
    kept = recorder(tmp_path, start=1003.0, models_seconds=2.0)
    assert kept.seconds_to_start() == 3.0
    for passed in (1.0, 3.0, 4.0, 4.9, 5.5, 6.9, 12.0):  # seconds since the recorder was made; the run begins at 3
        now[0] = 100.0 + passed
        kept.at_time(int(passed), model(passed))
    kept.flush()
    assert read_models(tmp_path)["seconds"].tolist() == [0.0, 2.5, 9.0]
    assert kept.seconds_to_next_model() == 1.0
    assert kept.seconds_to_start() == 0.0


def test_a_run_that_is_resumed_goes_on_at_the_second_at_which_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("efhc.runtime.recording.time.time", lambda: 1000.0)
    monkeypatch.setattr("efhc.runtime.recording.time.monotonic", lambda: now[0])
    kept = recorder(tmp_path, start=997.0, begin=7.5, models_seconds=2.0)  # it is second 3
    assert kept.seconds_to_start() == 4.5
    for passed in (1.0, 4.0, 4.5, 4.9, 5.0):
        now[0] = 100.0 + passed
        kept.at_time(9, model(passed))
    kept.step(9, True, 1.0, 2.0, 3.0, 4.0)
    kept.flush()
    assert read_models(tmp_path)["seconds"].tolist() == [7.5, 8.0]
    assert last_second(tmp_path) == 8.0
    assert last_second(tmp_path / "other") == 0.0


def test_a_jump_of_the_wall_clock_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efhc.runtime.recording.time.monotonic", lambda: 100.0)
    kept = recorder(tmp_path)
    before = kept.seconds
    monkeypatch.setattr("efhc.runtime.recording.time.time", lambda: 0.0)
    assert kept.seconds == before


def exchange(*, decides: bool, **more: object) -> Exchange:
    fields = {"token": (0, 1, 2), "sent": model(1.0), "share": 0.25, "decides": decides, "event": 2, "k": 4}
    return Exchange(**(fields | more))  # type: ignore[arg-type]


def test_the_end_that_decides_writes_the_row_of_an_exchange(tmp_path: Path) -> None:
    kept = recorder(tmp_path)
    kept.offered((0, 1, 2))
    both = {"partner": (1, 1, 5), "partner_k": 9, "received": model(2.0)}
    kept.exchange(1, exchange(decides=True, **both), "committed")
    kept.exchange(1, exchange(decides=False, **both), "committed")  # the other end's row
    kept.exchange(2, exchange(decides=True), "refused")
    kept.exchange(3, exchange(decides=True, partner=(3, 1, 1)), "withdrawn")
    kept.exchange(4, exchange(decides=False, **both), "unresolved", norm=0.5)
    kept.flush()
    rows = read_exchanges(tmp_path)
    assert [OUTCOMES[outcome] for outcome in rows["outcome"]] == ["committed", "refused", "withdrawn", "unresolved"]
    assert rows["neighbour"].tolist() == [1, 2, 3, 4]
    assert rows["bytes"].tolist() == [40, 0, 20, 40]
    assert rows["neighbour_k"].tolist() == [9, -1, -1, 9]
    assert rows["norm"][3] == 0.5
    assert np.isnan(rows["norm"][:3]).all()
    assert (rows["start"] <= rows["end"]).all()
