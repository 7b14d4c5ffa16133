"""The report in a real browser, from a file, with the network watched."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import efhc
from efhc.base.inputs import sha256
from efhc.report.claims.judging import Finding, Judgement, Measure, Quantity, Setting, Statement, Verdict
from efhc.report.figure_data import FigureData, Illustration, Section
from efhc.report.page.document import page

HOSTILE = '<b>&"x"</script>'
WIDTHS = """[...document.querySelectorAll('.plot')].map((one) =>
    [one.querySelector('.main-svg').clientWidth, one.clientWidth])"""
DRAWN = """[...document.querySelectorAll('.canvas canvas')].map((one) =>
    one.getContext('2d').getImageData(0, 0, one.width, one.height).data.some((value) => value > 0))"""
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
        Section(one, illustrated(result, 0, names), f'name = "{NASTY}"\n', facts, where)
        for one, names in zip(data, ({}, {"RG": HOSTILE}, {}), strict=True)
    ]


@pytest.fixture(scope="module")
def judgements() -> list[Judgement]:
    nan = float("nan")
    lead = Quantity(Measure.ACCURACY_LEAD, ("EF-HC", HOSTILE))
    alone = Quantity(Measure.ACCURACY_LEAD, ("EF-HC", "RG"))
    up = Finding(Quantity(Measure.TIME_SAVED, ("EF-HC", "ZT")), None, 0.05, 0.03, 0.07, 5, Verdict.HOLDS)
    down = Finding(lead, 0.02, -0.05, -0.08, -0.02, 5, Verdict.FAILS)
    unsure = Finding(lead, 0.1, 0.01, -0.02, 0.04, 5, Verdict.UNDECIDED)
    one_seed = Finding(alone, 0.1, 0.2, nan, nan, 1, Verdict.UNDECIDED)
    no_seed = Finding(alone, 0.2, nan, nan, nan, 0, Verdict.UNDECIDED)

    def judged(claim: int, statement: Statement, figures: tuple[str, ...], *findings: Finding) -> Judgement:
        return Judgement(claim, statement, Setting.ANY, figures, findings)

    return [
        judged(1, Statement.LESS_TIME, ("2(a)",), up),
        judged(1, Statement.LESS_TIME, ("3(b)",), down),
        judged(3, Statement.BEST_PER_TIME, ("2(a)",), down, unsure),
        judged(5, Statement.LARGER_MARGIN_WITH_BETA, ("9(z)", "2(a)"), one_seed, no_seed),
    ]


@pytest.fixture(scope="module")
def html(sections: list[Section], judgements: list[Judgement]) -> str:
    return page(sections, judgements, f"Report & {NASTY}", {"started": "today", "command": HOSTILE})


class Reader:
    """A tab that looks at the page, and everything it complained about or asked for."""

    def __init__(self, browser: Any, file: Path, width: int = 1280) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 900})
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.wait("[...document.querySelectorAll('.plot')].every((one) => one.querySelector('.main-svg'))")

    def _hear(self, message: Any) -> None:
        if "willReadFrequently" not in message.text:  # the tests themselves read what is drawn
            self.complaints.append(message.text)

    def wait(self, condition: str) -> None:
        """Playwright's own way needs `eval`, which the page forbids."""
        for _ in range(300):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        pytest.fail(f"never came true: {condition}")

    def shown(self, plot: str) -> list[list[Any]]:
        """Strategy and budget of every visible trace."""
        traces = f"document.getElementById('{plot}').data.filter((trace) => trace.visible !== false)"
        found: list[list[Any]] = self.page.evaluate(
            f"{traces}.map((one) => [one.meta.strategy, one.meta.budget ?? null])"
        )
        return found

    def strategies(self, *plots: str) -> list[set[str]]:
        return [{strategy for strategy, _ in self.shown(plot)} for plot in plots]


@pytest.fixture(scope="module")
def file(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html, "utf-8")
    return path


@pytest.fixture
def reader(browser: Any, file: Path) -> Reader:
    return Reader(browser, file)


def test_the_script_that_is_shipped_is_the_one_that_its_note_describes():
    folder = files("efhc.report.page").joinpath("plotly")
    script, note = (folder.joinpath(name).read_bytes() for name in ("plotly-cartesian.min.js", "README.md"))
    version = re.search(rb"plotly.js \(cartesian - minified\) v([\d.]+)", script)
    assert version is not None
    assert b"version " + version[1] in note
    assert sha256(script).encode() in note
    assert "MIT License" in folder.joinpath("LICENSE").read_text()


def test_the_same_input_gives_the_same_page(html: str, sections: list[Section], judgements: list[Judgement]):
    again = page(sections, judgements, f"Report & {NASTY}", {"started": "today", "command": HOSTILE})
    assert again == html


def test_nothing_of_the_data_becomes_markup(html: str):
    assert len(re.findall("<script", html)) == len(re.findall("</script>", html)) == 10 + 15 + 3
    assert "<img" not in html.replace(html[html.index("/**") : html.rindex("<script>")], "")


def test_it_is_drawn_without_complaint_and_without_the_network(reader: Reader, file: Path):
    assert reader.complaints == []
    assert reader.requests == [file.as_uri()]
    assert reader.page.title() == f"Report & {NASTY}"
    plots = reader.page.locator(".plot.js-plotly-plot")
    assert plots.count() == 4 + 3 + 3
    drawn = reader.page.evaluate(DRAWN)
    assert len(drawn) == 3 * (1 + 4)
    assert all(drawn)
    assert all(plots.nth(n).locator(".main-svg").count() for n in range(plots.count()))
    assert reader.page.locator(".modebar-btn[data-title*=hare]").count() == 0  # plotly would send data away


def test_a_click_in_the_legend_hides_a_strategy_in_all_panels_of_its_figure(reader: Reader):
    panels = [f"fig2a-{number}" for number in ("i", "ii", "iii", "iv")]
    everyone = {"EF-HC", "GT", "ZT", "RG"}
    gt = reader.page.locator("#fig2a .legend button", has_text="GT")
    gt.click()
    assert reader.strategies(*panels) == [everyone - {"GT"}] * 4
    assert gt.get_attribute("aria-pressed") == "false"
    assert reader.strategies("fig3b-i") == [{"EF-HC", "GT", "ZT", HOSTILE}]
    gt.click()
    assert reader.strategies(*panels) == [everyone] * 4
    gt.dblclick()
    assert reader.strategies(*panels) == [{"GT"}] * 4
    gt.dblclick()
    assert reader.strategies(*panels) == [everyone] * 4


def test_the_budget_can_be_chosen_and_hidden_strategies_stay_hidden(reader: Reader):
    budget, rg = reader.page.locator("#fig2a .budget"), reader.page.locator("#fig2a .legend button", has_text="RG")
    assert {share for _, share in reader.shown("fig2a-iv")} == {0.1}
    rg.click()
    budget.select_option("50 %")
    assert {share for _, share in reader.shown("fig2a-iv")} == {0.5}
    assert "RG" not in reader.strategies("fig2a-iv")[0]
    rg.click()
    budget.select_option("10 %")
    assert reader.shown("fig2a-iv").count(["RG", 0.1]) == 2
    assert reader.page.locator("#fig3b .budget").count() == 0


def test_accuracy_per_time_can_be_stretched_at_its_start(reader: Reader):
    box = reader.page.locator("#fig2a .log")
    for kind in ("log", "linear"):
        box.click()
        axis = reader.page.evaluate("document.getElementById('fig2a-iii').layout.xaxis")
        assert axis["type"] == kind
        assert (axis["range"] == json.loads(box.get_attribute("data-range"))) == (kind == "log")
    assert reader.complaints == []


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
    assert claims.nth(3).locator("summary a").all_inner_texts() == ["2(a)"]


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
    plot = tab.locator("#fig3b-ii")
    plot.scroll_into_view_if_needed()
    place = plot.bounding_box()
    tab.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    reader.wait("document.querySelectorAll('#fig3b-ii .hoverlayer .legendtext').length >= 4")
    assert any(HOSTILE in text for text in plot.locator(".hoverlayer .legendtext").all_text_contents())
    assert reader.complaints == []


def test_one_seed_has_no_bands(reader: Reader):
    assert len(reader.shown("fig5a-i")) == 4
    assert len(reader.shown("fig2a-i")) == 8


def test_nothing_is_wider_than_the_window(browser: Any, file: Path):
    reader = Reader(browser, file)
    reader.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for width in (1280, 800, 400):
        reader.page.set_viewport_size({"width": width, "height": 900})
        reader.wait(f"{WIDTHS}.every(([drawn, place]) => drawn === place)")
        assert reader.page.evaluate("document.documentElement.scrollWidth") == width
    assert reader.complaints == []
    reader.page.close()


def test_on_paper_all_plots_are_as_wide_as_their_place(reader: Reader):
    before = reader.page.evaluate(WIDTHS)
    reader.page.evaluate(f"window.addEventListener('beforeprint', () => {{ window.printed = {WIDTHS}; }})")
    assert reader.page.pdf().startswith(b"%PDF")
    printed = reader.page.evaluate("window.printed")
    assert all(drawn == place <= 700 for drawn, place in printed)
    assert printed != before
    reader.wait(f"JSON.stringify({WIDTHS}) === '{str(before).replace(' ', '')}'")
    assert reader.complaints == []


def test_without_figures_or_claims_it_still_says_so(browser: Any, sections: list[Section], tmp_path: Path):
    (tmp_path / "report.html").write_text(page([], [], "Empty", {}), "utf-8")
    reader = Reader(browser, tmp_path / "report.html")
    assert "No claims were judged" in reader.page.locator("#claims").inner_text()
    assert reader.page.locator(".lead").inner_text() == "0 figures."
    assert reader.complaints == []
    reader.page.close()
    assert '<p class="lead">1 figure, 1 seed each.</p>' in page(sections[2:], [], "One", {})
