"""efhc theory: the paper's analysis of a run, after it and before it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.status import Status
from rich.text import Text

from efhc.base.errors import InputError
from efhc.cli.terminal import (
    BROKEN,
    DefaultCommandGroup,
    ExperimentFile,
    Overrides,
    argument,
    cell,
    console,
    errors,
    flag,
    option,
    print_table,
    require_figure,
    warn,
)

if TYPE_CHECKING:
    from efhc.experiments.studies.theory_plan import StrategyPlan
    from efhc.theory.checks import StrategyCheck
    from efhc.theory.connectivity import Window

COLOURS = {
    "held": "green",
    "held where looked": "green",
    "undecided": "yellow",
    "not checkable": "yellow",
    "broken": "red",
}


NO_THEOREM_APPLIES = (
    "No theorem of the paper applies: the loss is not smooth (L is infinite). Connectivity, weights and step sizes are "
    "checked; there are no bounds, and models are not measured.\n"
)
OF_THE_MODEL = ("smoothness", "convexity")
"""Subjects of checks that only the model and the data decide."""


app = typer.Typer(
    name="theory",
    cls=DefaultCommandGroup,
    help="Check a run against the paper's analysis, or plan one.\n\n"
    "`efhc theory RUN_DIR` is short for `efhc theory check RUN_DIR`; `efhc theory check --help` shows its options.",
    no_args_is_help=True,
)


@app.command()
def check(
    directory: Annotated[Path, argument("RUN_DIR", "The folder of a finished experiment.")],
    as_json: Annotated[bool, flag("Print JSON only.", "--json")] = False,
    points: Annotated[
        int | None, option("N", "At how many iterations models are measured. Default: 40.", min=3)
    ] = None,
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
            "Iterations within which links connect all devices, from which rho, limits and bounds follow: a number, "
            "observed (the least in this run) or promised (by Proposition III.6, from B1 and B2).",
        ),
    ] = "promised",
    out: Annotated[Path | None, option("FILE", "The figure. Default: RUN_DIR/figures/theory.png.")] = None,
    strict: Annotated[bool, flag("End with exit code 3 if anything is broken.", "--strict")] = False,
    trust_code: Annotated[bool, flag("Execute the Python code that the run's config names.", "--trust-code")] = False,
) -> None:
    """Check a finished run, assumption by assumption.

    The figure shows the errors of the run below the bounds of the paper. The word `check` may be left out.
    """
    from efhc.experiments.runs.folder import RunFolder
    from efhc.experiments.studies.theory_check import iterate_checks
    from efhc.report.figures import save_figure
    from efhc.report.theory import theory_figure

    length: Any = int(window) if window.isdecimal() and int(window) > 0 else window
    if length not in ("promised", "observed") and not isinstance(length, int):
        raise InputError("--window", f"'{window}'", "promised, observed, or a number from 1")
    if out:
        require_figure(out)
    checks: list[StrategyCheck] = []
    with Status("reading", console=errors) as status:

        def progress(what: str, share: float) -> None:
            status.update(cell(f"{what}, {100 * share:.0f} %"))

        def skip(strategy: str, why: str) -> None:
            warn(f"{strategy} is skipped: {why}")

        for each in iterate_checks(directory, points, replay, length, progress, trust_code=trust_code, skipped=skip):
            checks.append(each)
            if not as_json:
                status.stop()  # it would be drawn over what is printed
                if len(checks) == 1 and not math.isfinite(each.curvature.L):
                    _print(NO_THEOREM_APPLIES)
                _print_check(each)
                status.start()
    if not as_json and any(found.verdict == "broken" and found.subject in OF_THE_MODEL for found in checks[0].checks):
        model = RunFolder(directory).config["model"]["kind"]
        _print(f"These are properties of the model {model}, not faults of the run; try model.kind=softmax")
    figure = out or directory / "figures" / "theory.png"
    save_figure(theory_figure(checks), figure)
    if as_json:
        import json

        from efhc.report.theory import as_dict

        print(json.dumps([as_dict(each) for each in checks], indent=2))
    else:
        print(f"Figure: {figure}")
    if strict and any(found.verdict == "broken" for each in checks for found in each.checks):
        raise typer.Exit(BROKEN)


def _print(text: str) -> None:
    """Print whole words, wrapped to the width of the terminal."""
    console.print(text, markup=False, highlight=False)


def _print_check(of: StrategyCheck) -> None:
    from efhc.theory.bounds import LIMIT_LABELS
    from efhc.theory.findings import printed_name

    seeds = len(of.seeds)
    rows = []
    for each in of.checks:
        place = f"{each.verdict}{each.place}: " if each.place else ""
        found = f"{each.title} ({each.printed_label})\n{place}{each.sentence}"
        rows.append((Text(each.verdict, COLOURS[each.verdict]), found))
    title = f"{of.strategy}, {seeds} seed{'s' if seeds > 1 else ''}"
    print_table(("verdict", "assumption or promise, and what was found"), rows, title)
    if of.promises is not None and of.chosen is not None:
        limits = of.promises.limits._asdict().items()
        allowed = ", ".join(f"{printed_name(LIMIT_LABELS[name])}: {value:.3g}" for name, value in limits)
        _print(f"Largest alpha(0) for B = {of.chosen.length} ({of.chosen.kind}): {allowed}")
        if of.promises.gap is not None:
            optimisation, consensus = of.promises.gap
            gap = f"optimisation error at most {optimisation:.3g}, consensus error at most {consensus:.3g}"
            name = printed_name("theorem:constant")
            _print(f"In the long run, by {name}: {gap if math.isfinite(optimisation) else 'no bound'}")
    print(flush=True)


@app.command()
def plan(
    file: ExperimentFile,
    overrides: Overrides = None,
    as_json: Annotated[bool, flag("Print JSON only.", "--json")] = False,
    rehearse: Annotated[int, option("N", "Iterations to simulate, to see how fast models drift.", min=1)] = 1000,
) -> None:
    """Show which step sizes the theorems allow, before a run.

    A short simulation also estimates B, and predicts which devices will not fire.
    """
    from efhc.cli.data import fetch_missing
    from efhc.experiments.config.files import load_experiment
    from efhc.experiments.runs.tables import require_papers_form
    from efhc.experiments.studies.theory_plan import plan_theory

    experiment = load_experiment(file, overrides or ())
    require_papers_form(experiment)
    fetch_missing(experiment)
    with Status("reading", console=errors) as status:
        plans = plan_theory(
            experiment, rehearse, lambda what, share: status.update(cell(f"{what}, {100 * share:.0f} %"))
        )
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
            warn(f"{each.strategy}: {each.step_size.printed_label}: {each.step_size.sentence}")
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
    columns = ("strategy", "B1", "B2", "B", "how B is\nknown", "rho", "constant", "dimin-\nishing", "non-\nconvex")
    rows = []
    for plan in plans:
        longest = [max(windows, key=lambda window: window.length) for windows in zip(*plan.seeds.values(), strict=True)]
        physical, broadcast, observed = (_length(window, horizon) for window in longest)
        chosen, limits = plan.chosen, plan.limits
        # If no B is known, the observed one is shown, which is at least that long.
        known = (f"{chosen.length}", chosen.kind) if chosen else (observed, "-")
        rho = "-" if plan.contraction is None else f"{plan.contraction:.4f}"
        allowed = [f"{limit:.2g}" for limit in limits[1:]] if limits else ["-"] * 3
        rows.append((plan.strategy, physical, broadcast, *known, rho, *allowed))
    print_table(columns, rows, f"Over {horizon} iterations: largest initial step size alpha(0), per theorem", left=1)
    _print(
        "The limits hold for the B shown, which the rehearsal saw with the step sizes of this config: with smaller "
        "steps devices fire less often, B grows and the limits shrink. In a longer run B can grow and the limits "
        "shrink, too; `efhc theory RUN_DIR` gives the final ones."
    )
    _print("rho is per window of B iterations: rows with different B cannot be compared.")


def _length(window: Window, iterations: int) -> str:
    if math.isinf(window.length):
        return "inf"
    return f"{'>=' if window.is_censored(iterations) else ''}{window.length:.0f}"
