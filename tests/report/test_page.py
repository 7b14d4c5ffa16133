"""The report in a real browser, from a file, with the network watched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import efhc
from efhc.report.claims.verdicts import Finding, Judgement, Verdict
from efhc.report.figure_data import FigureData, Illustration, Section
from efhc.report.page.report import report
from tabs import Tab

HOSTILE = '<b>&"x"</script>'
NAMES = ("EF-HC", "GT", "ZT", "RG", HOSTILE)
# Of each canvas: the width at which it was drawn, the width of its place, and whether anything is on it.
CANVASES = """[...document.querySelectorAll('canvas')].map((one) => [one.width, one.clientWidth,
    one.getContext('2d').getImageData(0, 0, one.width, one.height).data.some((value) => value > 0)])"""
NASTY = "</script><script>document.title='owned'</script><img src=https://example.org/x.png>"


def illustrated(result: efhc.Result, seed: int, names: dict[str, str]) -> Illustration:
    network, devices, events = (table.filter(seed=seed) for table in (result.network, result.devices, result.events))
    by_strategy = renamed(events, names).partition_by("strategy", as_dict=True, maintain_order=True)
    return Illustration(seed, network, devices, {str(name): rows for (name,), rows in by_strategy.items()})


def renamed(table: pl.DataFrame, names: dict[str, str]) -> pl.DataFrame:
    return table.with_columns(pl.col("strategy").replace(names))


@pytest.fixture(scope="module")
def sections() -> list[Section]:
    """With connectivity; with names that are hostile; an ablation with one seed."""
    result = efhc.simulate(iterations=30, seeds=range(2), evaluate_every=5)
    curves = result.metrics.drop_nulls("accuracy")
    sparse = efhc.simulate(iterations=30, seeds=range(2), evaluate_every=5, network=efhc.Geometric(radius=0.3))
    connectivity = [
        table.with_columns(radius=pl.lit(radius))
        for table, radius in ((sparse.metrics.drop_nulls("accuracy"), 0.3), (curves, 0.4))
    ]
    values = {"EF-HC": 5.0, "GT": 50.0, "RG": 500.0}
    data = [
        FigureData("fig2a", "2(a)", "digits, SVM", curves, pl.concat(connectivity)),
        FigureData("fig3b", "3(b)", f"AS {NASTY}", renamed(curves, {"RG": HOSTILE})),
        FigureData("fig5a", "5(a)", "r", curves.filter(seed=0), None, values),
    ]
    facts = {"devices": "10", "command": "efhc reproduce fig2a && echo '<done>'"}
    where = {"versions": {"python": "3.11", "efhc": NASTY}, "git": None, "machine": {"cores": 2}}
    return [
        Section(one, {"": f'name = "{NASTY}"\n'}, facts, where, illustration=illustrated(result, 0, names))
        for one, names in zip(data, ({}, {"RG": HOSTILE}, {}), strict=True)
    ]


@pytest.fixture(scope="module")
def judgements() -> list[Judgement]:
    nan = float("nan")
    lead = f"accuracy of EF-HC minus {HOSTILE}"
    alone = "accuracy of EF-HC minus RG"
    up = Finding("share of ZT's time that EF-HC saves", None, 0.05, 0.03, 0.07, 5, Verdict.HOLDS)
    down = Finding(lead, 0.02, -0.05, -0.08, -0.02, 5, Verdict.FAILS)
    unsure = Finding(lead, 0.1, 0.01, -0.02, 0.04, 5, Verdict.UNDECIDED)
    one_seed = Finding(alone, 0.1, 0.2, nan, nan, 1, Verdict.UNDECIDED)
    no_seed = Finding(alone, 0.2, nan, nan, nan, 0, Verdict.UNDECIDED)

    def judged(claim: int, statement: str, figures: tuple[str, ...], *findings: Finding) -> Judgement:
        return Judgement(claim, statement, figures, findings)

    return [
        judged(1, "less transmission time", ("2(a)",), up),
        judged(1, "less transmission time", ("3(b)",), down),
        judged(3, "highest accuracy per transmission time", ("2(a)",), down, unsure),
        judged(5, "larger under beta", ("9(z)", "2(a)"), one_seed, no_seed),
    ]


@pytest.fixture(scope="module")
def html(sections: list[Section], judgements: list[Judgement]) -> str:
    return report(sections, judgements, f"Report & {NASTY}", {"started": "today", "command": HOSTILE})


class Reader(Tab):
    """A tab that looks at a report."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        super().__init__(browser, file.as_uri(), width=1280, **options)
        self.wait(f"{CANVASES}.every(([drawn, place, isPainted]) => isPainted)")

    def words(self, chart: str) -> str:
        """What a screen reader says of a chart: the values at its last place."""
        found: str = self.page.locator(f"#{chart} canvas").get_attribute("aria-valuetext")
        return found

    def strategies(self, *charts: str) -> list[set[str]]:
        """The strategies that each chart shows."""
        return [{name for name in NAMES if f", {name} " in self.words(chart)} for chart in charts]


@pytest.fixture(scope="module")
def file(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html, "utf-8")
    return path


@pytest.fixture(scope="module")
def reader(browser: Any, file: Path) -> Iterator[Reader]:
    """One tab for all tests: each leaves the page as it was."""
    opened = Reader(browser, file)
    yield opened
    opened.assert_quiet()
    opened.close()


def test_the_same_input_gives_the_same_page(html: str, sections: list[Section], judgements: list[Judgement]):
    again = report(sections, judgements, f"Report & {NASTY}", {"started": "today", "command": HOSTILE})
    assert again == html


def test_it_is_small_and_nothing_of_the_data_becomes_markup(html: str):
    assert len(re.findall("<script", html)) == len(re.findall("</script>", html)) == 3 + 1
    assert "<img" not in html
    assert len(html) < 250_000


def test_it_is_drawn_without_complaint_and_without_the_network(reader: Reader, file: Path):
    assert reader.complaints == []
    assert reader.requests == [file.as_uri()]
    assert reader.page.title() == f"Report & {NASTY}"
    assert reader.page.locator("canvas.chart").count() == 4 + 3 + 3
    assert reader.page.locator("canvas").count() == 10 + 3 * (1 + 4)


def test_it_fits_every_screen_and_axe_finds_nothing_serious(browser: Any, file: Path, axe: str):
    reader = Reader(browser, file)
    reader.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    reader.assert_accessible(axe)
    reader.close()


def test_a_click_in_the_legend_hides_a_strategy_in_all_panels_of_its_figure(reader: Reader):
    charts = [f"fig2a-{number}" for number in ("i", "ii", "iii", "iv")]
    everyone = reader.strategies(*charts)
    assert everyone[1] == {"EF-HC", "GT", "ZT", "RG"}
    gt = reader.page.locator("#fig2a .legend button", has_text="GT")
    gt.click()
    assert reader.strategies(*charts) == [shown - {"GT"} for shown in everyone]
    assert gt.get_attribute("aria-pressed") == "false"
    assert reader.strategies("fig3b-i") == [{"EF-HC", "GT", "ZT", HOSTILE}]
    gt.click()
    assert reader.strategies(*charts) == everyone
    gt.dblclick()
    assert reader.strategies(*charts) == [{"GT"}] * 4
    gt.dblclick()
    assert reader.strategies(*charts) == everyone


def test_the_budget_can_be_chosen_and_hidden_strategies_stay_hidden(reader: Reader):
    budget, rg = reader.page.locator("#fig2a .budget"), reader.page.locator("#fig2a .legend button", has_text="RG")
    at_ten = reader.words("fig2a-iv")
    rg.click()
    budget.select_option("50 %")
    assert reader.words("fig2a-iv") != at_ten
    assert "RG" not in reader.strategies("fig2a-iv")[0]
    rg.click()
    budget.select_option("10 %")
    assert reader.words("fig2a-iv") == at_ten
    assert reader.page.locator("#fig3b .budget").count() == 0


def test_a_range_is_chosen_by_dragging_or_by_buttons_and_given_up_again(reader: Reader):
    figure = reader.page.locator("#fig2a-ii")
    figure.scroll_into_view_if_needed()
    last, place = reader.words("fig2a-ii"), figure.locator("canvas").bounding_box()
    zoom_out = figure.get_by_role("button", name="Zoom out")
    assert not zoom_out.is_visible()
    middle = place["y"] + place["height"] / 2
    reader.page.mouse.move(place["x"] + 0.3 * place["width"], middle)
    reader.page.mouse.down()
    reader.page.mouse.move(place["x"] + 0.6 * place["width"], middle)
    reader.page.mouse.up()
    figure.locator("canvas").press("End")
    assert reader.words("fig2a-ii") not in ("", last)
    figure.locator("canvas").dblclick()
    figure.locator("canvas").press("End")
    assert reader.words("fig2a-ii") == last
    figure.get_by_role("button", name="Zoom in").click()
    zoom_out.click()
    assert not zoom_out.is_visible()
    reader.page.locator("#fig2a .log").click()
    figure.locator("canvas").press("+")
    assert zoom_out.is_visible()
    figure.locator("canvas").press("Escape")
    reader.page.locator("#fig2a .log").click()


def test_a_chart_can_be_saved_as_a_picture(reader: Reader):
    with reader.page.expect_download() as download:
        reader.page.locator("#fig2a-iii").get_by_role("button", name="Save as PNG").click()
    assert download.value.suggested_filename == "_iii_accuracy_per_transmission_time.png"
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_claims_open_to_their_findings(reader: Reader):
    claims = reader.page.locator("#claims details")
    assert claims.count() == 4
    assert not claims.first.locator("table").is_visible()
    for n in range(4):
        claims.nth(n).locator("summary").click(position={"x": 8, "y": 8})
    rows = [claims.nth(n).locator("tbody tr").all_inner_texts() for n in range(4)]
    assert rows[0][0].split("\t")[:4] == ["share of ZT's time that EF-HC saves", "", "+0.05", "+0.03 to +0.07"]
    assert rows[2][0].startswith(f"accuracy of EF-HC minus {HOSTILE}\t2 %\t−0.05\t−0.08 to −0.02")  # noqa: RUF001
    assert [row.split("\t")[2:4] for row in rows[3]] == [["+0.2", "none"], ["none", "none"]]
    assert [claims.nth(n).locator("summary .badge").count() for n in range(4)] == [1, 1, 2, 1]
    assert reader.page.locator(".lead .badge").all_inner_texts() == [
        "✓ 1 hold",
        "✗ 1 do not hold",
        "± 1 depend on the budget",
        "? 1 undecided",
    ]
    assert claims.nth(3).locator("summary").inner_text().startswith("Fig. 9(z) against 2(a)")
    assert claims.nth(3).locator("a").all_inner_texts() == ["Curves of Fig. 2(a)"]


def test_links_lead_to_figures_and_claims(reader: Reader):
    targets = reader.page.evaluate("[...document.querySelectorAll('a')].map((link) => link.getAttribute('href'))")
    assert {"#claims", "#fig2a", "#fig3b", "#fig5a", "#claim-1", "#claim-3", "#claim-5"} == set(targets)
    for target in set(targets):
        assert reader.page.locator(target).count() == 1
    assert reader.page.locator("#fig2a .facts a").all_inner_texts() == ["1", "3", "5"]


def test_what_the_data_say_is_shown_literally(reader: Reader):
    tab = reader.page
    assert tab.locator("#fig3b .legend button").all_inner_texts() == ["EF-HC", "GT", "ZT", HOSTILE]
    assert tab.locator("#fig3b h2").inner_text() == f"Fig. 3(b): AS {NASTY}"
    assert tab.locator("#fig3b figcaption b").all_inner_texts()[-1] == HOSTILE
    config = tab.locator("#fig2a details").first
    config.locator("summary").click()
    assert NASTY in config.locator("pre").inner_text()
    assert tab.locator("#fig2a .facts code").inner_text() == "efhc reproduce fig2a && echo '<done>'"
    chart = tab.locator("#fig3b-ii")
    chart.scroll_into_view_if_needed()
    place = chart.locator("canvas").bounding_box()
    tab.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    readout = chart.locator(".readout").inner_text()
    assert readout.startswith("iteration ")
    assert HOSTILE in readout


def test_on_paper_it_is_light_and_everything_is_as_wide_as_its_place(browser: Any, file: Path):
    reader = Reader(browser, file, scheme="dark")
    before = reader.page.evaluate(CANVASES)
    printed = f"window.printed = [document.documentElement.dataset.theme, {CANVASES}]"
    reader.page.evaluate(f"window.addEventListener('beforeprint', () => {{ {printed}; }})")
    assert reader.page.pdf().startswith(b"%PDF")
    theme, drawn = reader.page.evaluate("window.printed")
    assert theme == "light"
    assert all(width == place <= 700 and is_painted for width, place, is_painted in drawn)
    assert drawn != before
    reader.wait(f"JSON.stringify({CANVASES}) === '{json.dumps(before, separators=(',', ':'))}'")
    reader.assert_quiet()
    reader.close()


def test_without_figures_or_claims_it_still_says_so(browser: Any, sections: list[Section], tmp_path: Path):
    (tmp_path / "report.html").write_text(report([], [], "Empty", {}), "utf-8")
    reader = Reader(browser, tmp_path / "report.html")
    assert "No claims were judged" in reader.page.locator("#claims").inner_text()
    assert reader.page.locator(".lead").inner_text() == "0 figures."
    reader.assert_quiet()
    reader.close()
    assert '<p class="lead">1 figure, 1 seed each.</p>' in report(sections[2:], [], "One", {})
