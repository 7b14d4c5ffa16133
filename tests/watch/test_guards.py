"""Who gets an answer, over real sockets: the page itself, and nobody else."""

from __future__ import annotations

import http.client
import shutil
import socket
import time
from contextlib import suppress

import pytest

from efhc.base.errors import InputError
from efhc.watch import server as of_server
from efhc.watch.guards import choose_token, is_loopback
from efhc.watch.watcher import Watcher

TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def page(made, serve):
    """A page without a token, the same for all tests."""
    with serve(made) as (server, client):
        yield server, client


def raw(port: int, target: str, method: str = "GET", headers: dict[str, str] | None = None) -> tuple[int, bytes, dict]:
    """Ask without a client that would tidy the path up, or add a Host header."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.putrequest(method, target, skip_host=headers is not None, skip_accept_encoding=True)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


@pytest.mark.parametrize(
    "target",
    [
        "/../config.toml",
        "/static/../steps/config.toml",
        "/static/..%2f..%2fsteps%2fconfig.toml",
        "/static/%2fetc%2fpasswd",
        "/static/%2e%2e/%2e%2e/etc/passwd",
        "/static//etc/passwd",
        "//etc/passwd",
        "/steps/config.toml",
        "/api/runs/..%2f..%2fsteps",
        "/api/runs/steps",
        "/api/runs/%00",
        "/api/runs/../../etc/passwd/config.toml",
        "/api/groups/%2e%2e/curves",
        "/api/tree/",
        "/docs",
    ],
)
def test_no_request_names_a_file(page, target):
    server, _ = page
    status, body, _ = raw(server.port, target)
    assert status == 404
    assert b"root:" not in body
    assert b"strategies" not in body


@pytest.mark.parametrize("target", ["/", "/api/tree"])
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8787", "127.0.0.1.evil.example", "192.168.0.1", "localhost.evil.example", "", "["],
)
def test_a_name_that_was_pointed_at_loopback_gets_nothing(page, target, host):
    server, _ = page
    status, body, _ = raw(server.port, target, headers={"Host": host})
    assert status in (400, 421)
    assert b"EF-HC" not in body


def test_loopback_names_are_ours_on_any_port(page):
    """`ssh -L 9000:localhost:8787` leads here by another port."""
    server, _ = page
    for host in (f"127.0.0.1:{server.port}", "localhost:9000", "[::1]:1", "LOCALHOST"):
        assert raw(server.port, "/api/tree", headers={"Host": host})[0] == 200
    assert raw(server.port, "/api/tree", headers={})[0] == 400  # HTTP/1.1 demands one


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_other_sites_get_no_data(page, headers):
    _, client = page
    for target in ("/api/tree", "/api/stream", "/static/page.js"):
        answer = client.get(target, headers=headers)
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers


def test_a_link_may_lead_to_the_page_which_holds_no_data(page):
    _, client = page
    answer = client.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})
    assert answer.status_code == 200
    assert "EF-HC" not in answer.text
    ours = {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{client.base_url.netloc.decode()}"}
    assert client.get("/api/tree", headers=ours).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_nothing_can_be_changed(page, method):
    server, _ = page
    for target in ("/", "/api/tree", "/nothing"):
        status, _, headers = raw(server.port, target, method)
        assert status == 405
        assert headers["allow"] == "GET, HEAD"
        assert "access-control-allow-origin" not in headers


def test_every_answer_has_the_headers(page):
    _, client = page
    policies = set()
    for target in ("/", "/api/tree", "/static/page.css", "/nothing"):
        headers = client.get(target).headers
        policy = headers["content-security-policy"]
        policies.add(policy)
        assert policy.startswith("default-src 'none'; script-src 'self' 'nonce-")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers
    assert len(policies) == 4  # a nonce is used once
    assert client.head("/api/tree").status_code == 200


class TestToken:
    def test_without_it_nothing_is_served(self, made, serve):
        with serve(made, token=TOKEN) as (_, client):
            for target in ("", "api/tree", "api/stream", "static/page.js", "nothing", "?token=", f"?token={TOKEN}x"):
                answer = client.get(f"/{target}")
                assert answer.status_code == 401
                assert "set-cookie" not in answer.headers
                assert "EF-HC" not in answer.text
            # In an address, it counts for the page only.
            assert client.get(f"/api/tree?token={TOKEN}").status_code == 401
            for name, value in (
                ("Authorization", "Bearer 0123456789abcdeX"),
                ("Authorization", f"Basic {TOKEN}"),
                ("Cookie", f"efhc-watch={TOKEN}"),
            ):
                assert client.get("/api/tree", headers={name: value}).status_code == 401

    def test_the_address_sets_a_cookie_and_leads_on_without_it(self, made, serve):
        with serve(made, token=TOKEN) as (server, client):
            assert server.address.endswith(f"/?token={TOKEN}")
            first = client.get(f"/?token={TOKEN}")
            assert first.status_code == 200
            cookie = first.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert 'content="0; url=/"' in first.text
            assert TOKEN not in first.text
            assert client.get("/").status_code == 200  # the client keeps the cookie, as a browser does
            assert client.get("/api/tree").status_code == 200

    @pytest.mark.parametrize("other", ['settings={"a": [1, 2]}', "without-a-value", "a=1, b"])
    def test_cookies_of_other_servers_on_this_machine_do_not_hide_it(self, made, serve, other):
        with serve(made, token=TOKEN) as (_, client):
            cookie = client.get(f"/?token={TOKEN}").headers["set-cookie"].split(";")[0]
            client.cookies.clear()
            assert client.get("/api/tree", headers={"Cookie": f"{other}; {cookie}"}).status_code == 200

    def test_beyond_loopback_it_is_needed(self, made, serve):
        with pytest.raises(InputError, match="without --token"), serve(made, host="0.0.0.0"):
            pass
        with serve(made, host="0.0.0.0", token="auto") as (server, client):
            assert len(server.token) >= 32
            assert client.get("/api/tree").status_code == 401
            given = {"Authorization": f"Bearer {server.token}", "Host": "some.machine.example"}
            assert client.get("/api/tree", headers=given).status_code == 200

    @pytest.mark.parametrize("token", ["short", *(TOKEN + letter for letter in '&#;= +%"é')])
    def test_short_ones_and_those_that_mean_something_in_an_address_or_a_cookie_are_refused(self, token):
        with pytest.raises(InputError, match="--token"):
            choose_token("127.0.0.1", token)
        assert choose_token("127.0.0.1", f"{TOKEN}-_Z") == f"{TOKEN}-_Z"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "localhost.", "LOCALHOST")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.example.com", "")),
    ],
)
def test_loopback(host, expected):
    assert is_loopback(host) is expected


def test_a_port_in_use_is_one_line_and_the_next_free_one_is_taken(made, serve, refused):
    with serve(made) as (first, _):
        line = refused("watch", made, "--port", first.port)
        assert f"--port: cannot use {first.port}, which is in use" in line
        with serve(made) as (second, client):
            assert second.port != first.port
            assert client.get("/api/tree").status_code == 200


def test_bad_input_is_one_line(tmp_path, refused):
    assert "which is not a folder" in refused("watch", tmp_path / "nowhere" / "runs")
    assert "which is not a folder" in refused("report", tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("no run")
    assert "which holds no runs" in refused("watch", tmp_path)
    assert "which holds no runs" in refused("report", tmp_path)


def test_a_folder_that_is_not_there_yet_is_waited_for(made, tmp_path):
    watched = Watcher.of(tmp_path / "later", may_be_empty=True)
    assert watched.tree["groups"] == []
    shutil.copytree(made, tmp_path / "later")
    watched.scan_now()
    assert len(watched.tree["groups"]) == 2


def test_the_number_of_streams_is_bounded(page):
    server, client = page
    open_ones = []
    try:
        for _ in range(32):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            connection.request("GET", "/api/stream")
            open_ones.append((connection, connection.getresponse()))
        assert {answer.status for _, answer in open_ones} == {200}
        answer = client.get("/api/stream")
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
    finally:
        for connection, _ in open_ones:
            connection.close()


@pytest.fixture
def half_asked():
    """Open connections to a port that send half a request each."""
    opened = []

    def ask(port, count, content=b"GET /api/tree HTTP/1.1\r\nHost: 127"):
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", port), timeout=10)
            one.sendall(content)
            opened.append(one)
        return opened

    yield ask
    for one in opened:
        one.close()


def test_half_requests_lock_nobody_out(page, half_asked):
    server, client = page
    half_asked(server.port, 210)
    assert client.get("/api/tree").status_code == 200


@pytest.mark.parametrize(
    "content", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nhalf"]
)
def test_a_request_that_is_not_whole_in_time_is_closed(page, half_asked, monkeypatch, content):
    monkeypatch.setattr(of_server, "REQUEST_SECONDS", 0.3)
    (one,) = half_asked(page[0].port, 1, content)
    one.settimeout(60)
    with suppress(ConnectionResetError):
        while one.recv(1000):  # until the server closes it
            pass


def test_a_whole_request_is_not_closed_in_the_middle_of_its_answer(page, monkeypatch):
    monkeypatch.setattr(of_server, "REQUEST_SECONDS", 0.2)
    server, _ = page
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    for _ in range(2):  # also the second request of a connection
        connection.request("GET", "/api/tree")
        assert connection.getresponse().read()
        time.sleep(0.4)
    connection.request("GET", "/api/stream")
    answer = connection.getresponse()
    time.sleep(0.5)
    assert answer.readline() == b"retry: 1000\n"
    connection.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6 here")
def test_brackets_of_an_address_are_taken_off(made, serve):
    try:
        with serve(made, host="[::1]") as (server, _):
            assert server.address == f"http://[::1]:{server.port}/"
    except InputError:
        pytest.skip("there is no IPv6 here")
