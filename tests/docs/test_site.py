"""The site is built without a warning, loads nothing from elsewhere, and works in a real browser."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from blocks import PAGES, ROOT

pytestmark = pytest.mark.slow
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make docs` builds."""
    if find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: it comes with the extra [docs]")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


class Loaded(HTMLParser):
    """The addresses that a page loads by itself; links that a reader may follow are not among them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") not in ("next", "prev", "canonical", "edit"):
            self.addresses.append(given["href"] or "")
        if tag in LOADS and LOADS[tag] in given:
            self.addresses.append(given[LOADS[tag]] or "")


def test_pages_load_nothing_from_elsewhere(site: Path):
    pages = list(site.rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        for address in Loaded(page.read_text()).addresses:
            assert not re.match(r"(\w+:)?//", address), f"{page.name}: {address}"
            if not address.startswith("data:"):
                assert (page.parent / re.split(r"[?#]", address)[0].lstrip("/")).exists(), f"{page.name}: {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(\w+:)?//", style.read_text()), style.name


def test_every_page_is_in_the_navigation():
    text = re.sub(r"!!python/\S+", "", (ROOT / "mkdocs.yml").read_text())

    def files(tree: object) -> Iterator[str]:
        if isinstance(tree, str):
            yield tree
        for inner in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
            yield from files(inner)

    named = list(files(yaml.safe_load(text)["nav"]))
    assert sorted(named) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES if page.parent != ROOT)


def test_the_search_works_from_a_folder(site: Path, chromium: Path):
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.goto((site / "how-to" / "resume.html").as_uri())
        page.locator("label[for=__search]").first.click()
        page.locator("input[name=query]").press_sequentially("transmission")
        expect(page.locator(".md-search-result__link").first).to_be_visible(timeout=30_000)
        browser.close()


def test_links_stay_within_the_site(site: Path):
    for page in site.rglob("*.html"):
        for address in re.findall(r'<a [^>]*href="([^"#?]+)', page.read_text()):
            if not re.match(r"\w+:|/", address):  # 404.html, which a server shows, has links from the root
                assert (page.parent / address).resolve().is_relative_to(site.resolve()), f"{page.name}: {address}"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


def test_a_reader_finds_pages_by_search_and_nothing_leaves_the_machine(site: Path, chromium: Path):
    from playwright.sync_api import expect, sync_playwright

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        home = f"http://127.0.0.1:{server.server_port}/"
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 390, "height": 800})
            requests: list[str] = []
            problems: list[str] = []
            page.on("request", lambda request: requests.append(request.url))
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
            page.goto(f"{home}index.html")
            expect(page.locator("h1")).to_have_text(re.compile("Start here"))
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            page.locator("label[for=__search]").first.click()
            page.locator("input[name=query]").press_sequentially("transmission")
            expect(page.locator(".md-search-result__link").first).to_be_visible(timeout=30_000)
            page.goto(f"{home}api.html")
            expect(page.locator("[id='efhc.simulate']")).to_be_attached()
            page.goto(f"{home}concepts.html")
            expect(page.locator("img").first).to_be_visible()
            browser.close()
        server.shutdown()
    assert not [url for url in requests if not url.startswith((home, "data:", "blob:"))]
    assert not problems
