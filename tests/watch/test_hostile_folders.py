"""Whoever may write in the watched folder can neither stop the page, nor read the files of whoever watches."""

from __future__ import annotations

import json
import os
import shutil

import polars as pl
import pytest
from streams import answering

from efhc.experiments.runs.live_file import heading, read_live
from efhc.report.plain_json import to_json
from efhc.watch.offline import write_page
from efhc.watch.readers import Reader
from efhc.watch.watcher import Watcher

CONFIG = 'devices = 2\niterations = 9\nseeds = [0]\nname = "NAME"\n[strategies.a]\nkind = "ef-hc"\n'
BEGIN = {
    "kind": "begin", "at": 1.0, "k": 0, "experiment": "e", "strategy": "a", "seed": 0, "key": "k", "driver": "lockstep",
    "devices": 2, "parameters": 3, "iterations": 9, "bandwidths": [1.0, 1.0], "links": [[0, 1]], "pid": 1,
    "host": "elsewhere", "process": None,
}  # fmt: skip
ROW = {"kind": "evaluated", "at": 2.0, "k": 3, "row": {"accuracy": 0.5, "seconds": 1.0}}
DEEP = "[" * 900 + "]" * 900


def experiment(folder, meta="", live=(), config=CONFIG):
    """Write an experiment; `live` are the lines of its live file."""
    folder.mkdir()
    (folder / "config.toml").write_text(config.replace("NAME", folder.name))
    if meta:
        (folder / "meta.json").write_text(meta)
    if live:
        lines = [line if isinstance(line, str) else json.dumps(line) for line in live]
        (folder / "live.jsonl").write_bytes(heading() + "".join(f"{line}\n" for line in lines).encode())
    return folder


def text(record, **changed):
    """A record as text, with values that JSON does not have."""
    marks = {f"@{name}@": value for name, value in changed.items()}
    line = json.dumps(record | {name: f"@{name}@" for name in changed})
    for mark, value in marks.items():
        line = line.replace(f'"{mark}"', value)
    return line


METAS = {
    "strategy as a list": '{"failed": [{"strategy": ["x"]}]}',
    "reason NaN": '{"status": "complete", "failed": [{"strategy": "a", "seed": 0, "reason": NaN}]}',
    "surrogate": '{"status": "complete", "failed": [{"strategy": "a", "seed": 0, "reason": "\\ud800"}]}',
    "kinds": '{"machine": "text", "versions": ["a"], "git": 3, "warnings": 7, "wall_seconds": 1e999, "sessions": 5}',
    "huge": '{"wall_seconds": 1' + "0" * 400 + "}",
    "deep": f'{{"made_by": {DEEP}}}',
    "no table": "[]",
}
LIVES = {
    "row NaN": (BEGIN, text(ROW, row='{"accuracy": NaN}')),
    "row infinite": (BEGIN, text(ROW, row='{"accuracy": 1e999, "seconds": -1e999}')),
    "timed": (BEGIN | {"driver": "event-driven"}, text(ROW, row='{"steps": 1e999}')),
    "no devices": (BEGIN | {"driver": "event-driven", "devices": 0}, text(ROW, row='{"steps": 1}')),
    "iterations": (text(BEGIN, iterations="1" + "0" * 400), ROW),
    "pid": (BEGIN | {"pid": 2**80, "host": os.uname().nodename}, ROW),
    "bandwidth": (text(BEGIN, bandwidths="[1e999, 1.0]"), ROW),
    "time": (text(BEGIN, at="NaN"), ROW),
    "strangers": (BEGIN, {"kind": "events", "k": 1, "fired": [7], "used": [[0, 10**9]]}),
    "rows of one evaluation": (
        BEGIN,
        *(
            text(ROW, k=str(k), row=row)
            for k, row in enumerate(
                (
                    '{"evaluation": 0}',
                    '{"evaluation": 0, "accuracy": null}',
                    '{"evaluation": 0, "accuracy": 0.5}',
                    '{"evaluation": 0, "accuracy": 1, "x_p10": 9007199254740993, "x": -1}',
                    '{"evaluation": 0}',
                )
            )
        ),
    ),
    "deep row": (BEGIN, text(ROW, row=f'{{"accuracy": {DEEP}}}')),
}


def checked(content):
    def refuse(name):
        pytest.fail(f"JSON has no {name}")

    return json.loads(content, parse_constant=refuse)


def test_one_bad_folder_is_its_own_problem(tmp_path, serve):
    root = tmp_path / "runs"
    root.mkdir()
    experiment(root / "good", live=(BEGIN, ROW))
    for name, meta in METAS.items():
        experiment(root / f"meta {name}", meta=meta)
    for name, live in LIVES.items():
        experiment(root / f"live {name}", live=live)
    experiment(root / "runs", config=CONFIG.replace("[0]", str(list(range(20_000)))))
    experiment(root / "number", config=CONFIG.replace("iterations = 9", "iterations = 1" + "0" * 400))
    complete = '{"status": "complete", "table_sha256": {}}'  # tables of all runs, as efhc 0.2 left them
    for name, strategy in (("up", "../../x"), ("nul", "\\u0000")):
        experiment(root / name, meta=complete, config=CONFIG.replace("[strategies.a]", f'[strategies."{strategy}"]'))
    experiment(root / "tables", meta=complete)
    nowhere = pl.DataFrame({"strategy": ["a"], "seed": [0], "iteration": [8], "accuracy": [float("nan")]})
    nowhere.write_parquet(root / "tables" / "metrics.parquet")
    experiment(root / os.fsdecode(b"\xff\xfe"), config=CONFIG.replace("NAME", "bytes"))
    with serve(root) as (_, client):
        answer = client.get("/api/tree")
        assert answer.status_code == 200
        groups = {group["name"]: group for group in checked(answer.text)["groups"]}
        assert groups["good"]["runs"][0]["latest"] == {"accuracy": 0.5}
        assert groups["meta strategy as a list"]["problem"] == "meta.json is damaged"
        assert groups["number"]["problem"] == "config.toml is damaged"
        assert "20,000 runs" in groups["runs"]["problem"]
        for group in groups.values():
            assert client.get(f"/api/groups/{group['id']}/curves").status_code == 200
            for run in group["runs"]:
                detail = client.get(f"/api/runs/{run['id']}")
                assert detail.status_code in (200, 410), (group["name"], detail.text)
                if detail.status_code == 200:
                    checked(detail.text)
                assert client.get(f"/api/runs/{run['id']}/metrics.csv").status_code in (200, 410)
    write_page(root, tmp_path / "page.html")


def test_an_error_nobody_thought_of_is_the_problem_of_its_folder(tmp_path, monkeypatch):
    for name in ("good", "bad"):
        experiment(tmp_path / name, live=(BEGIN, ROW))
    whole = Reader.summary

    def summary(self, problem=None):
        if self.run.folder.name == "bad" and problem is None:
            raise ArithmeticError("nobody thought of this")
        return whole(self, problem)

    monkeypatch.setattr(Reader, "summary", summary)
    watched = Watcher.of(tmp_path, may_be_empty=True)
    runs = {group["name"]: group["runs"][0] for group in watched.tree["groups"]}
    assert runs["bad"]["problem"] == "ArithmeticError: nobody thought of this"
    assert runs["good"]["latest"] == {"accuracy": 0.5}


def test_json_has_no_infinity_and_no_half_letters():
    data = {"a": [float("nan"), (1.5, float("inf"))], "b": "\ud800x"}
    assert to_json(data) == '{"a":[null,[1.5,null]],"b":"?x"}'


def test_a_link_to_a_file_elsewhere_shows_nothing_of_it(tmp_path, serve):
    secret = tmp_path / "secret.toml"
    secret.write_text(CONFIG.replace("NAME", "secret"))
    root = tmp_path / "runs"
    root.mkdir()
    folder = experiment(root / "one", live=(BEGIN, ROW))
    with serve(root) as (_, client):
        run = client.get("/api/tree").json()["groups"][0]["runs"][0]["id"]
        (folder / "config.toml").unlink()
        (folder / "config.toml").symlink_to(secret)
        answer = client.get(f"/api/runs/{run}/config.toml")
        assert "secret" not in answer.text
        assert "secret" not in client.get(f"/api/runs/{run}").text
    with serve(root) as (_, client):
        assert "secret" not in client.get("/api/tree").text
    elsewhere = experiment(tmp_path / "elsewhere", live=(BEGIN, ROW))
    (folder / "live.jsonl").unlink()
    (folder / "live.jsonl").symlink_to(elsewhere / "live.jsonl")
    assert read_live(folder / "live.jsonl") is None


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a link away")
def test_a_strangers_link_does_not_lead_out_of_the_folder(tmp_path):
    root = tmp_path / "runs"
    root.mkdir()
    experiment(tmp_path / "private")
    experiment(root / "inside")
    for name, target in (("mine", tmp_path / "private"), ("out", tmp_path / "private"), ("within", root / "inside")):
        (root / name).symlink_to(target)
    for name in ("out", "within"):
        os.lchown(root / name, 12345, 12345)
    watched = Watcher.of(root, may_be_empty=True)
    assert {group["name"] for group in watched.tree["groups"]} == {"private", "inside"}
    (root / "mine").unlink()
    watched = Watcher.of(root, may_be_empty=True)
    assert {group["name"] for group in watched.tree["groups"]} == {"inside"}


def test_pipes_and_huge_files_do_not_hold_the_page_up(tmp_path, made):
    root = tmp_path / "runs"
    root.mkdir()
    experiment(root / "good", live=(BEGIN, ROW))
    for name in ("config.toml", "meta.json", "live.jsonl"):
        folder = experiment(root / f"pipe {name}", live=(BEGIN, ROW))
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        folder = experiment(root / f"huge {name}", live=(BEGIN, ROW))
        with (folder / name).open("wb") as file:
            file.truncate(6_000_000_000)
    shutil.copytree(made / "steps", root / "steps")
    for table in (root / "steps").glob("runs/*/metrics.parquet"):
        table.unlink()
        os.mkfifo(table)
    watched = Watcher.of(root, may_be_empty=True)
    groups = {group["name"]: group for group in watched.tree["groups"]}
    assert groups["good"]["runs"][0]["latest"] == {"accuracy": 0.5}
    assert "not a regular file" in groups["steps"]["runs"][0]["problem"]
    assert groups["huge config.toml"]["problem"] == "config.toml is damaged"
    assert groups["pipe live.jsonl"]["runs"][0]["state"] == "waiting"


@pytest.mark.parametrize("status", ['{"device": 1000000000, "neighbours": []}', '{"device": 0}', '{"device": NaN}'])
def test_a_program_that_is_no_node_does_not_answer(tmp_path, status):
    experiment(tmp_path / "good", live=(BEGIN, ROW))
    with answering(tmp_path / "state", lambda: status):
        watched = Watcher.of(tmp_path, may_be_empty=True)
        watched.wait_for_nodes()
    groups = {group["kind"]: group for group in watched.tree["groups"]}
    assert groups["nodes"]["runs"][0]["problem"] == "1 of 1 nodes do not answer"
    assert groups["run"]["runs"][0]["latest"] == {"accuracy": 0.5}
