from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from efhc.base.errors import EfhcError, InputError
from efhc.experiments.runs.engines.local import LocalEngine
from efhc.experiments.runs.store import RunStore
from efhc.experiments.studies.figures import load_figure
from efhc.experiments.studies.reproduce import reproduce, runs_of_figures
from efhc.report.claims.verdicts import Judgement, Verdict

# A figure of one's own: the digits, all panels, small enough for a test.
OWN = """
iterations = 40
evaluate_every = 10
seeds = [0, 1, 2, 3, 4]

[strategies]
EF-HC = { kind = "ef-hc", r = 1500.0 }
GT = { kind = "gt", r = 1500.0 }
ZT = "zt"
RG = "rg"

[sweep]
network.radius = [0.4, 0.6]

[figure]
number = "2(a)"
label = "fig:sim:svm_fmnist"
title = "digits"
quick.iterations = 20
quick.seeds = [0, 1]
"""


def silent(run, share):
    pass


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "fig2a.toml"  # by this name the paper's claims speak of it
    path.write_text(OWN)
    return path


@pytest.fixture(scope="module")
def quick(own: Path) -> tuple[Path, list[Judgement]]:
    """The figure at its quick size, drawn once."""
    return own.parent / "quick", draw(own, own.parent / "quick")


def draw(figure: Path | str, out: Path, size="quick", seeds=None, store=RunStore, warn=print):
    runs = runs_of_figures([load_figure(str(figure), size, seeds)])
    return reproduce(runs, size, out, store(out / "runs"), LocalEngine(), silent, warn)


def results(out: Path) -> dict[str, bytes]:
    """All tables and pictures of a reproduction and of its runs."""
    endings = {".csv", ".parquet", ".png", ".pdf"}
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.suffix in endings}


def test_a_figure_comes_with_its_numbers_its_claims_and_a_report(own, tmp_path):
    out = tmp_path / "out"
    judgements = draw(own, out, "full")
    panels = {name: pl.read_csv(out / "figures" / f"fig2a-{name}.csv") for name in ("i", "ii", "iii", "iv")}
    assert (out / "figures" / "fig2a.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "figures" / "fig2a.pdf").read_bytes().startswith(b"%PDF")
    # Every number of a panel can be found in the runs.
    runs = [pl.read_parquet(path) for path in (out / "runs").glob("*/metrics.parquet")]
    zt = [run for run in runs if run["strategy"][0] == "zt" and len(run) == 40]
    assert len(zt) == 10  # five seeds at two radii; those at 0.4, the default, are shared with panels (i)-(iii)
    row = panels["ii"].filter(strategy="ZT", iteration=39)
    for seed in range(5):
        assert row[f"seed {seed}"][0] in [run["accuracy"][-1] for run in zt if run["seed"][0] == seed]
    assert row["mean"][0] == pytest.approx(np.mean([row[f"seed {seed}"][0] for seed in range(5)]))
    assert row["low"][0] <= row["mean"][0] <= row["high"][0]
    claims = pl.read_csv(out / "claims.csv")
    assert set(claims["claim"]) == {judgement.claim for judgement in judgements} == {1, 2, 3, 4}
    # All devices fire in ZT: it takes the most time per iteration, in every world.
    saved = claims.filter(quantity="share of ZT's time that EF-HC saves")
    assert saved["finding"].to_list() == ["holds"]
    assert 0 < saved["low"][0] <= saved["mean"][0] <= saved["high"][0] < 1
    report = (out / "report.html").read_text()
    assert "Fig. 2(a): digits" in report
    assert "fig:sim" not in report  # readers have the printed paper, not its source
    assert "--full" in report


def test_sizes_differ_and_quick_with_two_seeds_decides_nothing(quick):
    out, judgements = quick
    assert {judgement.verdict for judgement in judgements} == {Verdict.UNDECIDED}
    table = pl.read_csv(out / "figures" / "fig2a-ii.csv")
    assert table["iteration"].max() == 19
    assert [name for name in table.columns if name.startswith("seed")] == ["seed 0", "seed 1"]


def times(out: Path) -> dict[str, int]:
    """When each run was made."""
    return {path.parent.name: path.stat().st_mtime_ns for path in (out / "runs").glob("*/meta.json")}


def test_a_second_time_nothing_is_run_and_nothing_changes(own, quick):
    out, _ = quick
    before, made = results(out), times(out)
    draw(own, out)
    assert results(out) == before
    assert times(out) == made


def test_more_seeds_only_add_runs(own, quick, tmp_path):
    shutil.copytree(quick[0] / "runs", tmp_path / "out" / "runs")
    before = times(tmp_path / "out")
    draw(own, tmp_path / "out", seeds=3)
    after = times(tmp_path / "out")
    assert before.items() <= after.items()
    assert len(after) == len(before) * 3 / 2


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_killed_at_any_moment_and_run_again_it_ends_with_the_same_bytes(own, quick, tmp_path, kills):
    out, killed, chance = tmp_path / "killed", 0, random.Random(time.time_ns())
    command = [sys.executable, "-m", "efhc", "reproduce", str(own), "--out", str(out)]
    for _ in range(kills):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        further = len(list((out / "runs").glob("*"))) + chance.randint(1, 8)
        deadline = time.monotonic() + 300  # against hanging
        while process.poll() is None and len(list((out / "runs").glob("*"))) < further and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.3))
        process.kill()
        _, said = process.communicate(timeout=300)
        assert process.returncode in (0, -signal.SIGKILL), said
        killed += process.returncode == -signal.SIGKILL
    assert killed >= 1
    draw(own, out)
    assert results(out) == results(quick[0])


def test_a_run_that_fails_is_left_out_and_listed(own, tmp_path, failing_store):
    said: list[str] = []
    judgements = draw(own, tmp_path / "out", seeds=3, store=failing_store("EF-HC", 0), warn=said.append)
    assert said == [
        "fig2a: EF-HC, seed 0: no longer finite (and 1 more run)"
    ]  # that of panel (iv), for the same reason
    table = pl.read_csv(tmp_path / "out" / "figures" / "fig2a-ii.csv")
    assert table.filter(strategy="EF-HC")["seed 0"].null_count() == table.filter(strategy="EF-HC").height
    assert table.filter(strategy="ZT")["seed 0"].null_count() == 0
    report = (tmp_path / "out" / "report.html").read_text()
    assert "EF-HC, seed 0: no longer finite" in report
    assert '"network":{"seed":1,' in report  # the first seed that has all strategies
    seeds = {finding.seeds for one in judgements for finding in one.findings}
    assert {2, 3} <= seeds <= {0, 1, 2, 3}  # 0 and 1: at budgets that some seeds had passed when first evaluated


def test_if_all_runs_fail_the_figure_fails(own, tmp_path, failing_store):
    with pytest.raises(EfhcError, match="no longer finite"):
        draw(own, tmp_path / "out", store=failing_store())


def test_files_of_one_name_would_overwrite_each_other_and_are_refused(own, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / own.name).write_text(OWN)
    with pytest.raises(InputError, match="2 files named fig2a") as error:
        runs_of_figures([load_figure(str(own)), load_figure(str(tmp_path / "b" / own.name))])
    assert "\n" not in str(error.value)


def test_a_data_set_that_cannot_be_had_says_how_to_get_it(no_data, tmp_path):
    with pytest.raises(EfhcError, match=r"femnist.*LEAF"):
        draw("fig2b", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_paper_s_panels_of_fig_3b_on_fashion_mnist(fashion_files, tmp_path):
    judgements = draw("fig3b", tmp_path / "out", seeds=2)
    final = pl.read_csv(tmp_path / "out" / "figures" / "fig3b-ii.csv").group_by("strategy").last()
    accuracy = dict(final.select("strategy", "mean").iter_rows())
    assert accuracy["ZT"] > 0.7
    assert accuracy["ZT"] > accuracy["EF-HC"] > accuracy["RG"] > 0.3
    assert {judgement.claim for judgement in judgements} == {1, 2, 6}
