"""efhc table, efhc figure, and that every command that a report, a page or an error prints can be run as it stands."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from PIL import Image

import efhc

FILE = """
name = "mine"
devices = 4
iterations = 20
evaluate_every = 5
seeds = [3, 4]
network = "ring"
[strategies]
EF-HC = { kind = "ef-hc", r = 500.0 }
ZT = "zt"
"""
SWEEP = FILE + "[sweep]\nstep_size.initial = [0.05, 0.1]\n"
FRONTIER = (
    FILE + '[figure]\nkind = "frontier"\ntitle = "F"\nleaders = ["EF-HC"]\n[figure.settings.a]\ntitle = "one label"\n'
)
Command = Callable[..., Any]


@pytest.fixture
def made(tmp_path: Path, command: Command) -> Path:
    (tmp_path / "mine.toml").write_text(FILE)
    assert command("run", "mine.toml", "--out", "run", "--no-figure").returncode == 0
    return tmp_path


def test_a_table_is_printed_and_written_in_the_format_of_each_file(made: Path, command: Command):
    files = [word for name in ("t.tex", "t.csv", "t.md") for word in ("--out", name)]
    done = command("table", "run", "--measure", "accuracy,own_accuracy_min", "--budget", "0.5,1", *files)
    assert done.returncode == 0, done.stderr
    table = efhc.Result.load(made / "run").table(["accuracy", "own_accuracy_min"], [0.5, 1.0])
    assert pl.read_csv(made / "t.csv").equals(table.frame)
    assert (made / "t.tex").read_text() == table.latex()
    assert (made / "t.md").read_text() == table.markdown()
    shown = " ".join(done.stdout.split())
    for cell in table.columns[-1].cells.values():
        assert f"{cell.mean:.3f} ± {cell.half:.3f}" in shown
    assert all(note.replace("Bold:", "*:") in shown for note in table.notes)


def test_a_study_and_another_experiment_are_compared_in_one_table(made: Path, command: Command):
    (made / "sweep.toml").write_text(SWEEP)
    assert command("sweep", "sweep.toml", "--out", "sweep").returncode == 0
    assert command("table", "sweep", "run", "--out", "t.csv").returncode == 0
    assert pl.read_csv("t.csv")["setting"].n_unique() == 3


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["table", "run", "--measure", "speed"], "own_accuracy_p10"),
        (["table", "run", "--budget", "half"], "0.02,0.1"),
        (["table", "run", "--budget", "2"], "0.02 is 2 %"),
        (["table", "run", "--out", "t.pdf"], ".tex"),
        (["table", "run", "--budget", "0.1", "--of", "RG"], "RG"),
        (["figure", "run", "--width", "wide"], "column"),
        (["figure", "run", "--against", "seconds"], "transmission_time"),
        (["figure", "run", "--out", "f.doc"], ".pdf"),
    ],
)
def test_what_cannot_be_shown_is_one_line(made: Path, command: Command, words: list[str], part: str):
    done = command(*words)
    assert done.returncode == 2
    assert part in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_figure_is_as_wide_as_a_column(made: Path, command: Command):
    done = command("figure", "run", "--against", "transmission_time", "--out", "f.png")
    assert done.returncode == 0, done.stderr
    with Image.open("f.png") as image:
        assert image.size[0] == pytest.approx(3.3 * image.info["dpi"][0], abs=1)
    assert command("figure", "run", "--against", "budget", "--width", "page").returncode == 0
    assert (made / "run" / "figures" / "page-budget.pdf").exists()
    assert pl.read_csv(made / "run" / "figures" / "page-budget.csv")["strategy"].to_list() == ["EF-HC", "ZT"]


def runs_as_printed(line: str, command: Command, *more: str) -> str:
    """Run a command that was printed, and return what it says."""
    name, *words = shlex.split(line)
    assert name == "efhc"
    done = command(*words, *more)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return str(done.stdout)


def test_the_command_in_a_report_makes_the_same_report_again(tmp_path: Path, command: Command):
    (tmp_path / "own figures").mkdir()
    (tmp_path / "own figures" / "small.toml").write_text(FRONTIER)
    words = ["own figures/small.toml", "--seeds", 3, "--measure", "own_accuracy", "--out", "my report"]
    assert command("reproduce", *words).returncode == 0
    report = tmp_path / "my report" / "report.html"
    before = report.read_text()
    (line,) = (html.unescape(one) for one in re.findall(r"<code>(efhc .*?)</code>", before))
    runs = sorted(path.name for path in (tmp_path / "my report" / "runs").iterdir())
    runs_as_printed(line, command)
    assert sorted(path.name for path in (tmp_path / "my report" / "runs").iterdir()) == runs  # all were there
    assert pl.read_csv(tmp_path / "my report" / "figures" / "small.csv")["seeds"].to_list() == [3, 3]
    assert line in html.unescape(report.read_text())


def test_the_commands_of_the_page_of_a_study_make_each_run_in_a_folder_of_its_own(tmp_path: Path, command: Command):
    (tmp_path / "sweep.toml").write_text(SWEEP)
    assert command("sweep", "sweep.toml", "--out", "my sweep").returncode == 0
    assert command("report", "my sweep", "--out", "page.html").returncode == 0
    page = (tmp_path / "page.html").read_text()
    lines = set(re.findall(r'"repeat":\s*"(efhc run [^"]*)"', page))
    assert len({shlex.split(line)[-1] for line in lines}) == 8
    for line in sorted(lines)[:2]:
        runs_as_printed(line, command, "--no-figure")


def test_what_theory_says_of_a_study_can_be_run(tmp_path: Path, command: Command):
    (tmp_path / "sweep.toml").write_text(SWEEP)
    assert command("sweep", "sweep.toml", "--out", "my sweep").returncode == 0
    refused = command("theory", "my sweep")
    assert refused.returncode == 2
    (line,) = re.findall(r"`(efhc theory .*?)`", refused.stderr)
    assert "verdict" in runs_as_printed(line, command)


def test_what_run_and_reproduce_say_of_each_others_files_can_be_run(tmp_path: Path, command: Command):
    (tmp_path / "my file.toml").write_text(FRONTIER)
    refused = command("reproduce", "my file.toml", "seeds=3")
    (line,) = re.findall(r"`(efhc run .*?)`", refused.stderr)
    runs_as_printed(line, command, "--no-figure", "--out", "a")
    (tmp_path / "no figure.toml").write_text(FILE)
    refused = command("reproduce", "no figure.toml")
    (line,) = re.findall(r"(efhc run .*)$", refused.stderr.strip())
    runs_as_printed(line, command, "--no-figure", "--out", "b")


def test_theory_skips_the_strategies_that_it_is_not_about(tmp_path: Path, command: Command):
    (tmp_path / "mine.toml").write_text(FILE + 'entrywise = "entrywise"\n')
    assert command("run", "mine.toml", "--out", "run", "--no-figure").returncode == 0
    done = command("theory", "run", "--json")
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "skipped" in line)
    assert "entrywise" in line
    assert '"EF-HC"' in done.stdout
    assert '"entrywise"' not in done.stdout
    (tmp_path / "none.toml").write_text(
        FILE.split("[strategies]", maxsplit=1)[0] + '[strategies]\nentrywise = "entrywise"\n'
    )
    assert command("run", "none.toml", "--out", "none", "--no-figure").returncode == 0
    refused = command("theory", "none")
    assert refused.returncode == 2
    assert "entrywise" in refused.stderr
