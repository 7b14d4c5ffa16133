"""Figures of several settings, with the digits: a frontier, and a strategy with its controls."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from efhc.base.errors import EfhcError, InputError
from efhc.experiments.config.files import load_experiment, to_tables
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.store import RunStore
from efhc.experiments.studies.figures import ControlsTable, FrontierTable, load_figure, merged
from efhc.experiments.studies.reproduce import reproduce, runs_of_figures
from efhc.learning.measures import evaluated

FRONTIER = """
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

CONTROLS = """
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


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def frontier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("frontier"), FRONTIER)


@pytest.fixture(scope="module")
def controls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("controls"), CONTROLS)


def draw(file: Path, out: Path, size="quick", *, engine=None, store=RunStore, warn=print):
    runs = runs_of_figures([load_figure(str(file), size)])
    return reproduce(runs, size, out, store(out / "runs"), engine or LocalEngine(1), lambda run, share: None, warn)


@pytest.fixture(scope="module")
def full(frontier: Path):
    out = frontier.parent / "full"
    return out, draw(frontier, out, "full")


@pytest.fixture(scope="module")
def quick(controls: Path):
    out = controls.parent / "quick"
    return out, draw(controls, out)


# The files


def test_tables_are_merged_key_by_key_but_another_kind_starts_anew():
    tables = {"a": {"kind": "x", "n": 1, "m": 2}, "b": 1, "c": "word"}
    assert merged(tables, {"a": {"n": 3}}) == {**tables, "a": {"kind": "x", "n": 3, "m": 2}}
    assert merged(tables, {"a": {"kind": "x", "n": 3}}) == {**tables, "a": {"kind": "x", "n": 3, "m": 2}}
    assert merged(tables, {"a": {"kind": "y"}}) == {**tables, "a": {"kind": "y"}}
    assert merged(tables, {"b": {"kind": "y"}, "c": {"n": 1}}) == {**tables, "b": {"kind": "y"}, "c": {"n": 1}}
    assert tables == {"a": {"kind": "x", "n": 1, "m": 2}, "b": 1, "c": "word"}


def test_the_shipped_frontier_is_the_experiment_of_its_first_setting():
    quick, frontier = (load_figure("frontier", size) for size in ("quick", "full"))
    assert isinstance(frontier.table, FrontierTable)
    assert to_tables(load_experiment("frontier")) == to_tables(frontier.experiment)
    assert frontier.experiment.seeds == (10, 11, 12, 13, 14)
    assert [frontier.experiment.step_size(k) for k in (0, 3, 99)] == [0.1, 0.05, 0.01]
    of = {setting.name: setting.experiment for setting in frontier.parts}
    assert of["beta"].bandwidths == load_experiment("fig3a").bandwidths
    assert (of["labels3"].partition.labels_per_device, of["iid"].partition.kind) == (3, "iid")
    assert (of["own-starts"].initial_models.kind, of["uniform"].initial_models.kind) == ("per-device", "shared")
    assert of["lenet5"].model == load_experiment("fig4a").model
    assert quick.runs < frontier.runs
    assert quick.experiment.iterations < frontier.experiment.iterations
    assert {one.seeds for one in quick.experiments} == {frontier.experiment.seeds}
    assert all(one.evaluate_every * 200 <= 2000 for one in frontier.experiments)  # 0.5 % of ZT's time is evaluated


def test_the_shipped_controls_are_the_experiment_of_their_first_setting_and_scale_thresholds_with_bandwidth():
    small, full = (load_figure("slow-links", size) for size in ("quick", "full"))
    assert isinstance(full.table, ControlsTable)
    assert to_tables(load_experiment("slow-links")) == to_tables(full.experiment)
    assert full.experiment.seeds == tuple(range(5, 25))
    assert small.experiment.seeds == tuple(range(5, 10))
    assert small.runs < full.runs
    assert {*full.table.controls, full.table.leader} == set(full.strategies)
    for setting in full.parts:
        strategies, nominal = setting.experiment.strategies, setting.experiment.bandwidths.nominal
        assert strategies["EF-HC"].r == 0.025 * nominal
        assert 0.1 * nominal <= strategies["half-steps"].r <= 1.28 * nominal
        assert 0.02 * nominal <= strategies["thresholds of the paper"].trigger.r <= 0.16 * nominal


def test_sizes_settings_strategies_and_seeds_are_those_of_the_file(frontier: Path, controls: Path):
    quick, full = (load_figure(str(frontier), size) for size in ("quick", "full"))
    assert [one.name for one in quick.parts] == ["base", "fast"]
    assert [one.name for one in full.parts] == ["base", "fast", "iid"]
    assert (quick.runs, full.runs) == ((4 + 3) * 2, (4 + 3 + 4) * 5)
    assert "alone" not in full.parts[1].experiment.strategies
    quick, full = (load_figure(str(controls), size) for size in ("quick", "full"))
    assert [one.name for one in quick.parts] == ["slow", "late"]
    assert (quick.runs, full.runs) == ((4 + 3) * 2, (4 + 3 + 4) * 3)
    for file, first in ((frontier, 10), (controls, 5)):  # more seeds are counted from the file's first
        assert load_figure(str(file), seeds=7).experiment.seeds == tuple(range(first, first + 7))


@pytest.mark.parametrize(
    ("text", "old", "new", "field", "words"),
    [
        (FRONTIER, '"often", "EF-HC"', '"oft", "EF-HC"', "figure.leaders", "did you mean 'often'"),
        (FRONTIER, 'ceilings = ["alone"]', 'ceilings = ["alnoe"]', "figure.ceilings", "did you mean 'alone'"),
        (FRONTIER, 'ceilings = ["alone"]', 'ceilings = ["often"]', "figure.ceilings", "strategies that are not"),
        (FRONTIER, 'without = ["alone"]', 'without = ["ZT"]', "figure.settings.fast.strategies", "ZT, too"),
        (FRONTIER, 'without = ["alone"]', 'without = ["Z"]', "figure.settings.fast.without", "'Z'"),
        (FRONTIER, 'changes.partition = "iid"', "changes.devices = 0", "figure.settings.iid.devices", "0"),
        (FRONTIER, "judged_from = 0.1", "judged_from = 2.0", "figure.judged_from", "2.0"),
        (FRONTIER, "iterations = 40", "iterations = 0", "iterations", "0"),
        (FRONTIER, "judged_from = 0.1", "judged_form = 0.1", "figure.judged_form", "did you mean 'judged_from'"),
        (CONTROLS, 'leader = "paced"', 'leader = "pace"', "figure.leader", "did you mean 'paced'"),
        (CONTROLS, "{ all =", "{ al =", "figure.controls", "'al'"),
        (CONTROLS, "{ all =", '{ paced = "itself", all =', "figure.controls", "strategies other than"),
        (CONTROLS, 'common = "all"', 'common = "alone"', "figure.common", "Use all, other"),
        (CONTROLS, 'without = ["other"]', 'without = ["paced"]', "figure.settings.late.strategies", "paced, too"),
        (CONTROLS, "driver.links.latency = 0.5", 'driver = "lockstep"', "figure.settings.late.driver", "lockstep"),
        (CONTROLS, "seconds = 8.0\n", "", "figure.settings.slow.driver.seconds", "a value is missing"),
        (CONTROLS, 'tuned = "', 'tune = "', "figure.tune", "did you mean 'tuned'"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_is_one_line(tmp_path: Path, text: str, old: str, new: str, field: str, words: str):
    assert old in text
    with pytest.raises(InputError) as refused:
        load_figure(str(written(tmp_path, text.replace(old, new, 1))), "full")
    assert refused.value.field == field
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


# What is made of the runs


def test_the_numbers_of_every_setting_can_be_found_in_the_runs(full):
    out, _ = full
    runs = [pl.read_parquet(path) for path in (out / "runs").glob("*/metrics.parquet")]
    ends = {(run["strategy"][0], run["seed"][0]): set() for run in runs}
    for run in runs:
        last = evaluated(run).row(-1, named=True)
        ends[last["strategy"], last["seed"]].add((last["accuracy"], last["transmission_time_total"]))
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


def test_claims_and_report_compare_the_leader_with_each_control(quick):
    out, judgements = quick
    claims = pl.read_csv(out / "claims.csv")
    assert [(one.figures[0], one.control) for one in judgements] == [
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
    assert set(claims["finding"]) == {"undecided: 2 seeds, a verdict needs 5"}
    report = (out / "report.html").read_text()
    for words in (
        "One &lt;threshold&gt; for all.",
        "Nothing was tuned.",
        "too few seeds (2)",
    ):
        assert words in report
    assert "What the paper claims" not in report


@pytest.mark.slow
def test_a_leader_that_fails_is_said_and_the_others_are_drawn(frontier: Path, tmp_path: Path, failing_store):
    said: list[str] = []
    judgements = draw(frontier, tmp_path / "out", store=failing_store("often"), warn=said.append)
    assert said == ["mine: base: often, seed 10: no longer finite (and 3 more runs)"]
    assert all("EF-HC" in one.statement for one in judgements)
    assert "no longer finite" in (tmp_path / "out" / "report.html").read_text()


def test_without_zt_there_are_no_budgets(frontier: Path, tmp_path: Path, failing_store):
    with pytest.raises(EfhcError, match="ZT, seed 10: no longer finite"):
        draw(frontier, tmp_path / "out", store=failing_store("ZT"))


def test_a_control_that_fails_is_said_and_a_leader_that_fails_ends_the_command(controls, tmp_path, failing_store):
    said: list[str] = []
    judgements = draw(controls, tmp_path / "out", store=failing_store("other"), warn=said.append)
    assert said == ["mine: slow: other, seed 5: no longer finite (and 1 more run)"]
    assert {one.control for one in judgements} == {"all"}
    with pytest.raises(EfhcError, match="paced, seed 5: no longer finite"):
        draw(controls, tmp_path / "out", store=failing_store("paced"))


@pytest.mark.slow
def test_no_budget_is_judged_before_the_second_evaluation_of_zt(frontier: Path, tmp_path: Path):
    """Twenty iterations, evaluated every four: 20 % of ZT's time."""
    judgements = draw(frontier, tmp_path / "out")
    assert {tuple(finding.budget for finding in one.findings) for one in judgements} == {(0.2, 0.5, 1.0)}
    assert all("20 to 100 %" in one.statement for one in judgements)
