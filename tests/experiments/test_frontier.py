"""A frontier of the digits: its file, its runs, and what is written."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from efhc.base.errors import EfhcError, InputError
from efhc.experiments.config.files import load_experiment, to_tables
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.store import RunStore
from efhc.experiments.studies.changes import merged
from efhc.experiments.studies.frontier_file import Frontier
from efhc.experiments.studies.presets import load_figure
from efhc.experiments.studies.reproduce import prepare, reproduce

OWN = """
iterations = 40
evaluate_every = 4
seeds = [10, 11, 12, 13, 14]

[strategies]
ZT = "zt"
EF-HC = { kind = "ef-hc", r = 1500.0 }
often = { kind = "periodic", every = 4 }
alone = "never"

[figure]
kind = "frontier"
title = "digits"
leaders = ["often", "EF-HC"]
ceilings = ["alone"]
judged_from = 0.1
tuned = "Nothing was <tuned>."
quick.iterations = 20
quick.seeds = [10, 11]

[figure.settings.base]
title = "as it is"

[figure.settings.fast]
title = "Beta bandwidths"
changes.bandwidths = { kind = "beta", a = 0.5, b = 0.5 }
without = ["alone"]

[figure.settings.iid]
title = "IID"
in_quick = false
changes.partition = "iid"
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "mine.toml"
    path.write_text(OWN)
    return path


def draw(file: Path, out: Path, size="quick", store=RunStore, warn=print):
    runs = prepare([load_figure(str(file), size)])
    return reproduce(runs, size, out, store(out / "runs"), LocalEngine(), lambda run, share: None, warn)


@pytest.fixture(scope="module")
def full(own: Path):
    out = own.parent / "full"
    return out, draw(own, out, "full")


def test_tables_are_merged_key_by_key_but_another_kind_starts_anew():
    tables = {"a": {"kind": "x", "n": 1, "m": 2}, "b": 1, "c": "word"}
    assert merged(tables, {"a": {"n": 3}}) == {**tables, "a": {"kind": "x", "n": 3, "m": 2}}
    assert merged(tables, {"a": {"kind": "x", "n": 3}}) == {**tables, "a": {"kind": "x", "n": 3, "m": 2}}
    assert merged(tables, {"a": {"kind": "y"}}) == {**tables, "a": {"kind": "y"}}
    assert merged(tables, {"b": {"kind": "y"}, "c": {"n": 1}}) == {**tables, "b": {"kind": "y"}, "c": {"n": 1}}
    assert tables == {"a": {"kind": "x", "n": 1, "m": 2}, "b": 1, "c": "word"}


def test_the_shipped_frontier_is_the_experiment_of_its_first_setting():
    quick, frontier = (load_figure("frontier", size) for size in ("quick", "full"))
    assert isinstance(frontier, Frontier)
    assert to_tables(load_experiment("frontier")) == to_tables(frontier.experiment)
    assert frontier.experiment.seeds == (10, 11, 12, 13, 14)
    assert [frontier.experiment.step_size(k) for k in (0, 3, 99)] == [0.1, 0.05, 0.01]
    of = {setting.name: setting.experiment for setting in frontier.settings}
    assert of["beta"].bandwidths == load_experiment("fig3a").bandwidths
    assert (of["labels3"].partition.labels_per_device, of["iid"].partition.kind) == (3, "iid")
    assert (of["own-starts"].initial_models.kind, of["uniform"].initial_models.kind) == ("per-device", "shared")
    assert of["lenet5"].model == load_experiment("fig4a").model
    assert quick.runs < frontier.runs
    assert quick.experiment.iterations < frontier.experiment.iterations
    assert {one.seeds for one in quick.experiments} == {frontier.experiment.seeds}
    assert all(one.evaluate_every * 200 <= 2000 for one in frontier.experiments)  # 0.5 % of ZT's time is evaluated


def test_more_seeds_are_counted_from_the_files_first(own: Path):
    assert load_figure(str(own), seeds=7).experiment.seeds == tuple(range(10, 17))


def test_sizes_settings_and_strategies_are_those_of_the_file(own: Path):
    quick, full = (load_figure(str(own), size) for size in ("quick", "full"))
    assert [one.name for one in quick.settings] == ["base", "fast"]
    assert [one.name for one in full.settings] == ["base", "fast", "iid"]
    assert quick.runs == (4 + 3) * 2
    assert full.runs == (4 + 3 + 4) * 5
    assert "alone" not in full.settings[1].experiment.strategies


def test_the_numbers_of_every_setting_can_be_found_in_the_runs(full):
    out, _ = full
    runs = [pl.read_parquet(path) for path in (out / "runs").glob("*/metrics.parquet")]
    ends = {(run["strategy"][0], run["seed"][0]): set() for run in runs}
    for run in runs:
        ends[run["strategy"][0], run["seed"][0]].add((run["accuracy"][-1], run["transmission_time_total"][-1]))
    table = pl.read_csv(out / "figures" / "mine-base.csv")
    assert table.columns[:3] == ["strategy", "seed", "spends"]
    assert len(table) == 4 * 5
    kinds = {"ZT": "zt", "EF-HC": "ef-hc", "often": "periodic", "alone": "never"}
    for row in table.iter_rows(named=True):
        assert row["at 100 %"] in {accuracy for accuracy, _ in ends[kinds[row["strategy"]], row["seed"]]}
    spends = dict(table.group_by("strategy").agg(pl.col("spends").mean()).iter_rows())
    assert spends["ZT"] == 1
    assert spends["often"] == pytest.approx(0.25)
    assert spends["alone"] == 0
    assert table.filter(strategy="ZT")["at 1 %"].null_count() == 5  # one iteration of 40 is more
    assert pl.read_csv(out / "figures" / "mine-fast.csv")["strategy"].n_unique() == 3
    assert (out / "figures" / "mine.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "figures" / "mine.pdf").read_bytes().startswith(b"%PDF")


def test_claims_and_report_say_who_leads_whom(full):
    out, judgements = full
    claims = pl.read_csv(out / "claims.csv")
    assert {one.figures[0] for one in judgements} == {"mine-base", "mine-fast", "mine-iid"} == set(claims["figures"])
    assert len(judgements) == 2 * 2 * 3
    assert claims["claim"].null_count() == len(claims) == 12 * 4  # at 10, 20, 50 and 100 %
    words = set(claims["words"])
    assert any("often leads at every budget from 10 to 100 %" in one and "all other strategies" in one for one in words)
    assert any("EF-HC leads" in one and "all other strategies but often with the same seed" in one for one in words)
    assert any("often leads" in one and "the best of ZT, EF-HC with the same seed" in one for one in words)
    report = (out / "report.html").read_text()
    assert "Nothing was &lt;tuned&gt;." in report
    assert "10, 11, 12, 13, 14" in report
    assert "What the paper claims" not in report
    assert "<title>EF-HC, mine</title>" in report


@pytest.mark.slow
def test_the_same_command_makes_nothing_again_and_writes_the_same(own: Path, full, tmp_path: Path):
    class NoEngine:
        def make(self, runs, store, progress, observers=None, followers=()):
            pytest.fail("nothing has to be run")

    out, _ = full
    names = ["claims.csv", "figures/mine.png", "figures/mine-base.csv"]
    before = {name: (out / name).read_bytes() for name in names}
    runs = prepare([load_figure(str(own), "full")])
    reproduce(runs, "full", out, RunStore(out / "runs"), NoEngine(), lambda run, share: None)
    assert {name: (out / name).read_bytes() for name in names} == before


class Failing(RunStore):
    """A store in which the runs of a strategy fail."""

    strategy = "often"

    def complete(self, runs, engine, progress, observers=None, followers=()):
        failing = [run for run in runs if run.strategy == self.strategy]
        super().complete([run for run in runs if run not in failing], engine, progress, observers, followers)
        return {run.key: EfhcError(f"{run.name}: no longer finite") for run in failing}


class FailingZT(Failing):
    strategy = "ZT"


@pytest.mark.slow
def test_a_leader_that_fails_is_said_and_the_others_are_drawn(own: Path, tmp_path: Path):
    said: list[str] = []
    judgements = draw(own, tmp_path / "out", store=Failing, warn=said.append)
    assert said[0] == "mine: base: often, seed 10: no longer finite"
    assert len(said) == 4
    assert {one.names[0] for one in judgements} == {"EF-HC"}
    assert "no longer finite" in (tmp_path / "out" / "report.html").read_text()


def test_without_zt_there_are_no_budgets(own: Path, tmp_path: Path):
    with pytest.raises(EfhcError, match="ZT, seed 10: no longer finite"):
        draw(own, tmp_path / "out", store=FailingZT)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"often", "EF-HC"', '"oft", "EF-HC"', "figure.leaders: got 'oft', did you mean 'often'?; allowed: ZT, EF-HC"),
        ('ceilings = ["alone"]', 'ceilings = ["alnoe"]', "figure.ceilings: got 'alnoe', did you mean 'alone'?"),
        (
            'ceilings = ["alone"]',
            'ceilings = ["often"]',
            "figure.ceilings: got often; allowed: strategies that are not",
        ),
        (
            'without = ["alone"]',
            'without = ["ZT"]',
            "figure.settings.fast.strategies: got EF-HC, often, alone; allowed",
        ),
        ('without = ["alone"]', 'without = ["Z"]', "figure.settings.fast.without: got 'Z'"),
        ('changes.partition = "iid"', "changes.devices = 0", "figure.settings.iid.devices: got 0"),
        ("judged_from = 0.1", "judged_from = 2.0", "figure.judged_from: got 2.0"),
        ("iterations = 40", "iterations = 0", "iterations: got 0"),
        (
            "judged_from = 0.1",
            "judged_form = 0.1",
            "figure.judged_form: got an unknown key, did you mean 'judged_from'",
        ),
    ],
)
def test_a_frontier_that_is_wrong_is_one_line(tmp_path: Path, old: str, new: str, line: str):
    assert old in OWN
    (tmp_path / "mine.toml").write_text(OWN.replace(old, new))
    with pytest.raises(InputError) as refused:
        load_figure(str(tmp_path / "mine.toml"), "full")
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_no_budget_is_judged_before_the_second_evaluation_of_zt(own: Path, tmp_path: Path):
    """Twenty iterations, evaluated every four: 20 % of ZT's time."""
    judgements = draw(own, tmp_path / "out")
    assert {tuple(finding.budget for finding in one.findings) for one in judgements} == {(0.2, 0.5, 1.0)}
    assert {one.names[1] for one in judgements} == {"20 to 100 %"}
