"""What the strategy promises: run `pytest`."""

from pathlib import Path

import polars as pl
import pytest
from strategy import Steady

import efhc


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_devices_fire_in_the_given_share_of_iterations(share: float) -> None:
    """After the first iterations, in which the threshold is found."""
    result = efhc.simulate(iterations=400, seeds=[0, 1], strategies={"mine": Steady(share=share)})
    fired = result.metrics.filter(pl.col("iteration") >= 100)["fired"].mean()
    assert fired == pytest.approx(share * result.experiment.devices, rel=0.15)


def test_the_config_names_the_strategy(tmp_path: Path) -> None:
    """A run that is kept is the same when it is loaded."""
    experiment = efhc.load_experiment(Path(__file__).with_name("PROJECT.toml"), ["iterations=20"])
    result = efhc.simulate(experiment, out=tmp_path / "run")
    assert efhc.Result.load(tmp_path / "run").metrics.equals(result.metrics)
    assert "mine" in result.summary()["strategy"]
