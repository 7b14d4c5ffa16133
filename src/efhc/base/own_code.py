"""Your own Python, named in a config: "package.module:name", or "file.py:name" with a path from the config's folder."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo
from pydantic.json_schema import SkipJsonSchema

from efhc.base.errors import InputError, did_you_mean
from efhc.base.inputs import CONFIG_FOLDER, absolute, sha256

ALLOWED = "package.module:name or file.py:name"


def _absolute(given: Any, info: ValidationInfo) -> Any:
    if not isinstance(given, str):
        return given
    place, _, name = given.rpartition(":")
    if not place or not name:
        raise ValueError(ALLOWED)
    if place.endswith(".py"):
        place = str(absolute(place, (info.context or {}).get(CONFIG_FOLDER, Path())))
    return f"{place}:{name}"


YourOwn = Annotated[str | SkipJsonSchema[Callable[..., Any]], AfterValidator(_absolute)]
"""Something callable: from Python as it is, from a config by its name."""


def imported(given: str | Callable[..., Any], field: str) -> Callable[..., Any]:
    """What `given` names; a callable is itself."""
    if not isinstance(given, str):
        return given
    place, _, name = given.rpartition(":")
    try:
        module = _executed(place, Path(place).stat().st_mtime_ns) if place.endswith(".py") else _imported(place)
    except OSError as error:
        raise InputError(field, f"{given} ({error.strerror})", "a file that can be read") from None
    except BaseException as error:  # code that is not ours may raise anything, SystemExit too
        if isinstance(error, KeyboardInterrupt):
            raise
        raise InputError(field, f"{given} ({in_one_line(error)})", ALLOWED) from error
    found = getattr(module, name, None)
    if not callable(found):
        problem = "not callable" if hasattr(module, name) else f"no such name{did_you_mean(name, vars(module))}"
        raise InputError(field, f"{given} ({problem})", f"something in {place} that can be called")
    result: Callable[..., Any] = found
    return result


def in_one_line(error: BaseException) -> str:
    """An error's type and the first line of what it says."""
    first, *_ = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _imported(name: str) -> ModuleType:
    """The current folder counts too, whatever Python was started with."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(Path.cwd()))


@functools.lru_cache(maxsize=16)
def _executed(path: str, _modified: int) -> ModuleType:
    """The module of a file, executed once as long as it does not change."""
    name = f"efhc_your_own_{sha256(path.encode())[:12]}_{Path(path).stem}"
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # dataclasses and pickle look themselves up there
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
