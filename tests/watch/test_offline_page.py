"""The offline page in a real browser, from a file: hostile names, every state, and a run of the largest size."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from efhc.report.looks import strategy_styles
from efhc.report.page.document import offline_html
from efhc.report.views import Curve, Group, MeasureView, RunDetail, RunSummary, State, Tree
from tabs import Tab

NASTY = "</script><script>document.title='owned'</script><img src=https://example.org/x.png>"
LEFT_OUT = "Only the nearest 20 folders were searched."
PROBLEM = "The loss is no longer finite: choose a smaller step_size."


def curve_of(points: int) -> Curve:
    k = [10 * n + 1 for n in range(points)]
    rising = [1 - 1 / (2 + n) for n in range(points)]
    total = [float(one) for one in k]
    return {
        "k": k, "accuracy": rising, "accuracy_min": rising, "own_accuracy": rising,
        "consensus_error": [1 / one for one in k], "train_loss": [None] * points, "transmission_time": total,
        "bits": total, "broadcasts": total, "seconds": [None] * points,
    }  # fmt: skip


def summary_of(id_: str, strategy: str, state: State = "done", **changed: Any) -> RunSummary:
    made: RunSummary = {
        "id": id_, "strategy": strategy, "seed": 0, "state": state, "k": 100, "iterations": 100,
        "latest": {"accuracy": 0.5, "own_accuracy": 0.7},
        "iterations_per_second": None, "seconds_left": None, "problem": None,
    }  # fmt: skip
    return {**made, **changed}  # type: ignore[typeddict-item]


def detail_of(id_: str, devices: int, links: int, iterations: int, fired: int, used: int) -> RunDetail:
    """A run in which `fired` devices fire and `used` links are used in each iteration."""
    rng = np.random.default_rng(0)
    wires = [(i, (i + 1) % devices) for i in range(devices)] + rng.integers(0, devices, (links - devices, 2)).tolist()
    k = list(range(0, 10_000, 10_000 // iterations))[:iterations]
    samples = k[:: max(1, iterations // 60)]
    return {
        "id": id_,
        "facts": {"experiment": NASTY, "devices": f"{devices:,}"},
        "config": f'name = "{NASTY}"\n',
        "repeat": f"efhc run 'a b/{NASTY}.toml'",
        "devices": [
            {"device": i, "bandwidth": float(500 + i), "samples": 10, "labels": [i % 10]} for i in range(devices)
        ],
        "network": {"k": [0], "links": [wires]},
        "samples": {
            "k": samples,
            "accuracy": [rng.uniform(0, 1, devices).round(4).tolist() for _ in samples],
            "own_accuracy": [[0.7] * devices for _ in samples],
            "drift": [rng.uniform(0, 2, devices).round(4).tolist() for _ in samples],
            "threshold": [[1.0] * devices for _ in samples],
        },
        "events": {
            "k": k,
            "fired": [rng.choice(devices, fired, replace=False).tolist() for _ in k],
            "used": [[wires[n] for n in rng.choice(len(wires), used, replace=False)] for _ in k],
            "seconds": [None for _ in k],
        },
        "is_sample": True,
    }


def tree_of(*runs: RunSummary) -> Tree:
    styles = strategy_styles(run["strategy"] for run in runs).items()
    group: Group = {
        "id": "g", "name": NASTY, "kind": "run", "place": NASTY, "state": "done", "changed": None, "runs": list(runs),
        "strategies": [{"name": name, "color": color, "dash": dash} for name, (color, dash) in styles], "problem": None,
        "measure": "accuracy",
    }  # fmt: skip
    measures: list[MeasureView] = [
        {"name": name, "label": label, "better": "higher", "family": name}
        for name, label in (("accuracy", "accuracy"), ("own_accuracy", f"on own data {NASTY}"))
    ]
    return {"title": NASTY, "version": "0", "groups": [group], "measures": measures, "left_out": LEFT_OUT}


@pytest.fixture(scope="module")
def html() -> str:
    runs = [
        summary_of("a", NASTY),
        summary_of("b", "stopped one", "stopped", k=40, problem="no space left"),
        summary_of("c", "failed one", "failed", k=40, problem=PROBLEM),
        summary_of("d", "waiting one", "waiting", k=0, latest={}),
        summary_of("e", "without detail"),
        summary_of("f", "constructor"),
    ]
    details = {run["id"]: detail_of(run["id"], 6, 8, 40, 2, 3) for run in runs[:3]}
    details["a"]["events"]["used"][-1] = None
    curves = {run["id"]: curve_of(10) | {"gradient_norm": [0.5] * 10} for run in runs if run["id"] != "d"}
    return offline_html(tree_of(*runs), details, {"g": curves})


def test_nothing_of_the_data_becomes_markup(html: str):
    assert len(re.findall("<script", html)) == len(re.findall("</script>", html)) == 2
    assert "<img" not in html


def test_it_is_one_file_that_says_every_state(browser: Any, html: str, tmp_path: Path):
    file = tmp_path / "offline.html"
    file.write_text(html, "utf-8")
    tab = Tab(browser, file.as_uri())
    tab.wait_for_text("main", "How this run is made")
    assert tab.requests[:1] == [file.as_uri()]
    assert NASTY in tab.text("h1:not(.nothing *)")
    assert tab.text(".about code") == f"efhc run 'a b/{NASTY}.toml'"
    assert "owned" not in tab.page.evaluate("document.title").replace(NASTY, "")
    assert tab.text(".connection") == ""
    assert tab.text(".left-out") == LEFT_OUT
    assert "2 of 6 devices fired; links in use are not drawn here" in tab.text(".stage figcaption")
    tab.page.locator(".measure").first.select_option("Gradient norm")  # a metric of the reader's own
    tab.wait("document.querySelector('.curves canvas').ariaLabel === 'Gradient norm against iteration'")
    tab.page.locator("label", has_text=re.compile("^Evaluations$")).click()
    tab.wait_for_text(".tables thead", "gradient norm")
    for name, badge, notice in (
        ("stopped one", "stopped", "Stopped after 40 of 100 iterations: no space left. Go on with:"),
        ("failed one", "failed", PROBLEM),
        ("waiting one", "waiting to start", "This page has only the curves of this run."),
        ("without detail", "done", "This page has only the curves of this run."),
        ("constructor", "done", "This page has only the curves of this run."),
    ):
        tab.page.locator(".run", has_text=name).click()
        tab.wait_for_text("h1:not(.nothing *)", name)
        assert tab.text(".badge") == badge
        tab.wait_for_text(".head .notice", notice)
    tab.assert_quiet()
    tab.close()


def test_a_folder_without_runs_says_so(browser: Any, tmp_path: Path):
    file = tmp_path / "offline.html"
    file.write_text(
        offline_html({"title": "here", "version": "0", "groups": [], "measures": [], "left_out": None}, {}, {}), "utf-8"
    )
    tab = Tab(browser, file.as_uri())
    tab.wait_for_text("main", "There is no run in here")
    tab.assert_quiet()
    tab.close()


def test_nodes_are_shown_with_their_links_and_faults(browser: Any, tmp_path: Path):
    detail = detail_of("n", 3, 3, 10, 1, 1)
    for device in detail["devices"]:
        links = [
            {"device": other, "up": other != 2, "connected": True, "bytes_sent": 5_000_000, "rate": 1200.0,
             "exchanges": {"committed": 7, "refused": 1}, "interruptions": 2, "last_problem": NASTY}
            for other in range(3) if other != device["device"]
        ]  # fmt: skip
        device["node"] = {"state": "training", "iteration": 12, "links_up": 1, "waits_for": [1, 2], "neighbours": links}
    detail["devices"][2]["node"] = {"state": "elsewhere", "problem": "it is known from its neighbours only"}
    tree = tree_of(summary_of("n", "nodes", "running"))
    tree["groups"][0]["kind"] = "nodes"
    file = tmp_path / "nodes.html"
    file.write_text(offline_html(tree, {"n": detail}, {"g": {"n": curve_of(5)}}), "utf-8")
    tab = Tab(browser, file.as_uri())
    tab.wait_for_text("#nodes", "Nodes")
    assert "3 nodes: 2 training, 1 elsewhere" in tab.text(".nodes")
    tab.page.locator(".nodes").get_by_role("button", name="1", exact=True).click()
    tab.wait_for_text(".nodes h3", "Links of node 1")
    rows = tab.page.locator(".nodes table").nth(1).locator("tbody tr").all_inner_texts()
    assert [[cells[n] for n in (0, 1, 3, 4)] for cells in (row.split("\t") for row in rows)] == [
        ["0", "up", "1200B/s", "5MB"],
        ["2", "down", "1200B/s", "5MB"],
    ]
    assert rows[0].endswith(NASTY)
    tab.assert_quiet()
    tab.close()


@pytest.mark.slow
def test_a_run_of_the_largest_size_plays(browser: Any, tmp_path: Path):
    detail = detail_of("a", 1000, 4000, 2000, 30, 60)
    html = offline_html(tree_of(summary_of("a", "EF-HC")), {"a": detail}, {"g": {"a": curve_of(1000)}})
    file = tmp_path / "offline.html"
    file.write_text(html, "utf-8")
    tab = Tab(browser, file.as_uri())
    tab.wait_for_text("main", "How this run is made")
    last = tab.text(".where")
    tab.page.get_by_label("Iteration", exact=True).focus()
    tab.page.keyboard.press(" ")
    tab.wait(f"![{last!r}, 'iteration 0'].includes(document.querySelector('.where').innerText)")
    tab.assert_quiet()
    tab.close()
