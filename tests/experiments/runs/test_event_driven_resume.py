"""An event-driven run that is stopped again and again ends with the same bits, whatever was under way."""

from __future__ import annotations

import random
from threading import Event

import numpy as np
import pytest
from polars.testing import assert_frame_equal

import efhc
from efhc.experiments.runs.draw import draw_scenario
from efhc.experiments.runs.engines.local import make_run
from efhc.experiments.runs.folder import RunFolder
from efhc.experiments.runs.keeping import RunOptions, Stopped
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.store import RunStore

STOPS = 20

HOSTILE = {
    "slow links that lose messages": {"links": {"kind": "per-link", "jitter": 0.3, "loss": 0.2}},
    "shared links that drop messages": {"links": {"kind": "shared", "latency": 0.1, "loss": 0.1, "when_lost": "drop"}},
    "rates that change": {
        "links": {"kind": "shared", "rates": {"kind": "markov", "good_seconds": 3.0, "bad_seconds": 2.0}},
        "bandwidth": "measured",
    },
    "crashes": {"churn": {"kind": "rates", "crash_every": 15.0, "restart_after": 3.0}, "seconds": 40.0},
    "devices that leave and join": {
        "churn": {"kind": "rates", "leave_every": 20.0, "join_after": 5.0},
        "seconds": 40.0,
    },
}


def experiment(driver: dict[str, object], seed: int) -> efhc.Experiment:
    common = {"kind": "event-driven", "compute": {"kind": "lognormal"}, "sample_seconds": 0.25}
    return efhc.Experiment(
        devices=5,
        iterations=25,
        seeds=(seed,),
        strategies={"ZT": efhc.ZeroThreshold()},
        network=efhc.RandomLinks(),
        bandwidths={"kind": "list", "values": [300.0, 2000.0, 500.0, 3000.0, 150.0]},
        driver=common | {"patience_seconds": 2.0, "give_up_seconds": 6.0} | driver,
        test_samples=50,
    )


@pytest.mark.slow
@pytest.mark.parametrize("what", HOSTILE)
def test_stopped_at_random_moments_a_run_has_the_same_bits(tmp_path, what):
    moments = random.Random(what)
    (run,) = Runs().of(experiment(HOSTILE[what], seed=3))
    memory, store = RunStore(None), RunStore(tmp_path, with_models=True)
    samples: list[float] = []
    with memory.keeper(run) as keeper:
        make_run(run, draw_scenario(run.whole, run.data, run.seed), keeper, RunOptions(progress=samples.append))
    stops = 0
    is_over = False
    while not is_over:
        stop, left = Event(), moments.randint(1, 2 * len(samples) // STOPS)

        def tell(share: float, stop: Event = stop, stops: int = stops) -> None:
            nonlocal left
            left -= 1
            if left < 0 and stops < STOPS:
                stop.set()

        try:
            with store.keeper(run) as keeper:
                scenario = draw_scenario(run.whole, run.data, run.seed)
                make_run(
                    run,
                    scenario,
                    keeper,
                    RunOptions(progress=tell, stop=stop, checkpoint_seconds=moments.choice([0.0, 30.0])),
                )
            is_over = True
        except Stopped:
            stops += 1
    assert stops >= STOPS // 2
    whole = memory.made[run.key]
    for name, table in whole.tables.items():
        assert_frame_equal(RunFolder(store.directory(run)).table(name), table, check_exact=True)
    (models,) = RunFolder(store.directory(run)).models().values()
    assert np.array_equal(models, whole.models)
