"""efhc config, efhc doctor: the settings, the installation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from efhc.cli.terminal import RUNS_CODE, Overrides, argument, print_table, warn

app = typer.Typer(name="config", help="Show every setting, or the schema of config files.", no_args_is_help=True)

COLOURS = {"ok": "green", "missing": "dim", "bad": "red"}


@app.command("show", epilog=RUNS_CODE)
def config_show(
    file: Annotated[Path | None, argument("FILE", "A TOML file. Default: the defaults alone.")] = None,
    overrides: Overrides = None,
) -> None:
    """Print a complete config, with every default."""
    from efhc.experiments.config.files import build_experiment, load_experiment, to_toml, with_overrides

    if file and "=" in str(file) and not file.exists():
        file, overrides = None, [str(file), *(overrides or ())]
    experiment = (
        load_experiment(file, overrides or ()) if file else build_experiment(with_overrides({}, overrides or ()))
    )
    print(to_toml(experiment, show_none=True), end="")


@app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of config files, for editors and checkers."""
    import json

    from efhc.experiments.config.experiment import Experiment

    print(json.dumps(Experiment.model_json_schema(), indent=2))


def doctor() -> None:
    """Check this installation.

    The table shows versions, extras, the machine and data, and compares the simulator with Alg. 1 in plain loops. The
    exit code is 1 if something is bad. What is missing is only needed by some commands.
    """
    from efhc.experiments.doctor import checks

    warn("checking; the first time compiles for up to a minute")
    found = list(checks())
    rows = [(check.name, Text(check.state, COLOURS[check.state]), check.found) for check in found]
    print_table(("check", "", "found"), rows)
    if any(check.state == "bad" for check in found):
        raise typer.Exit(1)
