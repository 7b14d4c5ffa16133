"""The pages of a node over real sockets: what Prometheus, a supervisor and `efhc status` get, and what a pest gets."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from efhc.base.errors import EfhcError, InputError
from efhc.experiments.nodes.status_query import query_all, query_status
from efhc.runtime.node_settings import Address
from efhc.runtime.pages import AT_ONCE, Pages
from efhc.runtime.status import OUTCOMES, STATES, NeighbourStatus, NodeStatus, as_prometheus


def node_status(**fields: Any) -> NodeStatus:
    return NodeStatus(**{"device": 3, "session": 7, "mode": "free-running", "version": "0", "pid": 1} | fields)


class Running:
    """Pages that are served by a loop in a thread, as a node's loop does."""

    def __init__(self, status: NodeStatus, pages: Pages, path: Path) -> None:
        self.status, self.pages, self.path = status, pages, path

    def raw(self, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.pages.port), timeout=60) as connection:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def get(self, page: str) -> tuple[int, str]:
        head, _, body = self.raw(f"GET {page} HTTP/1.1\r\nHost: x\r\n\r\n".encode()).partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        assert length is not None
        assert int(length[1]) == len(body)
        return int(head.split()[1]), body.decode()


@contextlib.contextmanager
def running_loop() -> Iterator[Callable[[Any], Any]]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.run_until_complete(asyncio.sleep(0.01))  # what is closing closes
        loop.close()


@contextlib.contextmanager
def serving(folder: Path, status: NodeStatus, port: int | None = 0, seconds: float = 5.0) -> Iterator[Running]:
    path = folder / "status.sock"
    with running_loop() as call:
        pages = Pages(lambda: status, path, port, seconds)
        call(pages.__aenter__())
        try:
            yield Running(status, pages, path)
        finally:
            call(pages.__aexit__())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with serving(tmp_path, node_status()) as found:
        yield found


def test_health_and_readiness(running: Running):
    for state in STATES:
        running.status.state = state
        ready = state in ("training", "finished")
        assert running.get("/readyz") == (200 if ready else 503, f"{state}\n")
        assert running.get("/healthz") == (200, "ok\n")


def test_status_is_json_of_every_field(running: Running):
    running.status.loss, running.status.neighbours = float("nan"), [NeighbourStatus(1, rate=2.5)]
    code, text = running.get("/status?pretty=1")
    assert code == 200
    found = json.loads(text, parse_constant=pytest.fail)
    assert found == dataclasses.asdict(running.status) | {"loss": None}
    assert found["neighbours"][0]["rate"] == 2.5


SAMPLE = re.compile(
    r"^[a-z_][a-z0-9_]*(\{[a-z]+=\"([^\"\\\n]|\\.)*\"(,[a-z]+=\"([^\"\\\n]|\\.)*\")*\})? (-?[0-9.e+-]+|NaN|[+-]Inf)$"
)


def test_metrics_are_prometheus_text(running: Running):
    running.status.neighbours = [NeighbourStatus(1, up=True, bytes_sent=10), NeighbourStatus(12, rate=float("inf"))]
    running.status.neighbours[0].exchanges["committed"] = 4
    running.status.version, running.status.drift = 'a"b\\c\nd', 0.25
    code, text = running.get("/metrics")
    assert code == 200
    assert text == as_prometheus(running.status)
    described: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind == ("counter" if name.endswith("_total") else "gauge")
            assert name not in described
            described.add(name)
        elif line.startswith("# HELP "):
            assert len(line.split(" ")) > 4
        else:
            assert SAMPLE.match(line), line
            assert re.split(r"[{ ]", line)[0] in described
    lines = text.splitlines()
    assert 'efhc_exchanges_total{neighbour="1",outcome="committed"} 4' in lines
    assert 'efhc_link_up{neighbour="12"} 0' in lines
    assert 'efhc_link_rate_bytes_per_second{neighbour="12"} +Inf' in lines
    assert "efhc_drift 0.25" in lines
    assert not [line for line in lines if line.startswith("efhc_loss ")]  # not known yet
    assert r'version="a\"b\\c\nd"' in text


def test_numbers_of_numpy_are_plain_numbers_on_all_pages(running: Running):
    """Every number of a status is one of NumPy here, as losses, drifts and counts may be."""
    kinds = {bool: np.bool_, int: np.int64, float: np.float32}
    running.status.neighbours = [NeighbourStatus(np.int64(1), iteration=5, rate=0.5)]
    running.status.neighbours[0].exchanges = dict.fromkeys(OUTCOMES, np.int64(2))
    running.status.loss, running.status.drift, running.status.threshold = 0.25, 0.5, np.float64("nan")
    for whole in (running.status, *running.status.neighbours):
        for field in dataclasses.fields(whole):
            value = getattr(whole, field.name)
            setattr(whole, field.name, kinds.get(type(value), lambda same: same)(value))
    samples = [line for line in running.get("/metrics")[1].splitlines() if not line.startswith("#")]
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in samples}
    assert values["efhc_loss"] == 0.25
    assert values['efhc_exchanges_total{neighbour="1",outcome="committed"}'] == 2
    assert len(values) > 30
    found = json.loads(running.get("/status")[1], parse_constant=pytest.fail)
    assert (found["loss"], found["drift"], found["threshold"], found["device"]) == (0.25, 0.5, None, 3)
    assert found["neighbours"][0]["up"] is False
    assert found["neighbours"][0]["exchanges"]["refused"] == 2


def test_every_number_of_a_status_is_a_metric():
    """A field that is added and forgotten in `metrics` fails here."""
    status = node_status(neighbours=[NeighbourStatus(1)])
    texts = {"device", "pid", "mode", "version", "state", "waits_for", "neighbours", "exchanges", "last_problem"}
    marks: dict[int, str] = {}
    for whole in (status, status.neighbours[0]):
        for field in dataclasses.fields(whole):
            if field.name not in texts:
                marks[1000 + len(marks)] = f"{type(whole).__name__}.{field.name}"
                setattr(whole, field.name, max(marks))
    shown = {int(line.split()[-1]) for line in as_prometheus(status).splitlines() if line.split()[-1].isdigit()}
    assert {name for mark, name in marks.items() if mark not in shown} == {"NeighbourStatus.session"}


def test_the_socket_is_private_and_answers_the_same(running: Running):
    assert stat.S_IMODE(running.path.stat().st_mode) == 0o600
    answer = query_status(running.path)
    assert answer.status == dataclasses.asdict(running.status)
    assert query_status(Address("127.0.0.1", running.pages.port or 0)).status == answer.status


@pytest.mark.parametrize(
    ("request_line", "code"),
    [
        (b"POST /status HTTP/1.1", 405),
        (b"GET /etc/passwd HTTP/1.1", 404),
        (b"GET /../status HTTP/1.1", 404),
        (b"\x16\x03\x01\x02\x00", 405),
        (b"GET", 405),
        (b"", 405),
    ],
)
def test_other_requests_are_refused(running: Running, request_line: bytes, code: int):
    assert running.raw(request_line + b"\r\n\r\n").startswith(b"HTTP/1.1 %d " % code)
    assert running.get("/healthz")[0] == 200


def test_a_request_without_end_is_cut_off(running: Running):
    assert running.raw(b"GET /" + b"a" * 7000 + b" HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 404")
    with contextlib.suppress(ConnectionError):  # the rest of what was sent may be refused
        assert running.raw(b"GET /" + b"a" * 200_000) == b""
    assert running.get("/healthz")[0] == 200


def test_idle_connections_are_few_and_short(tmp_path: Path):
    with serving(tmp_path, node_status(), seconds=0.5) as running:
        idle = [socket.create_connection(("127.0.0.1", running.pages.port), timeout=60) for _ in range(150)]
        assert all(one.recv(1) == b"" for one in idle)
        for one in idle:
            one.close()
        assert len(idle) > AT_ONCE
        assert running.get("/healthz")[0] == 200


def test_a_socket_that_was_left_is_replaced_and_a_file_is_not(tmp_path: Path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "status.sock"))
    with serving(tmp_path, node_status()) as running:
        assert query_status(running.path).status is not None
    assert not (tmp_path / "status.sock").exists()
    (tmp_path / "status.sock").write_text("mine")
    with pytest.raises(EfhcError, match=r"status\.sock cannot be made"), serving(tmp_path, node_status()):
        pass
    assert (tmp_path / "status.sock").read_text() == "mine"


def test_a_state_folder_with_a_long_name(tmp_path: Path):
    folder = tmp_path / ("a" * 100) / ("b" * 100)
    folder.mkdir(parents=True)
    with serving(folder, node_status()):
        assert [answer.place for answer in query_all([str(tmp_path)])] == [str(folder)]
        assert stat.S_IMODE((folder / "status.sock").stat().st_mode) == 0o600


def test_a_port_in_use_is_one_line_and_leaves_nothing(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = rf"^metrics.port: port {port} cannot be used .*choose another"
        with pytest.raises(EfhcError, match=said), serving(tmp_path, node_status(), port):
            pass
    assert list(tmp_path.iterdir()) == []


# Asking


def test_nodes_are_found_below_a_folder_and_listed_by_device(tmp_path: Path):
    with contextlib.ExitStack() as stack:
        for device in (10, 2):
            folder = tmp_path / f"node-{device}" / "state"
            folder.mkdir(parents=True)
            stack.enter_context(serving(folder, node_status(device=device), None))
        dead = tmp_path / "dead"
        dead.mkdir()
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(dead / "status.sock"))
        answers = query_all([str(tmp_path), str(tmp_path / "node-2")])
    assert [answer.status and answer.status["device"] for answer in answers] == [2, 10, None]
    assert answers[-1].problem == "does not answer; the node is not running"


def test_places_without_a_node(tmp_path: Path):
    assert query_all([str(tmp_path)]) == []
    with pytest.raises(InputError, match="which does not exist"):
        query_all([str(tmp_path / "nowhere")])
    with pytest.raises(InputError, match="an address of another machine"):
        query_all(["192.0.2.1:80"])


def test_who_answers_is_not_a_node(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = Address(*other.getsockname())
        answers = []
        thread = threading.Thread(target=lambda: answers.append(query_status(address)))
        thread.start()
        connection, _ = other.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")
            thread.join(60)
    assert answers[0].problem == "what answers there is not an efhc node"
