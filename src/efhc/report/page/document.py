"""The HTML of pages: the live page of runs, the same page as one file, and the report of reproduced figures.

All pages share their scripts and styles, and none asks another host for anything. Data becomes text, never markup: the
scripts set text only, and the templates of a report escape whatever they are given (Jinja2's autoescape); only our own
style sheets and scripts are inserted as they are. The same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files as resources
from typing import TYPE_CHECKING, Any

from efhc.report.page.bundle import bundle, inside_an_element
from efhc.report.plain_json import to_json
from efhc.report.views import Curve, RunDetail, Tree

if TYPE_CHECKING:
    from jinja2 import Environment

# The browser itself refuses whatever is not in the file; downloads are made by the page itself.
OFFLINE_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath d='M3 12 8 3l5 9z' "
    "fill='none' stroke='%230072b2' stroke-width='1.6'/%3E%3Cg fill='%230072b2'%3E%3Ccircle cx='3' cy='12' r='2.4'/%3E"
    "%3Ccircle cx='8' cy='3.4' r='2.4'/%3E%3Ccircle cx='13' cy='12' r='2.4'/%3E%3C/g%3E%3C/svg%3E"
)

RUNS_BODY = '<div id="page"><noscript>This page needs JavaScript.</noscript></div>\n'


def files() -> dict[str, tuple[str, bytes]]:
    """Return the files that a server gives out under `static/`: the content type and the content by name."""
    return {
        "page.js": ("text/javascript; charset=utf-8", bundle("watch").encode()),
        "page.css": ("text/css; charset=utf-8", _style("watch").encode()),
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
    return _document("efhc watch", head, RUNS_BODY)


def offline_html(tree: Tree, details: Mapping[str, RunDetail], curves: Mapping[str, Mapping[str, Curve]]) -> str:
    """Return one file that shows these runs without a server.

    `details` are the runs by id. A run that it lacks is listed without panels. `curves` has the curves of each group,
    by the id of the group and that of the run.
    """
    data = embedded({"tree": tree, "details": details, "curves": curves})
    body = f'{RUNS_BODY}<script type="application/json" id="embedded">{data}</script>\n'
    return _offline(tree["title"], "watch", body)


def report_html(title: str, **content: Any) -> str:
    """Return the report of reproduced figures; `content` is what the template report.html shows."""
    return _offline(title, "report", _templates().get_template("report.html").render(title=title, **content))


def embedded(data: Any) -> str:
    """Return JSON in which nothing ends the element that it is put into."""
    return to_json(data).replace("<", "\\u003c")


def _offline(title: str, entry: str, body: str) -> str:
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{OFFLINE_POLICY}">\n'
        f"<style>\n{inside_an_element(_style(entry))}</style>"
    )
    script = f'<script type="module">\n{inside_an_element(bundle(entry))}</script>\n'
    return _document(title, head, body + script)


def _document(title: str, head: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="{ICON}">\n{head}\n</head>\n'
        f"<body>\n{body}</body>\n</html>\n"
    )


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # the page of runs needs none

    return Environment(
        loader=PackageLoader("efhc.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@cache
def _style(entry: str) -> str:
    folder = resources("efhc.report.page").joinpath("styles")
    names: Sequence[str] = ("base.css", f"{entry}.css")
    return "".join(folder.joinpath(name).read_text("utf-8") for name in names)
