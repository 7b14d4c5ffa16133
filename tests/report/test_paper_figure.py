"""Figures on paper: the paper's layout, one look per strategy, intervals where there are some, files without dates."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.colors import to_hex
from PIL import Image

from efhc.report.claims.panels import panels
from efhc.report.figure_data import FigureData
from efhc.report.figures import DOTS_PER_INCH, save_figure
from efhc.report.figures.paper import line_styles, paper_figure
from efhc.report.looks import STYLES

RADII = (0.3, 0.5, 0.8)


def curves(strategies: Sequence[str] = ("EF-HC", "GT", "ZT", "RG"), seeds: int = 3) -> pl.DataFrame:
    """Strategies that learn alike, the later ones for less."""
    iterations = np.arange(0, 50, 5)
    runs = [
        pl.DataFrame(
            {
                "strategy": name,
                "seed": seed,
                "iteration": iterations,
                "transmission_time_total": (1.0 + iterations) * (1 + seed) / (1 + n),
                "accuracy": 1 - 0.9 * np.exp(-iterations / (20 + 5 * n + seed)),
            }
        )
        for n, name in enumerate(strategies)
        for seed in range(seeds)
    ]
    return pl.concat(runs)


def at_radii() -> pl.DataFrame:
    return pl.concat(curves().with_columns(radius=pl.lit(radius)) for radius in RADII)


def titles(figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes]


def test_four_panels_in_two_rows_show_what_the_frames_hold():
    data = FigureData("fig2a", "2(a)", "FMNIST, SVM", curves(), at_radii())
    figure, frames = paper_figure(data), panels(data)
    assert figure.get_suptitle() == "Fig. 2(a): FMNIST, SVM"
    assert figure.axes[0].get_gridspec().get_geometry() == (2, 2)
    assert [title.split()[0] for title in titles(figure)] == ["(i)", "(ii)", "(iii)", "(iv)"]
    assert "10 %" in titles(figure)[3]
    for axes, (key, frame) in zip(figure.axes, frames.items(), strict=True):
        shown = frame.filter(pl.col("budget") == 0.1) if key == "iv" else frame
        assert [line.get_label() for line in axes.lines] == ["EF-HC", "GT", "ZT", "RG"]
        for line in axes.lines:
            assert line.get_ydata().tolist() == shown.filter(strategy=line.get_label())["mean"].to_list()
        assert len(axes.collections) == 4  # the intervals
    assert figure.axes[0].get_ylim()[0] == 0
    assert figure.axes[3].get_xticks().tolist() == list(RADII)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["EF-HC", "GT", "ZT", "RG"]


def test_without_connectivity_three_panels_stand_in_a_row():
    figure = paper_figure(FigureData("fig3b", "3(b)", "AS graph", curves()))
    assert figure.axes[0].get_gridspec().get_geometry() == (1, 3)
    assert len(titles(figure)) == 3


def test_one_seed_has_lines_and_no_bands():
    figure = paper_figure(FigureData("fig3b", "3(b)", "AS graph", curves(seeds=1)))
    assert [len(axes.lines) for axes in figure.axes] == [4, 4, 4]
    assert all(
        len(path.vertices) == 0 for axes in figure.axes for band in axes.collections for path in band.get_paths()
    )


def test_a_strategy_looks_the_same_whoever_it_is_drawn_with():
    for names in (["EF-HC", "GT", "ZT", "RG"], ["ZT", "RG"], ["mine", "RG"]):
        lines = line_styles(FigureData("f", "1", "", curves(names)))
        assert list(lines) == names
        assert (lines["RG"].color, lines["RG"].dash) == STYLES[3]
    alone = line_styles(FigureData("f", "1", "", curves(["mine"])))
    assert lines["mine"] == alone["mine"]


def test_in_an_ablation_the_shade_goes_with_the_value_and_zt_is_a_thin_grey_reference():
    names = ["r = 500", "r = 5", "r = 50", "ZT"]
    data = FigureData("fig5a", "5(a)", "r, IID", curves(names), None, {"r = 5": 5, "r = 50": 50, "r = 500": 500})
    lines = line_styles(data)
    assert list(lines) == ["r = 5", "r = 50", "r = 500", "ZT"]

    def lightness(color: str) -> int:
        return sum(bytes.fromhex(color[1:]))

    shades = [lightness(lines[name].color) for name in list(lines)[:3]]
    assert shades == sorted(shades)
    figure = paper_figure(data)
    zt = figure.axes[0].lines[3]
    assert to_hex(zt.get_color()) == lines["ZT"].color
    assert zt.get_linewidth() < figure.axes[0].lines[0].get_linewidth()
    assert len(figure.axes[0].collections) == 3
    assert len({*bytes.fromhex(lines["ZT"].color[1:])}) == 1  # grey


def test_names_are_shown_as_they_are(tmp_path):
    name = "_$a_{b}$ & <c>"
    figure = paper_figure(FigureData("f", "1", "costs $5 and $6", curves([name, "ZT"])))
    save_figure(figure, tmp_path / "f.png")
    assert figure.legends[0].get_texts()[0].get_text() == name
    assert not figure.legends[0].get_texts()[0].get_parse_math()


def test_the_same_figure_is_the_same_bytes(tmp_path):
    data = FigureData("fig3b", "3(b)", "AS graph", curves())
    endings = ("png", "pdf", "svg")
    for name in ("first", "second"):
        figure = paper_figure(data)
        for ending in endings:
            save_figure(figure, tmp_path / f"{name}.{ending}")
    for ending in endings:
        first, second = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("first", "second"))
        assert first == second
        assert b"Date" not in first


def test_a_pdf_has_text_and_a_png_enough_dots(tmp_path):
    figure = paper_figure(FigureData("fig3b", "3(b)", "AS graph", curves()))
    save_figure(figure, tmp_path / "f.pdf")
    fonts = re.findall(rb"/Subtype /(\w+)", (tmp_path / "f.pdf").read_bytes())
    assert b"CIDFontType2" in fonts or b"TrueType" in fonts
    assert b"Type3" not in fonts
    save_figure(figure, tmp_path / "f.PNG")
    with Image.open(tmp_path / "f.PNG") as image:
        assert image.size == tuple(int(DOTS_PER_INCH * inches) for inches in figure.get_size_inches())
    assert DOTS_PER_INCH >= 200
