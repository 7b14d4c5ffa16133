"""A stranger's page in a real browser tries to read ours: by fetch, stream, script, frame, and by another name."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

ATTEMPTS = """async (port) => {
    const ours = `http://127.0.0.1:${port}`;
    const tried = {};
    const attempt = async (name, what) => {
        try { tried[name] = String(await what()); } catch (error) { tried[name] = "refused"; }
    };
    await attempt("fetch", async () => (await fetch(`${ours}/api/tree`)).text());
    await attempt("with credentials", async () => (await fetch(`${ours}/api/tree`, {credentials: "include"})).text());
    await attempt("without cors", async () => {
        const answer = await fetch(`${ours}/api/tree`, {mode: "no-cors"});
        return (await answer.text()) || "refused";
    });
    await attempt("stream", () => new Promise((resolve, reject) => {
        const stream = new EventSource(`${ours}/api/stream`);
        stream.addEventListener("tree", (event) => resolve(event.data));
        stream.onerror = () => { stream.close(); reject(); };
    }));
    await attempt("script", () => new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = `${ours}/static/page.js`;
        script.onload = () => resolve("loaded");
        script.onerror = reject;
        document.head.append(script);
    }));
    await attempt("frame", () => new Promise((resolve) => {
        const frame = document.createElement("iframe");
        frame.src = ours;
        frame.onload = () => {
            try { resolve(frame.contentDocument.body.innerText); } catch (error) { resolve("refused"); }
        };
        document.body.append(frame);
    }));
    return tried;
}"""


@contextmanager
def strangers_site() -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>a stranger</title><link rel=icon href=data:,><body>hello")

        def log_message(self, *_: Any) -> None:
            pass

    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    try:
        yield site.server_address[1]
    finally:
        site.shutdown()
        site.server_close()


@pytest.fixture
def chrome(playwright, chromium) -> Iterator[Any]:
    """A browser for which every name of example.com is this machine."""
    rules = "--host-resolver-rules=MAP *.example.com 127.0.0.1"
    browser = playwright.chromium.launch(executable_path=str(chromium), args=["--no-sandbox", rules])
    yield browser
    browser.close()


@pytest.mark.slow
def test_a_strangers_page_reads_nothing(made, serve, chrome):
    with serve(made) as (server, _), strangers_site() as port:
        for host in ("stranger.example.com", "localhost"):  # another site, and another port of this machine
            page = chrome.new_page()
            page.goto(f"http://{host}:{port}/")
            tried = page.evaluate(ATTEMPTS, server.port)
            assert tried == dict.fromkeys(tried, "refused")
            assert len(tried) == 6
            page.close()


@pytest.mark.slow
def test_the_address_with_the_token_opens_the_page_from_a_link_elsewhere(made, serve, chrome):
    with serve(made, token="auto") as (server, _), strangers_site() as port:
        page = chrome.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"http://stranger.example.com:{port}/")
        page.evaluate("address => { location.href = address; }", server.address)
        page.wait_for_url(f"http://127.0.0.1:{server.port}/")
        page.get_by_text("steps").first.wait_for()
        assert complaints == []
        hosts = {f"http://127.0.0.1:{server.port}/", f"http://stranger.example.com:{port}/", "data:"}
        assert all(url.startswith(tuple(hosts)) for url in asked)
        assert page.evaluate("document.cookie") == ""  # no script can read it
        page.close()
        stranger = chrome.new_context().new_page()
        assert stranger.goto(f"http://127.0.0.1:{server.port}/").status == 401
        stranger.close()
