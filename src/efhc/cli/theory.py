"""efhc theory: the paper's analysis of a run, after it and before it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from efhc.cli.terminal import Overrides, console, warn

if TYPE_CHECKING:
    from efhc.experiments.studies.theory_plan import StrategyPlan
    from efhc.theory.checks import StrategyCheck
    from efhc.theory.findings import Finding

COLOURS = {"held": "green", "broken": "red", "not checkable": "yellow"}


class _RunDirByDefault(TyperGroup):
    """`efhc theory RUN_DIR` is `efhc theory check RUN_DIR`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        word = next((arg for arg in args if not arg.startswith("-")), None)
        if word is not None and word in self.commands:
            args.remove(word)  # options may stand before it
            args = [word, *args]
        elif word is not None:
            args = ["check", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunDirByDefault,
    help="efhc theory RUN_DIR: were the assumptions met, what did the theorems promise, what happened?",
    no_args_is_help=True,
)


@app.command()
def check(
    directory: Annotated[Path, typer.Argument(help="A run that has finished.", metavar="RUN_DIR")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    points: Annotated[int, typer.Option(min=3, help="Iterations at which the models are looked at.")] = 40,
    replay: Annotated[
        bool | None,
        typer.Option("--replay/--no-replay", help="Make the run again to look at it; by default if that is quick."),
    ] = None,
    window: Annotated[
        str, typer.Option(help="The B to compute with: promised (proposition:conn), observed, or a number.")
    ] = "promised",
    out: Annotated[Path | None, typer.Option(help="The picture; by default RUN_DIR/figures/theory.png.")] = None,
) -> None:
    """Check a finished run, assumption by assumption, and draw its errors under the bounds. `check` may be left out."""
    from rich.status import Status

    from efhc.experiments.studies.theory_check import check_run
    from efhc.report.figures import save_figure
    from efhc.report.theory_figure import theory_figure

    length: Any = int(window) if window.isdecimal() and int(window) > 0 else window
    if length not in ("promised", "observed") and not isinstance(length, int):
        raise typer.BadParameter(f"got {window}; allowed: promised, observed, a number from 1", param_hint="--window")
    if out and out.suffix not in (".png", ".pdf", ".svg"):
        raise typer.BadParameter(f"got {out}; allowed: a .png, .pdf or .svg", param_hint="--out")
    with Status("reading", console=Console(stderr=True)) as status:
        checks = check_run(directory, points, replay, length, lambda what: status.update(escape(what)))
    figure = out or directory / "figures" / "theory.png"
    save_figure(theory_figure(checks), figure)
    if as_json:
        import json

        from efhc.report.theory_data import as_dict

        print(json.dumps([as_dict(each) for each in checks], indent=2))
        return
    for each in checks:
        _print_check(each)
    print(f"Errors under their bounds: {figure}")


def _print_check(of: StrategyCheck) -> None:
    seeds = len(of.seeds)
    _print_findings(f"{of.strategy}, {seeds} seed{'s' if seeds > 1 else ''}", of.findings)
    if of.promises is None:
        return
    from efhc.theory.step_sizes import LABELS

    limits = ", ".join(f"{LABELS[name]} {value:.3g}" for name, value in of.promises.limits._asdict().items())
    print(f"largest step size alpha(0) by theorem: {limits}")
    if of.promises.gap is not None:
        optimisation, consensus = of.promises.gap
        gap = f"optimisation error at most {optimisation:.3g}, consensus error at most {consensus:.3g}"
        print(f"in the long run, by theorem:constant: {gap if math.isfinite(optimisation) else 'no bound'}")
    print()


def _print_findings(title: str, findings: list[Finding]) -> None:
    table = Table(title=escape(title), title_justify="left", show_lines=False)
    table.add_column("assumption or promise", no_wrap=True)
    table.add_column("verdict")
    table.add_column("found")
    for label, what, verdict, detail, iteration, device in findings:
        where = "" if iteration is None else f" at iteration {iteration}"
        where += "" if device is None else f" by device {device}"
        name = f"{what}\n[dim]{escape(label)}[/]"
        table.add_row(name, f"[{COLOURS[verdict]}]{verdict}[/]{where}", escape(detail))
    console.print(table)


@app.command()
def plan(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file, or a figure of the paper: fig2a.")],
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    rehearse: Annotated[int, typer.Option(min=1, help="Iterations to rehearse, to see how fast devices drift.")] = 1000,
) -> None:
    """Before a run: the largest step size the theorems allow, the B to expect, and who will never fire."""
    from rich.status import Status

    from efhc.cli.data import fetch_missing
    from efhc.experiments.config.files import load_experiment
    from efhc.experiments.studies.theory_plan import plan_theory

    experiment = load_experiment(file, overrides or ())
    fetch_missing(experiment)
    with Status("reading", console=Console(stderr=True)) as status:
        plans = plan_theory(experiment, rehearse, lambda what: status.update(escape(what)))
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
                else "the links used will not connect all devices"
            )
            warn(f"{each.strategy}: no theorem applies: {why}")
        if each.step_size and each.step_size.verdict == "broken":
            warn(f"{each.strategy}: {each.step_size.label}: {each.step_size.detail}")
        for seed, devices in each.silent.items():
            warn(f"{each.strategy}, seed {seed}: {_names(devices)} will never fire in {each.horizon} iterations")
        for seed, devices in each.doubtful.items():
            warn(f"{each.strategy}, seed {seed}: {_names(devices)} fell silent in the rehearsal and may never fire")


def _names(devices: list[int]) -> str:
    few = ", ".join(map(str, devices[:5])) + (", ..." if len(devices) > 5 else "")
    return f"device{'s' if len(devices) > 1 else ''} {few}"


def _print_plans(plans: list[StrategyPlan]) -> None:
    curvature = plans[0].curvature
    print(f"L = {curvature.L:.4g}, mu = {curvature.mu:.4g} ({curvature.known})")
    title = f"expected over {plans[0].horizon} iterations, and the largest alpha(0) then allowed"
    table = Table("strategy", title=title, title_justify="left")
    for name in ("B1", "B2", "B", "rho", "constant", "dimin.", "nonconv."):
        table.add_column(name, no_wrap=True, justify="right")
    for plan in plans:
        found = list(plan.seeds.values())
        b1, b2 = max(each.physical.length for each in found), max(each.broadcast.length for each in found)
        promised = max(each.promised for each in found)
        limits = plan.limits and (plan.limits.constant, plan.limits.diminishing, plan.limits.nonconvex)
        table.add_row(
            escape(plan.strategy),
            *("infinite" if math.isinf(length) else f"{length:.0f}" for length in (b1, b2, promised)),
            "-" if plan.contraction is None else f"{plan.contraction:.4f}",
            *(f"{limit:.3g}" for limit in limits or ()),
            *(["-"] * 3 if limits is None else ()),
        )
    console.print(table)
