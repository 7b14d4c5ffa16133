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

from efhc.cli.groups import DefaultCommandGroup
from efhc.cli.terminal import BROKEN, Overrides, console, warn

if TYPE_CHECKING:
    from rich.progress import Progress

    from efhc.experiments.studies.theory_plan import StrategyPlan
    from efhc.theory.check.outcome import Check
    from efhc.theory.check.strategy_check import StrategyCheck
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
    help="efhc theory RUN_DIR: were the assumptions met, what did the theorems promise, what happened?\n\n"
    "It is short for `efhc theory check RUN_DIR`; `efhc theory check --help` shows its options.",
    no_args_is_help=True,
)


@app.command()
def check(
    directory: Annotated[Path, typer.Argument(help="The directory of a run that has finished.", metavar="RUN_DIR")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    points: Annotated[
        int | None, typer.Option(min=3, help="Number of iterations at which the models are looked at. Default: 40.")
    ] = None,
    replay: Annotated[
        bool | None,
        typer.Option(
            "--replay/--no-replay",
            help="Make the run again to look at its models, however long that takes. Default: only if it is quick "
            "and the run kept no models.",
        ),
    ] = None,
    window: Annotated[
        str,
        typer.Option(
            help="Number of iterations B within which all devices count as connected; rho, limits and bounds are "
            "computed with it. Allowed: promised (by Proposition III.6, from B1 and B2), observed (the least in this "
            "run), a number."
        ),
    ] = "promised",
    out: Annotated[Path | None, typer.Option(help="File of the figure. Default: RUN_DIR/figures/theory.png.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="End with exit code 3 if anything is broken.")] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Execute the Python code that the run's config names.")
    ] = False,
) -> None:
    """Check a finished run, assumption by assumption, and draw its errors under the bounds. `check` is optional."""
    from efhc.experiments.studies.theory_check import iterate_checks
    from efhc.report.figures import save_figure
    from efhc.report.theory_figure import theory_figure

    length: Any = int(window) if window.isdecimal() and int(window) > 0 else window
    if length not in ("promised", "observed") and not isinstance(length, int):
        raise typer.BadParameter(f"got {window}; allowed: promised, observed, a number from 1", param_hint="--window")
    if out and out.suffix not in (".png", ".pdf", ".svg"):
        raise typer.BadParameter(f"got {out}; allowed: a .png, .pdf or .svg", param_hint="--out")
    checks: list[StrategyCheck] = []
    with _progress() as (bars, tell):
        for each in iterate_checks(directory, points, replay, length, tell, trust_code=trust_code):
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
    """A bar on stderr that says what is done and how far it is."""
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
            "sizes are checked; there are no bounds, and models are not looked at."
        )
        print()


def _print(text: str) -> None:
    """Whole words, wrapped to the width of the terminal."""
    console.print(text, markup=False, highlight=False)


def _print_check(of: StrategyCheck) -> None:
    from efhc.theory.bounds.step_size_limits import LABELS
    from efhc.theory.check.paper_labels import printed_name

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
    from efhc.theory.check.paper_labels import printed_name
    from efhc.theory.check.sentences import sentence, title, verdict_text

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
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file, or a figure of the paper: fig2a.")],
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    rehearse: Annotated[
        int, typer.Option(min=1, help="Number of iterations that are rehearsed to see how fast devices drift.")
    ] = 1000,
) -> None:
    """Before a run: the largest step size the theorems allow, the B to expect, and who will not fire."""
    from efhc.cli.data import fetch_missing
    from efhc.experiments.config.files import load_experiment
    from efhc.experiments.runs.tables import require_lockstep, require_papers_form
    from efhc.experiments.studies.theory_plan import plan_theory
    from efhc.theory.check.paper_labels import printed_name
    from efhc.theory.check.sentences import sentence

    experiment = load_experiment(file, overrides or ())
    require_lockstep(experiment, "the paper's analysis")
    require_papers_form(experiment, "the paper's analysis")
    fetch_missing(experiment)
    with _progress() as (_, tell):
        plans = plan_theory(experiment, rehearse, tell)
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
