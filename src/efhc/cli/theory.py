"""efhc theory: the paper's analysis of a run, after it and before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from efhc.base.errors import InputError
from efhc.cli.terminal import (
    BROKEN,
    DefaultCommandGroup,
    ExperimentFile,
    Overrides,
    argument,
    console,
    flag,
    option,
    warn,
)

if TYPE_CHECKING:
    from rich.progress import Progress

    from efhc.experiments.studies.theory_plan import StrategyPlan
    from efhc.theory.check.assess import StrategyCheck
    from efhc.theory.check.outcome import Check
    from efhc.theory.connectivity.windows import Window

COLOURS = {
    "held": "green",
    "held where looked": "green",
    "undecided": "yellow",
    "not checkable": "yellow",
    "broken": "red",
}


class _RunDirByDefault(DefaultCommandGroup):
    default = "check"


app = typer.Typer(
    cls=_RunDirByDefault,
    help="Check a finished run against the paper's analysis, or plan one.\n\n"
    "`efhc theory RUN_DIR` is short for `efhc theory check RUN_DIR`; `efhc theory check --help` shows its options.",
    no_args_is_help=True,
)


@app.command()
def check(
    directory: Annotated[Path, argument("RUN_DIR", "The folder of a finished experiment.")],
    as_json: Annotated[bool, flag("Print JSON only.", "--json")] = False,
    points: Annotated[int | None, option("N", "Iterations at which models are measured. Default: 40.", min=3)] = None,
    replay: Annotated[
        bool | None,
        flag(
            "Replay the run to measure its models. Default: only if that is quick and the run kept no models.",
            "--replay/--no-replay",
        ),
    ] = None,
    window: Annotated[
        str,
        option(
            "B",
            "Iterations within which all devices are connected, for rho, limits and bounds: a number, observed (the "
            "smallest in this run) or promised (by Proposition III.6, from B1 and B2).",
        ),
    ] = "promised",
    out: Annotated[Path | None, option("FILE", "The figure. Default: RUN_DIR/figures/theory.png.")] = None,
    strict: Annotated[bool, flag("End with exit code 3 if anything is broken.", "--strict")] = False,
    trust_code: Annotated[bool, flag("Execute the Python code that the run's config names.", "--trust-code")] = False,
) -> None:
    """Check a finished run, assumption by assumption.

    The figure plots the errors of the run and the bounds of the paper. The word `check` may be left out.
    """
    from efhc.experiments.studies.theory_check import iterate_checks
    from efhc.report.figures import save_figure
    from efhc.report.theory_figure import theory_figure

    length: Any = int(window) if window.isdecimal() and int(window) > 0 else window
    if length not in ("promised", "observed") and not isinstance(length, int):
        raise InputError("--window", f"'{window}'", "promised, observed, or a number from 1")
    if out and out.suffix not in (".png", ".pdf", ".svg"):
        raise InputError("--out", out, "a file that ends in .png, .pdf or .svg")
    checks: list[StrategyCheck] = []
    with _progress() as (bars, progress):
        for each in iterate_checks(directory, points, replay, length, progress, trust_code=trust_code):
            checks.append(each)
            if not as_json:
                bars.stop()  # it would be drawn over what is printed
                if len(checks) == 1:
                    _print_whether_theorems_apply(each)
                _print_check(each)
                bars.start()
    figure = out or directory / "figures" / "theory.png"
    save_figure(theory_figure(checks), figure)
    if as_json:
        import json

        from efhc.report.theory_data import as_dict

        print(json.dumps([as_dict(each) for each in checks], indent=2))
    else:
        print(f"Figure: {figure}")
    if strict and any(found.verdict == "broken" for each in checks for found in each.checks):
        raise typer.Exit(BROKEN)


@contextmanager
def _progress() -> Iterator[tuple[Progress, Callable[[str, float], None]]]:
    """Show a progress bar on stderr; yields the bar and the function that updates it."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    errors = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(20), TaskProgressColumn(), TimeElapsedColumn()
    with Bars(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bars:
        task = bars.add_task("reading", total=1.0)
        yield bars, lambda what, share: bars.update(task, completed=share, description=escape(what))


def _print_whether_theorems_apply(of: StrategyCheck) -> None:
    if not math.isfinite(of.curvature.L):
        _print(
            "No theorem of the paper applies: the loss is not smooth (L is infinite). Connectivity, weights and step "
            "sizes are checked; there are no bounds, and models are not measured."
        )
        print()


def _print(text: str) -> None:
    """Whole words, wrapped to the width of the terminal."""
    console.print(text, markup=False, highlight=False)


def _print_check(of: StrategyCheck) -> None:
    from efhc.theory.check.sentences import printed_name
    from efhc.theory.check.step_size_checks import LABELS

    seeds = len(of.seeds)
    _print_checks(f"{of.strategy}, {seeds} seed{'s' if seeds > 1 else ''}", of.checks)
    if of.promises is not None and of.chosen is not None:
        limits = {LABELS[name]: value for name, value in of.promises.limits._asdict().items()}
        allowed = ", ".join(f"{printed_name(label)}: {value:.3g}" for label, value in limits.items())
        _print(f"Largest alpha(0) for B = {of.chosen.length} ({of.chosen.kind}): {allowed}")
        if of.promises.gap is not None:
            optimisation, consensus = of.promises.gap
            gap = f"optimisation error at most {optimisation:.3g}, consensus error at most {consensus:.3g}"
            name = printed_name("theorem:constant")
            _print(f"In the long run, by {name}: {gap if math.isfinite(optimisation) else 'no bound'}")
    print(flush=True)


def _print_checks(heading: str, checks: list[Check]) -> None:
    from efhc.theory.check.sentences import printed_name, sentence, title, verdict_text

    table = Table(title=escape(heading), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("verdict", no_wrap=True, min_width=len("held where looked"))
    table.add_column("assumption or promise, and what was found")
    for each in checks:
        name = f"{title(each)} [dim]({escape(printed_name(each.label))})[/]"
        place = "" if verdict_text(each) == each.verdict else f"{verdict_text(each)}: "
        table.add_row(f"[{COLOURS[each.verdict]}]{each.verdict}[/]", f"{name}\n{place}{escape(sentence(each))}")
    console.print(table)


@app.command()
def plan(
    file: ExperimentFile,
    overrides: Overrides = None,
    as_json: Annotated[bool, flag("Print JSON only.", "--json")] = False,
    rehearse: Annotated[int, option("N", "Iterations to simulate, to see how fast devices drift.", min=1)] = 1000,
) -> None:
    """Show which step sizes the theorems allow, before a run.

    It also estimates B from a short simulation, and lists devices that are predicted not to fire.
    """
    from efhc.cli.data import fetch_missing
    from efhc.experiments.config.files import load_experiment
    from efhc.experiments.runs.tables import require_lockstep, require_papers_form
    from efhc.experiments.studies.theory_plan import plan_theory
    from efhc.theory.check.sentences import printed_name, sentence

    experiment = load_experiment(file, overrides or ())
    require_lockstep(experiment, "the paper's analysis")
    require_papers_form(experiment, "the paper's analysis")
    fetch_missing(experiment)
    with _progress() as (_, progress):
        plans = plan_theory(experiment, rehearse, progress)
    if as_json:
        import json

        print(json.dumps([each.as_dict() for each in plans], indent=2))
        return
    _print_plans(plans)
    for each in plans:
        if each.limits is None:
            why = (
                "L is infinite"
                if not math.isfinite(each.curvature.L)
                else f"the links used do not connect all devices when the {each.horizon} iterations end"
            )
            warn(f"{each.strategy}: no limits: {why}")
        if each.step_size and each.step_size.verdict == "broken":
            warn(f"{each.strategy}: {printed_name(each.step_size.label)}: {sentence(each.step_size)}")
        for seed, devices in each.silent.items():
            warn(f"{each.strategy}, seed {seed}: {_names(devices)} will not fire in {each.horizon} iterations")
        for seed, devices in each.doubtful.items():
            warn(f"{each.strategy}, seed {seed}: {_names(devices)} fell silent in the rehearsal and may never fire")


def _names(devices: list[int]) -> str:
    few = ", ".join(map(str, devices[:5])) + (", ..." if len(devices) > 5 else "")
    return f"device{'s' if len(devices) > 1 else ''} {few}"


def _print_plans(plans: list[StrategyPlan]) -> None:
    curvature, horizon = plans[0].curvature, plans[0].horizon
    print(f"L = {curvature.L:.4g}, mu = {curvature.mu:.4g} ({curvature.known})")
    title = f"Expected over {horizon} iterations; right: largest alpha(0) by theorem"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("strategy", min_width=len("strategy"), overflow="fold")
    for name in ("B1", "B2", "B", "B is", "rho", "constant", "dimin-\nishing", "non-\nconvex"):
        table.add_column(name, no_wrap=True, justify="left" if name == "B is" else "right")
    for plan in plans:
        found, chosen = list(plan.seeds.values()), plan.chosen
        limits = plan.limits and (plan.limits.constant, plan.limits.diminishing, plan.limits.nonconvex)
        table.add_row(
            escape(plan.strategy),
            _length(max((each.physical for each in found), key=lambda window: window.length), horizon),
            _length(max((each.broadcast for each in found), key=lambda window: window.length), horizon),
            _chosen(plan),
            chosen.kind if chosen else "-",
            "-" if plan.contraction is None else f"{plan.contraction:.4f}",
            *(f"{limit:.2g}" for limit in limits or ()),
            *(["-"] * 3 if limits is None else ()),
        )
    console.print(table)
    _print(
        "The limits hold for the B shown, which the rehearsal saw with the step sizes of this config: with smaller "
        "steps devices fire less often, B grows and the limits shrink."
    )
    _print("rho is per window of B iterations: rows with different B cannot be compared.")


def _chosen(plan: StrategyPlan) -> str:
    """B; if none is known, the observed one, which is at least that long."""
    if plan.chosen:
        return f"{plan.window}"
    return _length(max((each.observed for each in plan.seeds.values()), key=lambda each: each.length), plan.horizon)


def _length(window: Window, iterations: int) -> str:
    if math.isinf(window.length):
        return "inf"
    return f"{'>=' if window.is_censored(iterations) else ''}{window.length:.0f}"
