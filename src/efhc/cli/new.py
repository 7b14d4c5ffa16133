"""efhc new: a folder to begin with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from efhc.cli.escaping import plain
from efhc.cli.terminal import console, this_command


def new(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to make; its last part is the name.")],
) -> None:
    """Make a folder with an experiment, a strategy of your own with its test, a notebook and a README."""
    from efhc.experiments.new_project import make_project

    for file in make_project(name):
        print(plain(file))
    console.print("\nTry next:", style="bold")
    print(plain(f"  cd {shlex.quote(str(name))}"))
    print(f"  {this_command()} run {name.name}.toml")
    print("  pytest")
    print(f"  jupyter lab {name.name}.ipynb")
