"""Python code that a config names: "package.module:name", or "file.py:name" with a path from the config's folder.

Loading a file runs its code. The code that runs is the content that was read, and hashed, once: a file that is edited
later is another module, and never mixed with the first.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import SourceLoader
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, ValidationError, ValidationInfo
from pydantic.json_schema import SkipJsonSchema

from efhc.base.errors import EfhcError, InputError, calls_outside, did_you_mean
from efhc.base.inputs import CONFIG_FOLDER, InputContent, absolute, read_input, sha256

ALLOWED = "package.module:name or file.py:name"

IN_A_FILE = re.compile(r"^(?P<path>.+\.py):[^\W\d]\w*$")
"""file.py:name"""


class Loaded(NamedTuple):
    """What a reference names, and the content of its file. A module of a package has none: it is imported."""

    value: Any
    content: InputContent | None


def absolute_reference(reference: str, folder: Path) -> str:
    """Return the reference with an absolute path. Raises `ValueError` if it is not a reference."""
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ValueError(ALLOWED)
    return f"{absolute(place, folder)}:{name}" if place.endswith(".py") else reference


def file_of(reference: str) -> Path | None:
    """Return the file of "file.py:name", and None for "package.module:name"."""
    found = IN_A_FILE.match(reference)
    return Path(found["path"]) if found else None


def _absolute(given: Any, info: ValidationInfo) -> Any:
    folder = (info.context or {}).get(CONFIG_FOLDER, Path())
    return absolute_reference(given, folder) if isinstance(given, str) else given


YourOwn = Annotated[str | SkipJsonSchema[Callable[..., Any]], AfterValidator(_absolute)]
"""Something callable: from Python as it is, from a config by its name."""


def imported(given: str | Callable[..., Any], field: str) -> Callable[..., Any]:
    """Return the callable that `given` names; a callable is returned as it is. Raises `InputError` for `field`."""
    if not isinstance(given, str):
        return given
    found = load(given, field).value
    if not callable(found):
        place = given.rpartition(":")[0]
        raise InputError(field, f"{given} (not callable)", f"something in {place} that can be called")
    result: Callable[..., Any] = found
    return result


def load(reference: str, field: str, content: InputContent | None = None) -> Loaded:
    """Run the code that `reference` names and return what has this name in it.

    With `content`, that is the file's content, whatever the disk says. Raises `InputError` for the given field.
    """
    place, _, name = reference.rpartition(":")
    try:
        if place.endswith(".py") and content is None:
            content = read_input(Path(place), field)
        module = _executed(content) if content is not None else _imported(place)
    except InputError as error:
        raise InputError(field, str(error.given).replace(place, reference, 1), error.allowed) from None
    except BaseException as error:  # code that is not ours may raise anything, SystemExit too
        if isinstance(error, KeyboardInterrupt):
            raise
        raise InputError(field, f"{reference} ({in_one_line(error)})", ALLOWED) from error
    if not hasattr(module, name):
        problem = f"no such name{did_you_mean(name, vars(module))}"
        raise InputError(field, f"{reference} ({problem})", f"a name in {place}")
    return Loaded(getattr(module, name), content)


@contextmanager
def quoting(part: Any, field: str) -> Iterator[None]:
    """Raise an `InputError` if a part of the user's own fails in the body; what built-in parts raise is left alone."""
    try:
        yield
    except EfhcError:
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        if is_built_in(part):
            raise
        raise failing(part, field, error) from error


def is_built_in(part: Any) -> bool:
    """Return whether a part comes with efhc."""
    return type(part).__module__.startswith("efhc.")


def failing(part: Any, field: str, error: BaseException) -> InputError:
    """Return the error that says in one line that a part of the user's own fails."""
    name = getattr(part, "__qualname__", type(part).__qualname__)
    return InputError(field, f"{name}, which fails: {in_one_line(error)}{_place(error)}", "code that runs")


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _place(error: BaseException) -> str:
    """Return ` (file.py:12)`, the last line of the user's own that led to an error; empty if there is none.

    What is not in a file, such as a cell of a notebook, has only a line.
    """
    own = [call for call in calls_outside(error) if not call.filename.startswith(_LIBRARIES)]
    if not own:
        return ""
    path = Path(own[-1].filename)
    return f" ({path.name}:{own[-1].lineno})" if path.is_file() else f" (line {own[-1].lineno})"


def in_one_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message; of pydantic, what it says of the first field."""
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False)[0]
        return f"{type(error).__name__}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}"
    first, *_ = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _imported(name: str) -> ModuleType:
    """Import a module, which may also be in the current folder, whatever Python was started with."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(Path.cwd()))


_contents: dict[str, InputContent] = {}
"""The content that each module of ours was made from, by the module's name."""


_executing = RLock()
"""Runs may load the same code at the same time, and code may load other code."""


def content_of(module: str) -> InputContent | None:
    """Return the content that a module was made from, or None if it was not loaded by a reference to its file."""
    return _contents.get(module)


class _FromContent(SourceLoader):
    """Loads a module from a file's content as it was read."""

    def __init__(self, content: InputContent) -> None:
        self._content = content

    def get_filename(self, fullname: str) -> str:
        return str(self._content.path)

    def get_data(self, path: str | bytes) -> bytes:
        return self._content.content


def _executed(content: InputContent) -> ModuleType:
    """Return the module of a file's content, which is executed once."""
    path = content.path
    name = f"efhc_your_own_{sha256(f'{path}:{content.sha256}'.encode())[:16]}_{path.stem}"
    with _executing:
        if name in _contents:
            return sys.modules[name]
        specification = importlib.util.spec_from_file_location(name, path, loader=_FromContent(content))
        if specification is None or specification.loader is None:
            raise ImportError("not a Python file")
        module = importlib.util.module_from_spec(specification)
        sys.modules[name] = module  # dataclasses and pickle look themselves up there
        _contents[name] = content
        try:
            specification.loader.exec_module(module)
        except BaseException:
            del sys.modules[name], _contents[name]
            raise
        return module
