"""What pages get of nodes: totals that only grow, a bounded memory, and answers of whatever listens on a socket."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from threading import Thread
from typing import Any

import pytest
from hearing import stream
from tabs import Tab

from efhc.experiments.nodes.status_query import Answer, ask, ask_all
from efhc.runtime.pages import short_name
from efhc.watch import node_source
from efhc.watch.node_source import MOST_NUMBERS, MOST_SHOWN, NodeSource
from efhc.watch.offline import write_page
from efhc.watch.server import Server
from efhc.watch.watched import Watched


def status_of(device: int, k: int, *neighbours: int, **changed: Any) -> dict[str, Any]:
    links = [
        {"device": one, "up": True, "connected": True, "bytes_sent": 100 * k, "exchanges": {"committed": k}}
        for one in neighbours
    ]
    return {"device": device, "iteration": k, "iterations": 1000, "loss": 1.0, "broadcasts": k, "drift": 0.5,
            "threshold": 1.0, "neighbours": links, "state": "training", "steps_per_second": 1.0,
            "links_up": len(links)} | changed  # fmt: skip


def answer_of(device: int, k: int, *neighbours: int, **changed: Any) -> Answer:
    return Answer(f"node{device}", status_of(device, k, *neighbours, **changed))


def k_of(source: NodeSource) -> int:
    return source.summary("", Path())["k"]


@contextmanager
def answering(folder: Path, says: Callable[[], str]) -> Iterator[None]:
    """Something that listens on the socket of a node, and answers with whatever `says` returns."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(says().encode())

        def log_message(self, *_: object) -> None:
            pass

    folder.mkdir(parents=True)
    with short_name(folder / "status.sock") as name:
        server = ThreadingUnixStreamServer(name, Handler)
    with server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield
        server.shutdown()


# Totals.


def test_totals_and_k_stay_when_a_node_misses_a_look():
    source = NodeSource()
    source.hear([answer_of(0, 90, 1), answer_of(1, 110, 0)], 0.0)
    before = source.rows("curve").columns
    assert (k_of(source), before["bits"], before["broadcasts"]) == (100, [8.0 * 20_000], [200.0])
    source.hear([answer_of(0, 92, 1), Answer("node1", None, "no answer")], 1.0)
    source.hear([answer_of(0, 94, 1), answer_of(1, 114, 0)], 2.0)
    source.hear([answer_of(0, 96, 1), answer_of(1, 116, 0), answer_of(2, 0, 1)], 3.0)  # a node that comes late
    columns = source.rows("curve").columns
    assert columns["k"] == source.rows("events").columns["k"] == [100, 101, 104, 104]
    assert columns["bits"] == [8.0 * total for total in (20_000, 20_200, 20_800, 21_200)]
    assert columns["broadcasts"] == [200.0, 202.0, 208.0, 212.0]
    assert k_of(source) == 104
    assert source.rows("events").columns["fired"] == [[], [0], [0, 1], [0, 1]]


def test_a_node_that_misses_a_look_is_shown_with_what_it_said_last():
    source = NodeSource()
    source.hear([answer_of(0, 90, 1, 7, bandwidth=3.0), answer_of(1, 110, 0)], 0.0)
    assert source.notes["silent"] == "none"
    source.hear([Answer("node0", None, "no answer (timed out)"), answer_of(1, 111, 0)], 1.0)
    silent, other, elsewhere = source.devices
    assert (silent["bandwidth"], silent["node"]["state"], silent["node"]["iteration"]) == (3.0, "silent", 90)
    assert (other["node"]["state"], other["node"]["iteration"]) == ("training", 111)
    assert (elsewhere["device"], elsewhere["node"]["state"]) == (7, "elsewhere")
    assert source.notes["silent"] == "node0: no answer (timed out)"
    assert source.summary("", Path())["problem"] == "1 of 2 nodes do not answer"
    source.hear([], 2.0)
    told = source.summary("", Path())
    assert (told["state"], told["k"], told["iterations"]) == ("stopped", 100, 1000)


def test_looks_that_are_made_again_are_superseded():
    source = NodeSource()
    for k in (10, 20, 30):
        source.hear([answer_of(0, k, 1), answer_of(1, k, 0)], float(k))
    told = source.rows("curve")
    source.hear([answer_of(0, 16, 1), answer_of(1, 31, 0)], 40.0)  # one was started again: the others went on
    assert source.rows("curve").columns["k"] == [10, 20, 30, 30]
    source.hear([answer_of(0, 2, 1)], 50.0)  # all are started again, one after the other
    source.hear([answer_of(0, 14, 1), answer_of(1, 12, 0)], 51.0)
    again = source.rows("curve", told.generation, told.end)
    assert (again.start, again.columns["k"]) == (0, [10, 13])
    assert k_of(source) == 13


def test_no_node_has_been_asked_yet():
    source = NodeSource()
    assert source.summary("", Path())["state"] == "waiting"
    source.hear([Answer("node0", None, "does not answer")], 0.0)
    assert source.summary("", Path())["state"] == "stopped"


# Memory.


def numbers_in(source: NodeSource) -> int:
    samples, events = source.rows("samples").columns, source.rows("events").columns
    wirings = source.rows("network").columns["links"]
    in_samples = sum(map(len, samples["drift"])) + sum(map(len, samples["threshold"]))
    in_events = sum(map(len, events["fired"])) + 2 * sum(map(len, events["used"]))
    return in_samples + in_events + 2 * sum(map(len, wirings))


def test_a_device_with_a_large_number_is_one_device():
    source = NodeSource()
    source.hear([answer_of(0, 1, 1, 99_999), answer_of(1, 1, 0)], 0.0)
    source.hear([answer_of(0, 2, 1, 99_999), answer_of(1, 2, 0)], 1.0)
    assert [one["device"] for one in source.devices] == [0, 1, 99_999]
    assert source.rows("samples").columns["drift"] == [[0.5, 0.5, None]] * 2
    # The page names a device by its place among those that are shown.
    assert source.rows("network").columns["links"] == [[(0, 1), (0, 2)]]
    assert source.rows("events").columns["used"][-1] == [(0, 1), (0, 2)]
    told = source.rows("events")
    source.hear([answer_of(0, 3, 1, 99_999), answer_of(1, 3, 0), answer_of(50, 3, 99_999)], 2.0)
    assert [one["device"] for one in source.devices] == [0, 1, 50, 99_999]
    moved = source.rows("events", told.generation, told.end)
    assert moved.start == 0
    assert moved.columns["used"][1:] == [[(0, 1), (0, 3)], [(0, 1), (0, 3)]]


@pytest.mark.parametrize("neighbours", [2, 300, 4_000])
def test_looks_have_a_bounded_number_of_numbers(neighbours):
    source = NodeSource(most_numbers=20_000)
    looks = 120
    for k in range(looks):
        few = range(1, neighbours + 1 - (k % 2))  # the links change all the time
        source.hear([answer_of(0, k, *few)], float(k))
        assert numbers_in(source) <= 20_000 or len(source.rows("curve").columns["k"]) == 1
    kept = source.rows("curve").columns["k"]
    assert kept == source.rows("samples").columns["k"] == source.rows("events").columns["k"]
    assert kept[-1] == looks - 1
    assert len(kept) == {2: 120, 4_000: 1}.get(neighbours, len(kept))
    assert neighbours != 300 or 5 <= len(kept) <= 30
    assert MOST_NUMBERS >= 20_000


def test_a_page_shows_a_bounded_number_of_devices():
    source = NodeSource()
    many = range(10_000, 10_000 + MOST_SHOWN + 5)
    began = time.process_time()
    for k in range(3):
        source.hear([answer_of(0, k, *many), answer_of(90_000, k, 0)], float(k))
    devices = [one["device"] for one in source.devices]
    assert len(devices) == MOST_SHOWN
    assert {0, 90_000} <= set(devices)  # those that answer come first
    assert source.notes["nodes"] == "2 answer, of 2; 7 of their neighbours are not shown"
    assert all(j < MOST_SHOWN for links in source.rows("network").columns["links"] for _, j in links)
    assert time.process_time() - began < 2  # it compared every link with every other one


def test_a_drift_that_is_no_number_is_not_kept():
    (answer,) = map(node_source._checked, [answer_of(0, 1, 1, drift=[1.0] * 1000)])
    assert answer == Answer("node0", None, "what answers there is not an efhc node")


# Real sockets.


def test_a_deeply_nested_answer_is_a_bad_answer(tmp_path):
    deep = '{"device": 0, "more": ' + "[" * 200_000 + "]" * 200_000 + "}"
    good = status_of(1, 5, 0)
    with answering(tmp_path / "bad", lambda: deep), answering(tmp_path / "good", lambda: json.dumps(good)):
        bad = Answer(str(tmp_path / "bad"), None, "what answers there is not an efhc node")
        assert ask(tmp_path / "bad" / "status.sock") == bad
        assert ask_all([str(tmp_path)]) == [Answer(str(tmp_path / "good"), good), bad]
        watched = Watched(tmp_path)
        watched.refresh()
        watched.hear_nodes()
        (group,) = watched.tree["groups"]
        assert (group["state"], group["runs"][0]["k"]) == ("running", 5)
        assert group["runs"][0]["problem"] == "1 of 2 nodes do not answer"


def test_a_page_that_is_written_once_waits_for_the_nodes(tmp_path):
    def slow() -> str:
        time.sleep(0.3)
        return json.dumps(status_of(0, 7, 1))

    with answering(tmp_path / "runs" / "state", slow):
        lines = write_page(tmp_path / "runs", tmp_path / "page.html")
    data = json.loads((tmp_path / "page.html").read_text().split('id="embedded">')[1].split("</script>")[0])
    ((run,),) = (group["runs"] for group in data["tree"]["groups"])
    assert (run["state"], run["k"]) == ("running", 7)
    assert lines == ["1 of 1 runs are unfinished: the page shows what is known now"]
    assert [one["device"] for one in data["details"][run["id"]]["devices"]] == [0, 1]
    assert data["details"][run["id"]]["curve"]["k"] == [7]


def test_nobody_waits_for_ever(tmp_path):
    with answering(tmp_path / "state", lambda: str(time.sleep(3.0))):
        watched = Watched(tmp_path)
        watched.refresh()
        assert watched.tree["groups"][0]["state"] == "waiting"
        began = time.monotonic()
        watched.hear_nodes(seconds=0.2)
        assert time.monotonic() - began < 2.5
        assert watched.tree["groups"][0]["state"] == "waiting"
        watched.hear_nodes()
        assert watched.tree["groups"][0]["state"] == "stopped"


class Growing:
    """A node that makes ten iterations between two questions."""

    def __init__(self) -> None:
        self.k = 0

    def __call__(self) -> str:
        self.k += 10
        return json.dumps(status_of(3, self.k, 4))


def test_a_stream_tells_how_nodes_are_whenever_they_were_asked(tmp_path, serve):
    with answering(tmp_path / "state", Growing()), serve(tmp_path) as (_, client):
        (group,) = client.get("/api/tree").json()["groups"]
        with stream(client, group=group["id"], run=group["id"]) as heard:
            told = [heard.wait(lambda name, data: name == "nodes")[0] for _ in range(3)]
            first, second, third = (one["devices"][0]["node"]["iteration"] for one in told)
            assert first < second < third
            assert [one["device"] for one in told[0]["devices"]] == [3, 4]
            assert told[0]["id"] == group["id"]
            detail = client.get(f"/api/runs/{group['id']}").json()
            assert told[0]["facts"].items() <= detail["facts"].items()
            heard.wait(lambda name, data: name == "delta" and data["part"] == "samples" and data["start"] >= 2)


@pytest.mark.slow
def test_a_page_follows_nodes_without_reading_all_of_them_again(browser, tmp_path):
    node = Growing()
    with answering(tmp_path / "state", node), Server(Watched(tmp_path)) as server:
        tab = Tab(browser, server.address)
        tab.wait_for_text("#nodes", "Nodes")
        shown = "document.querySelectorAll('.nodes tbody tr')[0]?.cells[2]?.innerText"
        tab.wait(f"{shown} >= 40")  # soon after it began to run, everything is read once more
        before = len([url for url in tab.requests if "/api/runs/" in url])
        began = node.k
        tab.wait(f"{shown} >= {began + 50}")
        assert len([url for url in tab.requests if "/api/runs/" in url]) == before
        tab.wait_for_text(".nodes h3", "Links of node 3")
        tab.wait_for_text(".about", "1 answer, of 1")
        tab.assert_quiet()
        tab.close()
