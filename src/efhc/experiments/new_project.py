"""A new project: a folder with an experiment, a strategy with its test, a notebook and a README, ready to run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import efhc
from efhc.base.errors import InputError

TEMPLATE = Path(efhc.__file__).parent / "templates" / "project"
PLACEHOLDER = "PROJECT"
"""What stands for the name of the project in the template's files and in their names."""
NAMES = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")


def make_project(folder: Path) -> list[Path]:
    """Make the project in a new folder, whose last part is its name, and return its files.

    Raises an `InputError` if the name cannot be used or the folder exists.
    """
    if not NAMES.fullmatch(folder.name):
        allowed = "1 to 40 letters, digits, - and _ that begin with a letter, also in a folder: work/NAME"
        raise InputError("NAME", repr(str(folder)), allowed)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        raise InputError("NAME", f"{folder}, which exists already", "a folder that does not exist yet") from None
    try:
        return [_write(template, folder) for template in sorted(TEMPLATE.iterdir()) if template.is_file()]
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)  # a project is whole, or not there
        raise


def _write(template: Path, folder: Path) -> Path:
    target = folder / template.name.replace(PLACEHOLDER, folder.name)
    text = template.read_text(encoding="utf-8").replace(PLACEHOLDER, folder.name)
    target.write_text(text, encoding="utf-8")
    return target
