from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from efhc.base.errors import InputError
from efhc.experiments.config.files import PRESETS, figure_names, load_experiment, to_tables
from efhc.experiments.studies.figures import (
    Figure,
    FigurePart,
    load_figure,
    other_figures,
    paper_figures,
    varied_values,
)
from efhc.experiments.studies.reproduce import runs_of_figures
from efhc.experiments.studies.sweep import load_sweep

PAPER = Path(__file__).parents[3] / "shared" / "paper" / "efhc.tex"
COMPARED = ["fig2a", "fig2b", "fig3a", "fig3b", "fig4a", "fig4b", "fig8"]


def at_radii(figure: Figure) -> tuple[FigurePart, ...]:
    """Panel (iv)."""
    return figure.parts[1:]


def varied(figure: Figure) -> list[float]:
    return list(varied_values(figure.table, figure.experiment).values())


def test_every_figure_of_experiments_has_a_file():
    expected = ["fig2a", "fig2b", "fig3a", "fig3b", "fig4a", "fig4b", "fig6a", "fig6b", "fig7a", "fig7b", "fig8"]
    assert paper_figures() == expected
    assert other_figures() == ["frontier", "slow-links"]
    assert sorted([*paper_figures(), *other_figures()]) == figure_names()


@pytest.mark.parametrize("name", figure_names())
def test_a_file_says_everything_and_is_an_experiment_of_its_own(name):
    tables = tomllib.loads((PRESETS / f"{name}.toml").read_text())
    whole = to_tables(load_experiment(name))
    for key, value in whole.items():
        if key in {
            "backend",
            "device",
            "driver",
            "log",
            "evaluate_at",
            "budgets",
        }:
            continue  # not of the paper: how it is computed, watched and evaluated
        for inner in value if isinstance(value, dict) and key != "strategies" else ():
            assert inner in tables[key] or inner == "attempts", f"{key}.{inner}"
        assert key in tables, key
    assert whole == to_tables(load_figure(name, "full").experiment)
    if "sweep" in tables:
        points = [(point.settings["network.radius"], point.experiment) for point in load_sweep(name)]
        assert points == [(part.radius, part.experiment) for part in at_radii(load_figure(name, "full"))]


@pytest.mark.parametrize("name", paper_figures())
def test_quick_is_smaller_and_otherwise_the_same(name):
    quick, full = (load_figure(name, size) for size in ("quick", "full"))
    assert quick.experiment.iterations < full.experiment.iterations
    assert quick.runs <= full.runs
    may_change = {"iterations", "evaluate_every", "test_samples", "seeds", "batch_size"}
    differing = {
        key for key, value in to_tables(full.experiment).items() if to_tables(quick.experiment).get(key) != value
    }
    assert differing <= may_change
    assert load_figure(name, "full", seeds=7).experiment.seeds == tuple(range(7))
    assert all(point.experiment.seeds == (0, 1) for point in at_radii(load_figure(name, "quick", seeds=2)))


def test_settings_are_those_of_the_paper():
    """Sec. IV-A and App. J."""
    of = {name: load_figure(name, "full") for name in paper_figures()}
    for name, figure in of.items():
        e = figure.experiment
        assert e.devices == (30 if name == "fig2b" else 10)
        assert [e.step_size(k) for k in (0, 3, 99)] == [0.1, 0.05, 0.01]
        assert e.threshold_decay is None
        assert e.bandwidths.nominal == 5000
        assert not e.exchange_at_start
        assert len(e.seeds) == 5
    assert {name: of[name].experiment.data.kind for name in COMPARED} == {
        **dict.fromkeys(COMPARED, "fashion-mnist"),
        "fig2b": "femnist",
        "fig8": "cifar-10",
    }
    labels = {name: getattr(of[name].experiment.partition, "labels_per_device", "IID") for name in of}
    assert labels == {
        **dict.fromkeys(of, 1),
        "fig2b": 3,
        "fig4a": 2,
        "fig4b": 2,
        "fig6a": "IID",
        "fig7a": "IID",
        "fig8": "IID",
    }
    for name in COMPARED:
        strategies = of[name].experiment.strategies
        assert list(strategies) == ["EF-HC", "GT", "ZT", "RG"]
        assert strategies["EF-HC"].r == strategies["GT"].r == (5000 * 1e-1 if name == "fig2b" else 5000 * 5e-2)
        assert strategies["RG"].probability is None
    for name in ("fig3a", "fig3b", "fig4b"):
        assert (of[name].experiment.bandwidths.a, of[name].experiment.bandwidths.b) == (0.5, 0.5)
    assert of["fig8"].experiment.bandwidths.a == of["fig8"].experiment.bandwidths.b == 0.1
    for name in ("fig2a", "fig2b", "fig4a"):
        assert of[name].experiment.bandwidths.spread == 0.9
    for name in ("fig2a", "fig2b", "fig3a", "fig4a", "fig4b"):
        assert of[name].experiment.network.radius == 0.4
        assert len({point.experiment.network.radius for point in at_radii(of[name])}) == 5
    assert of["fig3b"].experiment.network.kind == "internet-as"
    assert not at_radii(of["fig3b"])
    for point in [*at_radii(of["fig4a"]), *at_radii(of["fig4b"])]:  # "we change the simulation setup"
        assert point.experiment.partition.labels_per_device == 1
        assert {point.experiment.strategies[name].r for name in ("EF-HC", "GT")} == {5.0}
    assert sorted(varied(of["fig6b"])) == [25, 80, 250, 800, 2500]
    assert sorted(varied(of["fig7a"])) == [0.025, 0.05, 0.1, 0.2, 0.4]


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's source is not beside the project")
def test_numbers_are_those_that_latex_gives():
    expected: dict[str, str] = {}
    number, waiting, in_sub = 0, [], False
    for line in PAPER.read_text().splitlines():
        in_sub = (in_sub or r"\begin{subfigure}" in line) and r"\end{subfigure}" not in line
        if r"\begin{figure" in line:
            waiting = []
        if in_sub and (label := re.search(r"\\label\{(fig:[^}]*)\}", line)):
            waiting.append(label[1])
        elif not in_sub and r"\caption{" in line and number_counts(line):
            number += 1
            expected |= {label: f"{number}({letter})" for label, letter in zip(waiting, "abcd", strict=False)}
            waiting = []
        elif not in_sub and (label := re.search(r"\\label\{(fig:[^}]*)\}", line)):
            expected.setdefault(label[1], str(number))
    ours = {figure.table.label: figure.table.number for figure in map(load_figure, paper_figures())}
    assert ours == {label: expected[label] for label in ours}


def number_counts(line: str) -> bool:
    """Captions of the table and of the algorithm are not figures'."""
    return "Comparison of our work" not in line and "procedure for device" not in line


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("iterations = 5", ["figure: ", "has no table [figure]"]),
        ('[figure]\nnumber = "1"\ntitle = "x"\nnumbr = 2', ["figure.numbr", "did you mean 'number'"]),
        ('[figure]\nnumber = "1"\ntitle = "x"\n[strategies]\nRG = "rg"', ["strategies", "ZT, too"]),
        ('[figure]\nnumber = "1"\ntitle = "x"\n[sweep]\ndevices = [3]', ["sweep", "network.radius"]),
        ('[figure]\nnumber = "1"\ntitle = "x"\nquick.iterations = 0', ["iterations", "0"]),
        ('[figure]\nnumber = "1"\ntitle = "x"\nvaries = "kind"', ["figure.varies", "'kind'", "a number"]),
        ('[figure]\nnumber = "1"\ntitle = "x"\nvaries = "rr"', ["figure.varies", "'rr'", "a number"]),
        ('[figure]\nnumber = "1"\ntitle = "x"\nvaries = "model_copy"', ["figure.varies", "a number"]),
        ('sweep = []\n[figure]\nnumber = "1"\ntitle = "x"', ["sweep", "an empty list"]),
    ],
    ids=["no table", "typo", "no ZT", "no radius", "bad quick", "a text", "nothing", "a method", "no sweep"],
)
def test_a_figure_of_ones_own_that_is_wrong_is_one_line(tmp_path, content, parts):
    (tmp_path / "mine.toml").write_text(content)
    with pytest.raises(InputError) as error:
        load_figure(str(tmp_path / "mine.toml"))
    for part in parts:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_runs_that_panels_share_are_counted_once(tmp_path):
    (tmp_path / "mine.toml").write_text(
        'seeds = [0, 1, 2]\n[strategies]\nA = "zt"\nB = "rg"\nZT = "zt"\n'
        '[sweep]\nnetwork.radius = [0.4, 0.6]\n[figure]\nnumber = "1"\ntitle = "x"\n'
    )
    figure = load_figure(str(tmp_path / "mine.toml"))
    # Radius 0.4 is the default, which panels (i)-(iii) have too; A and ZT are the same.
    assert figure.runs == 3 * 2 * 2
    assert figure.runs == len(runs_of_figures([figure])[0].all)
    assert load_figure("fig2a", "full").runs == 100


def test_an_unknown_figure_is_answered_with_the_list():
    with pytest.raises(
        InputError, match=r"'fig2c' \(did you mean 'fig2[ab]'.*fig3b.*fig8, frontier, slow-links, all, list"
    ) as error:
        load_figure("fig2c")
    assert "\n" not in str(error.value)


def test_radii_can_be_chosen_for_panel_iv():
    figure = load_figure("fig4a", "full", seeds=1, radii=[0.4])
    assert [part.radius for part in at_radii(figure)] == [0.4]
    assert figure.runs == 8
    for name in ("fig3b", "frontier"):
        with pytest.raises(InputError, match=r"^--radius: cannot use a radius with .*, which has no panel \(iv\)"):
            load_figure(name, radii=[0.4])
