"""efhc config, efhc doctor: the settings, the installation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from efhc.cli.escaping import cell
from efhc.cli.terminal import RUNS_CODE, Overrides, argument, console

config_app = typer.Typer(help="Show a complete config, or the schema of config files.", no_args_is_help=True)

COLOURS = {"ok": "green", "missing": "dim", "bad": "red"}


@config_app.command("show", short_help="Print the complete config, with every default.", epilog=RUNS_CODE)
def config_show(
    file: Annotated[Path | None, argument("FILE", "A TOML file. Default: none, only the defaults.")] = None,
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
