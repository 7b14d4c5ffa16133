"""The HTML of the page. A live page asks its server for everything; an offline page is one file with everything inside.

Both run the same script and style sheet. The script sets all text of runs as text, never as markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.resources import files as resources

from efhc.report.page.live.bundle import bundle, inside_an_element
from efhc.report.plain_json import to_json
from efhc.report.views import Curve, RunDetail, Tree

# The browser itself refuses whatever is not in the file; a table is exported as a download that the page itself makes.
OFFLINE_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath d='M3 12 8 3l5 9z' "
    "fill='none' stroke='%230072b2' stroke-width='1.6'/%3E%3Cg fill='%230072b2'%3E%3Ccircle cx='3' cy='12' r='2.4'/%3E"
    "%3Ccircle cx='8' cy='3.4' r='2.4'/%3E%3Ccircle cx='13' cy='12' r='2.4'/%3E%3C/g%3E%3C/svg%3E"
)

BODY = '<div id="page"><noscript>This page needs JavaScript.</noscript></div>'


def files() -> dict[str, tuple[str, bytes]]:
    """Return the files that a server gives out under `static/`: the content type and the content by name."""
    return {
        "page.js": ("text/javascript; charset=utf-8", bundle("page").encode()),
        "page.css": ("text/css; charset=utf-8", _style().encode()),
    }


def live_html(nonce: str) -> str:
    """Return the page that asks for its data at `api/`, relative to its own address.

    It works under a policy of `default-src 'none'; connect-src 'self'; img-src data:`, with `'nonce-NONCE'` or `'self'`
    for scripts and styles.
    """
    mark = escape(nonce)
    head = (
        f'<link rel="stylesheet" href="static/page.css" nonce="{mark}">\n'
        f'<script type="module" src="static/page.js" nonce="{mark}"></script>'
    )
    return _document("efhc watch", head, "")


def offline_html(tree: Tree, details: Mapping[str, RunDetail], curves: Mapping[str, Mapping[str, Curve]]) -> str:
    """Return one file that shows these runs without a server. The same input gives the same bytes.

    `details` are the runs by id. A run that it lacks is listed without panels. `curves` has the curves of each group,
    by the id of the group and that of the run.
    """
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{OFFLINE_POLICY}">\n'
        f"<style>\n{inside_an_element(_style())}</style>"
    )
    # Nothing in it may end the element that it is put into.
    data = to_json({"tree": tree, "details": details, "curves": curves}).replace("<", "\\u003c")
    tail = (
        f'<script type="application/json" id="embedded">{data}</script>\n'
        f'<script type="module">\n{inside_an_element(bundle("page"))}</script>\n'
    )
    return _document(tree["title"], head, tail)


def _document(title: str, head: str, tail: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="{ICON}">\n{head}\n</head>\n'
        f"<body>\n{BODY}\n{tail}</body>\n</html>\n"
    )


@cache
def _style() -> str:
    folder = resources("efhc.report.page.live")
    return "".join(folder.joinpath(name).read_text("utf-8") for name in ("drawings.css", "page.css"))
