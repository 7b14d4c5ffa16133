"""efhc config, efhc doctor, efhc bench: what is set, is it sound, how fast is it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from efhc.cli.terminal import Overrides, console

config_app = typer.Typer(help="Show a complete config, or the schema of config files.", no_args_is_help=True)


@config_app.command("show")
def config_show(
    file: Annotated[Path | None, typer.Argument(help="A TOML file; without one, the defaults.")] = None,
    overrides: Overrides = None,
) -> None:
    """Print the complete config: what the file says, the overrides, and every default."""
    from efhc.experiments.config.files import build_experiment, load_experiment, to_toml, with_overrides

    if file and "=" in str(file) and not file.exists():
        file, overrides = None, [str(file), *(overrides or ())]
    experiment = (
        load_experiment(file, overrides or ()) if file else build_experiment(with_overrides({}, overrides or ()))
    )
    print(to_toml(experiment), end="")


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of config files, for editors and checkers."""
    import json

    from efhc.experiments.config.files import json_schema

    print(json.dumps(json_schema(), indent=2))


def doctor() -> None:
    """Check this installation: versions, machine, data, and the driver against Alg. 1 in plain loops."""
    from efhc.experiments.doctor import checks

    table = Table("check", "", "found")
    healthy = True
    for name, good, found in checks():
        healthy &= good
        table.add_row(name, "[green]ok[/green]" if good else "[red]bad[/red]", found)
    console.print(table)
    if not healthy:
        raise typer.Exit(1)


def bench(
    workloads: Annotated[
        list[str] | None, typer.Argument(help="Which ones, or `limit`, or `scaling`; by default all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds by turns; the median counts.")] = 5,
    out: Annotated[Path, typer.Option(help="The picture that `scaling` draws.")] = Path("runs/scaling.png"),
) -> None:
    """Measure our iterations against the plain per-device PyTorch loop, by turns in one process."""
    from efhc.benchmarks.names import check_names

    check_names(workloads or ())  # before anything that takes time to import
    from rich.status import Status

    from efhc.benchmarks import bench as benches

    with Status("measuring", console=Console(stderr=True)) as status:

        def tell(what: str) -> None:
            status.update(f"measuring {what}")

        if workloads == ["limit"]:
            found, tables = benches.bench_limit(rounds), benches.limit_table
        elif workloads == ["scaling"]:
            found, tables = benches.bench_scaling(rounds, out, tell), benches.scaling_table
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
