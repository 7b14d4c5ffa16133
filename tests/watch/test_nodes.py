"""What pages get of nodes: totals that only grow, a bounded memory, and answers of whatever listens on a socket."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from live_files import embedded
from streams import answering, stream

from efhc.experiments.nodes.status_query import Answer, query_all, query_status
from efhc.watch import nodes
from efhc.watch.discovery import FoundRun
from efhc.watch.nodes import MOST_SHOWN, NodesReader
from efhc.watch.offline import write_page
from efhc.watch.watcher import Watcher


def status_of(device: int, k: int, *neighbours: int, **changed: Any) -> dict[str, Any]:
    links = [
        {"device": one, "up": True, "connected": True, "bytes_sent": 100 * k, "exchanges": {"committed": k}}
        for one in neighbours
    ]
    return {"device": device, "iteration": k, "iterations": 1000, "loss": 1.0, "broadcasts": k, "drift": 0.5,
            "threshold": 1.0, "neighbours": links, "state": "training", "steps_per_second": 1.0, "session": 1,
            "links_up": len(links), "mode": "free-running", "version": "1", "pid": 1} | changed  # fmt: skip


def answer_of(device: int, k: int, *neighbours: int, **changed: Any) -> Answer:
    return Answer(f"node{device}", status_of(device, k, *neighbours, **changed))


def reader(**limits: int) -> NodesReader:
    folder = Path("EF-HC.seed0")
    return NodesReader(FoundRun("EF-HC", 0, "EF-HC", {}, folder, "id", is_complete=False, live=None), **limits)


def k_of(source: NodesReader) -> int:
    return source.summary()["k"]


# Totals.


def test_totals_and_k_stay_when_a_node_misses_a_poll():
    source = reader()
    source.add([answer_of(0, 90, 1), answer_of(1, 110, 0)], 0.0)
    before = source.rows("curve").columns
    assert (k_of(source), before["bits"], before["broadcasts"]) == (100, [8.0 * 20_000], [200.0])
    source.add([answer_of(0, 92, 1), Answer("node1", None, "no answer")], 1.0)
    source.add([answer_of(0, 94, 1), answer_of(1, 114, 0)], 2.0)
    source.add([answer_of(0, 96, 1), answer_of(1, 116, 0), answer_of(2, 0, 1)], 3.0)  # a node that comes late
    columns = source.rows("curve").columns
    assert columns["k"] == source.rows("events").columns["k"] == [100, 101, 104, 104]
    assert columns["bits"] == [8.0 * total for total in (20_000, 20_200, 20_800, 21_200)]
    assert columns["broadcasts"] == [200.0, 202.0, 208.0, 212.0]
    assert k_of(source) == 104
    assert source.rows("events").columns["fired"] == [[], [0], [0, 1], [0, 1]]


def test_a_node_that_misses_a_poll_is_shown_with_its_last_status():
    source = reader()
    source.add([answer_of(0, 90, 1, 7, bandwidth=3.0), answer_of(1, 110, 0)], 0.0)
    assert source.about()["facts"]["silent"] == "none"
    source.add([Answer("node0", None, "no answer (timed out)"), answer_of(1, 111, 0)], 1.0)
    silent, other, elsewhere = source.about()["devices"]
    assert (silent["bandwidth"], silent["node"]["state"], silent["node"]["iteration"]) == (3.0, "silent", 90)
    assert (other["node"]["state"], other["node"]["iteration"]) == ("training", 111)
    assert (elsewhere["device"], elsewhere["node"]["state"]) == (7, "elsewhere")
    assert source.about()["facts"]["silent"] == "node0: no answer (timed out)"
    assert source.summary()["problem"] == "1 of 2 nodes do not answer"
    source.add([], 2.0)
    summary = source.summary()
    assert (summary["state"], summary["k"], summary["iterations"]) == ("stopped", 100, 1000)


def test_polls_of_iterations_that_are_made_again_are_superseded():
    source = reader()
    for k in (10, 20, 30):
        source.add([answer_of(0, k, 1), answer_of(1, k, 0)], float(k))
    told = source.rows("curve")
    source.add([answer_of(0, 16, 1), answer_of(1, 31, 0)], 40.0)  # one was started again: the others went on
    assert source.rows("curve").columns["k"] == [10, 20, 30, 30]
    source.add([answer_of(0, 2, 1)], 50.0)  # all are started again, one after the other
    source.add([answer_of(0, 14, 1), answer_of(1, 12, 0)], 51.0)
    again = source.rows("curve", told.generation, told.end)
    assert (again.start, again.columns["k"]) == (0, [10, 13])
    assert k_of(source) == 13


# Memory.


def numbers_in(source: NodesReader) -> int:
    samples, events = source.rows("samples").columns, source.rows("events").columns
    wirings = source.rows("network").columns["links"]
    in_samples = sum(map(len, samples["drift"])) + sum(map(len, samples["threshold"]))
    in_events = sum(map(len, events["fired"])) + 2 * sum(map(len, events["used"]))
    return in_samples + in_events + 2 * sum(map(len, wirings))


def test_a_device_with_a_large_number_is_one_device():
    source = reader()
    source.add([answer_of(0, 1, 1, 99_999), answer_of(1, 1, 0)], 0.0)
    source.add([answer_of(0, 2, 1, 99_999), answer_of(1, 2, 0)], 1.0)
    assert [one["device"] for one in source.about()["devices"]] == [0, 1, 99_999]
    assert source.rows("samples").columns["drift"] == [[0.5, 0.5, None]] * 2
    # The page names a device by its place among those that are shown.
    assert source.rows("network").columns["links"] == [[(0, 1), (0, 2)]]
    assert source.rows("events").columns["used"][-1] == [(0, 1), (0, 2)]
    told = source.rows("events")
    source.add([answer_of(0, 3, 1, 99_999), answer_of(1, 3, 0), answer_of(50, 3, 99_999)], 2.0)
    assert [one["device"] for one in source.about()["devices"]] == [0, 1, 50, 99_999]
    moved = source.rows("events", told.generation, told.end)
    assert moved.start == 0
    assert moved.columns["used"][1:] == [[(0, 1), (0, 3)], [(0, 1), (0, 3)]]


def test_links_stay_as_they_were_when_polls_are_dropped(monkeypatch):
    monkeypatch.setattr(nodes, "MOST_POLLS", 10)
    source = reader()
    down = range(7, 9), range(12, 40), range(45, 46)

    def is_down(k: int) -> bool:
        return any(k in some for some in down)

    for k in range(60):
        answers = [answer_of(0, k, 1), answer_of(1, k, 0)]
        for answer in answers:
            answer.status["neighbours"][0]["up"] = not is_down(k)
        source.add(answers, float(k))
    polls, changes = source.rows("events").columns["k"], source.rows("network").columns
    assert 10 <= len(polls) < 20
    assert polls[-1] == 59
    for k in polls:
        links = [links for at, links in zip(changes["k"], changes["links"], strict=True) if at <= k][-1]
        assert bool(links) is not is_down(k), k


@pytest.mark.parametrize("neighbours", [2, 100, 1_000])
def test_polls_have_a_bounded_number_of_numbers(neighbours):
    source = reader(most_numbers=5_000)
    polls = 60
    for k in range(polls):
        few = range(1, neighbours + 1 - (k % 2))  # the links change all the time
        source.add([answer_of(0, k, *few)], float(k))
        assert numbers_in(source) <= 5_000 or len(source.rows("curve").columns["k"]) == 1
    kept = source.rows("curve").columns["k"]
    assert kept == source.rows("samples").columns["k"] == source.rows("events").columns["k"]
    assert kept[-1] == polls - 1
    assert len(kept) == {2: 60, 1_000: 1}.get(neighbours, len(kept))
    assert neighbours != 100 or 5 <= len(kept) <= 30


def test_a_page_shows_a_bounded_number_of_devices():
    source = reader()
    many = range(10_000, 10_000 + MOST_SHOWN + 5)
    for k in range(3):
        source.add([answer_of(0, k, *many), answer_of(90_000, k, 0)], float(k))
    devices = [one["device"] for one in source.about()["devices"]]
    assert len(devices) == MOST_SHOWN
    assert {0, 90_000} <= set(devices)  # those that answer come first
    assert source.about()["facts"]["nodes"] == "2 answer, of 2; 7 of their neighbours are not shown"
    assert all(j < MOST_SHOWN for links in source.rows("network").columns["links"] for _, j in links)


def test_a_drift_that_is_no_number_is_not_kept():
    source = reader()
    source.add([answer_of(0, 1, 1, drift=[1.0] * 1000)], 0.0)
    assert source.about()["facts"]["silent"] == "node0: what answers there is not an efhc node"
    assert source.rows("samples").columns["drift"] == []


# Real sockets.


def test_a_deeply_nested_answer_is_a_bad_answer(tmp_path):
    deep = '{"device": 0, "more": ' + "[" * 200_000 + "]" * 200_000 + "}"
    good = status_of(1, 5, 0)
    with answering(tmp_path / "bad", lambda: deep), answering(tmp_path / "good", lambda: json.dumps(good)):
        bad = Answer(str(tmp_path / "bad"), None, "what answers there is not an efhc node")
        assert query_status(tmp_path / "bad" / "status.sock") == bad
        assert query_all([str(tmp_path)]) == [Answer(str(tmp_path / "good"), good), bad]
        watched = Watcher.of(tmp_path, may_be_empty=True)
        watched.wait_for_nodes()
        (group,) = watched.tree["groups"]
        assert (group["state"], group["runs"][0]["k"]) == ("running", 5)
        assert group["runs"][0]["problem"] == "1 of 2 nodes do not answer"


def test_a_page_that_is_written_once_waits_for_the_nodes(tmp_path):
    def slow() -> str:
        time.sleep(0.3)
        return json.dumps(status_of(0, 7, 1))

    with answering(tmp_path / "runs" / "state", slow):
        lines = write_page(tmp_path / "runs", tmp_path / "page.html")
    data = json.loads(embedded(tmp_path / "page.html"))
    ((run,),) = (group["runs"] for group in data["tree"]["groups"])
    assert (run["state"], run["k"]) == ("running", 7)
    assert lines == ["1 of 1 run is unfinished: the page shows what is known now"]
    assert [one["device"] for one in data["details"][run["id"]]["devices"]] == [0, 1]
    assert data["curves"][run["id"]][run["id"]]["k"] == [7]


def test_nobody_waits_for_ever(tmp_path):
    with answering(tmp_path / "state", lambda: str(time.sleep(3.0))):
        watched = Watcher.of(tmp_path, may_be_empty=True)
        assert watched.tree["groups"][0]["state"] == "waiting"
        watched.wait_for_nodes(seconds=0.0)
        assert watched.tree["groups"][0]["state"] == "waiting"
        watched.wait_for_nodes()
        assert watched.tree["groups"][0]["state"] == "stopped"


class Growing:
    """A node that makes ten iterations between two questions."""

    def __init__(self) -> None:
        self.k = 0

    def __call__(self) -> str:
        self.k += 10
        return json.dumps(status_of(3, self.k, 4))


def test_a_stream_has_the_status_of_nodes_whenever_they_were_polled(tmp_path, serve):
    with answering(tmp_path / "state", Growing()), serve(tmp_path) as (_, client):
        (group,) = client.get("/api/tree").json()["groups"]
        with stream(client, group=group["id"], run=group["id"]) as events:
            told = [events.wait(lambda name, data: name == "detail") for _ in range(3)]
            first, second, third = (one["devices"][0]["node"]["iteration"] for one in told)
            assert first < second < third
            assert [one["device"] for one in told[0]["devices"]] == [3, 4]
            assert told[0]["id"] == group["id"]
            detail = client.get(f"/api/runs/{group['id']}").json()
            assert told[0]["facts"].items() <= detail["facts"].items()
            events.wait(lambda name, data: name == "delta" and data["part"] == "samples" and data["start"] >= 2)
