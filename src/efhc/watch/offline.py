"""One page that shows all runs under a folder without a server, of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from efhc.base.errors import EfhcError
from efhc.base.saving import write_safely
from efhc.report.page.document import offline_html
from efhc.report.plain_json import to_json
from efhc.report.views import Curve, RunDetail, RunSummary
from efhc.watch.readers import in_force, note_of_links
from efhc.watch.watcher import Watcher

MOST_BYTES = 24_000_000
"""Approximate largest size of the data of a page, in bytes. Browsers take seconds to open a larger one."""


def write_page(folder: Path, file: Path, most_bytes: int = MOST_BYTES) -> list[str]:
    """Write the page of all runs under a folder. Returns a line for everything that was left out.

    Beyond about `most_bytes`, events are thinned, and then runs have their curves only.

    Raises `InputError` if there are no runs.
    """
    watcher = Watcher.of(folder, may_be_empty=False)
    watcher.wait_for_nodes()
    tree = watcher.tree
    curves: dict[str, dict[str, Curve]] = {group["id"]: watcher.curves(group["id"]) or {} for group in tree["groups"]}
    runs = [run for group in tree["groups"] for run in group["runs"]]
    _date(runs)

    def of_all(some: int) -> str:
        return f"{some} of {len(runs)} run{'s'[: len(runs) != 1]} {'is' if some == 1 else 'are'}"

    left = most_bytes - len(to_json(curves))
    details: dict[str, RunDetail] = {}
    lines, too_large = [], 0
    for place, run in enumerate(runs):
        share = left // (len(runs) - place)
        if share <= 0:
            too_large += 1
            continue
        try:
            detail = watcher.detail(run["id"])
        except EfhcError as error:
            lines.append(str(error))
            continue
        if detail is None:
            continue
        del detail["curve"]
        thinned = _within(detail, share)
        if thinned is None:
            too_large += 1
            continue
        details[run["id"]] = thinned
        left -= len(to_json(thinned))
    if too_large:
        lines.append(f"the page would be too large: {of_all(too_large)} shown by curves only")
    if some := sum("events" in detail["facts"] for detail in details.values()):
        lines.append(f"{of_all(some)} too long to show whole: network and raster leave out some iterations")
    if unfinished := sum(run["state"] in ("running", "waiting", "stopped") for run in runs):
        lines.append(f"{of_all(unfinished)} unfinished: the page shows what is known now")
    write_safely(file, offline_html(tree, details, curves).encode("utf-8", "replace"))
    return lines


def _date(runs: Iterable[RunSummary]) -> None:
    """Say of runs that are not over when this was so: the page may be read much later."""
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    for run in runs:
        if run["state"] in ("running", "waiting"):
            run["problem"] = f"It was {run['state']} when this page was written, on {now}."
            run["iterations_per_second"] = run["seconds_left"] = None


def _within(detail: RunDetail, most: int) -> RunDetail | None:
    """Return the run with as many of its events as fit into `most` bytes. None: it is larger even without events."""
    for thinned in _thinner(detail):
        if len(to_json(thinned)) <= most:
            return thinned
    return None


def _thinner(detail: RunDetail) -> Iterator[RunDetail]:
    """Yield the run with all of its events, every other one, and so on."""
    yield detail
    events, network, every = detail["events"], detail["network"], 2
    while every < 2 * len(events["k"]):
        kept = slice(None, None, every)
        shown = events["k"][kept]
        thinned = detail.copy()
        thinned["is_sample"] = True
        thinned["events"] = {
            "k": shown, "fired": events["fired"][kept], "used": events["used"][kept],
            "seconds": events["seconds"][kept],
        }  # fmt: skip
        places = in_force(network["k"], shown)
        thinned["network"] = {
            "k": [network["k"][one] for one in places],
            "links": [network["links"][one] for one in places],
        }
        note = f"{len(shown):,} iterations are drawn, evenly spread; the others are left out"
        thinned["facts"] = detail["facts"] | {"events": note}
        if note_of_some := note_of_links(thinned["events"]["used"]):
            thinned["facts"]["links in use"] = note_of_some
        yield thinned
        every *= 2
