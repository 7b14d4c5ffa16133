"""What a notebook shows, executed by a real kernel."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel

import efhc

SAFE = {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "p", "small", "ul", "li", "img", "code"}
"""The tags that may be in what a notebook shows: nothing that runs or loads anything."""
COMPLETING = """
from IPython.core.completer import provisionalcompleter
with provisionalcompleter():
    found = [one.text for one in get_ipython().Completer.completions("efhc.simulate(keep_mo", 21)]
found
"""
FAILING = """
class Typo(efhc.Strategy):
    def fires(self, seen, memory):
        return seen.dirft > 1  # a typo
try:
    efhc.simulate(iterations=9, seeds=0, strategies={"Typo": Typo()})
except efhc.InputError:
    get_ipython().showtraceback()
"""
SMALL = {"iterations": 60, "devices": 5, "evaluate_every": 20, "seeds": [0, 1]}


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.slow
def test_a_kernel_shows_results_figures_models_and_experiments(executed):
    notebook = executed(
        nbformat.v4.new_notebook(),
        f"import efhc\nresult = efhc.simulate(**{SMALL}, out='runs/first')\nresult",
        "result.plot()",
        "result.models",
        "result.experiment",
        "import matplotlib.pyplot\nresult.plot()",  # which has its own way to show figures
        COMPLETING,
        "try:\n    efhc.simulate(devices=0)\nexcept efhc.InputError:\n    get_ipython().showtraceback()",
        FAILING,
    )
    *shown, refused, failing = (cell.outputs for cell in notebook.cells)
    traceback = "\n".join(failing[-1].traceback)  # before it, a bar if the loops had to be compiled
    assert "return seen.dirft > 1  # a typo" in traceback
    assert "line 3, in fires" in traceback
    assert "src/efhc" not in traceback
    assert traceback.splitlines()[-1].startswith("InputError: Typo, seed 0: your strategy Typo raised Attr")
    assert refused[-1].traceback == ["InputError: devices: cannot use 0. Use a number greater than or equal to 1."]
    result, figure, models, experiment, with_pyplot, completed = (outputs[-1].data for outputs in shown)
    tags = Tags(result["text/html"])
    accuracy = efhc.simulate(**SMALL).summary()["accuracy"][0]
    assert f"EF-HC{accuracy:.3f}" in tags.text
    assert "runs/first" in tags.text
    assert result["text/plain"].startswith("<Result of experiment: 4 strategies x 2 seeds")
    for one in (figure, with_pyplot):
        assert one["image/png"].startswith("iVBOR")
    assert models["text/plain"].startswith("{('EF-HC', 0): <float32 array 5 x 650>, ")
    assert experiment["text/plain"].startswith("Experiment(devices=5, iterations=60, seeds=(0, 1)")
    assert "keep_models_every=" in completed["text/plain"]


def test_the_page_of_a_result_is_escaped_and_bounded(tmp_path: Path):
    folder = tmp_path / "<script>alert(1)</script>"
    result = efhc.simulate(**SMALL, name="<img src=x onerror=alert(1)>", out=folder)
    result.failed |= {("RG", seed): f"RG, seed {seed}: <b>lost</b>" for seed in range(100)}
    html = result._repr_html_()
    tags = Tags(html)
    assert set(tags.found) <= SAFE
    assert tags.found.count("img") == 1
    assert "<b>lost</b>" in tags.text
    assert "95 more" in tags.text
    assert "<img src=x onerror=alert(1)>: means over 2 seeds" in tags.text
    assert len(html) < 300_000
    text = re.sub(r"base64,[^\"]*", "", html)
    assert len(text) < 6000


def test_a_result_in_memory_and_one_over_seconds_say_what_they_are():
    in_memory = Tags(efhc.simulate(**SMALL)._repr_html_()).text
    assert "In memory only; result.save(folder) keeps it." in in_memory
    driver = efhc.EventDriven(target=0.3)
    timed = efhc.simulate(**SMALL, driver=driver, strategies={"EF-HC": efhc.EventTriggered()})
    shown = Tags(timed._repr_html_())
    assert shown.found.count("table") == 2
    assert "until accuracy 0.3 is reached" in shown.text


def test_nothing_prints_raw_weights():
    result = efhc.simulate(**SMALL, keep_models_every=30)
    links = [(0, other) for other in range(1, 5000)]
    for thing in (
        result,
        result.models,
        result.local,
        result.experiment,
        result.experiment.data.load(),
        efhc.Experiment(devices=5000, network=efhc.GivenLinks(links=links)),
        efhc.Experiment(data=result.experiment.data.load()),
    ):
        assert len(repr(thing)) < 600, repr(thing)[:200]
    assert repr(efhc.Experiment()) == "Experiment()"
    assert repr(efhc.Geometric(radius=0.3)) == "Geometric(radius=0.3)"
    assert eval(repr(result.experiment), vars(efhc) | {"Experiment": efhc.Experiment}) == result.experiment


SLOW_RUN = """
import time, efhc

class Slow(efhc.Strategy):
    def fires(self, seen, memory):
        time.sleep(0.02)
        return seen.drift > 0

efhc.simulate(iterations=200, seeds=[0, 1], evaluate_every=50, strategies={"slow": Slow()}, jobs=2)
"""


@pytest.mark.slow
def test_a_bar_comes_moves_and_goes_while_runs_are_made():
    manager, client = start_new_kernel()
    heard: list[Any] = []
    try:
        reply = client.execute_interactive(SLOW_RUN, output_hook=heard.append, timeout=120)
        short = client.execute_interactive("efhc.simulate(iterations=20, seeds=0).summary()", output_hook=heard.append)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == short["content"]["status"] == "ok"
    shown = [message for message in heard if message["msg_type"] in ("display_data", "update_display_data")]
    assert [message["msg_type"] for message in shown[:2]] == ["display_data", "update_display_data"]
    assert sum(message["msg_type"] == "display_data" for message in shown) == 1  # none for the short one
    assert {message["parent_header"]["msg_id"] for message in shown} == {reply["parent_header"]["msg_id"]}
    bars = [message["content"]["data"]["text/html"] for message in shown]
    values = [int(value) for bar in bars for value in re.findall(r'<progress value="(\d+)" max="400">', bar)]
    assert values == sorted(values)
    assert values[-1] > 100
    assert "accuracy 0." in bars[-2]
    assert bars[-1] == ""
