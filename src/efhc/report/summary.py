"""The summary of an experiment in words: the tables that the command line prints, and what a notebook shows.

A notebook shows HTML without scripts, in which every text is escaped, of bounded size.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from efhc.base.errors import printable
from efhc.learning.measures import Measure
from efhc.report.claims.intervals import bounds_words
from efhc.report.numbers import MEGABYTE, TIME_UNIT, cost_words, number_words
from efhc.report.timelines import nobody_left

if TYPE_CHECKING:
    from jinja2 import Template

    from efhc.report.figures import Picture


@dataclass(frozen=True)
class WordTable:
    """A table of texts. The first column is the strategy."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str | None = None


@dataclass(frozen=True)
class SummaryWords:
    """The summary of an experiment in words."""

    tables: Sequence[WordTable]
    """A row per strategy; with a target accuracy, a second table with what it takes to reach it."""
    notes: Sequence[str]
    """Sentences below the first table."""


def summary_tables(
    summary: pl.DataFrame,
    measure: Measure,
    name: str,
    seeds: Sequence[int],
    devices: int,
    target: float | None = None,
    *,
    so_far: bool = False,
) -> list[WordTable]:
    """Return a table with a row per strategy of `Result.summary()`, and one with what it takes to reach the `target`.

    `measure` is that of the summary, and `seeds` is the number of seeds that each strategy has. `name` and `devices`
    are those of the experiment; `target` is the value of the measure that it names, if any. With `so_far`, runs have
    not finished.
    """
    of_seconds = "seconds" in summary.columns
    columns = _measures(measure, summary.columns, "\n" if of_seconds else " ")
    columns |= _SECONDS_COLUMNS if of_seconds else _LOCKSTEP_COLUMNS
    if max(seeds, default=1) == 1:
        columns = {name: show for name, show in columns.items() if not name.startswith(WORST)}
    if of_seconds and (summary["devices"] != devices).any():
        columns["devices"] = lambda row: number_words(row["devices"])
    if so_far:
        columns |= {name: show for name, show in _SO_FAR_COLUMNS.items() if name in summary.columns}
    by = "" if measure.label == measure.name else f"{measure.label}, "
    title = f"{name}: {by}{'so far, ' if so_far else ''}{_means_over(seeds)}"
    tables = [_table(title, summary, columns, caption=None if of_seconds else TIME_UNIT)]
    if target is not None:
        caption = "> x: not reached within x" if (summary["reached"] < summary["seeds"]).any() else None
        tables.append(
            _table(f"until {measure.label} {target:g} is reached", summary, _target_columns(summary), caption)
        )
    return tables


def _means_over(seeds: Sequence[int]) -> str:
    if not seeds:
        return "no run has a row yet"
    fewest, most = min(seeds), max(seeds)
    number = str(most) if fewest == most else f"{fewest} to {most}"
    return f"means over {number} seed{'s' if most > 1 else ''}"


def nobody_left_lines(timeline: pl.DataFrame) -> Iterator[str]:
    """Yield a line for each strategy that has event-driven runs at whose end no device was there."""
    for strategy, seeds in nobody_left(timeline).items():
        words = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        yield f"{strategy}, {words}: no device is there at the end, so there are no measures"


Columns = Mapping[str, Callable[[dict[str, Any]], str]]
"""The columns of a table after the strategy: their names, and what they show of a row."""

WORST = "worst"


def _measures(measure: Measure, names: Sequence[str], blank: str) -> dict[str, Callable[[dict[str, Any]], str]]:
    """Return the columns that say how good models are; `blank` is what is between the words of a name."""
    shown = {measure.metric: measure.name, f"{WORST}{blank}seed": measure.worst_name}
    if measure.beside in names:
        shown[f"of mean{blank}model"] = str(measure.beside)
    return {name: lambda row, column=column: _number(row[column]) for name, column in shown.items()}  # type: ignore[misc]


_LOCKSTEP_COLUMNS: Columns = {
    "fire": lambda row: "" if row["firing_share"] is None else f"{100 * row['firing_share']:.1f} %",
    "total time": lambda row: f"{row['transmission_time_total']:.4g}",
    "consensus error": lambda row: f"{row['consensus_error']:.3g}",
}
_SO_FAR_COLUMNS: Columns = {
    "seeds": lambda row: str(row["seeds"]),
    "iterations": lambda row: f"{row['iterations']:,.0f}",
}
_SECONDS_COLUMNS: Columns = {
    "seconds": lambda row: number_words(row["seconds"]),
    "fired": lambda row: f"{row['broadcasts']:,.0f}",
    "exchanges": lambda row: f"{row['exchanges']:,.0f}",
    "MB": lambda row: number_words(row["bytes"] / MEGABYTE),
}


def _target_columns(summary: pl.DataFrame) -> Columns:
    bounds = bounds_words(summary["seeds"])

    def cost(name: str, unit: float) -> Callable[[dict[str, Any]], str]:
        return lambda row: cost_words(row[f"{name}_to_target"], row[f"{name}_without_target"], unit)

    def interval(name: str, unit: float) -> Callable[[dict[str, Any]], str]:
        ends = f"{name}_to_target_low", f"{name}_to_target_high"
        return lambda row: "" if row[ends[0]] is None else " - ".join(number_words(row[end] / unit) for end in ends)

    columns = {
        "seeds": lambda row: f"{row['reached']} of {row['seeds']}",
        "seconds": cost("seconds", 1.0),
        bounds: interval("seconds", 1.0),
        "MB": cost("bytes", MEGABYTE),
        f"{bounds} ": interval("bytes", MEGABYTE),
    }
    has_interval = summary["seconds_to_target_low"].count() > 0
    return {name: show for name, show in columns.items() if has_interval or name.rstrip() != bounds}


def _number(value: float | None) -> str:
    """Return a value of a measure with three decimals, or with three digits if it is large."""
    return "" if value is None else f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"


def _table(title: str, summary: pl.DataFrame, columns: Columns, caption: str | None) -> WordTable:
    rows = [(row["strategy"], *(show(row) for show in columns.values())) for row in summary.iter_rows(named=True)]
    return WordTable(title, ("strategy", *columns), rows, caption)


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
        figure_words=figure.words,
        is_finished=is_finished,
        directory=printable(str(directory)) if directory else None,
        directory_in_python=repr(str(directory)),
    )


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(files(__package__).joinpath("notebook.html").read_text(encoding="utf-8"))
