"""A strategy and its controls, with the digits: the file, the runs, and what is written."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from efhc.base.errors import EfhcError, InputError
from efhc.experiments.config.files import load_experiment, to_tables
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.run import Runs
from efhc.experiments.runs.store import RunStore
from efhc.experiments.studies import estimate as estimating
from efhc.experiments.studies.controls_file import Controls
from efhc.experiments.studies.presets import load_figure
from efhc.experiments.studies.reproduce import prepare, reproduce

OWN = """
devices = 4
seeds = [5, 6, 7]
partition = "iid"
bandwidths = { kind = "beta", nominal = 4000.0 }

[driver]
kind = "event-driven"
links = { kind = "shared" }
seconds = 8.0
sample_seconds = 2.0

[strategies]
paced = "paced"
all = { kind = "paced", r = 1.28, links = "all" }
other = { kind = "paced", pacing = { bandwidth = "another" } }
alone = "never"

[figure]
kind = "controls"
title = "digits"
leader = "paced"
controls = { all = "One <threshold> for all.", other = "The bandwidth of another device." }
common = "all"
shuffled = "other"
tuned = "Nothing was tuned."
quick.seeds = [5, 6]

[figure.settings.slow]
title = "slow"

[figure.settings.late]
title = "late"
changes.driver.links.latency = 0.5
without = ["other"]

[figure.settings.long]
title = "long"
in_quick = false
changes.driver.seconds = 12.0
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "mine.toml"
    path.write_text(OWN)
    return path


def draw(file: Path, out: Path, engine=None, store=RunStore, warn=print):
    runs = prepare([load_figure(str(file))])
    return reproduce(runs, "quick", out, store(out / "runs"), engine or LocalEngine(1), lambda run, share: None, warn)


@pytest.fixture(scope="module")
def quick(own: Path):
    out = own.parent / "quick"
    return out, draw(own, out)


def test_the_shipped_file_is_the_experiment_of_its_first_setting_and_scales_thresholds_with_bandwidth():
    small, full = (load_figure("slow-links", size) for size in ("quick", "full"))
    assert isinstance(full, Controls)
    assert to_tables(load_experiment("slow-links")) == to_tables(full.experiment)
    assert full.experiment.seeds == tuple(range(5, 25))
    assert small.experiment.seeds == tuple(range(5, 10))
    assert small.runs < full.runs
    assert {*full.table.controls, full.table.leader} == set(full.strategies)
    for setting in full.settings:
        strategies, nominal = setting.experiment.strategies, setting.experiment.bandwidths.nominal
        assert strategies["EF-HC"].r == 0.025 * nominal
        assert 0.1 * nominal <= strategies["half-steps"].r <= 1.28 * nominal
        assert 0.02 * nominal <= strategies["thresholds of the paper"].trigger.r <= 0.16 * nominal


def test_sizes_settings_and_strategies_are_those_of_the_file(own: Path):
    small, full = (load_figure(str(own), size) for size in ("quick", "full"))
    assert [one.name for one in small.settings] == ["slow", "late"]
    assert (small.runs, full.runs) == ((4 + 3) * 2, (4 + 3 + 4) * 3)
    assert load_figure(str(own), seeds=4).experiment.seeds == (5, 6, 7, 8)


def test_the_numbers_are_those_of_the_runs_at_their_end(quick):
    out, _ = quick
    table = pl.read_csv(out / "figures" / "mine.csv")
    assert table.columns == ["setting", "strategy", "seed", "accuracy", "bytes"]
    assert len(table) == (4 + 3) * 2
    runs = [pl.read_parquet(path).row(-1, named=True) for path in (out / "runs").glob("*/timeline.parquet")]
    assert {(run["seed"], run["accuracy"], run["bytes"]) for run in runs} == set(
        table.drop("setting", "strategy").rows()
    )
    assert (out / "figures" / "mine.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "figures" / "mine.pdf").read_bytes().startswith(b"%PDF")


def test_claims_and_report_compare_the_leader_with_each_control(quick):
    out, judgements = quick
    claims = pl.read_csv(out / "claims.csv")
    assert [(one.figures[0], one.names[1]) for one in judgements] == [
        ("mine-slow", "all"),
        ("mine-slow", "other"),
        ("mine-late", "all"),
    ]
    ends = (
        pl.read_csv(out / "figures" / "mine.csv")
        .filter(setting="slow")
        .pivot("strategy", index="seed", values="accuracy")
    )
    assert claims["mean"][0] == pytest.approx((ends["paced"] - ends["all"]).mean())
    assert "after 8 virtual seconds, at bandwidths of" in claims["words"][0]
    assert set(claims["finding"]) == {"undecided at this size"}  # of two seeds
    report = (out / "report.html").read_text()
    for words in (
        "One &lt;threshold&gt; for all.",
        "Nothing was tuned.",
        "Lead over those that do not go by their own bandwidth: 2 seeds",
    ):
        assert words in report
    assert "What the paper claims" not in report


def test_the_same_command_makes_nothing_again_and_writes_the_same(own: Path, quick):
    class NoEngine:
        def make(self, runs, store, progress, observers=None, followers=()):
            pytest.fail("nothing has to be run")

    out, _ = quick
    names = ["claims.csv", "figures/mine.png", "figures/mine.csv"]
    before = {name: (out / name).read_bytes() for name in names}
    draw(own, out, NoEngine())
    assert {name: (out / name).read_bytes() for name in names} == before


class Failing(RunStore):
    """A store in which the runs of a strategy fail."""

    strategy = "other"

    def complete(self, runs, engine, progress, observers=None, followers=()):
        failing = [run for run in runs if run.strategy == self.strategy]
        super().complete([run for run in runs if run not in failing], engine, progress, observers, followers)
        return {run.key: EfhcError(f"{run.name}: no longer finite") for run in failing}


class FailingLeader(Failing):
    strategy = "paced"


def test_a_control_that_fails_is_said_and_a_leader_that_fails_ends_the_command(own: Path, tmp_path: Path):
    said: list[str] = []
    judgements = draw(own, tmp_path / "out", store=Failing, warn=said.append)
    assert said == [f"mine: slow: other, seed {seed}: no longer finite" for seed in (5, 6)]
    assert {one.names[1] for one in judgements} == {"all"}
    with pytest.raises(EfhcError, match="paced, seed 5: no longer finite"):
        draw(own, tmp_path / "out", store=FailingLeader)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            'leader = "paced"',
            'leader = "pace"',
            "figure.leader: got 'pace', did you mean 'paced'?; allowed: paced, all",
        ),
        ("{ all =", "{ al =", "figure.controls: got 'al'"),
        ("{ all =", '{ paced = "itself", all =', "figure.controls: got 'paced'; allowed: strategies other than"),
        ('common = "all"', 'common = "alone"', "figure.common: got 'alone'; allowed: all, other"),
        (
            'without = ["other"]',
            'without = ["paced"]',
            "figure.settings.late.strategies: got all, other, alone; allowed: also paced",
        ),
        (
            "changes.driver.links.latency = 0.5",
            'changes.driver = "lockstep"',
            "settings.late.driver: got lockstep; allowed",
        ),
        ("seconds = 8.0\n", "", "figure.settings.slow.driver.seconds: got none; allowed: the virtual second"),
        ('tuned = "', 'tune = "', "figure.tune: got an unknown key, did you mean 'tuned'"),
    ],
)
def test_a_file_that_is_wrong_is_one_line(tmp_path: Path, old: str, new: str, line: str):
    assert old in OWN
    (tmp_path / "mine.toml").write_text(OWN.replace(old, new, 1))
    with pytest.raises(InputError) as refused:
        load_figure(str(tmp_path / "mine.toml"), "full")
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_event_driven_runs_are_estimated_too(own: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(estimating, "PROCESSOR_SECONDS", 0.0)
    runs = Runs().of(load_figure(str(own)).experiment)
    found = estimating.estimate(runs)
    assert found.runs == len(runs) == 8
    assert found.evaluations == 0
    assert found.seconds < 60
