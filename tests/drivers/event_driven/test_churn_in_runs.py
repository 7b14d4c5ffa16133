"""Devices that come and go during a run: what they keep, what they start from, and what the others do meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated import Firing, WatchedLinks, run, simulator_of, tiny

import efhc

STAND_STILL: dict[str, Any] = {"step_size": lambda k: 0.0}


def churn(folder: Path, *rows: tuple[float, int, str], **fields: Any) -> efhc.ChurnFile:
    path = folder / "churn.csv"
    path.write_text("seconds,device,event\n" + "".join(f"{s},{d},{what}\n" for s, d, what in rows))
    return efhc.ChurnFile(path=path, **fields)


def driver(churn: Any, links: Any = None, **fields: Any) -> efhc.EventDriven:
    return efhc.EventDriven(churn=churn, links=links or efhc.PerLink(), **{"sample_seconds": 1.0} | fields)


def steps(simulator: Any, device: int) -> list[tuple[int, float]]:
    """k and when"""
    return [(k, seconds) for who, k, seconds, *_ in simulator.record.steps if who == device]


def devices_present(simulator: Any) -> dict[float, int]:
    return {row["seconds"]: row["devices"] for row in simulator.record.timeline}


def test_a_device_that_crashes_goes_on_from_its_journal(tmp_path):
    """Compute 1 s. Device 0 crashes at 2.5, in its k = 2, and is back at 4.25: it begins k = 2 again."""
    settings = driver(churn(tmp_path, (2.5, 0, "crash"), (4.25, 0, "restart")))
    simulator = run(tiny(2, [[0, 1]], iterations=5, driver=settings), trigger=Firing({}))
    assert steps(simulator, 0) == [(0, 1.0), (1, 2.0), (2, 5.25), (3, 6.25), (4, 7.25)]
    assert steps(simulator, 1) == [(k, k + 1.0) for k in range(5)]
    assert devices_present(simulator) | {7.25: 2} == {0: 2, 1: 2, 2: 2, 3: 1, 4: 1, 5: 2, 6: 2, 7: 2, 7.25: 2}
    without = run(tiny(2, [[0, 1]], iterations=5, driver=driver(None)), trigger=Firing({}))
    alone = [loss for who, *_, loss in without.record.steps if who == 0]
    losses = [loss for who, *_, loss in simulator.record.steps if who == 0]
    assert losses[:4] == alone[:4]  # the link is new again at 4.25: an exchange is part of the last model
    assert losses[4] != alone[4]


def test_a_device_that_loses_all_starts_anew(tmp_path):
    settings = driver(churn(tmp_path, (2.5, 0, "crash"), (4.25, 0, "restart"), journal="lose"))
    simulator = run(tiny(2, [[0, 1]], iterations=3, driver=settings), trigger=Firing({}))
    assert steps(simulator, 0) == [(0, 1.0), (1, 2.0), (0, 5.25), (1, 6.25), (2, 7.25)]
    losses = [loss for who, *_, loss in simulator.record.steps if who == 0]
    assert losses[:2] == losses[2:4]


def test_a_device_that_joins_is_fresh_and_meets_its_neighbours_as_new(tmp_path):
    """It joins at 2.5: the link is new at both ends. Device 0 meets it in its k = 3, at 3."""
    links = WatchedLinks(efhc.PerLink(latency=0.25))
    settings = driver(churn(tmp_path, (2.5, 1, "join"), absent=[1]), links)
    simulator = run(tiny(2, [[0, 1]], iterations=6, driver=settings, **STAND_STILL), trigger=Firing({}))
    assert steps(simulator, 1) == [(k, 3.5 + k) for k in range(6)]
    (row,) = simulator.record.exchanges
    # 2.5: 1 offers; 2.75: 0 accepts and sends; 3: 1 sends; 4.25: 0 is ready; 4.5: 1 commits
    assert row[:9] == (2.5, 4.5, 1, 0, 0, 2, 0.5, 1, "committed")
    assert devices_present(simulator)[2.0] == 1
    assert devices_present(simulator)[3.0] == 2
    assert np.allclose(simulator.models[0], simulator.models[1], rtol=0, atol=1e-15)


def test_a_device_that_joins_may_copy_its_first_neighbour(tmp_path):
    """At 2.5 it asks; at 2.75 device 0, in its k = 2, sends its model, which takes 1 s: it begins with k = 2 at 4."""
    settings = driver(churn(tmp_path, (2.5, 1, "join"), absent=[1], start="copy"), efhc.PerLink(latency=0.25))
    experiment = tiny(2, [[0, 1]], iterations=6, driver=settings)
    simulator = simulator_of(experiment, trigger=Firing({}))
    copied = None
    while not simulator.is_over:
        simulator.advance()
        if simulator.now == 2.0:
            copied = simulator.models[0]
        if simulator.now == 4.0:
            assert np.array_equal(simulator.models[1], copied)
    assert steps(simulator, 1) == [(k, 3.0 + k) for k in range(2, 6)]
    assert simulator.record.timeline[-1]["bytes"] == 3 * 8 * 4  # a model copied, and two exchanged


def test_a_device_that_leaves_ends_what_is_in_flight_first(tmp_path):
    """All fire at 0; a model takes 4 s, latency 1/4. Device 0 leaves at 1, and is gone when 1 has acknowledged.

    1/4: models; 4.5: both are there, 1 is ready; 4.75: 0 commits; 5: 1 has the Commit; 5.25: 0 has its Acknowledge
    """
    links = efhc.PerLink(latency=0.25)
    settings = driver(churn(tmp_path, (1.5, 0, "leave")), links, compute={"seconds": [2.0, 8.0]}, sample_seconds=0.25)
    simulator = run(tiny(2, [[0, 1]], 1.0, iterations=2, driver=settings, **STAND_STILL))
    (row,) = simulator.record.exchanges
    assert row[:9] == (0.0, 4.75, 0, 1, 0, 0, 0.5, 2, "committed")
    present = devices_present(simulator)
    assert [present[5.0], present[5.25]] == [2, 1]
    assert steps(simulator, 0) == []  # the gradient of 2 s was dropped
    assert steps(simulator, 1) == [(0, 8.0), (1, 16.0)]
    first = simulator.scenario.initial_models()
    assert np.array_equal(simulator.models[1], first[1] + 0.5 * (first[0] - first[1]))


def test_a_crash_withdraws_what_was_not_decided_and_the_other_end_goes_on(tmp_path):
    """Device 0 crashes at 2 while both models are under way; 1 withdraws then, and trains on."""
    settings = driver(churn(tmp_path, (2.0, 0, "crash")), compute={"seconds": 3.0})
    simulator = run(tiny(2, [[0, 1]], 1.0, iterations=3, driver=settings, **STAND_STILL))
    assert [(row[1], row[8]) for row in simulator.record.exchanges] == [(2.0, "withdrawn")]
    assert steps(simulator, 1) == [(k, 3.0 * (k + 1)) for k in range(3)]
    assert np.array_equal(simulator.models, simulator.scenario.initial_models())
    assert simulator.now == 9.0
    assert simulator.warnings == []


def test_a_doubt_about_a_device_that_never_returns_is_given_up_and_counted(tmp_path):
    """Latency 1, device 0 offers at 0; 1: Accept; 2: its model; 4: 1 has it and is ready. Device 0 crashes at 4.5.

    Device 1 gives up 10 s after the crash. Its share is free again, and is offered in full to device 2 afterwards.
    """
    links = efhc.PerLink(latency=1.0)
    settings = driver(
        churn(tmp_path, (4.5, 0, "crash")), links, compute={"seconds": 5.0}, patience_seconds=2.0, give_up_seconds=10.0
    )
    experiment = tiny(3, [[0, 1], [1, 2]], iterations=6, driver=settings, **STAND_STILL)
    simulator = run(experiment, trigger=Firing({0: {0}, 3: {1}}))
    unresolved = [row for row in simulator.record.exchanges if row[8] == "unresolved"]
    assert [(row[1], row[2], row[3]) for row in unresolved] == [(14.5, 1, 0)]
    first = simulator.scenario.initial_models()
    assert unresolved[0][-1] == pytest.approx(np.linalg.norm(first[0] - first[1]) / 3, rel=1e-12)
    text = "1 exchange left unresolved: a device did not come back within give_up_seconds, 10"
    assert simulator.warnings == [text]
    committed = [row[:7] for row in simulator.record.exchanges if row[8] == "committed"]
    # Device 1 fires in its k = 3, at 15, with one neighbour: beta = min(1/2, 1/2)
    assert [(row[0], row[2], row[3], row[6]) for row in committed] == [(15.0, 1, 2, 0.5)]


def test_a_doubt_is_settled_when_the_device_returns(tmp_path):
    """As before, but device 0 is back at 6 with its journal. It knows nothing of the exchange: it was not committed.

    6: 1 asks; 7: 0 says so; 8: 1 hears it.
    """
    links = efhc.PerLink(latency=1.0)
    rows = ((4.5, 0, "crash"), (6.0, 0, "restart"))
    settings = driver(churn(tmp_path, *rows), links, compute={"seconds": 5.0}, give_up_seconds=100.0)
    simulator = run(tiny(2, [[0, 1]], iterations=6, driver=settings, **STAND_STILL), trigger=Firing({0: {0}}))
    outcomes = [(row[0], row[8]) for row in simulator.record.exchanges]
    assert (0.0, "withdrawn") in outcomes
    assert {what for _, what in outcomes} <= {"withdrawn", "committed", "refused"}
    assert simulator.record.timeline[-1]["imbalance"] == 0.0
    assert simulator.warnings == []


@pytest.mark.parametrize("commit", [True, False])
def test_a_decider_that_crashes_after_its_commit_remembers_it(tmp_path, commit):
    """Latency 1: Ready at 4, where 0 commits; it crashes at 4.5, before 1 has the Commit; at 8, it says it again."""
    rows = ((4.5 if commit else 3.5, 0, "crash"), (8.0, 0, "restart"))
    settings = driver(churn(tmp_path, *rows), efhc.PerLink(latency=1.0), compute={"seconds": 32.0})
    simulator = run(tiny(2, [[0, 1]], iterations=1, driver=settings, **STAND_STILL))
    first = simulator.scenario.initial_models()
    assert simulator.record.timeline[-1]["imbalance"] == 0.0
    assert np.allclose(simulator.models.sum(axis=0), first.sum(axis=0), rtol=0, atol=1e-15)
    if commit:
        assert simulator.record.exchanges[0][:9] == (0.0, 4.0, 0, 1, 0, 0, 0.5, 2, "committed")
    else:
        assert simulator.record.exchanges[0][8] == "withdrawn"
    # the link is new when 0 is back: there is another exchange, and the two are closer than before
    assert np.ptp(simulator.models, axis=0).max() < np.ptp(first, axis=0).max()


def test_the_run_waits_for_devices_that_will_come(tmp_path):
    settings = driver(churn(tmp_path, (100.0, 1, "join"), absent=[1]))
    simulator = run(tiny(2, [[0, 1]], iterations=3, driver=settings))
    assert steps(simulator, 1)[-1] == (2, 103.0)


def test_the_run_ends_if_all_devices_have_left(tmp_path):
    settings = driver(churn(tmp_path, (1.5, 0, "leave"), (2.5, 1, "crash")))
    simulator = run(tiny(2, [[0, 1]], iterations=50, driver=settings))
    assert simulator.now < 10
    assert simulator.record.timeline[-1]["devices"] == 0
    assert simulator.record.timeline[-1]["consensus_error"] is None
    assert "accuracy" not in simulator.record.timeline[-1]


@pytest.mark.parametrize(
    ("links", "rows", "rate"),
    [
        ([], [(1.0, 1, "join")], 4.0),
        ([[0, 1]], [(0.5, 0, "crash"), (1.0, 1, "join")], 4.0),
        ([[0, 1]], [(1.0, 1, "join")], 0.0),
    ],
    ids=["no link", "a neighbour that is gone", "a neighbour that can send nothing"],
)
def test_a_run_does_not_wait_for_a_newcomer_that_finds_no_model(tmp_path, links, rows, rate):
    path = tmp_path / "rates.csv"
    path.write_text(f"seconds,device,rate\n0,0,{rate}\n")
    timed = efhc.PerLink(rates=efhc.RateFile(path=path))
    settings = driver(churn(tmp_path, *rows, absent=[1], start="copy"), timed)
    simulator = run(tiny(2, links, iterations=3, driver=settings))
    assert steps(simulator, 1) == []
    assert simulator.now < 100
    assert "device 1 made no step: it found no neighbour whose model it could copy" in simulator.warnings


def test_a_device_that_joins_while_it_is_still_leaving_goes_first(tmp_path):
    """A model takes 4 s. Device 0 leaves at 1.5, in the midst of an exchange, and joins at 2: it is a new one then."""
    settings = driver(churn(tmp_path, (1.5, 0, "leave"), (2.0, 0, "join")))
    simulator = run(tiny(2, [[0, 1]], 1.0, iterations=4, driver=settings))
    assert steps(simulator, 0) == [(0, 1.0), (0, 3.0), (1, 4.0), (2, 5.0), (3, 6.0)]
    assert devices_present(simulator)[5.0] == 2


def test_a_newcomer_that_leaves_at_the_instant_its_model_comes_does_not_begin(tmp_path):
    settings = driver(churn(tmp_path, (1.0, 1, "join"), (2.0, 1, "leave"), absent=[1], start="copy"))
    simulator = run(tiny(2, [[0, 1]], iterations=4, driver=settings), trigger=Firing({}))
    assert steps(simulator, 1) == []
    assert simulator.now == 4.0


def test_a_newcomer_that_crashes_before_it_has_a_model_asks_again(tmp_path):
    """It joins at 1, crashes at 1.5 while the model is under way, and asks anew at 2.5: it begins with k = 2 at 3.5."""
    events = churn(tmp_path, (1.0, 1, "join"), (1.5, 1, "crash"), (2.5, 1, "restart"), absent=[1], start="copy")
    simulator = run(tiny(2, [[0, 1]], iterations=5, driver=driver(events)), trigger=Firing({}))
    assert steps(simulator, 1)[0] == (2, 4.5)


def test_a_run_waits_for_a_device_in_doubt_that_will_restart(tmp_path):
    """Device 1 is ready at 2, crashes at 2.1, when 0 has not heard of it, and restarts long after all have finished."""
    links = efhc.PerLink(latency=0.25)
    events = churn(tmp_path, (1.8, 1, "crash"), (30.0, 1, "restart"))
    simulator = run(tiny(2, [[0, 1]], iterations=1, driver=driver(events, links), **STAND_STILL))
    assert simulator.now >= 30.0
    assert simulator.record.timeline[-1]["imbalance"] == 0.0
    assert not [row for row in simulator.record.exchanges if row[8] in ("unfinished", "unresolved")]
