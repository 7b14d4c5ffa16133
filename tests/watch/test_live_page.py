"""The live page in a real browser: real runs, in real folders, served by the real server."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest
from streams import stream

import efhc
from efhc.learning.measures import evaluated
from efhc.report.looks import strategy_styles
from efhc.report.page.document import files, live_html
from efhc.watch import readers
from efhc.watch.server import Server
from efhc.watch.watcher import Watcher
from tabs import Tab

EXPERIMENT = """
name = "watched"
devices = 8
iterations = {iterations}
evaluate_every = 20
seeds = [0]
strategies = {{ "EF-HC" = {{ kind = "ef-hc" }} }}
"""


@pytest.fixture(scope="module")
def server(made: Path) -> Iterator[Server]:
    with Server(Watcher(made)) as started:
        yield started


@pytest.fixture(scope="module")
def shared(browser: Any, server: Server) -> Iterator[Tab]:
    opened = Tab(browser, server.address)
    opened.wait_for_text("main", "How this run is made")
    yield opened
    opened.assert_quiet()
    opened.close()


@pytest.fixture
def tab(shared: Tab) -> Tab:
    """One tab for all tests that only look, with one run chosen."""
    choose(shared, "EF-HC", 0)
    return shared


def start_run(folder: Path, *more: str, iterations: int) -> subprocess.Popen[bytes]:
    config = folder.parent / "watched.toml"
    config.write_text(EXPERIMENT.format(iterations=iterations))
    words = [sys.executable, "-m", "efhc", "run", str(config), "--out", str(folder), "--no-figure", *more]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)


def run_until(process: subprocess.Popen[bytes], tab: Tab, condition: str) -> None:
    """Let a process run for short times only, and stop it once a page shows something: it never runs far ahead."""
    for _ in range(400):
        process.send_signal(signal.SIGCONT)
        tab.page.wait_for_timeout(100)
        process.send_signal(signal.SIGSTOP)
        tab.page.wait_for_timeout(200)
        if tab.page.evaluate(condition):
            return
    pytest.fail(f"never came true: {condition}; the page shows {tab.text('main')[:600]!r}")


def run_of(tab: Tab, name: str) -> Any:
    """The button of a run in the list, of the experiment in lockstep."""
    group = tab.page.locator(".group", has=tab.page.locator(".group-name", has_text="steps"))
    return group.locator(".run", has_text=name)


def choose(tab: Tab, strategy: str, seed: int) -> None:
    run_of(tab, f"{strategy} seed {seed}").click()
    tab.wait_for_text("h1:not(.nothing *)", f"{strategy}, seed {seed}")
    tab.wait("!document.querySelector('.about').hidden")


# One file, one script.


def test_a_script_is_one_file_and_the_page_names_nothing_else():
    assert set(files()) == {"page.js", "page.css"}
    html = live_html("a'\"<b")
    assert 'nonce="a&#x27;&quot;&lt;b"' in html
    script = files()["page.js"][1].decode()
    assert "import " not in script.replace("// ", "").split("const dom_module")[0]
    assert not any(
        word in script for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(")
    )
    assert "http://" not in script.replace("http://www.w3.org/2000/svg", "")


def test_strategies_look_as_in_figures(made: Path):
    for group in Watcher.of(made, may_be_empty=False).tree["groups"]:
        looks = {look["name"]: (look["color"], look["dash"]) for look in group["strategies"]}
        assert looks == strategy_styles(run["strategy"] for run in group["runs"])


# A complete run.


def test_a_complete_run_is_drawn_with_the_numbers_of_its_tables(tab: Tab, made: Path):
    result = efhc.Result.load(made / "steps")
    choose(tab, "ZT", 1)
    last = result.metrics.filter(strategy="ZT", seed=1, iteration=59)
    assert f"{last['accuracy'].item():.3f}" in tab.text(".numbers")
    tab.wait_for_text(".numbers", "transmission time")  # it comes with the curves
    for canvas in ("canvas.network", "canvas.raster", "canvas.chart"):
        tab.wait(f"document.querySelector({canvas!r}).width > 300")
        assert tab.is_painted(canvas)
    fired = result.events.filter(strategy="ZT", seed=1, iteration=59)["fired"].item()
    assert f"{len(fired)} of 5 devices fired" in tab.text(".stage figcaption")
    assert "#run=" in tab.page.url
    tab.assert_quiet()


def test_one_switch_changes_the_axis_of_both_charts(tab: Tab):
    charts = "[...document.querySelectorAll('.curves canvas')].map((one) => one.getAttribute('aria-label'))"
    tab.page.locator("label", has_text=re.compile("^Bits$")).click()
    tab.wait(f"{charts}.join() === 'Accuracy against bits on air,Consensus error against bits on air'")
    tab.page.locator("label", has_text=re.compile("^Iterations$")).click()
    tab.wait(f"{charts}.every((label) => label.endsWith('against iteration'))")
    ef_hc = tab.page.locator(".legend button", has_text="EF-HC")
    ef_hc.click()
    assert ef_hc.get_attribute("aria-pressed") == "false"
    text = tab.page.locator(".curves canvas").first.get_attribute("aria-valuetext")
    assert "ZT, mean of 2" in text
    assert "EF-HC" not in text
    ef_hc.click()


def test_one_choice_changes_the_measure_of_everything(tab: Tab, made: Path):
    last = evaluated(efhc.Result.load(made / "steps").metrics.filter(strategy="ZT", seed=1)).row(-1, named=True)
    choose(tab, "ZT", 1)
    select = tab.page.get_by_label("Measure of the page")
    chart, run = tab.page.locator(".curves canvas").first, run_of(tab, "ZT seed 1")
    before = chart.evaluate("(canvas) => canvas.toDataURL()")
    for name, label in (("own_accuracy_min", "accuracy on own data, smallest of all devices"), ("loss", "loss")):
        select.select_option(name)
        tab.wait_for_text(".numbers", label)
        words = f"{last[name]:.3f}" if "accuracy" in name else f"{last[name]:.4g}"
        assert words in tab.text(".numbers")
        assert run.locator(".value").inner_text() == words
        assert run.get_attribute("title") == label
        assert chart.get_attribute("aria-label") == f"{label.capitalize()} against iteration"
        assert words in chart.get_attribute("aria-valuetext")
        assert name.replace("_", " ") in tab.text(".tables thead")
        assert f"measure={name}" in tab.page.url
        assert ("on own data" in tab.text(".stage .drawing-key")) == name.startswith("own")
    assert before != chart.evaluate("(canvas) => canvas.toDataURL()")
    other = Tab(tab.page.context.browser, tab.page.url)  # the address keeps it
    other.wait_for_text(".numbers", "loss")
    other.page.set_viewport_size({"width": 390, "height": 900})
    other.page.get_by_label("Measure of the page").select_option("own_accuracy_p10")  # which has a long name
    other.wait_for_text(".numbers", "10th percentile")
    assert other.page.evaluate("document.documentElement.scrollWidth") == 390
    other.close()
    select.focus()
    tab.page.keyboard.press("Home")
    tab.wait_for_text(".numbers", f"accuracy\n{last['accuracy']:.3f}")
    select.select_option("accuracy")
    tab.assert_quiet()


def test_runs_without_the_measure_say_so(browser: Any, made: Path, tmp_path: Path):
    folder = shutil.copytree(made / "steps", tmp_path / "steps")
    for table in folder.glob("runs/*/metrics.parquet"):
        rows = pl.read_parquet(table)
        if "zt" in rows["strategy"]:
            rows.select(pl.exclude("^own_.*$", "^mean_model_own_.*$")).write_parquet(table)
    with Server(Watcher(tmp_path)) as server:
        tab = Tab(browser, f"{server.address}#measure=own_accuracy")
        tab.wait_for_text(".curves", "not recorded: ZT")
        assert run_of(tab, "ZT seed 0").locator(".value").inner_text() == "not recorded"
        assert run_of(tab, "ZT seed 0").get_attribute("title") == "accuracy on own data"
        read = tab.page.locator(".curves canvas").first.get_attribute("aria-valuetext")
        assert "EF-HC" in read
        assert "ZT" not in read
        choose(tab, "ZT", 0)
        tab.wait_for_text(".numbers", "not recorded")
        tab.assert_quiet()
        tab.close()


def test_the_time_slider_replays_events(tab: Tab, made: Path):
    events = efhc.Result.load(made / "steps").events.filter(strategy="EF-HC", seed=0)
    choose(tab, "EF-HC", 0)
    tab.page.get_by_label("Speed").select_option("Fast")
    tab.page.get_by_label("Iteration", exact=True).focus()
    tab.page.keyboard.press("Home")
    tab.wait_for_text(".where", "iteration 0")
    for k in (1, 2, 3):
        tab.page.keyboard.press("ArrowRight")
        tab.wait_for_text(".where", f"iteration {k}")
        row = events.filter(iteration=k).row(0, named=True)
        caption = f"{len(row['fired'])} of 5 devices fired, {len(row['link_from'])} of"
        tab.wait_for_text(".stage figcaption", caption)
    tab.page.keyboard.press(" ")
    tab.wait("document.querySelector('.play').getAttribute('aria-label') === 'Pause'")
    tab.wait_for_text(".where", "iteration 59")
    tab.wait("document.querySelector('.play').getAttribute('aria-label') === 'Play'")
    tab.assert_quiet()


def test_links_light_up_when_they_are_used(tab: Tab, made: Path):
    events = efhc.Result.load(made / "steps").events.filter(strategy="EF-HC", seed=0)
    counts = events.select("iteration", used=events["link_from"].list.len() + events["fired"].list.len())
    most, least = counts.sort("used")["iteration"][[-1, 0]].to_list()
    seen = {}
    for k in (most, least):
        tab.page.get_by_label("Iteration", exact=True).focus()
        tab.page.keyboard.press("Home")
        for _ in range(k):
            tab.page.keyboard.press("ArrowRight")
        tab.wait_for_text(".where", f"iteration {k}")
        tab.page.wait_for_timeout(100)
        seen[k] = tab.count_color("canvas.network", "--talk")
    assert seen[most] > 50
    assert seen[most] > seen[least]
    assert (seen[least] == 0) == (counts["used"].min() == 0)


def test_a_table_is_sorted_and_exported(tab: Tab, made: Path, tmp_path: Path):
    tab.page.locator("label", has_text=re.compile("^Runs$")).click()
    head = tab.page.locator(".tables th", has=tab.page.get_by_role("button", name="accuracy", exact=True))
    column = "[...document.querySelectorAll('.tables tbody tr')].map((row) => Number(row.cells[4].innerText))"
    for order, sign in (("descending", -1), ("ascending", 1)):
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == order
        values = tab.page.evaluate(column)
        assert values == sorted(values, key=lambda value, sign=sign: sign * value)
    tab.page.locator("label", has_text=re.compile("^Evaluations$")).click()
    assert "mean model accuracy" in tab.text(".tables thead")
    assert "_" not in tab.text(".tables thead")
    with tab.page.expect_download() as saving:
        tab.page.locator(".tables").get_by_role("button", name="Export CSV").click()
    saving.value.save_as(tmp_path / "table.csv")
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert lines[0].startswith("k,accuracy,accuracy_min,accuracy_max,accuracy_p10,accuracy_std,mean_model_accuracy,")
    rows = evaluated(efhc.Result.load(made / "steps").metrics.filter(strategy="EF-HC", seed=0))
    assert [int(line.split(",")[0]) - 1 for line in lines[1:]] == rows["iteration"].to_list()[::-1]
    with tab.page.expect_download() as saving:
        tab.page.get_by_role("link", name="metrics.csv").click()
    assert saving.value.suggested_filename == "metrics.csv"
    tab.assert_quiet()


def test_how_to_repeat_it_can_be_copied(tab: Tab):
    command = tab.text(".about code")
    assert command.startswith("efhc run ")
    tab.page.evaluate("document.querySelector('.about button').click()")
    tab.wait_for_text(".about button", "Copied")
    tab.page.locator(".about summary").click()
    assert 'name = "steps"' in tab.text(".config pre")


# Everybody.


def test_it_fits_every_screen_and_axe_finds_nothing_serious(browser: Any, server: Server, axe: str):
    tab = Tab(browser, server.address)
    tab.wait_for_text("main", "How this run is made")
    tab.assert_accessible(axe)
    tab.close()


def test_the_theme_can_be_chosen_and_is_kept(browser: Any, server: Server):
    tab = Tab(browser, server.address)
    tab.page.get_by_label("Theme").select_option("Dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert tab.page.evaluate(background) == "rgb(20, 24, 28)"
    tab.page.reload()
    tab.wait(f"{background} === 'rgb(20, 24, 28)'")
    tab.assert_quiet()
    tab.close()


def test_everything_can_be_reached_and_used_by_keyboard(browser: Any, server: Server):
    tab = Tab(browser, server.address)
    tab.wait_for_text("main", "How this run is made")
    reached = []
    for _ in range(60):
        tab.page.keyboard.press("Tab")
        reached.append(tab.focused())
        outline = tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        radio = tab.page.evaluate("document.activeElement.type === 'radio'")  # its label shows the focus
        assert radio or outline != "none", reached
        if reached[-1] == "metrics.csv" or "Config" in reached[-1]:
            break
    for name in ("Skip to the run", "Theme", "Device of the network", "Play", "Seconds", "Speed", "Device", "Copy"):
        assert name in reached, (name, reached)
    network = tab.page.locator("canvas.network")
    network.focus()
    tab.page.keyboard.press("End")
    assert network.get_attribute("aria-valuenow") == "4"
    assert network.get_attribute("aria-valuetext").startswith("Device 4, accuracy 0.")
    tab.wait("document.querySelector('.device input').value === '4'")
    chart = tab.page.locator(".curves canvas").first
    chart.focus()
    before = chart.get_attribute("aria-valuetext")
    tab.page.keyboard.press("Home")
    assert before != chart.get_attribute("aria-valuetext")
    run = run_of(tab, "EF-HC seed 0")
    run.focus()
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("Enter")
    tab.wait_for_text("h1:not(.nothing *)", "EF-HC, seed 1")
    tab.assert_quiet()
    tab.close()


def test_nothing_moves_for_those_who_want_no_motion(browser: Any, server: Server):
    tab = Tab(browser, server.address, reduced_motion="reduce")
    tab.wait_for_text("main", "How this run is made")
    assert tab.page.evaluate("document.getAnimations().length") == 0
    tab.close()


# What happens while people look.


def test_an_empty_folder_waits_for_runs_and_shows_them_when_they_come(browser: Any, made: Path, tmp_path: Path):
    with Server(Watcher(tmp_path)) as server:
        tab = Tab(browser, server.address)
        tab.wait_for_text("main", f"Waiting for a run in {tmp_path.name}")
        shutil.copytree(made / "steps", tmp_path / "steps")
        tab.wait_for_text("main", "How this run is made")
        run_of(tab, "ZT seed 0").click()
        tab.wait_for_text("h1:not(.nothing *)", "ZT, seed 0")
        shutil.rmtree(tmp_path / "steps")
        tab.wait_for_text("main", "ZT, seed 0, was deleted.")
        tab.wait_for_text("main", "Waiting for a run")
        tab.complaints = [one for one in tab.complaints if "status of 4" not in one]  # asked while it was deleted
        tab.assert_quiet()
        tab.close()


def test_a_server_that_goes_and_comes_back(browser: Any, made: Path):
    with Server(Watcher(made), port=0) as server:
        port = server.port
        tab = Tab(browser, server.address)
        tab.wait_for_text("main", "How this run is made")
        tab.wait_for_text(".connection", "connected")
    tab.wait_for_text(".connection", "Not connected; trying again")
    assert "How this run is made" in tab.text("main")
    with Server(Watcher(made), port=port):
        tab.wait("document.querySelector('.connection').innerText === 'connected'")
        tab.complaints = [one for one in tab.complaints if "ERR_CONNECTION" not in one and "ERR_INCOMPLETE" not in one]
        tab.assert_quiet()
        tab.close()


@pytest.mark.parametrize("latest", ["steps", "seconds"])
def test_if_nothing_runs_the_page_begins_with_what_was_made_last(
    browser: Any, made: Path, tmp_path: Path, latest: str
) -> None:
    for name in "steps", "seconds":
        copied = shutil.copytree(made / name, tmp_path / name)
        for folder in (copied, *(copied / "runs").iterdir()):
            os.utime(folder, (1e9 + (name == latest), 1e9 + (name == latest)))
    with Server(Watcher(tmp_path)) as server:
        tab = Tab(browser, server.address)
        tab.wait_for_text("main", "How this run is made")
        assert tab.page.title().endswith(f"{latest} · efhc")
        tab.close()


@pytest.mark.slow
def test_a_run_is_watched_killed_resumed_and_watched_to_its_end_by_two_pages(browser: Any, tmp_path: Path):
    watched = tmp_path / "runs"
    watched.mkdir()
    folder = watched / "first"
    running = "document.querySelector('.badge')?.innerText.includes('running')"
    iteration = "Number(document.querySelector('.numbers dd').innerText.split(' ')[0].replace(',', ''))"
    with Server(Watcher(watched)) as server, httpx.Client(base_url=server.address) as client, stream(client) as events:
        tabs = [Tab(browser, server.address), Tab(browser, server.address, 390, "dark")]
        for tab in tabs:
            tab.wait_for_text("main", "Waiting for a run")
        process = start_run(folder, iterations=40_000)
        try:
            for tab in tabs:
                run_until(process, tab, running)
                run_until(process, tab, "document.querySelector('.curves canvas')?.ariaValueText?.includes('EF-HC')")
            before = tabs[0].page.evaluate(iteration)
            run_until(process, tabs[0], f"{iteration} > {before}")
            assert tabs[0].page.evaluate("document.title").endswith("watched · efhc")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        for tab in tabs:
            tab.wait_for_text(".badge", "stopped")
            tab.wait_for_text(".notice.is-stopped", "Go on with:")
            assert "--resume" in tab.text(".notice.is-stopped code")
        reached = tabs[0].page.evaluate(iteration)
        resumed = start_run(folder, "--resume", iterations=40_000)
        try:
            for tab in tabs:
                run_until(resumed, tab, running)
            run_until(resumed, tabs[0], f"{iteration} > {reached}")
            resumed.send_signal(signal.SIGCONT)
            assert resumed.wait(timeout=200) == 0
        finally:
            resumed.kill()
            resumed.wait()
        for tab in tabs:
            tab.wait_for_text(".badge", "done", 60)
            assert "40,000" in tab.text(".numbers")
            tab.assert_quiet()
            tab.close()
        events.wait(lambda name, data: name == "tree" and states(data) == ["done", "done"], 30)
        ((run,),) = ([run["id"] for run in group["runs"]] for group in client.get("/api/tree").json()["groups"])
        detail = client.get(f"/api/runs/{run}").json()
    told = [state for name, data in events.seen if name == "tree" for state in states(data)[:1]]
    changes = [state for n, state in enumerate(told) if state not in ("waiting", *told[n - 1 : n])]
    assert changes == ["running", "stopped", "running", "done"]  # also while the runs are collected
    rows = evaluated(efhc.Result.load(folder).metrics)
    known = dict(zip((rows["iteration"] + 1).to_list(), rows["accuracy"].to_list(), strict=True))
    assert detail["curve"]["k"][-1] == 40_000
    assert [known[k] for k in detail["curve"]["k"]] == pytest.approx(detail["curve"]["accuracy"])
    assert detail["samples"]["k"]


def states(tree: Any) -> list[str]:
    """The state of the only group, if it is there, and of its only run."""
    return [state for group in tree["groups"] for state in (group["state"], group["runs"][0]["state"])]


@pytest.mark.parametrize(("most", "columns"), [(1000, ["fired"]), (20, ["fired_in_sample", "sampled_iterations"])])
@pytest.mark.parametrize("group", ["steps", "seconds"])
def test_a_device_that_fired_in_a_sample_of_the_iterations_has_no_total(
    browser: Any, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, most: int, columns: list[str]
):
    monkeypatch.setattr(readers, "MOST_ITERATIONS", most)
    with Server(Watcher(made / group)) as server:
        tab = Tab(browser, server.address)
        tab.page.locator("label", has_text=re.compile("^Devices$")).click()  # which waits until the page stands still
        tab.wait_for_text(".tables thead", "times fired" if most > 60 else "fired in sample")
        tab.wait("document.querySelectorAll('.tables tbody tr').length === 5")
        assert "_" not in tab.text(".tables thead")
        with tab.page.expect_download() as saving:
            tab.page.locator(".tables").get_by_role("button", name="Export CSV").click()
        saving.value.save_as(tmp_path / "devices.csv")
        names, *rows = [line.split(",") for line in (tmp_path / "devices.csv").read_text().splitlines()]
        assert names[-len(columns) :] == columns
        title = tab.text("h1:not(.nothing *)")
        tab.assert_quiet()
        tab.close()
    if most < 60:
        assert {row[-1] for row in rows} == {"20"}
        return
    result = efhc.Result.load(made / group)
    if group == "steps":
        fired = result.events.filter(strategy=title.split(",")[0], seed=int(title[-1]))["fired"].explode().to_list()
    else:
        fired = result.steps.filter("fired")["device"].to_list()
    assert [int(row[-1]) for row in rows] == [fired.count(device) for device in range(5)]


def test_a_raster_of_all_iterations_has_no_gaps(browser: Any, tmp_path: Path) -> None:
    efhc.simulate(out=tmp_path / "run", devices=4, iterations=100, seeds=0, strategies={"ZT": efhc.ZeroThreshold()})
    with Server(Watcher(tmp_path)) as server:
        tab = Tab(browser, server.address)
        tab.wait_for_text(".firings .note", "100 iterations")
        assert "gaps" not in tab.text(".firings .note")
        tab.close()
