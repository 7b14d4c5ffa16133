"""Tables for papers: a row per strategy; a column per setting, measure and budget; mean ± half an interval over seeds.

Within a column the best mean is bold. A dagger marks each mean that is not distinguishable from it: the 95 % interval
of the differences to the best, seed by seed, contains 0. A strategy that lacks a seed that others have does not
compete: the seeds that failed are not a random sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from efhc.base.errors import InputError
from efhc.base.saving import write_safely
from efhc.learning.measures import Better, Measure, measure_of, measures_of, metrics_in
from efhc.report.claims.intervals import FEWEST_SEEDS, bounds, interval
from efhc.report.claims.leads import at_shares, unresolved
from efhc.report.figure_data import RUN
from efhc.report.numbers import MEGABYTE, cost_words, number_words, percent
from efhc.report.timelines import TO_TARGET, cost_to_target

TARGET_LABELS = dict(zip(TO_TARGET, ("seconds to the target", "MB to the target"), strict=True))
MOST_NAMED = 4
"""How many of the reasons for runs without a result a note names."""


@dataclass(frozen=True, eq=False)
class SettingRuns:
    """The runs of one setting, which a table compares."""

    title: str
    curves: pl.DataFrame
    """strategy, seed, and the columns of each evaluation (`learning.measures.evaluated`) of the runs that ended."""
    lost: Mapping[tuple[str, int], str]
    """The runs that have no result, and why."""
    devices: int
    tested_on: str
    """The samples that measures are taken on: "360 test samples"."""
    strategies: Sequence[str]
    """In the order of the rows."""
    phases: Mapping[str, str] = field(default_factory=dict)
    """Of strategies that communicate periodically: at which phase of their period they are evaluated at the end."""
    phases_before: Mapping[str, str] = field(default_factory=dict)
    """The same of all evaluations, which values at budgets come from."""
    target: tuple[str, float] | None = None
    """The measure, and the value of it, up to which event-driven runs count seconds and bytes."""

    @property
    def is_timed(self) -> bool:
        """Whether the runs are event-driven."""
        return "seconds" in self.curves.columns

    @property
    def recorded(self) -> dict[str, str]:
        """The measures with values, by name, and what tables call them."""
        columns = self.curves.columns
        known = {name: one.label for name, one in self._measures.items() if self.curves[name].count()}
        return known | (TARGET_LABELS if self.is_timed and self.target is not None and "bytes" in columns else {})

    @property
    def _measures(self) -> dict[str, Measure]:
        columns = self.curves.columns
        return {name: one for name, one in measures_of(metrics_in(columns)).items() if name in columns}

    def better(self, measure: str) -> Better:
        """Return whether higher or lower values of a measure are better."""
        return "lower" if measure in TARGET_LABELS else self._measures[measure].better

    def values(self, measure: str, budget: float | None, of: str) -> pl.DataFrame:
        """Return strategy, seed, value and `at`: after how many iterations or seconds a run has that value.

        For costs of a target, `without` is what was spent in vain, in place of `at`.
        """
        runs = self.curves.group_by(*RUN, maintain_order=True)
        if measure in TARGET_LABELS:
            assert self.target is not None
            found = cost_to_target(self.curves, self._measures[self.target[0]], self.target[1])
            unit, spent = (MEGABYTE, "bytes") if measure == TO_TARGET[1] else (1.0, "seconds")
            ends = runs.agg(without=pl.col(spent).last().cast(pl.Float64) / unit)
            return found.select(*RUN, value=pl.col(measure) / unit).join(ends, on=RUN, maintain_order="left")
        known = self.curves.drop_nulls(measure)
        at = pl.col("seconds") if self.is_timed else (pl.col("iteration") + 1).cast(pl.Float64)
        if budget is None:
            return known.group_by(*RUN, maintain_order=True).agg(value=pl.col(measure).last(), at=at.last())
        value = at_shares(known, measure, [budget], of).select(*RUN, value=measure)
        after = at_shares(known.with_columns(at=at), "at", [budget], of)["at"]
        return value.with_columns(at=after)


class Cell(NamedTuple):
    """One strategy in one column."""

    mean: float | None
    low: float | None
    high: float | None
    seeds: int
    """The number of seeds that have a value."""
    is_best: bool = False
    is_close: bool = False
    """Whether it is not distinguishable from the best."""
    lacks_seeds: bool = False
    after: tuple[float, float] | None = None
    """The least and the largest number of iterations, or virtual seconds, after which runs have these values."""
    words: str = ""
    """What stands in place of the mean: what reaching a target costs, if not all seeds reach it."""

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Column:
    """A setting, a measure and a budget, and its cells by strategy."""

    setting: str
    measure: str
    label: str
    budget: float | None
    cells: Mapping[str, Cell]

    @property
    def budget_words(self) -> str:
        """The budget as a share of the total transmission time; nothing for costs."""
        if self.measure in TARGET_LABELS:
            return ""
        return "at the end" if self.budget is None else f"at {percent(self.budget)}"

    @property
    def digits(self) -> int:
        """Three, fewer for large numbers."""
        largest = max((abs(one.mean) for one in self.cells.values() if one.mean is not None), default=0.0)
        return 3 if largest < 10 else 2 if largest < 100 else 1 if largest < 1000 else 0


@dataclass(frozen=True)
class ComparisonTable:
    """A table of strategies for a paper. A notebook shows it if a cell ends with it."""

    columns: Sequence[Column]
    strategies: Sequence[str]
    notes: Sequence[str]
    """Sentences that say what the numbers are: seeds, intervals, marks, samples, iterations, and what is missing."""

    @property
    def heads(self) -> list[tuple[str, ...]]:
        """The head of each column: of setting, measure and budget those that differ between columns."""
        levels = [(one.setting, one.label, one.budget_words) for one in self.columns]
        varying = [place for place in range(3) if len({level[place] for level in levels}) > 1]
        return [tuple(level[place] for place in varying or [1]) for level in levels]

    def parts(self, most_columns: int) -> Iterator[ComparisonTable]:
        """Yield a table per setting, or several if it has more columns."""
        for _, same in groupby(self.columns, key=lambda one: one.setting):
            columns = list(same)
            budgets = len({one.budget for one in columns})
            step = max(1, most_columns // budgets) * budgets
            for start in range(0, len(columns), step):
                yield ComparisonTable(columns[start : start + step], self.strategies, self.notes)

    @property
    def frame(self) -> pl.DataFrame:
        """The numbers as they are: a row per strategy and column, with the ends of each interval.

        `after_least` and `after_most` are the iterations, or virtual seconds, after which the seeds have these values.
        """
        rows = [
            (
                column.setting, strategy, column.measure, column.budget, cell.mean, cell.half, cell.low, cell.high,
                *(cell.after or (None, None)), cell.seeds, cell.is_best, cell.is_close,
            )
            for column in self.columns
            for strategy in self.strategies
            if (cell := column.cells.get(strategy)) is not None
        ]  # fmt: skip
        names = ("budget", "mean", "half_width", "low", "high", "after_least", "after_most")
        numbers = dict.fromkeys(names, pl.Float64)
        marks = dict.fromkeys(("is_best", "is_close_to_best"), pl.Boolean)
        texts = dict.fromkeys(("setting", "strategy", "measure"), pl.String)
        return pl.DataFrame(rows, schema={**texts, **numbers, "seeds": pl.Int64, **marks}, orient="row")

    def texts(self, show: Callable[[Cell, int], str]) -> Iterator[tuple[str, list[str]]]:
        """Yield each strategy with its cells; `show` writes a cell with a number of digits."""
        for strategy in self.strategies:
            cells = ((column.cells.get(strategy), column.digits) for column in self.columns)
            yield strategy, ["" if cell is None else show(cell, digits) for cell, digits in cells]

    def csv(self) -> str:
        """Return `frame` as CSV."""
        return self.frame.write_csv()

    def markdown(self) -> str:
        """Return the table as Markdown, with its notes below."""

        def shown(cell: Cell, digits: int) -> str:
            number, spread, mark = _parts(cell, digits)
            return (f"**{number}**" if cell.is_best else number) + spread + mark

        heads = [_escaped(" · ".join(filter(None, head)), _MARKDOWN) for head in self.heads]
        lines = [["strategy", *heads], ["---", *["---:"] * len(heads)]]
        lines += [[_escaped(strategy, _MARKDOWN), *cells] for strategy, cells in self.texts(shown)]
        rows = ["| " + " | ".join(line) + " |" for line in lines]
        return "\n".join([*rows, "", " ".join(_escaped(note, _MARKDOWN) for note in self.notes), ""])

    _repr_markdown_ = markdown

    def latex(self) -> str:
        """Return the table for LaTeX, which needs the package booktabs, with its notes as the caption."""

        def shown(cell: Cell, digits: int) -> str:
            if cell.mean is None or cell.words:
                return _escaped(_parts(cell, digits)[0], _LATEX)
            number, spread, mark = _parts(cell, digits)
            number = rf"\mathbf{{{number}}}" if cell.is_best else number
            marks = "".join(rf"^{{{_IN_LATEX[one]}}}" for one in mark)
            spread = spread.replace(" ± ", r" \pm ")
            return f"${number}{spread}{marks}$"

        heads, depth = self.heads, len(self.heads[0])
        lines = []
        for level in range(depth):
            groups = [list(same) for _, same in groupby(enumerate(heads), key=lambda one: one[1][: level + 1])]
            first = "Strategy" if level == depth - 1 else ""
            words = [
                _escaped(group[0][1][level], _LATEX)
                if len(group) == 1
                else rf"\multicolumn{{{len(group)}}}{{c}}{{{_escaped(group[0][1][level], _LATEX)}}}"
                for group in groups
            ]
            lines.append(" & ".join([first, *words]) + r" \\")
            ends = [(group[0][0] + 2, group[-1][0] + 2) for group in groups if len(group) > 1]
            lines += ["".join(rf"\cmidrule(lr){{{start}-{end}}}" for start, end in ends)] if ends else []
        rows = [" & ".join([_escaped(name, _LATEX), *cells]) + r" \\" for name, cells in self.texts(shown)]
        caption = " ".join(_escaped(note, _LATEX) for note in self.notes)
        return "\n".join(
            [
                r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering", rf"\caption{{{caption}}}",
                rf"\begin{{tabular}}{{l{'r' * len(heads)}}}", r"\toprule", *lines, r"\midrule", *rows, r"\bottomrule",
                r"\end{tabular}", r"\end{table}", "",
            ]
        )  # fmt: skip

    def save(self, path: Path | str) -> None:
        """Write the table in the format that the file's ending names: .tex, .csv or .md."""
        formats = {".tex": self.latex, ".csv": self.csv, ".md": self.markdown}
        if (ending := Path(path).suffix.lower()) not in formats:
            raise InputError("table", path, f"a file that ends in {', '.join(formats)}")
        write_safely(Path(path), formats[ending]().encode())


def _parts(cell: Cell, digits: int) -> tuple[str, str, str]:
    """Return the mean, ` ± ` with half the interval, and the marks of a cell."""
    if cell.words or cell.mean is None:
        return cell.words or "none", "", ""
    spread = "" if cell.half is None else f" ± {cell.half:.{digits}f}"
    return f"{cell.mean:.{digits}f}", spread, "†" * cell.is_close + "‡" * cell.lacks_seeds


def cell_words(cell: Cell, digits: int) -> str:
    """Return a cell for a terminal, in which `*` stands for bold."""
    number, spread, mark = _parts(cell, digits)
    return number + spread + mark + "*" * cell.is_best


_IN_LATEX = {"†": r"\dagger", "‡": r"\ddagger"}
_LATEX = {character: rf"\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "±": r"$\pm$", "†": r"$\dagger$", "‡": r"$\ddagger$", "|": r"\textbar{}",
    '"': "''", "\n": " ",
}  # fmt: skip
_MARKDOWN = {character: f"\\{character}" for character in "\\|*_`<[]"} | {"\n": " "}


def _escaped(text: str, signs: Mapping[str, str]) -> str:
    return "".join(signs.get(character, character) for character in text)


# Making it


def comparison_table(
    settings: Sequence[SettingRuns], measures: Sequence[str], budgets: Sequence[float | None], of: str = "ZT"
) -> ComparisonTable:
    """Return the table of these measures at these budgets (None: at the end), of all strategies in all settings.

    A budget is a share of the total transmission time of the strategy `of` with the same seed. Raises `InputError` for
    measures that the runs of a setting did not record, and budgets of runs without that strategy.
    """
    if not measures or not budgets:
        raise InputError("budget" if measures else "measure", "none", "at least one, or leave it out for the default")
    # A setting in which every run failed has columns without values.
    with_runs = [one for one in settings if len(one.curves)] or settings
    for setting in with_runs:
        _check(setting, measures, budgets, of)
    labels = with_runs[0].recorded
    columns = [
        Column(setting.title, measure, labels[measure], budget, _cells(setting, measure, budget, of))
        for setting in settings
        for measure in measures
        for budget in (budgets if measure not in TARGET_LABELS else [None])
    ]
    strategies = list(dict.fromkeys(name for setting in settings for name in setting.strategies))
    return ComparisonTable(columns, strategies, list(_notes(settings, columns, of)))


def shares_in(field: str, given: Any) -> list[float]:
    """Return one share or several as a list. Raises `InputError` unless they are numbers above 0 and at most 1."""
    allowed = "numbers above 0, at most 1: 0.02 is 2 %"
    try:
        shares = [float(one) for one in np.atleast_1d(given)]
    except (TypeError, ValueError):
        raise InputError(field, repr(given), allowed) from None
    if not shares or not all(0 < one <= 1 for one in shares):
        raise InputError(field, repr(given), allowed)
    return shares


def _check(setting: SettingRuns, measures: Iterable[str], budgets: Iterable[float | None], of: str) -> None:
    for name in measures:
        if name not in TARGET_LABELS and len(setting.curves):
            measure_of(setting.curves, name)
        if name not in setting.recorded:
            allowed = ", ".join(setting.recorded) or "none: no run has been evaluated"
            raise InputError("measure", name, allowed, f"{setting.title} has no {name}. Recorded: {allowed}.")
    for budget in budgets:
        if budget is None:
            continue
        shares_in("budget", budget)
        if setting.is_timed:
            raise InputError("budget", budget, "no budget: event-driven runs are compared at the end")
        if of not in setting.curves["strategy"]:
            advice = f"Budgets can be shares of what another one spends (of, --of): {', '.join(setting.strategies)}."
            raise InputError("of", of, ", ".join(setting.strategies), f"{setting.title} has no run of {of}. {advice}")


def _cells(setting: SettingRuns, measure: str, budget: float | None, of: str) -> dict[str, Cell]:
    if not len(setting.curves):
        return {name: Cell(None, None, None, 0) for name in setting.strategies}
    values = setting.values(measure, budget, of)
    per_seed = {
        name: dict(values.filter(strategy=name).drop_nulls("value").select("seed", "value").iter_rows())
        for name in setting.strategies
    }
    most = max(map(len, per_seed.values()), default=0)
    runs_of = {name: set(setting.curves.filter(strategy=name)["seed"]) for name in setting.strategies}
    cells: dict[str, Cell] = {}
    for name, found in per_seed.items():
        if not runs_of[name] and not any(strategy == name for strategy, _ in setting.lost):
            continue  # a study need not have every strategy in every setting
        numbers = [found[seed] for seed in sorted(found)]
        mean = float(np.mean(numbers)) if numbers else None
        low, high = bounds(numbers)
        words = ""
        if measure in TARGET_LABELS and len(found) < len(runs_of[name]):
            missed = values.filter(pl.col("value").is_null(), strategy=name)["without"].drop_nulls()
            least = float(missed.min()) if len(missed) else None  # type: ignore[arg-type]
            words = f"{cost_words(mean, least) or 'none'} ({len(found)} of {len(runs_of[name])})"
            low = high = None
        at = [] if "at" not in values.columns else values.filter(strategy=name)["at"].drop_nulls().to_list()
        after = (min(at), max(at)) if at else None
        cells[name] = Cell(mean, low, high, len(found), lacks_seeds=len(found) < most, after=after, words=words)
    competing = {name: one for name, one in cells.items() if one.seeds == most and most and not one.words}
    means = {name: one.mean for name, one in competing.items() if one.mean is not None}
    if len(means) < 2:
        return cells
    best = (max if setting.better(measure) == "higher" else min)(means, key=lambda name: means[name])
    cells[best] = cells[best]._replace(is_best=True)
    for name in means:
        if name != best and _is_close(per_seed[name], per_seed[best]):
            cells[name] = cells[name]._replace(is_close=True)
    return cells


def _is_close(one: Mapping[int, float], best: Mapping[int, float]) -> bool:
    """Return whether the interval of the differences, seed by seed, contains 0, if there are enough seeds for one."""
    common = sorted(set(one) & set(best))
    if len(common) < FEWEST_SEEDS:
        return False
    _, low, high = interval(np.array([best[seed] - one[seed] for seed in common]))
    return bool(low <= 0 <= high)


def _notes(settings: Sequence[SettingRuns], columns: Sequence[Column], of: str) -> Iterator[str]:
    cells = [cell for column in columns for cell in column.cells.values()]
    counts = sorted({cell.seeds for cell in cells if cell.seeds and not cell.words} or {cell.seeds for cell in cells})
    many = f"{_range(counts)} seed{'s' if counts[-1] > 1 else ''}"
    parts = {place: sorted({level[place] for level in _levels(columns)}) for place in range(3)}
    what = ": ".join(parts[place][0] for place in (0, 1) if len(parts[place]) == 1)
    yield f"{what[:1].upper()}{what[1:]}." if what else "Several measures and settings."
    spread = "the 95 % interval (expanded percentile bootstrap of the mean)"
    if counts[-1] < FEWEST_SEEDS:
        spread = f"the range from the lowest to the highest seed (fewer than {FEWEST_SEEDS} have no 95 % interval)"
    elif counts[0] < FEWEST_SEEDS:
        spread += f" or, of fewer than {FEWEST_SEEDS} seeds, of their range,"
    if counts[-1] > 1:
        yield f"Mean ± half the width of {spread} over {many}."
    else:
        yield "One seed, so there is no interval." if counts[-1] else "No run has a value."
    unit = "virtual seconds" if settings[0].is_timed else "iterations"
    budgets = sorted({column.budget for column in columns if column.budget is not None})
    if budgets:
        shares = ", ".join(f"{percent(one)} {_after(columns, one)} {unit}" for one in budgets)
        yield (
            f"Budgets are shares of {of}'s total transmission time with the same seed: {shares}, linear between "
            "evaluations; a run that spends less counts with its end."
        )
        measures = list(dict.fromkeys(column.measure for column in columns if column.budget is not None))
        problems = (unresolved(one.curves, name, budgets, of) for one in settings for name in measures)
        yield from (f"{problem}." for problem in dict.fromkeys(filter(None, problems)))
    if after := _after(columns, None):
        yield f"The end: {after} {unit}."
    yield f"{_each(f'{one.devices:,} devices' for one in settings)}, {_each(one.tested_on for one in settings)}."
    yield from _mark_notes(cells, counts[-1])
    for setting in settings:
        where = f" in {setting.title}" if len(settings) > 1 else ""
        for said, is_shown in ((setting.phases, _after(columns, None)), (setting.phases_before, budgets)):
            if said and is_shown:
                when = "" if said is setting.phases else " of evaluations before and after budgets"
                yield f"Phase{when}{where}: {'; '.join(f'{name} {words}' for name, words in said.items())}."
        if setting.lost:
            alike: dict[tuple[int, str], list[str]] = {}
            for (name, seed), why in setting.lost.items():
                alike.setdefault((seed, why.removeprefix(f"{name}, seed {seed}: ")), []).append(name)
            named = [f"{', '.join(names)}, seed {seed} ({why.rstrip('.')})" for (seed, why), names in alike.items()]
            more = f"; and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
            runs = f"{len(setting.lost)} run{'s'[: len(setting.lost) != 1]}"
            yield f"{runs} without a result{where}: {'; '.join(named[:MOST_NAMED])}{more}."


def _mark_notes(cells: Sequence[Cell], most_seeds: int) -> Iterator[str]:
    if any(cell.is_best for cell in cells):
        yield "Bold: the best mean of a column."
    if any(cell.is_close for cell in cells):
        yield (
            "†: not distinguishable from the best, because the 95 % interval of the difference, seed by seed, contains "
            "0 (not corrected for the number of comparisons)."
        )
    elif any(cell.is_best for cell in cells) and most_seeds < FEWEST_SEEDS:
        yield f"Whether differences to the best are chance is not judged below {FEWEST_SEEDS} seeds."
    if any(cell.lacks_seeds and not cell.words for cell in cells):
        yield "‡: a mean over fewer seeds than others have, which does not compete."
    if any(cell.mean is None and not cell.words for cell in cells):
        yield "none: no run has a value, because it failed, or had spent more when it was first evaluated."
    if any(cell.words for cell in cells):
        yield "a / > b (n of s): n of s seeds reach the target, at a on average; the others do not reach it within b."


def _levels(columns: Sequence[Column]) -> list[tuple[str, str, str]]:
    return [(column.setting, column.label, column.budget_words) for column in columns]


def _after(columns: Sequence[Column], budget: float | None) -> str:
    """Return after how many iterations or seconds a budget is spent, over all seeds and strategies: "after 3 to 90"."""
    cells = [cell for column in columns if column.budget == budget for cell in column.cells.values()]
    ends = [end for cell in cells for end in cell.after or ()]
    words = (
        dict.fromkeys(
            number_words(float(f"{end(ends):.3g}") if end(ends) < 1000 else round(end(ends))) for end in (min, max)
        )
        if ends
        else ()
    )
    return f"after {' to '.join(words)}" if words else ""


def _range(counts: Sequence[int]) -> str:
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def _each(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


# Phases


def phases(metrics: pl.DataFrame, evaluations: pl.DataFrame, *, at_end: bool = True) -> dict[str, str]:
    """Return, of each strategy whose links are used every P > 1 iterations, how many iterations ago that was last.

    `metrics` has a row per iteration, `evaluations` the evaluated rows; with `at_end`, the last of each run counts. An
    evaluation of several rows, which the column `evaluation` joins, is a mean over a period.
    """
    found: dict[str, str] = {}
    for (strategy,), rows in metrics.group_by("strategy", maintain_order=True):
        said: set[int] = set()
        periods: set[int] = set()
        rows_per_evaluation = 1
        for (seed,), run in rows.group_by("seed"):
            used = run.filter(pl.col("links_used") > 0)["iteration"].to_numpy()
            gaps = np.unique(np.diff(used))
            ends = evaluations.filter(strategy=strategy, seed=seed)["iteration"].to_list()[-1 if at_end else 0 :]
            if len(gaps) != 1 or gaps[0] < 2 or not len(ends):
                break
            periods.add(int(gaps[0]))
            said |= {at - int(used[used <= at].max(initial=-1)) for at in ends}
            if at_end and "evaluation" in run.columns:
                last = run.drop_nulls("evaluation").filter(pl.col("evaluation") == pl.col("evaluation").max())
                rows_per_evaluation = max(rows_per_evaluation, len(last))
        else:
            if not periods:
                continue
            every = f"links used every {_range(sorted(periods))} iterations"
            since = f"evaluated {_range(sorted(said))} iterations after the last"
            found[str(strategy)] = (
                f"{every}, mean over {rows_per_evaluation} iterations of a period"
                if rows_per_evaluation > 1
                else f"{every}, {since}"
            )
    return found
