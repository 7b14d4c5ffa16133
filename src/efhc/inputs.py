"""Files that a user names. A relative path counts from the config file that names it, else from the current folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo

from efhc.core.errors import InputError

CONFIG_FOLDER = "config_folder"
"""Key of the validation context under which the config file's folder is handed down."""


def _absolute(path: object, info: ValidationInfo) -> object:
    if not isinstance(path, str | Path):
        return path
    folder = (info.context or {}).get(CONFIG_FOLDER, Path())
    return (Path(folder) / Path(path).expanduser()).absolute()


InputFile = Annotated[Path, BeforeValidator(_absolute)]
"""A path in a config."""


def read_bytes(path: Path, field: str = "path") -> bytes:
    """The whole file, or an `InputError` that says why not."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(field, f"{path} ({error.strerror})", "a file that can be read") from None


def read_text(path: Path, field: str = "path") -> str:
    """The whole file as UTF-8."""
    try:
        return read_bytes(path, field).decode()
    except UnicodeDecodeError:
        raise InputError(field, f"{path} (not UTF-8 text)", "a text file") from None


def read_json(path: Path, allowed: str, field: str = "path") -> Any:
    """What the JSON file holds; `allowed` says what it should."""
    try:
        return json.loads(read_text(path, field))
    except json.JSONDecodeError as error:
        raise InputError(field, f"{path} (line {error.lineno}: {error.msg})", allowed) from None


def sha256(content: bytes) -> str:
    """The checksum that run directories record."""
    return hashlib.sha256(content).hexdigest()
