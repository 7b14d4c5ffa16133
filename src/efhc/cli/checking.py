"""efhc config, efhc doctor, efhc bench: the settings, the installation, the speed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from efhc.base.errors import InputError
from efhc.benchmarks.names import ALONE, WORKLOAD_NAMES, check_names
from efhc.cli.escaping import cell
from efhc.cli.terminal import RUNS_CODE, Overrides, console

config_app = typer.Typer(help="Show a complete config, or the schema of config files.", no_args_is_help=True)

COLOURS = {"ok": "green", "missing": "dim", "bad": "red"}


@config_app.command("show", short_help="Print the complete config, with every default.", epilog=RUNS_CODE)
def config_show(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A TOML file. Default: none, only the defaults.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Print the complete config: what the file says, the overrides, and every default."""
    from efhc.experiments.config.files import build_experiment, load_experiment, to_toml, with_overrides

    if file and "=" in str(file) and not file.exists():
        file, overrides = None, [str(file), *(overrides or ())]
    experiment = (
        load_experiment(file, overrides or ()) if file else build_experiment(with_overrides({}, overrides or ()))
    )
    print(to_toml(experiment, show_none=True), end="")


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of config files, for editors and checkers."""
    import json

    from efhc.experiments.config.files import json_schema

    print(json.dumps(json_schema(), indent=2))


def doctor() -> None:
    """Check this installation: versions, extras, machine, data, and the driver against Alg. 1 in plain loops.

    Exit code 1 if something is bad. What is missing is only needed by some commands.
    """
    from efhc.experiments.doctor import checks

    table = Table("check", "", "found")
    healthy = True
    for check in checks():
        healthy &= check.state != "bad"
        table.add_row(cell(check.name), f"[{COLOURS[check.state]}]{check.state}[/]", cell(check.found))
    console.print(table)
    if not healthy:
        raise typer.Exit(1)


def bench(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORKLOAD",
            help=f"{', '.join(WORKLOAD_NAMES)}; or one of {', '.join(ALONE)}. Default: all iterations.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of rounds, by turns. The median counts.")] = 5,
    against: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Another checkout of efhc: measure its iterations, or commands, beside ours."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The picture that `scaling` draws.")] = Path(
        "runs/scaling.png"
    ),
) -> None:
    """Measure our iterations against the plain per-device PyTorch loop, by turns in one process.

    Needs PyTorch, the extra [deep]. `efhc bench e2e` measures whole commands. `efhc bench node` measures what
    `efhc node` costs beside training; it needs the extra [node], and root for its slow links.
    """
    check_names(workloads or ())
    if against and workloads and workloads[0] in ALONE and workloads != ["e2e"]:
        raise InputError("--against", f"with {workloads[0]}", "--against with workloads of iterations, or with e2e")
    from rich.status import Status

    from efhc.benchmarks import bench as benches

    with Status("measuring", console=Console(stderr=True)) as status:

        def tell(what: str) -> None:
            status.update(f"measuring {cell(what)}")

        if workloads == ["limit"]:
            found, tables = benches.bench_limit(rounds, tell), benches.limit_table
        elif workloads == ["e2e"]:
            found, tables = benches.bench_e2e(against, rounds, tell), benches.e2e_table
        elif workloads == ["scaling"]:
            found, tables = benches.bench_scaling(rounds, out, tell), benches.scaling_table
        elif workloads == ["clocks"]:
            found, tables = benches.bench_clocks(rounds, tell), benches.clocks_table
        elif workloads == ["node"]:
            found, tables = benches.bench_node(rounds, tell), benches.node_table
        elif against:
            found, tables = benches.bench_against(against, workloads or (), rounds, tell), benches.against_table
        else:
            found, tables = benches.bench(workloads or (), rounds, tell), benches.bench_table
    if as_json:
        import json

        print(json.dumps(found, indent=2))
        return
    rows = tables(found)
    table = Table(*rows[0])
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)
    if workloads == ["clocks"]:
        print("Times are those of one step of one device.", *benches.clocks_legend(found), sep="\n")
