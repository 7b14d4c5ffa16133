"""What a notebook shows of a result: HTML without scripts, in which every text is escaped, of bounded size."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template

from efhc.base.errors import printable
from efhc.report.figures import Picture
from efhc.report.summary_tables import SummaryWords

MOST_FAILURES = 5
"""How many of the failed runs are listed."""


def result_html(
    words: SummaryWords,
    figure: Picture,
    failed: Mapping[tuple[str, int], str],
    directory: Path | None,
    *,
    is_finished: bool,
) -> str:
    """Return the summary, the figure, the failed runs with the reason of each, and where the result is kept."""
    reasons = list(failed.values())
    return _template().render(
        words=words,
        failed=[printable(reason) for reason in reasons[:MOST_FAILURES]],
        failed_runs=f"{len(reasons)} run{'s' if len(reasons) > 1 else ''}",
        more_failed=max(0, len(reasons) - MOST_FAILURES),
        figure=base64.b64encode(figure.png()).decode(),
        figure_words=figure.get_suptitle(),
        is_finished=is_finished,
        directory=printable(str(directory)) if directory else None,
        directory_in_python=repr(str(directory)),
    )


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(files(__package__).joinpath("notebook.html").read_text(encoding="utf-8"))
