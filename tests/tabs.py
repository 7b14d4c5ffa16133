"""A tab of a real browser that looks at a page, and everything it complained about or asked for."""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import pytest


class Tab:
    def __init__(self, browser: Any, address: str, width: int = 1400, scheme: str = "light", **options: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.address = address
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)

    def _on_console(self, message: Any) -> None:
        if "willReadFrequently" not in message.text:  # the tests themselves read what is drawn
            self.complaints.append(message.text)

    def wait(self, condition: str, seconds: float = 60) -> Any:
        """Playwright's own way needs `eval`, which the page forbids."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if found := self.page.evaluate(condition):
                return found
            self.page.wait_for_timeout(50)
        shown = self.page.evaluate("document.querySelector('main')?.innerText.slice(0, 600)")
        pytest.fail(f"never came true: {condition}; the page shows {shown!r}, and said {self.complaints}")

    def wait_for_text(self, selector: str, text: str, seconds: float = 60) -> None:
        self.wait(f"document.querySelector({selector!r})?.innerText.includes({text!r})", seconds)

    def text(self, selector: str) -> str:
        found: str = self.page.evaluate(f"document.querySelector({selector!r})?.innerText ?? ''")
        return found

    def focused(self) -> str:
        """What has the focus, by its label or text."""
        found: str = self.page.evaluate(
            "(document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText).trim()"
        )
        return found

    def is_painted(self, selector: str) -> bool:
        """Whether a canvas has anything on it."""
        found: bool = self.page.evaluate(
            f"""(() => {{
                const canvas = document.querySelector({selector!r});
                const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
                return data.some((value) => value > 0);
            }})()"""
        )
        return found

    def count_color(self, selector: str, variable: str) -> int:
        """How many pixels of a canvas have a colour of the style sheet."""
        found: int = self.page.evaluate(
            f"""(() => {{
                const color = getComputedStyle(document.documentElement).getPropertyValue({variable!r}).trim();
                const wanted = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
                const canvas = document.querySelector({selector!r});
                const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
                let count = 0;
                for (let at = 0; at < data.length; at += 4) {{
                    if (data[at + 3] > 200 && wanted.every((part, n) => Math.abs(data[at + n] - part) < 12)) count++;
                }}
                return count;
            }})()"""
        )
        return found

    def assert_quiet(self) -> None:
        """The page complained about nothing and asked no other host."""
        assert self.complaints == [], self.complaints
        start = self.address.split("#")[0]
        assert all(url.startswith((start, "data:", "blob:")) for url in self.requests), self.requests

    def assert_accessible(self, axe: str) -> None:
        """The page fits every screen, in both themes, and axe finds nothing serious."""
        page = self.page
        page.evaluate(axe)
        for width, scheme in product((1400, 390), ("light", "dark")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            self.wait(f"document.documentElement.dataset.theme === {scheme!r} && innerWidth === {width}")
            assert page.evaluate("document.documentElement.scrollWidth") == width
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            bad = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
            assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in bad] == [], (width, scheme)
        self.assert_quiet()

    def close(self) -> None:
        self.page.close()
