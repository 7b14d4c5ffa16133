"""Python code that a config names, and the parts of an experiment that are made from it.

A reference is "package.module:name", or "file.py:name" with a path from the config's folder. Loading a file runs its
code. The code that runs is the content that was read, and hashed, once: a file that is edited later is another module,
and never mixed with the first.

A part is an object of the user's own class, or a function. It can be written to a config, and sent to another process,
if it can be named: by the reference it was made from, or by the file of its class if its state can be dumped.
"""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import importlib
import inspect
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from types import FunctionType, ModuleType
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationError, ValidationInfo
from pydantic.json_schema import SkipJsonSchema

from efhc.base.errors import EfhcError, InputError, Unusable, calls_outside, did_you_mean
from efhc.base.extras import extra_with, how_to_install
from efhc.base.inputs import CONFIG_FOLDER, InputContent, absolute, read_input, sha256
from efhc.base.policy import Policy, as_input_error, family_of, is_registered

ALLOWED = "package.module:name or file.py:name"

WHAT_TO_DO = (
    "put the class or function into a file, and name it file.py:Name; a class with parameters is a part of efhc "
    "(efhc.Strategy, ...) or a dataclass"
)


def absolute_reference(reference: str, folder: Path) -> str:
    """Return the reference with an absolute path. Raises `ValueError` if it is not a reference."""
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ValueError(ALLOWED)
    return f"{absolute(place, folder)}:{name}" if place.endswith(".py") else reference


def file_of(reference: str) -> Path | None:
    """Return the file of "file.py:name"; None for "package.module:name", and for a text that is no reference."""
    place, _, name = reference.rpartition(":")
    return Path(place) if place.endswith(".py") and name.isidentifier() else None


def _absolute(given: Any, info: ValidationInfo) -> Any:
    folder = (info.context or {}).get(CONFIG_FOLDER, Path())
    return absolute_reference(given, folder) if isinstance(given, str) else given


YourOwn = Annotated[str | SkipJsonSchema[Callable[..., Any]], AfterValidator(_absolute)]
"""Something callable: from Python as it is, from a config by its name."""


def imported(given: str | Callable[..., Any], field: str) -> Callable[..., Any]:
    """Return the callable that `given` names; a callable is returned as it is. Raises `InputError` for `field`."""
    if not isinstance(given, str):
        return given
    found, _ = load(given, field)
    if not callable(found):
        place = given.rpartition(":")[0]
        raise InputError(field, f"{given} (not callable)", f"something in {place} that can be called")
    result: Callable[..., Any] = found
    return result


def load(reference: str, field: str, content: InputContent | None = None) -> tuple[Any, InputContent | None]:
    """Run the code that `reference` names. Returns what has this name in it, and the content of its file.

    With `content`, that is the file's content, whatever the disk says. A module of a package is imported and has no
    content. Raises `InputError` for the given field.
    """
    place, _, name = reference.rpartition(":")
    try:
        if place.endswith(".py") and content is None:
            content = read_input(Path(place), field)
        module = _executed(content) if content is not None else _imported(place)
    except InputError as error:
        given = str(error.given).replace(place, reference, 1)
        raise InputError(field, given, error.allowed, error.problem) from None
    except BaseException as error:  # code that is not ours may raise anything, SystemExit too
        if isinstance(error, KeyboardInterrupt):
            raise
        advice = f"A reference is {ALLOWED}."
        if isinstance(error, ModuleNotFoundError) and (extra := extra_with(error.name or "")):
            advice = f"To have {error.name}, {how_to_install(extra)}."
        problem = f"{reference} cannot be loaded: {in_one_line(error)}. {advice}"
        raise InputError(field, f"{reference} ({in_one_line(error)})", ALLOWED, problem) from error
    if not hasattr(module, name):
        hint = did_you_mean(name, vars(module))
        raise InputError(field, f"{reference}, which does not exist{hint}", f"a name that {place} defines")
    return getattr(module, name), content


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
        name = getattr(part, "__qualname__", type(part).__qualname__)
        kind, colon, message = in_one_line(error).partition(":")
        whose = field if " " in field else name  # "strategy Mine" says whose it is; "partition.kind" does not
        problem = f"your {whose} raised {kind}{_place(error)}{colon}{message}"
        raise InputError(field, name, "code that runs", problem) from error


def is_built_in(part: Any) -> bool:
    """Return whether a part comes with efhc."""
    return type(part).__module__.startswith("efhc.")


_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _place(error: BaseException) -> str:
    """Return ` at file.py:12`, the last line of the user's own that led to an error; empty if there is none.

    What is not in a file, such as a cell of a notebook, has only a line.
    """
    own = [call for call in calls_outside(error) if not call.filename.startswith(_LIBRARIES)]
    if not own:
        return ""
    path = Path(own[-1].filename)
    return f" at {path.name}:{own[-1].lineno}" if path.is_file() else f" at line {own[-1].lineno}"


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


def _executed(content: InputContent) -> ModuleType:
    """Return the module of a file's content, which is executed once."""
    path = content.path
    name = f"efhc_your_own_{sha256(f'{path}:{content.sha256}'.encode())[:16]}_{path.stem}"
    with _executing:
        if name in _contents:
            return sys.modules[name]
        module = ModuleType(name)
        module.__file__ = str(path)
        sys.modules[name] = module  # dataclasses and pickle look themselves up there
        _contents[name] = content
        try:
            exec(compile(content.content, path, "exec", dont_inherit=True), vars(module))
        except BaseException:
            del sys.modules[name], _contents[name]
            raise
        return module


# Parts


@dataclasses.dataclass(frozen=True)
class Origin:
    """What makes a part again, also in a process where its file is not there."""

    reference: str
    parameters: Mapping[str, Any] | None
    """What the reference is called with. None if the part is what the reference names."""
    content: InputContent | None
    """The content of the reference's file that the part was made from; None for "package.module:Name"."""
    methods: tuple[str, ...] = ()
    """Of which the part has one."""
    state: Any = None
    """In place of the parameters, the state of a `Policy` of the class that the reference names: it is not validated
    again."""

    def make(self) -> Any:
        """Return the part, made again."""
        if self.parameters is not None:
            return make_part(self.reference, unpacked(self.parameters), self.methods, content=self.content)
        part, _ = load(self.reference, "kind", self.content)
        if self.state is not None:
            part = part.__new__(part)
            part.__setstate__(self.state)
        _remember(part, dataclasses.replace(self, parameters=self.state and _state(part), state=None))
        return part


_origins: dict[int, Origin] = {}
"""The origins of the objects that references have made, by the object's id."""
_kept_alive: list[Any] = []
"""Objects without weak references."""


def _remember(part: Any, origin: Origin) -> None:
    if id(part) not in _origins:
        try:
            weakref.finalize(part, _origins.pop, id(part), None)
        except TypeError:
            _kept_alive.append(part)
    _origins[id(part)] = origin


# From a reference


def make_part(
    reference: str,
    parameters: Mapping[str, Any],
    methods: tuple[str, ...],
    context: Any = None,
    content: InputContent | None = None,
) -> Any:
    """The part that `reference` and its parameters make; it has one of `methods`.

    A class is called with the parameters as keyword arguments; one that is a `Policy` checks them as built-in kinds
    do. A function returns the part, except where the part itself is a function: then the parameters are added to it.
    Anything else is the part as it is. Raises `Unusable`.
    """
    try:
        found, content = load(reference, "kind", content)
    except InputError as error:
        raise Unusable.of(error) from error
    is_class, is_schedule = isinstance(found, type), methods == ("__call__",)
    lacking, wanted = f"no method {' or '.join(methods)}", "a class that has one"
    if is_class and methods and not any(method in vars(base) for base in found.__mro__ for method in methods):
        raise Unusable("kind", f"{reference}, which has {lacking}", wanted)
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise Unusable("kind", f"{reference}, an abstract class", f"a class that defines {missing}")
    if is_class:
        part = _from_class(found, reference, parameters, context)
    elif has_any(found, methods) and not parameters:
        part = found
    elif callable(found) and is_schedule:
        part = functools.partial(found, **_fitting(found, reference, parameters, leading=1))
    elif callable(found):
        part = _called(found, reference, parameters)
    else:
        part = found
    if methods and not has_any(part, methods):
        raise Unusable("kind", f"{reference}, which returns a {type(part).__name__} with {lacking}", wanted)
    if parameters and part is found:
        name = next(iter(parameters))
        raise Unusable(name, f"a parameter of {reference}, which is an object", "no parameters")
    if is_class and isinstance(part, Policy):
        parameters = _state(part) or {}
    _remember(part, Origin(reference, None if part is found else dict(parameters), content, methods))
    return part


def has_any(part: Any, methods: tuple[str, ...]) -> bool:
    """Return whether a part has at least one of these methods."""
    return any(callable(getattr(part, method, None)) for method in methods)


def _from_class(found: type, reference: str, parameters: Mapping[str, Any], context: Any) -> Any:
    if issubclass(found, Policy):
        try:
            return found.model_validate(dict(parameters), context=context)
        except ValidationError as error:
            problem = as_input_error(error, found)
            raise Unusable.of(problem) from None
    return _called(found, reference, parameters)


def _called(found: Any, reference: str, parameters: Mapping[str, Any]) -> Any:
    fitting = _fitting(found, reference, parameters)
    try:
        return found(**fitting)
    except EfhcError:
        raise
    except Exception as error:
        raise Unusable("kind", f"{reference} ({in_one_line(error)})", "parameters that it takes") from error


def _fitting(found: Any, reference: str, parameters: Mapping[str, Any], leading: int = 0) -> dict[str, Any]:
    """The parameters, if the signature has them; `leading` positional arguments come from elsewhere."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # code that is not Python has none
        return dict(parameters)
    known = list(signature.parameters)[leading:]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    if not takes_any and (unknown := [name for name in parameters if name not in known]):
        allowed = ", ".join(known) or "no parameters"
        raise Unusable(unknown[0], f"an unknown parameter of {reference}{did_you_mean(unknown[0], known)}", allowed)
    try:
        signature.bind(*[None] * leading, **parameters)
    except TypeError as error:
        raise Unusable("kind", f"{reference} ({error})", f"its parameters: {', '.join(known) or 'none'}") from None
    return dict(parameters)


# To a reference


def origin_of(part: Any) -> Origin | None:
    """Return what makes this part again, or None if nothing in a file does."""
    if remembered := _origins.get(id(part)):
        return remembered
    if isinstance(part, type | FunctionType):
        return _named(part)
    origin, state = _named(type(part)), _state(part)
    return None if origin is None or state is None else dataclasses.replace(origin, parameters=state)


def _named(thing: type | FunctionType) -> Origin | None:
    """A class or function by its name in a file, or in a module of a package."""
    name, module = thing.__qualname__, sys.modules.get(thing.__module__)
    if module is None or getattr(module, name, None) is not thing:
        return None
    if content := _contents.get(module.__name__):
        return Origin(f"{content.path}:{name}", None, content)
    specification = getattr(module, "__spec__", None)
    if getattr(module, "__package__", None) and specification is not None:
        return Origin(f"{specification.name}:{name}", None, None)
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py"):
        return None
    try:
        content = read_input(absolute(file, Path()))
    except InputError:
        return None
    return Origin(f"{content.path}:{name}", None, content)


def _state(part: Any) -> dict[str, Any] | None:
    """Return the parameters that make an object again: the fields of a `Policy` or a dataclass, or none for an object
    without state. None if its state cannot be written as parameters.
    """
    if isinstance(part, Policy):
        return {name: value for name, value in _table(part).items() if name != "kind"}
    if dataclasses.is_dataclass(part):
        fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.init}
        others = set(getattr(part, "__dict__", fields)) - set(fields)
        return fields if not others and all(map(_is_plain, fields.values())) else None
    try:
        stateless = part.__reduce_ex__(2) == (copyreg.__newobj__, (type(part),), None, None, None)  # type: ignore[attr-defined]
    except Exception:  # an object that refuses to be copied has state
        return None
    return {} if stateless else None


def _table(policy: Policy) -> dict[str, Any]:
    """Return the fields of a policy. What is a table without kinds in a config, is a dict."""
    fields = type(policy).model_fields
    is_table = {name: isinstance(value, Policy) and family_of(fields[name]) is None for name, value in policy}
    return {name: _table(value) if is_table[name] else value for name, value in policy}


def _is_plain(value: Any) -> bool:
    """Whether TOML can hold the value; None is omitted."""
    if isinstance(value, list | tuple):
        return all(_is_plain(one) and one is not None for one in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    return value is None or type(value) in (str, int, float, bool)


# To another process


def packed(value: Any) -> Any:
    """Return the value of a field as it is pickled: parts from files become their `Origin`, also within dicts."""
    if isinstance(value, dict):
        return {name: packed(inner) for name, inner in value.items()}
    if isinstance(value, str | int | float | tuple | list | Path | None):
        return value
    if isinstance(value, Policy) and is_registered(value):
        return value
    origin = origin_of(value)
    if origin is None or origin.content is None or getattr(value, "__module__", None) == "__main__":
        return value
    if isinstance(value, Policy) and origin.reference.endswith(f":{type(value).__qualname__}"):
        return dataclasses.replace(origin, parameters=None, state=value.__getstate__())
    return dataclasses.replace(origin, parameters=packed(origin.parameters))


def unpacked(value: Any) -> Any:
    """Return what `packed` was given."""
    if isinstance(value, dict):
        return {name: unpacked(inner) for name, inner in value.items()}
    return value.make() if isinstance(value, Origin) else value
